"""Reads the stored events of a conversation page by page (OV21)."""

from collections.abc import AsyncGenerator
from typing import Any

from adapters.openhands.v1 import wire
from adapters.openhands.v1.server import Conversation
from gateway.errors import LinkLost, LinkRefused
from gateway.links.rest import RestAnswer, refusal
from gateway.strict_json import Malformed

_NOT_FOUND = 404


class CursorLost(Exception):
    """The server does not know the id after which a listing was to continue."""


class StoredEvents:
    """The stored events of one conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._rest = conversation.rest
        self._native_id = conversation.native_id
        self._within = conversation.within
        self._tuning = conversation.tuning

    async def check(self, event_id: str | None) -> bool:
        """Return whether the store has this event; without an id, whether the conversation exists.

        Raises:
            LinkLost, LinkRefused: the conversation cannot be read.
        """
        page = await self._page(event_id, 1)
        return event_id is None or (bool(page.events) and wire.event_id_of(page.events[0]) == event_id)

    async def exists(self) -> None:
        """Query the number of events, which waits for no tool (OV24).

        Raises:
            LinkLost, LinkRefused: the conversation is gone or cannot be read.
        """
        answer = await self._rest.get(wire.count_path(self._native_id), {}, within=self._within)
        if answer.status != 200:
            raise self.refusal(answer)

    async def after(self, event_id: str | None) -> AsyncGenerator[Any]:
        """List the stored events after one event, or all; an unreadable one is `Malformed`.

        Raises:
            CursorLost: the store does not have the event; nothing was listed.
            LinkLost: a page failed, or pages do not follow each other.
            LinkRefused: the server refused.
        """
        start, first_ids = event_id, set[str]()
        for number in range(self._tuning.pages):
            page = await self._page(start, self._tuning.page)
            first = wire.event_id_of(page.events[0]) if page.events else None
            if start is not None and first != start:
                # An unknown id gives the first page, without an error.
                if number == 0:
                    raise CursorLost
                raise LinkLost("the server's pages do not follow each other: a page does not begin with its own id")
            for event in page.events[1 if number == 0 and event_id is not None else 0 :]:
                yield event
            if page.next_page_id is None:
                return
            if page.next_page_id in first_ids or page.next_page_id == start or not page.events:
                raise LinkLost("the server's pages repeat: a page names an earlier one as the next")
            first_ids.add(start := page.next_page_id)
        raise LinkLost(f"the history is longer than {self._tuning.pages} pages of {self._tuning.page} events")

    async def newest_first(self, *, pages: int) -> AsyncGenerator[Any]:
        """List the newest events, at most `pages` pages.

        Raises:
            LinkLost, LinkRefused: a page failed.
        """
        start: str | None = None
        for _ in range(pages):
            page = await self._page(start, self._tuning.page, order="TIMESTAMP_DESC")
            for event in page.events:
                yield event
            start = page.next_page_id
            if start is None:
                return

    async def _page(self, start: str | None, limit: int, *, order: str | None = None) -> wire.Page:
        query = {"limit": str(limit)}
        if start is not None:
            query["page_id"] = start
        if order is not None:
            query["sort_order"] = order
        answer = await self._rest.get(wire.search_path(self._native_id), query, within=self._within)
        if answer.status != 200:
            raise self.refusal(answer)
        page = wire.read_page(answer.body)
        if page is not None:
            return page
        if isinstance(answer.body, Malformed) and limit > 1 and order is None:
            # Large events may exceed the size of one response together.
            return await self._page(start, 1)
        reason = f": {answer.body.reason}" if isinstance(answer.body, Malformed) else ""
        raise LinkLost(self._rest.mask(f"{answer.where}, but the response is not a page of events{reason}"))

    def refusal(self, answer: RestAnswer) -> LinkLost | LinkRefused:
        """Convert an error response to a link error."""
        if answer.status == _NOT_FOUND:
            return LinkRefused(
                "NO_CONVERSATION", f"the server has no conversation {self._native_id}; it may be deleted", terminal=True
            )
        return refusal(answer, self._rest.mask)
