"""The gateway as one object: what the HTTP face and the command line may ask of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from gateway.envelope import CallId, Envelope, Event, InteractionId, Live, SessionId
from gateway.ports.adapter import Capabilities
from gateway.ports.engine import (
    CallFilter,
    CallRow,
    InteractionRow,
    InteractionState,
    Page,
    SendRow,
    SessionRow,
    StoredAnswer,
)
from gateway.ports.executor import Answered
from gateway.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Gap:
    """History between the reader's place and `first_sequence` is gone."""

    first_sequence: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while; the stream lives."""


StreamItem = Envelope | Live | Gap | Heartbeat


@dataclass(frozen=True, slots=True)
class CallStory:
    """Everything on record about one call, oldest first."""

    row: CallRow
    envelopes: tuple[Envelope, ...]
    """Its request, updates, progress, cancel, outcome, ignored outcomes."""
    sends: tuple[SendRow, ...]
    """How its outcome fared on the way out."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One session's connection."""

    session_id: SessionId
    native_id: str
    state: Literal["connecting", "up", "down", "refused"]
    since: datetime
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """One runtime of the YAML and its links."""

    name: str
    adapter: str
    protocol: str
    capabilities: Capabilities
    links: tuple[LinkStatus, ...]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process should get traffic; links are a detail and never make it unready."""

    ready: bool
    checks: Mapping[str, str]
    """Name of the check to `ok` or what is wrong."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload changed, by YAML path."""

    changed: tuple[str, ...]


class Gateway:
    """Drives every session; entered once, before the HTTP face takes requests.

    Errors are those of `gateway.errors`: NotFound, Conflict, Gone, Inexpressible, InvalidRequest,
    Overloaded, EngineUnavailable, InvalidConfiguration.
    """

    version: str
    settings: Settings

    async def open_session(
        self, runtime: str, *, native_id: str | None, labels: Mapping[str, str]
    ) -> tuple[SessionRow, bool]:
        """Attach to a native session, or create one where no id is given; says whether it is new."""
        raise NotImplementedError

    async def session(self, session_id: SessionId) -> SessionRow:
        raise NotImplementedError

    async def sessions(self, page: Page, *, runtime: str | None = None) -> tuple[Sequence[SessionRow], str | None]:
        raise NotImplementedError

    async def close_session(self, session_id: SessionId, *, erase: bool) -> None:
        raise NotImplementedError

    async def post(self, session_id: SessionId, events: Sequence[Event]) -> Sequence[Envelope]:
        """Record client events and send them on; nothing is recorded where one cannot be expressed."""
        raise NotImplementedError

    async def read(self, session_id: SessionId, *, after: int, limit: int) -> Sequence[Envelope]:
        raise NotImplementedError

    def follow(self, session_id: SessionId, *, after: int | None) -> AsyncIterator[StreamItem]:
        """Yield history behind `after`, then what happens; None begins with what happens next.

        Ends when the session is closed, the gateway stops, or the reader is too slow.
        """
        raise NotImplementedError

    async def calls(self, which: CallFilter, page: Page) -> tuple[Sequence[CallRow], str | None]:
        raise NotImplementedError

    async def call_story(self, call_id: CallId) -> CallStory:
        raise NotImplementedError

    def callback_allowed(self, call_id: CallId, token: str) -> bool:
        """Whether a callback token belongs to a call, in constant time."""
        raise NotImplementedError

    async def settle(self, call_id: CallId, answer: Answered) -> CallRow:
        """Record an outcome that came by callback or API; the same one again is fine.

        Raises:
            Conflict: the call has already ended otherwise; this outcome is recorded as ignored.
        """
        raise NotImplementedError

    async def progress(self, call_id: CallId, data: dict[str, Any]) -> None:
        raise NotImplementedError

    async def cancel(self, call_id: CallId, *, reason: str | None) -> CallRow:
        raise NotImplementedError

    async def redrive(self, call_id: CallId, *, new_key: bool, deliver: bool) -> CallRow:
        raise NotImplementedError

    async def dead_letters(self, page: Page) -> tuple[Sequence[CallRow | SendRow], str | None]:
        """List calls whose outcome is unknown or undeliverable, and sends that will not be tried again."""
        raise NotImplementedError

    async def redeliver(self, session_id: SessionId, sequence: int, target: str) -> None:
        """Send one dead event copy or outbound event again."""
        raise NotImplementedError

    async def interactions(
        self, page: Page, *, session_id: SessionId | None, state: InteractionState | None
    ) -> tuple[Sequence[tuple[InteractionRow, Envelope]], str | None]:
        raise NotImplementedError

    async def answer(self, interaction_id: InteractionId, body: Mapping[str, Any]) -> InteractionRow:
        """Answer a question to a person: `{"decision", "scope"}`, `{"answer"}` or `{"value"}`."""
        raise NotImplementedError

    async def enable_destination(self, name: str) -> None:
        """Switch a destination on again that had answered 410."""
        raise NotImplementedError

    def runtimes(self) -> Sequence[RuntimeStatus]:
        raise NotImplementedError

    async def ready(self) -> Readiness:
        raise NotImplementedError

    async def reload(self) -> Reloaded:
        """Read the configuration file again; a bad one changes nothing and raises InvalidConfiguration."""
        raise NotImplementedError

    async def recall(self, *, key: str, scope: str) -> StoredAnswer | None:
        raise NotImplementedError

    async def remember(self, *, key: str, scope: str, request_sha: str, response: bytes, keep: timedelta) -> bool:
        raise NotImplementedError

    def render_metrics(self) -> bytes:
        """Write all metrics in the Prometheus text format."""
        raise NotImplementedError
