"""What the gateway shows of itself: histories of calls, states of links, readiness."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.adapter.port import Capabilities
from gateway.events import Envelope, Live, SessionId
from gateway.store.call import Call
from gateway.store.rows import InteractionRow, Send


@dataclass(frozen=True, slots=True)
class Gap:
    """History between the reader's place and `first_sequence` is gone."""

    first_sequence: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while; the stream lives."""


StreamItem = Envelope | Live | Gap | Heartbeat


@dataclass(frozen=True, slots=True)
class InteractionShown:
    """A question to a person as it stands, and the event that asked."""

    row: InteractionRow
    asked: Envelope


@dataclass(frozen=True, slots=True)
class Missed:
    """The reader was too slow to be told of every change; what follows begins with all that wait."""


InteractionItem = InteractionShown | Missed | Heartbeat


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Everything on record about one call, oldest first."""

    row: Call
    envelopes: tuple[Envelope, ...]
    """Its request, updates, progress, cancel, outcome, ignored outcomes."""
    sends: tuple[Send, ...]
    """How its outcome fared on the way out."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One session's connection."""

    session_id: SessionId
    native_id: str
    state: Literal["connecting", "up", "down", "refused", "asleep"]
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
    sessions: int
    """How many sessions this process carries."""
    instance_id: str | None = None
    """Under which name it carries them; None where no lease runs, or none is needed."""
    failing: tuple[str, ...] = ()
    """The parts of the process that fail on although they are begun again; the rest of it works."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload changed, by YAML path."""

    changed: tuple[str, ...]
