"""The values that the gateway returns to the API: stream items, call histories, states of links, readiness."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from gateway.adapter.port import Capabilities
from gateway.events import Envelope, Gap, InteractionId, Live, Missed, SessionId
from gateway.events.frozen import replace
from gateway.events.weight import weight
from gateway.runtime.counters import Minute
from gateway.store.call import Call
from gateway.store.rows import InteractionRow, Position, Send, SessionName

NEWS_BYTES = 80 * 1024
"""The largest weight of one batch of news; encoded, it has about two thirds of that."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """No event occurred for a while, and the stream is alive."""

    note: str = ""
    """Why recorded events are not shown yet."""


class Batch(Protocol):
    """A batch of consecutive items, as a log of news keeps it."""

    weight: int

    @property
    def items(self) -> Sequence[Any]: ...
    def takes(self, size: int) -> bool:
        """Return whether an item of this weight fits into the batch."""
        ...

    def add(self, item: Any, size: int) -> None:
        """Append an item."""
        ...


class News:
    """A batch of consecutive events; all followers of a feed share the object."""

    __slots__ = ("encoded", "first", "items", "last", "weight")

    def __init__(self, items: Iterable[Envelope | Live] = ()) -> None:
        self.items: list[Envelope | Live] = []
        self.encoded: bytes | None = None
        """The encoded batch, stored by the first follower for all others."""
        self.weight = 0
        self.first: int | None = None
        """The sequence of the first recorded event."""
        self.last: int | None = None
        """The sequence of the last recorded event."""
        for item in items:
            self.add(item, weight(item.event))

    @property
    def place(self) -> int:
        """The sequence of the last recorded event at the time of the last item."""
        last = self.items[-1]
        return last.sequence if isinstance(last, Envelope) else last.after_sequence

    def takes(self, size: int) -> bool:
        """Return whether an item of this weight fits into the batch."""
        return not self.items or self.weight + size <= NEWS_BYTES

    def add(self, item: Envelope | Live, size: int) -> None:
        """Append the next event; its native frame is left out, because no follower gets it and `size` omits it."""
        if isinstance(item, Envelope) and item.native is not None:
            item = replace(item, native=None)
        self.items.append(item)
        self.weight += size
        if isinstance(item, Envelope):
            self.first = self.first or item.sequence
            self.last = item.sequence


StreamItem = News | Gap | Heartbeat


@dataclass(slots=True)
class SessionEvent:
    """An event of any session; all followers share the object."""

    item: Envelope | Live
    session: SessionName
    position: Position | None = None
    """The place of a recorded event in the order of the store."""
    encoded: bytes | None = None
    """The encoded event, stored by the first follower for all others."""


class SessionNews:
    """A batch of events of all sessions, in order."""

    def __init__(self) -> None:
        self.items: list[SessionEvent] = []
        self.weight = 0
        self.last: Position | None = None
        """The position of the last recorded event."""

    def takes(self, size: int) -> bool:
        """Return whether an item of this weight fits into the batch."""
        return not self.items or self.weight + size <= NEWS_BYTES

    def add(self, item: SessionEvent, size: int) -> None:
        """Append the next event."""
        self.items.append(item)
        self.weight += size
        self.last = item.position or self.last


@dataclass(frozen=True, slots=True)
class Selected:
    """The events of a batch that match a filter."""

    items: Sequence[SessionEvent]


@dataclass(frozen=True, slots=True)
class Passed:
    """All matching events up to a position were sent."""

    position: Position


SessionItem = Selected | Passed | Missed | Heartbeat


@dataclass(frozen=True, slots=True)
class CalledSession:
    """The session whose tools a client lists or calls."""

    session_id: SessionId
    runtime: str
    native_id: str
    labels: Mapping[str, str]
    on_record: bool = True
    """False while it is being created, when its tools can be listed already."""


@dataclass(frozen=True, slots=True)
class ApprovalShown:
    """A question about a held call, with its answer."""

    row: InteractionRow
    asked: Envelope
    given: Envelope | None


@dataclass(frozen=True, slots=True)
class InteractionShown:
    """An interaction and the event that requested it."""

    row: InteractionRow
    asked: Envelope


ConditionKind = Literal["part", "runtime", "autostart", "link", "session", "executor"]
"""A part of the process that keeps failing after restarts, a runtime that is not connected, an autostart that fails, a
link that is down or refused, an executor that does not respond or refuses requests."""
InteractionItem = InteractionShown | Missed | Heartbeat


@dataclass(frozen=True, slots=True)
class CallHistory:
    """All records of one call, oldest first."""

    row: Call
    envelopes: tuple[Envelope, ...]
    """Its request, updates, progress, cancel, outcome and ignored outcomes."""
    sends: tuple[Send, ...]
    """The deliveries of its outcome."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One session's connection."""

    session_id: SessionId
    native_id: str
    state: Literal["connecting", "up", "down", "refused", "asleep"]
    since: datetime
    reason: str | None = None
    is_unstarted: bool = False
    """Whether its agent gets tools and has not started."""
    waits_for: tuple[InteractionId, ...] = ()
    """The approvals before whose end no message is sent to the agent."""


@dataclass(frozen=True, slots=True)
class FailingAutostart:
    """An autostart whose last attempt failed."""

    reason: str
    since: datetime
    """The time of the first consecutive failure."""
    attempts: int
    next_at: datetime
    """The time of the next attempt."""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """A connected runtime and its links."""

    name: str
    adapter: str
    protocol: str
    capabilities: Capabilities
    links: tuple[LinkStatus, ...]
    autostart: FailingAutostart | None = None
    """The last failure to create its own session, if it is not created yet."""


@dataclass(frozen=True, slots=True)
class UnconnectedRuntime:
    """A configured runtime that is not connected yet; its adapter is not queried for capabilities."""

    name: str
    adapter: str
    protocol: str
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """An executor as one instance sees it."""

    name: str
    breaker: Literal["closed", "half_open", "open"]
    since: datetime | None
    """When the failures began that opened the breaker."""
    refuses: bool
    failed_at: datetime | None
    reason: str | None
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Condition:
    """Something of this instance that needs an operator."""

    kind: ConditionKind
    name: str
    """The part, runtime or executor; `RUNTIME/NATIVE_ID` of a link or session."""
    reason: str | None
    since: datetime | None = None
    session_id: SessionId | None = None
    """The session, also of a link."""

    def __str__(self) -> str:
        """Name it without its reason, which may contain addresses."""
        if self.kind == "part":
            return self.name
        return f"session {self.name}" if self.kind == "session" else f"{self.kind} of {self.name}"


@dataclass(frozen=True, slots=True)
class ActivityStatus:
    """The calls per minute of one instance, oldest first, its executors, and the conditions that need an operator."""

    instance_since: datetime
    minutes: Sequence[Minute]
    p50: float | None
    p95: float | None
    """The seconds that half, and 95 % of the calls took at most."""
    executors: Sequence[ExecutorStatus]
    conditions: Sequence[Condition]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the process can serve traffic; links that are down never make it unready."""

    ready: bool
    checks: Mapping[str, str]
    """`ok` or an error, by name of the check."""
    sessions: int
    """The number of sessions that this process owns."""
    instance_id: str | None = None
    """The instance that owns them; None without a lease, or if none is needed."""
    failing: tuple[str, ...] = ()
    """The names of all conditions that need an operator; everything else works."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload, or of its dry run."""

    changed: tuple[str, ...]
    """The YAML paths that differ."""
    restarted: tuple[str, ...] = ()
    """Runtimes that reconnect because their settings changed."""
