"""Lists, follows and answers interactions for clients."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from gateway.errors import Conflict, NotFound
from gateway.events import Envelope, InteractionId, Loss, SessionId
from gateway.runtime.feeds.interactions import InteractionFeed, follow_interactions, show
from gateway.runtime.feeds.wakeup import Ending
from gateway.runtime.session.registry import Sessions, reply_slot
from gateway.runtime.session.signals import AnswerGiven
from gateway.runtime.views import InteractionItem, InteractionShown
from gateway.store.port import Engine
from gateway.store.rows import InteractionRow, Page
from gateway.store.step import InteractionState


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
        """Answer an interaction with `{"decision", "scope"}`, `{"answer"}` or `{"value"}`; `by` names the API key.

        Returns the interaction and the losses of the answer's translation.

        Raises:
            NotFound: there is no such interaction.
            Conflict: it no longer waits for an answer.
        """
        row = await self._engine.interaction(interaction_id)
        if row is None:
            raise _not_found(interaction_id)
        if row.state != "waiting":
            raise Conflict(f"this question is already {row.state}")
        actor = await self._sessions.actor(row.session_id)
        given: Envelope = await self._sessions.ask(actor, AnswerGiven(interaction_id, body, by, reply_slot()))
        answered = await self._engine.interaction(interaction_id)
        assert answered is not None
        return answered, given.losses


def _not_found(interaction_id: InteractionId) -> NotFound:
    return NotFound(f"no interaction {interaction_id!r}")
