"""What the gateway shows of itself: histories of calls, states of links, readiness."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.adapter.port import Capabilities
from gateway.events import Envelope, Gap, Live, Missed, SessionId
from gateway.events.weight import weight
from gateway.store.call import Call
from gateway.store.rows import InteractionRow, Send

NEWS_BYTES = 80 * 1024
"""Weight from which on what happens leaves in pieces; encoded, it is some two thirds of that."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing happened for a while; the stream lives."""


class News:
    """What happened, in a row, as far as it leaves together; all who follow a feed get the same object."""

    __slots__ = ("encoded", "first", "items", "last", "weight")

    def __init__(self, items: Iterable[Envelope | Live] = ()) -> None:
        self.items: list[Envelope | Live] = []
        self.encoded: bytes | None = None
        """The news as the first follower encoded them, for all others."""
        self.weight = 0
        self.first: int | None = None
        """Sequence of the first of them that is recorded."""
        self.last: int | None = None
        """Sequence of the last of them that is recorded."""
        for item in items:
            self.add(item, weight(item.event))

    @property
    def place(self) -> int:
        """Sequence of the last event on record when the last of them came."""
        last = self.items[-1]
        return last.sequence if isinstance(last, Envelope) else last.after_sequence

    def takes(self, size: int) -> bool:
        """Whether something of a weight still leaves with the rest."""
        return not self.items or self.weight + size <= NEWS_BYTES

    def add(self, item: Envelope | Live, size: int) -> None:
        """Add what happened next."""
        self.items.append(item)
        self.weight += size
        if isinstance(item, Envelope):
            self.first = self.first or item.sequence
            self.last = item.sequence


StreamItem = News | Gap | Heartbeat


@dataclass(frozen=True, slots=True)
class CalledSession:
    """The session whose tools a caller asks for."""

    session_id: SessionId
    runtime: str
    native_id: str
    labels: Mapping[str, str]
    on_record: bool = True
    """False while it is being created: its tools may be listed already."""


@dataclass(frozen=True, slots=True)
class InteractionShown:
    """A question to a person as it stands, and the event that asked."""

    row: InteractionRow
    asked: Envelope


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
class FailingAutostart:
    """An autostart whose last attempt has failed."""

    reason: str
    since: datetime
    """When its first attempt in a row failed."""
    attempts: int
    next_at: datetime
    """When the next attempt begins."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """One runtime that is connected, and its links."""

    name: str
    adapter: str
    protocol: str
    capabilities: Capabilities
    links: tuple[LinkStatus, ...]
    autostart: FailingAutostart | None = None
    """Why its own session is not created yet; None unless an attempt has failed."""


@dataclass(frozen=True, slots=True)
class UnconnectedRuntime:
    """One runtime of the YAML that is not connected so far; of what it can do, its adapter is not asked again."""

    name: str
    adapter: str
    protocol: str
    reason: str


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
    """The result of a reload, or of its dry run."""

    changed: tuple[str, ...]
    """YAML paths that differ."""
    restarted: tuple[str, ...] = ()
    """Runtimes that connect again because their block changed."""
