"""The builder of a decision: its inputs, and the step and effects that it collects. Pure.

The builder's memory already contains the events of this step, so one step can hold several decisions.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from gateway.adapter.port import Capabilities, Codec, Frame, RuntimeOptions
from gateway.core.adapt import adapt, carries_state, needs_attempt
from gateway.core.effects import Effect, Place, Transmit, answered_by
from gateway.core.fold import fold
from gateway.core.nulls import Fitted
from gateway.core.routing import Routes
from gateway.core.state import SessionView
from gateway.core.trace_context import TraceContext, key_context, turn_context
from gateway.events import (
    CallId,
    ContextUpdated,
    Direction,
    Draft,
    Envelope,
    Event,
    EventId,
    Loss,
    MessagePosted,
    Origin,
    SessionMoved,
    ToolRequested,
)
from gateway.events.envelope import is_own
from gateway.events.frozen import frozen, replace
from gateway.store.call import OPEN_STATES, Call, CallChange, Open, Settle, changed, state_after
from gateway.store.step import (
    RUNTIME,
    Enqueue,
    InteractionChange,
    Keep,
    Lane,
    SendChange,
    Step,
)


@frozen
class RetryPolicy:
    """The retries of an executor, and the deadline of a call over all attempts."""

    attempts: int = 3
    idempotent: bool = False
    timeout: timedelta = timedelta(seconds=20)
    deadline: timedelta = timedelta(seconds=120)
    accepted_deadline: timedelta = timedelta(seconds=600)
    accepted_silence: timedelta = timedelta(seconds=120)
    initial: timedelta = timedelta(milliseconds=500)
    maximum: timedelta = timedelta(seconds=10)

    def delay(self, attempt: int, jitter: float) -> timedelta:
        """Return the wait before the next attempt: exponential with full jitter; `jitter` is uniform in [0, 1)."""
        ceiling = min(self.maximum, self.initial * 2 ** min(attempt - 1, 20))
        return ceiling * jitter

    def reconnect_pause(self, away: timedelta, jitter: float) -> timedelta:
        """Return the wait before the next try at a receiver that has been unreachable for `away`; it doubles too."""
        return min(self.maximum, max(self.initial, away)) * (0.5 + jitter / 2)


USUAL_RETRY = RetryPolicy()
"""The policy for an executor that is no longer configured."""


@frozen
class Approvals:
    """The configuration of held calls."""

    timeout: timedelta = timedelta(minutes=15)
    """How long a call waits for a human, unless its route says otherwise."""
    while_held: Literal["deliver", "queue"] = "deliver"
    """Whether waking messages of a session wait until no call of it is held."""
    notify: tuple[str, ...] = ()
    """The destinations that get notices."""
    remind: tuple[timedelta, ...] = ()
    """When the notice about a call is repeated, counted from the time at which it was held."""
    tell: bool = True
    """Whether a conversation is told of an outcome that its agent has not received."""
    tell_after: timedelta = timedelta(minutes=2)
    """How long after the end of the call the agent may fetch it before."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The configuration of calls; replaced as a whole on reload."""

    routes: Routes = field(default_factory=Routes)
    executors: Mapping[str, RetryPolicy] = field(default_factory=dict[str, RetryPolicy])
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    """The executors that have an address, with their type: two with the same one are the same program."""
    fit_arguments: Callable[[str, Mapping[str, Any]], Fitted] = lambda _tool, arguments: Fitted(arguments)
    """Fits a call's arguments to the schema of its tool; the result may have a problem text for the agent."""
    declared: frozenset[str] = frozenset()
    cancel_grace: timedelta = timedelta(seconds=10)
    interaction_timeout: timedelta = timedelta(seconds=300)
    approvals: Approvals = field(default_factory=Approvals)
    open_calls: int = 1_000
    """Most open calls of a session; the next one fails."""
    open_bytes: int = 32 * 1024 * 1024
    """Most bytes of the arguments of all open calls of a session."""
    progress: int = 4 * 1024 * 1024
    """Most bytes of progress reports for one call."""
    outbound: int = 10_000
    """Most events that wait for delivery to a runtime; a client's next event is refused."""
    trace_ratio: float = 1.0
    """The fraction of traces without a caller's decision that are sampled."""


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The facts about a runtime that every decision about its sessions needs."""

    adapter: str
    protocol: str
    name: str
    capabilities: Capabilities
    codec: Codec
    options: RuntimeOptions
    policy: Policy
    keep_frame: Callable[[Frame, Sequence[Draft]], bytes] | None = None
    """Writes a frame for its events as masked JSON of bounded size; None if the options keep no frames."""

    @property
    def while_held(self) -> Literal["deliver", "queue"]:
        """What waking messages of a session do while a call of it is held."""
        return self.options.while_held or self.policy.approvals.while_held


Mark = dict[str, Any]
"""A savepoint for the case that one of several decisions fails: the members of the builder at that time."""

_COLLECTED = (list, dict, set)


@dataclass(frozen=True, slots=True)
class SlotAccess:
    """The slots of executors, as a step uses them."""

    take: Callable[[str], bool]
    """Takes a slot of an executor; returns whether one was free."""
    refusal: Callable[[str], str | None]
    """Returns why a call without a slot must not wait for one; None if it may wait."""


@frozen
class Recorded:
    """The facts from the store that a session's memory lacks."""

    known: Mapping[str, Call]
    """Settled calls by native id, looked up after a stale `Open`."""
    repeats: Collection[str] = ()
    """Native ids that the store has refused as repeats."""


