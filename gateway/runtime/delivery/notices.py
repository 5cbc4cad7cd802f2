"""Writes notices about held calls: what a destination is told about the current state of a question.

The question and a destination share one outbound row. It is due again when the state of the question changes, so a row
that is sent late tells the last state only, and one that was changed while it was sent is sent again.
"""

from typing import Any

from gateway.clock import Clock
from gateway.core.holding import notice_target
from gateway.errors import Stale
from gateway.events import ApprovalAsked, Envelope, InteractionId, interaction_id
from gateway.events.envelope import dump_event
from gateway.events.frozen import frozen
from gateway.runtime.delivery.links import LIFETIME, ApprovalLink, Links
from gateway.settings.model import Settings
from gateway.store.port import Engine
from gateway.store.rows import InteractionRow, Send, SessionRow
from gateway.store.step import InteractionState, SendChange, Step
from gateway.visible import LONGEST_DECISION, length_of

ASKED, REMINDED, CLOSED = "interaction.asked", "interaction.reminded", "interaction.closed"
_TRIES = 20
"""Tries to mark a row of a session that changes meanwhile; then it is sent again."""


@frozen
class Notice:
    """A notice as it is sent."""

    key: str
    kind: str
    data: dict[str, Any]


@frozen
class KnownQuestion:
    """A question as the store has it."""

    row: InteractionRow
    session: SessionRow
    epoch: str
    """The epoch of links."""

    @property
    def state(self) -> InteractionState:
        """The state of the question."""
        return self.row.state


class Notices:
    """Looks up what a notice is about, writes it, and marks the row of a question whose state is still the same."""

    def __init__(self, engine: Engine, clock: Clock, links: Links, *, local_url: str | None) -> None:
        """Prepare; without a `public_url`, addresses begin with `local_url`."""
        self._engine = engine
        self._clock = clock
        self._links = links
        self._local_url = local_url
        self._settings = Settings()

    def use(self, settings: Settings) -> None:
        """Apply the settings."""
        self._settings = settings

    async def due(self, name: str, limit: int) -> list[Send]:
        """Return rows of a destination that are due."""
        now = self._clock.now()
        return [*await self._engine.pending_sends(target=notice_target(name), due_before=now, limit=limit)]

    async def look(self, row: Send) -> KnownQuestion | None:
        """Look up the question of a row; None if it was removed."""
        asked = row.envelope.event
        # The session first: a state that is read later cannot be older than its events.
        session = await self._engine.session(row.session_id)
        if session is None or not isinstance(asked, ApprovalAsked):
            return None
        found = await self._engine.interaction(_question(row.envelope, asked))
        return None if found is None else KnownQuestion(found, session, await self._links.epoch())

    def write(self, name: str, sent: Send, known: KnownQuestion) -> Notice:
        """Write the notice to a destination."""
        asked, event = sent.envelope, sent.envelope.event
        assert isinstance(event, ApprovalAsked)
        question = known.row
        data = {
            "interaction_id": question.interaction_id,
            "call_id": event.call_id,
            "session_id": question.session_id,
            "runtime": known.session.runtime,
            "tool": event.tool,
            "rule": event.rule,
            "state": question.state,
            "expires_at": question.expires_at,
            "asked_before": question.asked_before,
            "age": int((self._clock.now() - asked.recorded_at).total_seconds()),
            "open": self._address(name, event, known),
        }
        if any(notified.to == name and notified.arguments for notified in self._settings.approvals.notify):
            data |= {"arguments": event.arguments, "labels": dict(known.session.labels)}
        if question.state == "waiting":
            # By the time at which it became due: another instance has set it, whose clock may differ.
            latest = sent.due_at or asked.recorded_at
            number = sum(asked.recorded_at + span <= latest for span in self._settings.approvals.remind)
            if number:
                return Notice(f"{asked.event_id}.reminder-{number}", REMINDED, data)
            return Notice(asked.event_id, ASKED, data)
        return Notice(f"{asked.event_id}.closed", CLOSED, {**data, "answered_by": question.answered_by})

    async def mark(self, change: SendChange, row: Send, known: KnownQuestion | None) -> bool:
        """Mark a row, unless the state of its question has changed meanwhile; return whether it was marked."""
        said = None if known is None else known.state
        for _ in range(_TRIES):
            last = None if known is None else known.session.last_sequence
            try:
                # Every change of the state is committed with an event.
                await self._engine.commit(Step(row.session_id, send_changes=(change,), last_sequence=last))
            except Stale:
                known = await self.look(row)
                if known is None or known.state != said:
                    return False
            else:
                return True
        return False

    def _address(self, name: str, asked: ApprovalAsked, known: KnownQuestion) -> str | None:
        """Return the address of a link, or of the inbox."""
        settings, question = self._settings, known.row
        base = self._local_url if settings.public_url is None else str(settings.public_url)
        if base is None:
            return None
        if settings.approvals.links and question.state == "waiting":
            latest = self._clock.now() + LIFETIME
            ends = latest if question.expires_at is None else min(latest, question.expires_at)
            may_allow = length_of(dump_event(asked)) <= LONGEST_DECISION
            token = self._links.token(ApprovalLink(question.interaction_id, name, may_allow, ends), known.epoch)
            return f"{base.rstrip('/')}/a/{token}"
        return f"{base.rstrip('/')}/ui/inbox#{question.interaction_id}" if settings.ui.enabled else None


def _question(asked: Envelope, event: ApprovalAsked) -> InteractionId:
    return interaction_id(session=asked.session_id, native_id=event.id, n=asked.sequence)
