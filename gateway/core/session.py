"""A decision in the making: what it rests on, and the step that collects what is written and what follows. Pure.

The memory already shows what has happened here, so that one step can carry many decisions in a row.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gateway.adapter.port import Capabilities, Codec, RuntimeOptions
from gateway.core.adapt import adapt, carries_state
from gateway.core.effects import Effect, Place, Transmit
from gateway.core.fold import fold
from gateway.core.routing import Routes
from gateway.core.state import Remembered, SessionView, Start
from gateway.events import (
    CallId,
    ContextUpdated,
    Direction,
    Draft,
    Envelope,
    Event,
    EventId,
    InteractionId,
    Loss,
    MessagePosted,
    Origin,
    SessionMoved,
    ToolRequested,
)
from gateway.events.frozen import frozen, replace
from gateway.store.call import Call, CallChange, changed
from gateway.store.step import (
    RUNTIME,
    Enqueue,
    Fence,
    InteractionChange,
    Keep,
    Lane,
    LastSequence,
    SendChange,
    Step,
)


@frozen
class RetryPolicy:
    """How an executor is asked again, and how long all of it may take."""

    attempts: int = 3
    idempotent: bool = False
    timeout: timedelta = timedelta(seconds=20)
    deadline: timedelta = timedelta(seconds=120)
    accepted_deadline: timedelta = timedelta(seconds=600)
    initial: timedelta = timedelta(milliseconds=500)
    maximum: timedelta = timedelta(seconds=10)

    def delay(self, attempt: int, jitter: float) -> timedelta:
        """Wait before the next attempt: exponential, full jitter; `jitter` is uniform in [0, 1)."""
        ceiling = min(self.maximum, self.initial * 2 ** min(attempt - 1, 20))
        return ceiling * jitter


USUAL_RETRY = RetryPolicy()
"""How an executor is asked that the configuration no longer has."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says about calls; replaced as a whole on reload."""

    routes: Routes = field(default_factory=Routes)
    executors: Mapping[str, RetryPolicy] = field(default_factory=dict[str, RetryPolicy])
    check_arguments: Callable[[str, Mapping[str, Any]], str | None] = lambda _tool, _arguments: None
    """Says in one text for the agent what is wrong with a call's arguments, or None."""
    declared: frozenset[str] = frozenset()
    cancel_grace: timedelta = timedelta(seconds=10)
    interaction_timeout: timedelta = timedelta(seconds=300)
    open_calls: int = 1_000
    """Calls of a session that may be open at once; the next is answered with a failure."""
    open_bytes: int = 32 * 1024 * 1024
    progress: int = 4 * 1024 * 1024
    """What their arguments may take together."""
    outbound: int = 10_000
    """Events that may wait to be delivered to a runtime; a client's next is refused."""


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The knowledge of one runtime that every decision about its sessions is given."""

    adapter: str
    protocol: str
    name: str
    capabilities: Capabilities
    codec: Codec
    options: RuntimeOptions
    policy: Policy


@frozen
class Mark:
    """A place to go back to when one of several decisions fails."""

    memory: Remembered
    last_sequence: int
    sizes: tuple[int, ...]
    cursor: str | None
    partial: str
    live: bool
    start: Start


class StepBuilder:
    """Collects one step; lives for one decision or a batch of them and is never shared."""

    def __init__(
        self,
        view: SessionView,
        *,
        now: datetime,
        mint: Callable[[], EventId],
        take_slot: Callable[[str], bool],
        refusal: Callable[[str], str | None],
        routes: Routes,
        known: Mapping[str, Call] | None = None,
        repeats: Collection[str] = (),
    ) -> None:
        self.base = view
        self.memory = view.memory
        self.calls = dict(view.calls)
        self.last_sequence = view.last_sequence
        self.touched_at = view.touched_at
        self.partial = view.partial
        self.live = view.live
        self.start = view.start
        self.now = now
        self.take_slot = take_slot
        self.refusal = refusal
        """Says why a call that got no slot must not wait for one; None where it may."""
        self.known = known or {}
        """Settled calls by native id, looked up where an Open was stale."""
        self.cursor: str | None = None
        self.effects: list[Effect] = []
        self.events: list[Envelope] = []
        self._mint = mint
        self._routes = routes if routes.copies_anything else None
        """Those that copy events, where any does."""
        self._calls: list[CallChange] = []
        self._sends: list[Enqueue] = []
        self._send_changes: list[SendChange] = []
        self._interactions: list[InteractionChange] = []
        self._keeps: list[Keep] = []
        self._taken = set(repeats)
        """Native ids on record that the memory may no longer hold, and those of this step."""
        self._before: list[tuple[CallId, Call | None]] = []
        """What each change of a call replaced, for going back."""
        self._open_bytes: int | None = None

    def apply(
        self,
        event: Event,
        direction: Direction,
        *,
        origin: Origin | None = None,
        caused_by: int | None = None,
        losses: tuple[Loss, ...] = (),
        dedupe_key: str | None = None,
    ) -> Envelope:
        """Let an event happen: it is written with the step, under the next sequence, and `memory` shows it at once."""
        new = Envelope(
            event_id=self._mint(),
            session_id=self.base.session_id,
            sequence=self.last_sequence + 1,
            event=event,
            direction=direction,
            recorded_at=self.now,
            origin=origin,
            caused_by=caused_by,
            losses=losses,
            dedupe_key=dedupe_key,
        )
        self.events.append(new)
        if dedupe_key is not None:
            self._taken.add(dedupe_key)
        self.last_sequence = new.sequence
        self.memory = fold(self.memory, new, new.sequence)
        if self._routes is not None:
            tool = event.tool if isinstance(event, ToolRequested) else None
            for name in self._routes.copies_for(
                runtime=self.base.runtime, kind=event.kind, tool=tool, labels=self.memory.labels
            ):
                self._sends.append(Enqueue(len(self.events) - 1, f"destination:{name}"))
        return new

    def has_taken(self, native_id: str) -> bool:
        """Whether a native message is on record, or part of this step, as far as is known here."""
        return native_id in self._taken or native_id in self.memory.recent

    def add_losses(self, sequence: int, losses: Iterable[Loss]) -> None:
        """List with an event recorded here what was lost by what is said in its place."""
        place = sequence - self.base.last_sequence - 1
        known = self.events[place]
        self.events[place] = replace(known, losses=tuple(dict.fromkeys((*known.losses, *losses))))

    def add_send(self, send: Enqueue) -> None:
        """Add an outbound row for a recorded event."""
        self._sends.append(send)

    def change_send(self, change: SendChange) -> None:
        """Say what became of an outbound row."""
        self._send_changes.append(change)

    def change_interaction(self, change: InteractionChange) -> None:
        """Say what became of a question to a person."""
        self._interactions.append(change)

    def keep(self, keep: Keep, sequences: Iterable[int]) -> None:
        """Keep the answer to a client with the step; it shows the events recorded here under these sequences."""
        events = tuple(sequence - self.base.last_sequence - 1 for sequence in sequences)
        self._keeps.append(replace(keep, events=events))

    def change_call(self, change: CallChange, *, ended: Call | None = None) -> None:
        """Write a change of a call and show it in the view; one of a call that has `ended` comes with its row.

        Raises:
            Stale: the call is in no state that allows it.
        """
        call_id = change.call_id
        before = self.calls.get(call_id)
        numbers = range(self.base.last_sequence + 1, self.last_sequence + 1)
        after = changed(before or ended, change, now=self.now, numbers=numbers)
        self._calls.append(change)
        self._before.append((call_id, before))
        if self._open_bytes is not None:
            self._open_bytes += (after.size if after.is_open else 0) - (0 if before is None else before.size)
        if after.is_open:
            self.calls[call_id] = after
        else:
            self.calls.pop(call_id, None)

    @property
    def open_bytes(self) -> int:
        """What the arguments of all open calls take; added up once for a batch, however many calls it opens."""
        if self._open_bytes is None:
            self._open_bytes = sum([call.size for call in self.calls.values()])
        return self._open_bytes

    def mark(self) -> Mark:
        """Remember this place."""
        return Mark(
            memory=self.memory,
            last_sequence=self.last_sequence,
            # Written out, since this is done for every signal.
            sizes=(
                len(self._before),
                len(self.events),
                len(self._calls),
                len(self._sends),
                len(self._send_changes),
                len(self._interactions),
                len(self._keeps),
                len(self.effects),
            ),
            cursor=self.cursor,
            partial=self.partial,
            live=self.live,
            start=self.start,
        )

    def back_to(self, mark: Mark) -> None:
        """Forget everything since a mark."""
        self.memory, self.last_sequence, self.cursor = mark.memory, mark.last_sequence, mark.cursor
        self.partial, self.live, self.start = mark.partial, mark.live, mark.start
        self._open_bytes = None
        self._taken -= {new.dedupe_key for new in self.events[mark.last_sequence - self.base.last_sequence :]}
        for call_id, before in reversed(self._before[mark.sizes[0] :]):
            if before is None:
                self.calls.pop(call_id, None)
            else:
                self.calls[call_id] = before
        lists = (
            self._before,
            self.events,
            self._calls,
            self._sends,
            self._send_changes,
            self._interactions,
            self._keeps,
            self.effects,
        )
        for kept, size in zip(lists, mark.sizes, strict=True):
            del kept[size:]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        written = self.events or self._calls or self._sends or self._send_changes or self._interactions
        return self.cursor is None and not written and self._listed == self.base.listed

    @property
    def interactions_changed(self) -> tuple[InteractionId, ...]:
        """The questions to people that the step changes."""
        return tuple(change.interaction_id for change in self._interactions)

    @property
    def view(self) -> SessionView:
        """The session as it is once the step is written."""
        # Written out, since `replace` costs several times as much and this is done for every batch.
        base = self.base
        return SessionView(
            session_id=base.session_id,
            runtime=base.runtime,
            native_id=base.native_id,
            memory=self.memory,
            calls=self.calls,
            last_sequence=self.last_sequence,
            cursor=self.cursor or base.cursor,
            first_state=base.first_state,
            listed=self._listed,
            touched_at=self.touched_at,
            partial=self.partial,
            live=self.live,
            start=self.start,
            complete=base.complete,
        )

    def step(self, *, fence: int, snapshot: bytes | None = None) -> Step:
        """Make the step, for whoever owns the session under this fence."""
        state = self._listed
        return Step(
            session_id=self.base.session_id,
            events=tuple(self.events),
            calls=tuple(self._calls),
            sends=tuple(self._sends),
            send_changes=tuple(self._send_changes),
            interactions=tuple(self._interactions),
            keeps=tuple(self._keeps),
            cursor=self.cursor,
            snapshot=snapshot,
            keep_from=self._keep_from if snapshot is not None else None,
            state=state if state != self.base.listed else None,
            expects=(Fence(fence), LastSequence(self.base.last_sequence)) if self.events else (Fence(fence),),
        )

    @property
    def _keep_from(self) -> int | None:
        """Say from where on a newer release needs the events; of what is closed nothing is folded any more."""
        complete = self.base.complete
        return None if complete is None or self.memory.closed else complete.sequence + 1

    @property
    def _listed(self) -> str:
        return "closed" if self.memory.closed else self.memory.state or self.base.first_state


def send(
    runtime: RuntimeContext,
    builder: StepBuilder,
    event: Event,
    *,
    caused_by: int | None,
    lane: Lane,
    losses: tuple[Loss, ...] = (),
    sends: bool = True,
    leave_before: datetime | None = None,
    place: Place = "in_order",
) -> int:
    """Record an event of an accepted kind and send it; contexts are completed on the way."""
    if isinstance(event, ContextUpdated):
        adapted = adapt(event, builder.memory, runtime.capabilities)
        event, losses = adapted.event, tuple(dict.fromkeys((*losses, *adapted.losses)))
    encoded = runtime.codec.encode(Draft(event))
    new = builder.apply(event, "to_runtime", caused_by=caused_by, losses=(*losses, *encoded.losses))
    if sends:
        builder.add_send(Enqueue(len(builder.events) - 1, RUNTIME, lane))
        said: Draft | Envelope = Draft(event)
        if runtime.capabilities.replaces_context and _carries_message(event):
            # Said as it would be said again, so that a message without an id has the same one each time.
            said = new
            encoded = runtime.codec.encode(said)
        builder.effects.append(
            Transmit(
                builder.last_sequence,
                lane,
                event.kind,
                encoded.frames,
                caused_by,
                leave_before,
                state=said if carries_state(event, runtime.capabilities) else None,
                place=place,
            )
        )
    return builder.last_sequence


def _carries_message(event: Event) -> bool:
    return isinstance(event, MessagePosted) or (isinstance(event, ContextUpdated) and event.message is not None)


def begin_turn(runtime: RuntimeContext, builder: StepBuilder) -> None:
    if runtime.capabilities.turns == "inferred" and not builder.memory.running:
        builder.apply(SessionMoved(state="running", reason="inferred"), "from_runtime")


def origin_of(runtime: RuntimeContext, draft: Draft) -> Origin:
    """Say where a draft comes from."""
    return Origin(
        runtime.adapter,
        runtime.protocol,
        draft.native_id,
        draft.native_sequence,
        draft.native_time,
        draft.correlation,
    )


def apply_draft(
    runtime: RuntimeContext,
    builder: StepBuilder,
    draft: Draft,
    event: Event,
    *,
    direction: Direction = "from_runtime",
    caused_by: int | None = None,
) -> Envelope:
    """Let what a frame says happen."""
    return builder.apply(
        event,
        direction,
        origin=origin_of(runtime, draft),
        caused_by=caused_by,
        losses=draft.losses,
        dedupe_key=draft.native_id,
    )