class StepBuilder:
    """Collect one step for one decision or a batch of decisions; never shared."""

    def __init__(
        self,
        view: SessionView,
        now: datetime,
        mint: Callable[[], EventId],
        slots: SlotAccess,
        runtime: RuntimeContext,
        recorded: Recorded | None = None,
    ) -> None:
        self.base = view
        self.memory = view.memory
        self.calls = dict(view.calls)
        self.unheard = dict(view.unheard)
        self.last_sequence = view.last_sequence
        self.touched_at = view.touched_at
        self.reminded_at = view.reminded_at
        self.partial = view.partial
        self.live = view.live
        self.start = view.start
        self.now = now
        self.take_slot = slots.take
        self.refusal = slots.refusal
        self.known: Mapping[str, Call] = {} if recorded is None else recorded.known
        """Settled calls by native id, looked up after a stale `Open`."""
        self.cursor: str | None = None
        self.effects: list[Effect] = []
        self.events: list[Envelope] = []
        self.sends: list[Enqueue] = []
        """New outbound rows for the events of this step."""
        self.send_changes: list[SendChange] = []
        self.interactions: list[InteractionChange] = []
        self._mint = mint
        self.runtime = runtime
        self._calls: list[CallChange] = []
        self._keeps: list[Keep] = []
        self._taken = set[str]() if recorded is None else set(recorded.repeats)
        """Recorded native ids that the memory may no longer hold, and those of this step."""
        self._open_bytes: int | None = None

    def apply(
        self,
        event: Event,
        direction: Direction,
        *,
        draft: Draft | None = None,
        origin: Origin | None = None,
        caused_by: int | None = None,
        losses: tuple[Loss, ...] = (),
        written: bytes | None = None,
        linked_to: CallId | None = None,
        copies_at: datetime | None = None,
        synthetic: bool = False,
        native: bytes | None = None,
    ) -> Envelope:
        """Add an event to the step under the next sequence, and fold it into `memory` at once.

        An event of a frame comes with its draft, which has the origin, the key for repeats and the losses. An event
        that is `linked_to` a call gets no copies; the copies of other events may have to wait.
        """
        dedupe_key: str | None = None
        if draft is not None:
            losses, dedupe_key, written, native = draft.losses, draft.native_id, draft.written, draft.native
            origin = Origin(
                self.runtime.adapter,
                self.runtime.protocol,
                draft.native_id,
                draft.native_sequence,
                draft.native_time,
                draft.correlation,
            )
        self.last_sequence += 1
        new = Envelope(
            self._mint(),
            self.base.session_id,
            self.last_sequence,
            self.now,
            direction,
            event,
            origin,
            caused_by,
            losses,
            dedupe_key,
            written,
            linked_to,
            synthetic or is_own(event.kind, direction, origin),
            native,
        )
        self.events.append(new)
        if dedupe_key is not None:
            self._taken.add(dedupe_key)
        self.memory = fold(self.memory, new)
        if linked_to is None and self.runtime.policy.routes.copying:
            targets = self.copies_of(event.kind, event.tool if isinstance(event, ToolRequested) else None)
            self.sends += [Enqueue(len(self.events) - 1, target, due_at=copies_at) for target in targets]
        return new

    def copies_of(self, kind: str, tool: str | None) -> list[str]:
        """Return the outbound targets that get copies of events of a kind."""
        routes, runtime = self.runtime.policy.routes, self.base.runtime
        copies = routes.copies_for(runtime=runtime, kind=kind, tool=tool, labels=self.memory.labels)
        return [f"destination:{name}" for name in copies]

    def has_taken(self, native_id: str) -> bool:
        """Return whether a native message is known to be recorded, or is part of this step."""
        return native_id in self._taken or native_id in self.memory.recent

    def add_losses(self, sequence: int, losses: Iterable[Loss]) -> None:
        """Add the losses of an event's replacement to an event of this step."""
        place = sequence - self.base.last_sequence - 1
        known = self.events[place]
        self.events[place] = replace(known, losses=tuple(dict.fromkeys((*known.losses, *losses))))

    def keep(self, keep: Keep, sequences: Iterable[int]) -> None:
        """Keep a client's response with the step; it contains the events of this step with these sequences."""
        events = tuple(sequence - self.base.last_sequence - 1 for sequence in sequences)
        self._keeps.append(replace(keep, events=events))

    def write_attempts(self, started: Collection[int], unstarted: Collection[int]) -> None:
        """Set the attempt of rows to the runtime: 1 if the send starts after this step, 0 if it did not start."""
        fresh: set[int] = set()
        for place, send in enumerate(self.sends):
            sequence = self.base.last_sequence + 1 + send.event_index
            if send.target == RUNTIME and sequence in started:
                self.sends[place] = replace(send, attempt=1)
                fresh.add(sequence)
        for attempt, sequences in ((1, started), (0, unstarted)):
            self.send_changes += [
                SendChange(sequence, RUNTIME, "pending", attempt) for sequence in sequences if sequence not in fresh
            ]

    def change_call(self, change: CallChange, *, ended: Call | None = None) -> None:
        """Add a change of a call to the step and to the view; a change of an `ended` call comes with its row.

        Raises:
            Stale: the state of the call does not allow the change.
        """
        call_id = change.call_id
        before = self.calls.get(call_id)
        if before is not None and isinstance(change, Settle):
            # The store builds the row of a closed call; no later decision reads it here.
            state_after(before, change)
            after = None
        else:
            after = changed(before or ended, change, now=self.now, numbers=())
        self._calls.append(change)
        if after is not None and after.state in OPEN_STATES:
            self.calls[call_id] = after
        else:
            self.calls.pop(call_id, None)
            after = None
        if self._open_bytes is not None:
            self._open_bytes += (0 if after is None else after.size) - (0 if before is None else before.size)

    def trace_of(self, key: str) -> TraceContext:
        """Choose the trace context of a new call without a caller's: the running turn's, else one of its key."""
        turn, ratio = self.memory.turn, self.runtime.policy.trace_ratio
        return key_context(key, ratio) if turn is None else turn_context(self.base.session_id, turn.sequence, ratio)

    @property
    def opened(self) -> Mapping[CallId, Call]:
        """The calls that the step opens."""
        return {change.call_id: change.call for change in self._calls if isinstance(change, Open)}

    @property
    def open_bytes(self) -> int:
        """The bytes of the arguments of all open calls; summed up once per batch."""
        if self._open_bytes is None:
            self._open_bytes = sum([call.size for call in self.calls.values()])
        return self._open_bytes

    def mark(self) -> Mark:
        """Return a savepoint: copies of the collections; all other members are immutable."""
        return {name: copy(value) if type(value) in _COLLECTED else value for name, value in vars(self).items()}

    def back_to(self, mark: Mark) -> None:
        """Drop everything since a savepoint, which can be used once."""
        vars(self).update(mark)

    @property
    def empty(self) -> bool:
        """Whether the step writes nothing."""
        if self.events or self._calls or self.sends or self.send_changes or self.interactions:
            return False
        return self.cursor is None and self._listed == self.base.listed

    @property
    def view(self) -> SessionView:
        """The session after the step."""
        # Positional arguments here and below: keyword arguments take twice as long, and every batch builds these.
        base = self.base
        return SessionView(
            base.session_id,
            base.runtime,
            base.native_id,
            self.memory,
            self.calls,
            self.last_sequence,
            self.cursor or base.cursor,
            base.first_state,
            self._listed,
            self.touched_at,
            self.partial,
            self.live,
            self.start,
            self.reminded_at,
            self.unheard,
        )

    def step(self, *, fence: int, snapshot: bytes | None = None) -> Step:
        """Build the step for the owner of the session with this fence."""
        state = self._listed
        return Step(
            self.base.session_id,
            tuple(self.events),
            tuple(self._calls),
            tuple(self.sends),
            tuple(self.send_changes),
            tuple(self.interactions),
            tuple(self._keeps),
            self.cursor,
            snapshot,
            state if state != self.base.listed else None,
            fence,
            self.base.last_sequence if self.events else None,
        )

    @property
    def _listed(self) -> str:
        return "closed" if self.memory.closed else self.memory.state or self.base.first_state


