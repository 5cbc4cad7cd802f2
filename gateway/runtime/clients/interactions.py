"""Lists, follows and answers interactions for clients."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.errors import ApprovalStale, Conflict, NotFound, Truncated
from gateway.events import ApprovalAsked, Envelope, InteractionId, Loss, SessionId, ToolFinished
from gateway.runtime.feeds.interactions import InteractionFeed, follow_interactions, show
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.signals import AnswerGiven
from gateway.runtime.views import ApprovalShown, InteractionItem, InteractionShown
from gateway.runtime.wakeup import Ending
from gateway.store.port import Engine
from gateway.store.rows import InteractionRow, Page
from gateway.store.step import InteractionState

_GIVEN = frozenset({"approval.given", "question.answered", "secret.supplied"})
_SEARCHED = 10_000
"""The number of events after the last request that are searched for answers."""


class Interactions:
    """Lists the interactions of all sessions and delivers answers to their sessions."""

    def __init__(
        self,
        engine: Engine,
        sessions: Sessions,
        feed: InteractionFeed,
        *,
        heartbeat: Callable[[], float],
        ended: Ending,
    ) -> None:
        """Followers get a heartbeat after `heartbeat` seconds without events; their streams end with `ended`."""
        self._engine = engine
        self._sessions = sessions
        self._feed = feed
        self._heartbeat = heartbeat
        self._ended = ended

    async def page(
        self, page: Page, *, session_id: SessionId | None, state: InteractionState | None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        """Return a page of interactions with their request events, and the start of the next page."""
        rows, following = await self._engine.interactions_with_events(page, session_id=session_id, state=state)
        return [(row, asked) for row, asked in rows if asked is not None], following

    async def approvals(
        self, page: Page, *, session_id: SessionId | None, since: datetime | None
    ) -> tuple[Sequence[ApprovalShown], str | None]:
        """Return a page of the questions about held calls with their answers, and the start of the next page."""
        rows, following = await self._engine.approvals(page, session_id=session_id, since=since)
        waiting: dict[SessionId, dict[int, Envelope | None]] = {}
        for row, _ in rows:
            if row.state == "answered":
                waiting.setdefault(row.session_id, {})[row.request_sequence] = None
        for session, given in waiting.items():
            await self._find_answers(session, given)
        found = [
            ApprovalShown(row, asked, waiting.get(row.session_id, {}).get(row.request_sequence)) for row, asked in rows
        ]
        return found, following

    async def _find_answers(self, session_id: SessionId, given: dict[int, Envelope | None]) -> None:
        """Fill in the answers to the requests with these sequences."""
        after: int | None = min(given)
        last = max(given) + _SEARCHED
        while after is not None and after < last and None in given.values():
            try:
                page, after = await self._engine.read_kinds(session_id, _GIVEN, after=after)
            except Truncated as exc:
                after = exc.first_sequence - 1
                continue
            given.update({one.caused_by: one for one in page if one.caused_by is not None and one.caused_by in given})

    async def describe_end(self, row: InteractionRow) -> str:
        """Describe how a question has ended: for an answer, by whom and when."""
        text = f"this question is already {row.state}"
        if row.answered_by is None:
            return text
        given: dict[int, Envelope | None] = {row.request_sequence: None}
        await self._find_answers(row.session_id, given)
        answer = given[row.request_sequence]
        when = "" if answer is None else f" at {answer.recorded_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{text}: by {row.answered_by!r}{when}"

    async def find(self, interaction_id: InteractionId) -> InteractionShown:
        """Return an interaction with its request event.

        Raises:
            NotFound: there is no such interaction, or retention removed it.
        """
        row = await self._engine.interaction(interaction_id)
        shown = None if row is None else await show(self._engine, row)
        if shown is None:
            raise _not_found(interaction_id)
        return shown

    def follow(self) -> AsyncGenerator[InteractionItem]:
        """Yield all waiting interactions, then each change; ends when the gateway stops."""
        return follow_interactions(self._engine, self._feed, heartbeat=self._heartbeat(), ended=self._ended)

    async def answer(
        self, interaction_id: InteractionId, body: Mapping[str, Any], *, by: str
    ) -> tuple[InteractionRow, Sequence[Loss]]:
        """Answer an interaction with `{"decision", "scope", "binding", …}`, `{"answer"}` or `{"value"}`.

        `by` names the API key.

        Returns the interaction and the losses of the answer's translation.

        Raises:
            NotFound: there is no such interaction.
            Conflict: it no longer waits for an answer.
        """
        row = await self._engine.interaction(interaction_id)
        if row is None:
            raise _not_found(interaction_id)
        if row.state != "waiting":
            raise Conflict(await self.describe_end(row))
        actor = await self._sessions.actor(row.session_id)
        try:
            given: Envelope = await self._sessions.ask(actor, AnswerGiven(interaction_id, body, by, reply_slot()))
        except Conflict as exc:
            ended = await self._engine.interaction(interaction_id)
            if type(exc) is not Conflict or ended is None or ended.state == "waiting":
                raise
            raise Conflict(await self.describe_end(ended)) from exc
        match given.event:
            case ApprovalAsked():
                raise ApprovalStale("the routes have changed: another interaction asks about the call again")
            case ToolFinished(error=error):
                raise Conflict(f"the routes have changed, so the call has ended: {error}")
            case _:
                pass
        answered = await self._engine.interaction(interaction_id)
        assert answered is not None
        return answered, given.losses


def _not_found(interaction_id: InteractionId) -> NotFound:
    return NotFound(f"no interaction {interaction_id!r}")