@frozen
class Priority:
    """The priority of an event to the runtime."""

    lane: Lane
    place: Place = "in_order"
    leave_before: datetime | None = None
    """When the runtime stops waiting for the event."""


TURN = Priority("turn")


def send(
    builder: StepBuilder,
    event: Event,
    priority: Priority | None,
    *,
    caused_by: int | None,
    losses: tuple[Loss, ...] = (),
    synthetic: bool = False,
) -> int:
    """Record an event of an accepted kind and send it; contexts are completed on the way.

    Without a priority, the event is only recorded.
    """
    runtime = builder.runtime
    if isinstance(event, ContextUpdated):
        adapted = adapt(event, builder.memory, runtime.capabilities, history=runtime.options.history_key)
        event, losses = adapted.event, tuple(dict.fromkeys((*losses, *adapted.losses)))
    encoded = runtime.codec.encode(Draft(event))
    new = builder.apply(
        event, "to_runtime", caused_by=caused_by, losses=(*losses, *encoded.losses), synthetic=synthetic
    )
    if priority is not None:
        builder.sends.append(Enqueue(len(builder.events) - 1, RUNTIME, priority.lane))
        said: Draft | Envelope = Draft(event)
        if runtime.capabilities.replaces_context and _carries_message(event):
            # Encoded from its envelope, as for a repeat, so that a message without an id always gets the same id.
            said = new
            encoded = runtime.codec.encode(said)
        builder.effects.append(
            Transmit(
                builder.last_sequence,
                priority.lane,
                event.kind,
                encoded.frames,
                caused_by,
                priority.leave_before,
                state=said if carries_state(event, runtime.capabilities) else None,
                place=priority.place,
                answers=answered_by(builder.base.session_id, event, caused_by, synthetic=synthetic),
                needs_attempt=needs_attempt(event, runtime.capabilities),
            )
        )
    return builder.last_sequence


def _carries_message(event: Event) -> bool:
    return isinstance(event, MessagePosted) or (isinstance(event, ContextUpdated) and event.message is not None)


def begin_turn(builder: StepBuilder) -> None:
    if builder.runtime.capabilities.turns == "inferred" and not builder.memory.running:
        builder.apply(SessionMoved(state="running", reason="inferred"), "from_runtime")
