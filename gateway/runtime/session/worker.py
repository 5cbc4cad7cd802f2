"""The worker of one session: takes what happened, lets the core decide, commits, then acts.

One batch is one step is one commit, and nothing is done about anything before its commit has returned.
What queues up meanwhile is the next batch, so that a busy session shares its disk syncs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from logging import DEBUG
from typing import Any

import structlog

from gateway.adapter.port import Codec, Frame
from gateway.core import lifecycle
from gateway.core.calls import outcome_fingerprint
from gateway.core.effects import Ask, Dispatch, Effect, Queue, Release, Resend, Tell, Transmit
from gateway.core.runtime_context import RuntimeContext
from gateway.core.snapshots import to_snapshot
from gateway.core.state import SessionView
from gateway.core.step_builder import StepBuilder
from gateway.errors import DragomanError, Elsewhere, EngineUnavailable, Fenced, MalformedFrame, Repeated, Stale
from gateway.events import CallId, Envelope, FaultReported, FrameRejected, Live, SessionMoved, ToolRequested
from gateway.executors.port import Answered
from gateway.guard import FAULTS, guard_call, is_fault, pause_after
from gateway.links.once import Once
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.observe import excerpt, note
from gateway.runtime.session import signals as s
from gateway.runtime.session.deciding import decide
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.load import load_view
from gateway.runtime.session.outbox import Outbox
from gateway.runtime.session.replies import fail, reply_of, resolve
from gateway.runtime.session.resting import has_something_to_say
from gateway.runtime.session.shared import Shared
from gateway.store.call import Call
from gateway.store.rows import Regained
from gateway.store.step import HANDOVER, RUNTIME, Committed, SendChange

log = structlog.get_logger(__name__)

BATCH = 256
RETRY_AFTER = 0.5
LOOK_AFTER = 0.05
STALE_PATIENCE = 3
"""How often a decision is made again at once, before it is made with pauses."""
REVIEW_AFTER = 0.05
"""Seconds after which a change may move the session's timer."""
FAULTS_AN_INPUT = 3
"""How often one input may make a session fail in ways that nobody foresaw, until it is put aside."""
_EXCERPT = 500

Decided = tuple[StepBuilder, Committed | None, list[tuple[s.Signal, Any]]]
"""A decision, what is on record of it, and what is answered to each signal."""
Tried = tuple[s.Signal, int]
"""An input, and how often the session has failed on it."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a session had before it that failed; what is on record is read again from there."""

    sequence: int
    """The last one that was known to be on record."""
    under_way: tuple[Tried, ...]
    """Whose step may have been written, or not."""
    waiting: tuple[Tried, ...]
    unsure: bool = False
    """Whether it is not known what became of the step of what was under way; else it was surely not written."""
    codec: Codec | None = None
    """What reads its frames, where the protocol does not send them again."""

    @property
    def frames(self) -> list[s.FrameArrived]:
        """What the runtime has said, in its order."""
        return [signal for signal, _ in (*self.under_way, *self.waiting) if isinstance(signal, s.FrameArrived)]


_OWN = (s.Attempted, s.AnsweredLate, s.ExecutorReplied, s.Delivered)
"""What came of work that was ordered here, and would otherwise be guessed at by recovery."""


class SessionWorker:
    """Carries one session; `run` is its only task."""

    def __init__(
        self,
        view: SessionView,
        *,
        fence: int,
        runtime: RuntimeContext,
        shared: Shared,
        inbound_frames: int,
        inbound_bytes: int,
        drop_link: Callable[[str], None],
        kept: Iterable[Tried] = (),
    ) -> None:
        """Prepare; what is `kept` is decided about first, one by one."""
        self.view = view
        self.fence = fence
        self.runtime = runtime
        self.lost = False
        """Whether the session was given up here while it goes on elsewhere, or here anew."""
        self.left: Left | None = None
        """What it had before it when it failed, or was given up here."""
        self.feed = Feed(view.last_sequence)
        self.closed = Once()
        self._shared = shared
        self.inbox = Inbox(
            frames=inbound_frames,
            size=inbound_bytes,
            resumes=runtime.capabilities.resumes,
            is_live=self._is_live,
            overflow=drop_link,
            weighed=shared.metrics.queue_bytes,
        )
        self.log = log.bind(session_id=view.session_id, runtime=view.runtime)
        self._outbox = Outbox(
            view,
            runtime=runtime,
            shared=shared,
            log=self.log,
            post=self.inbox.put,
            drop_link=drop_link,
            look=lambda: self.view,
            until_leased=self._until_leased,
        )
        self._drop_link = drop_link
        self._suspended: asyncio.Future[None] | None = None
        """Until the session may go on, while no lease runs that says that it is this process's."""
        self._regained: int | None = None
        """The last sequence under the new fence; what is known here is the whole of it only where it is the same."""
        self.outrun = False
        """Whether the session is this process's under a new fence, while its history is another than what is known."""
        self._busy = False
        self._kept = deque(kept)
        self._under_way: Sequence[s.Signal] = ()
        self._written = False
        """Whether the step of what is under way is surely on record."""
        self._unsure = False
        """Whether it may be on record."""
        self._handed = 0
        """Up to where what other instances have heard is in the inbox already."""
        self._tick_faults = 0
        self._late: list[tuple[CallId, Answered]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: datetime | None = None
        self._review: asyncio.TimerHandle | None = None
        # What a newer release needs is put on record at once, so that retention leaves it.
        self._snapshot_at = (
            view.last_sequence if view.complete is None else view.last_sequence - shared.tuning.snapshot_every
        )

    # What others call ------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A new link is being made; it resumes where the last one was cut."""
        self.inbox.reopen(self.cursor)
        self.inbox.put(s.Connecting())

    def put(self, signal: s.Signal) -> None:
        """Let the session know of something."""
        self.inbox.put(signal)

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Take a frame from the link."""
        self._shared.metrics.frame(self.view.runtime, "from_runtime")
        if self.log.is_enabled_for(DEBUG):
            self.log.debug("frame <", channel=frame.channel, payload=excerpt(frame.payload))
        self.inbox.put_frame(frame, cursor, alone=self.leased)

    def hand_over(self, frames: Sequence[s.HandedOver]) -> int:
        """Take frames that another instance has heard; returns how many were not here yet."""
        fresh = [one for one in frames if one.sequence > self._handed]
        if fresh and not self.closed.is_set():
            self._handed = fresh[-1].sequence
            # They stand in the journal behind what is known here.
            for signal in (s.Reread(), *fresh):
                self.inbox.put(signal)
        return len(fresh)

    def take_what_is_left(self) -> Left | None:
        """Take out what was to be decided about; once the session was given up here, and its link has ended."""
        if self.left is None:
            return None
        later = tuple((signal, 0) for signal in self.inbox.empty_out() if isinstance(signal, s.FrameArrived))
        left, self.left = self.left, None
        return replace(left, waiting=(*left.waiting, *later))

    def caught_up(self, *, starting: bool | None = None) -> None:
        """Take note that a replay is over, unless a part of it was turned away."""
        if not self.inbox.shut:
            self.inbox.put(s.CaughtUp(starting))

    def _is_live(self, frame: Frame) -> bool:
        try:
            drafts = self.runtime.codec.decode(frame)
        except MalformedFrame:
            return False
        return bool(drafts) and all(draft.live for draft in drafts)

    async def has_room(self) -> None:
        """Wait until a link may be made: the session can take its frames, and a lease runs under which it may speak."""
        await self.inbox.has_room()
        await self._until_leased()

    @property
    def cursor(self) -> str | None:
        """Where a new link resumes."""
        return self.view.cursor

    async def has_work(self) -> bool:
        """Whether there is something to hear, as there is before the first link, or that somebody has said.

        Raises:
            EngineUnavailable: the store cannot be asked.
        """
        return self.cursor is None or await has_something_to_say(self._shared.engine, self.view.session_id)

    def call_when_said(self, call: Callable[[], None] | None) -> None:
        """Have something called whenever an event is to be sent; None ends it."""
        self._outbox.when_said = call

    def lose(self) -> None:
        """Say nothing more to the runtime: the session is given up here; whoever runs the worker ends it now."""
        self.lost = True
        self._outbox.link_down()

    def suspend(self) -> None:
        """Fall silent: nothing is decided or sent until `resume`; what comes meanwhile waits in the inbox."""
        if self._suspended is None:
            self._suspended = asyncio.get_running_loop().create_future()

    def resume(self, row: Regained) -> None:
        """Go on under a new fence, or begin anew from the store where somebody else has written meanwhile."""
        self.fence, self._regained = row.fence, row.last_sequence
        if row.last_sequence != self.view.last_sequence:
            # Also a session that has nothing to do finds out, unless it is its own step that is not known here yet.
            self.inbox.put(s.Reread())
        suspended, self._suspended = self._suspended, None
        if suspended is not None:
            suspended.set_result(None)

    @property
    def leased(self) -> bool:
        """Whether the session may speak."""
        return self._suspended is None and self._shared.keeper.speaks

    async def _until_leased(self) -> None:
        while not self.leased:
            await self._wait_for_lease()

    async def _wait_for_lease(self, seconds: float | None = None) -> None:
        """Wait until the session may speak again, or for a while."""
        if self._suspended is not None:
            await asyncio.wait({self._suspended}, timeout=seconds)
        else:
            # A process that stood still comes here before its lease's timer has its turn.
            await asyncio.sleep(LOOK_AFTER)

    async def _may_decide(self, batch: Sequence[s.Signal]) -> bool:
        """Whether a lease runs; where none does, clients are told so, and everything else waits in the inbox.

        Raises:
            Fenced: somebody else has written.
        """
        if self.leased:
            self._check_regained(self.view.last_sequence)
            return True
        kept = _without_requests(batch, EngineUnavailable("no lease runs: the store has not answered"))
        await self._wait_for_lease(RETRY_AFTER)
        self.inbox.put_back(kept)
        return False

    def _check_regained(self, last_sequence: int) -> None:
        """Go on only with a history that is known here.

        Raises:
            Fenced: somebody else has written.
        """
        regained, self._regained = self._regained, None
        if regained is not None and regained != last_sequence:
            self.outrun = True
            raise Fenced("its history has gone on meanwhile")

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Use another configuration from the next decision on."""
        self.runtime = runtime
        # A bound logger keeps the level it was bound under.
        self.log = log.bind(session_id=self.view.session_id, runtime=self.view.runtime)
        self._outbox.reconfigure(runtime, self.log)

    def send_again(self, sequence: int) -> None:
        """Offer a recorded event to the runtime again; its row is pending already."""
        self._outbox.again(sequence)

    def reread_unsent(self) -> None:
        """Look again for what may be sent: something else than this session has changed it."""
        self._outbox.reload()

    @property
    def settled(self) -> bool:
        """Whether nothing waits inside: no signal to decide, no event to send."""
        return not self._busy and self.inbox.empty and self._outbox.empty

    @property
    def oldest_unsent(self) -> float:
        """How many seconds the oldest outbound event has waited."""
        return self._outbox.oldest_wait()

    # The loop --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the session is closed or the task is canceled.

        Raises:
            Fenced: the session has changed hands; nothing was written or sent since.
        """
        try:
            await self._carry_kept()
            while not self.view.memory.closed:
                batch = self._under_way = await self.inbox.take(BATCH)
                self._busy, self._written = True, False
                await self._carry(batch)
                self._under_way = ()
                if self._late:
                    await self._look_up_late()
                self._busy = False
        except Fenced:
            self.lose()
            for signal in self._under_way:
                fail(signal, self._elsewhere(unsure=self._written))
            raise
        except BaseException as exc:
            if is_fault(exc):
                self.lost = True
                self.left = self._what_is_left()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        if self.lost and self.left is None:
            self.left = self._what_is_left()
        self._outbox.link_down()
        for timer in (self._timer, self._review):
            if timer is not None:
                timer.cancel()
        self._shared.slots.forget(self.inbox)
        for signal in self.inbox.empty_out():
            if isinstance(signal, s.SlotFree):
                self._shared.slots.release(signal.executor, self.inbox)
            if self.lost:
                fail(signal, self._elsewhere())
        if self.lost:
            for signal in self._under_way:
                fail(signal, self._elsewhere(unsure=True))
        self.feed.close()
        self.closed.set()

    def _elsewhere(self, *, unsure: bool = False) -> Elsewhere:
        what = "; the request may be on record or not" if unsure else ""
        return Elsewhere(self.view.session_id, f"the session has changed hands meanwhile{what}", unsure=unsure)

    def _what_is_left(self) -> Left:
        """Say what the session, taken up anew from the store, has to decide about again."""
        tried = {id(signal): times for signal, times in self._kept}
        under_way = () if self._written else tuple((one, tried.get(id(one), 0) + 1) for one in self._under_way)
        now = {id(signal) for signal in self._under_way}
        waiting = [*(one for one in self._kept if id(one[0]) not in now), *((one, 0) for one in self.inbox.waiting)]
        # A link that replays sends again what is not on record.
        resumes = self.runtime.capabilities.resumes
        kinds = _OWN if resumes else (*_OWN, s.FrameArrived)
        return Left(
            self.view.last_sequence,
            tuple(one for one in under_way if isinstance(one[0], kinds)),
            tuple(one for one in waiting if isinstance(one[0], kinds)),
            unsure=self._unsure,
            codec=None if resumes else self.runtime.codec,
        )

    async def _carry_kept(self) -> None:
        """Decide one by one about what there was when the session failed, so that the one at fault is found."""
        while self._kept:
            signal, times = self._kept[0]
            self._under_way, self._written, self._busy = (signal,), False, True
            await self._until_leased()
            self._check_regained(self.view.last_sequence)
            try:
                await self._carry_alone(signal, aside=times >= FAULTS_AN_INPUT)
            except EngineUnavailable as exc:
                self.log.error("the engine is unavailable", reason=str(exc))  # noqa: TRY400
                await asyncio.sleep(RETRY_AFTER)
                continue
            self._kept.popleft()
        self._busy = False

    async def _look_up_late(self) -> None:
        """Find the calls whose answers came too late, so that these can be put on record."""
        while self._late:
            call_id, answered = self._late[0]
            try:
                row = await self._shared.engine.call(call_id)
            except EngineUnavailable as exc:
                # Looked up again behind the next batch.
                self.log.warning("late answers cannot be looked up yet", reason=str(exc))
                return
            del self._late[0]
            if row is not None and row.outcome_sha != outcome_fingerprint(answered.outcome):
                self.inbox.put(s.AnsweredLate(row, answered))

    async def _carry(self, batch: Sequence[s.Signal]) -> None:
        if not await self._may_decide(batch):
            return
        if any(isinstance(signal, s.Reread | s.LinkUp) for signal in batch):
            try:
                await self._read_for(batch)
            except EngineUnavailable as exc:
                await self._wait_for_engine(batch, exc)
                return
        try:
            decided = await self._decide_and_commit(batch, {})
        except EngineUnavailable as exc:
            await self._wait_for_engine(batch, exc)
        except Fenced:
            raise
        except Stale:
            await self._carry_one_by_one(batch)
        else:
            self._act(*decided)

    async def _read_for(self, batch: Sequence[s.Signal]) -> None:
        """Read what some signals are decided on.

        Raises:
            EngineUnavailable: it cannot be read.
        """
        if any(isinstance(signal, s.Reread) for signal in batch):
            await self._reload()
            self._outbox.reload()
        if any(isinstance(signal, s.LinkUp) for signal in batch) and lifecycle.hydrates(self.runtime, self.view.memory):
            await self._outbox.look_for_state()

    async def _carry_one_by_one(self, batch: Sequence[s.Signal]) -> None:
        waiting = deque(batch)
        try:
            while waiting:
                self._under_way, self._written = tuple(waiting), False
                if isinstance(waiting[0], s.SlotFree):
                    # Its slot went back with the step, so it queues for one again, on fresh knowledge.
                    await self._reload()
                    self._requeued(waiting[0])
                else:
                    await self._carry_alone(waiting[0])
                waiting.popleft()
        except EngineUnavailable as exc:
            # All the rest waits as well, so that no cancel overtakes its call.
            await self._wait_for_engine(waiting, exc)

    async def _carry_alone(self, signal: s.Signal, *, aside: bool = False) -> None:
        """Decide one signal on fresh knowledge, or put it aside; what the ledger knows of repeated ids is looked up.

        Raises:
            EngineUnavailable: nothing was written.
            Fenced: nothing was written.
        """
        for tries in count(1):
            known = {} if aside else await self._known(signal)
            try:
                decided = await self._decide_and_commit([signal], known, aside=aside)
            except Fenced:
                raise
            except Stale as exc:
                if tries >= STALE_PATIENCE:
                    self.log.warning("a decision stays stale", signal=type(signal).__name__, reason=str(exc))
                    await asyncio.sleep(RETRY_AFTER)
                await self._reload()
            else:
                self._act(*decided)
                return

    async def _decide_and_commit(
        self, batch: Sequence[s.Signal], known: Mapping[str, Call], *, aside: bool = False
    ) -> Decided:
        """Decide and commit; where a native id turns out to be on record that the memory no longer holds, decide anew.

        Raises:
            Stale, EngineUnavailable: nothing was written, and the slots it took are free again.
        """
        repeats: set[str] = set()
        while True:
            builder, done = self._decide_all([] if aside else batch, known, repeats)
            if aside:
                for signal in batch:
                    self._put_aside(builder, signal, f"it made the session fail {FAULTS_AN_INPUT} times")
            try:
                return builder, await self._commit(builder), done
            except Repeated as exc:
                self._give_back(builder)
                repeats |= exc.keys
                # A slot that went back with the step is queued for again.
                batch = [signal for signal in batch if not self._requeued(signal)]
            except BaseException:
                self._give_back(builder)
                raise

    def _decide_all(
        self, batch: Sequence[s.Signal], known: Mapping[str, Call], repeats: Collection[str]
    ) -> tuple[StepBuilder, list[tuple[s.Signal, Any]]]:
        shared = self._shared
        taken: list[str] = []

        def take_slot(executor: str) -> bool:
            if not shared.slots.take(executor, self.inbox):
                return False
            taken.append(executor)
            return True

        self._written = False
        builder = StepBuilder(
            self.view,
            now=shared.clock.now(),
            mint=shared.ids.event_id,
            take_slot=take_slot,
            refusal=shared.slots.refusal,
            routes=self.runtime.policy.routes,
            known=known,
            repeats=repeats,
        )
        done: list[tuple[s.Signal, Any]] = []
        for signal in batch:
            for tries in count(1):
                mark, had = builder.mark(), len(taken)
                try:
                    answer = decide(self.runtime, builder, signal, outgoing=self._outbox.outgoing, jitter=shared.jitter)
                # The worker's edge: a fault of ours in one decision must not end the session.
                except BaseException as exc:
                    if not is_fault(exc):
                        raise
                    builder.back_to(mark)
                    while len(taken) > had:
                        self._shared.slots.release(taken.pop(), self.inbox)
                    if not isinstance(exc, DragomanError) and tries == 1:
                        FAULTS.note("decision", exc, session_id=self.view.session_id, signal=type(signal).__name__)
                    if reply_of(signal) is None and tries < FAULTS_AN_INPUT:
                        continue
                    self._decision_failed(builder, signal, exc)
                    done.append((signal, exc))
                else:
                    if isinstance(signal, s.Tick):
                        self._tick_faults = 0
                    elif isinstance(signal, s.SlotFree) and not answer:
                        shared.slots.release(signal.executor, self.inbox)
                    done.append((signal, answer))
                break
        return builder, done

    def _decision_failed(self, builder: StepBuilder, signal: s.Signal, exc: BaseException) -> None:
        """Nothing of a decision is left; it is on record that it failed, unless that is the answer to a client."""
        match signal:
            case s.SlotFree(_, executor):
                self._shared.slots.release(executor, self.inbox)
            case s.LinkDown(_, refused):
                self._outbox.link_down(refused=refused)
            case s.LinkUp() | s.Connecting() | s.CaughtUp():
                # What follows would rest on what was not taken note of.
                self._drop_link(f"the gateway failed on it ({type(exc).__name__})")
            case s.Tick():
                self._tick_faults += 1
            case _:
                pass
        if not isinstance(exc, DragomanError) or reply_of(signal) is None:
            self._put_aside(builder, signal, f"the gateway failed on it ({type(exc).__name__})")

    def _put_aside(self, builder: StepBuilder, signal: s.Signal, reason: str) -> None:
        """Let it be on record that an input could not be taken."""
        match signal:
            case s.FrameArrived(frame, cursor):
                builder.cursor = cursor or builder.cursor
                excerpt_of = repr(frame.payload)[:_EXCERPT]
                event = FrameRejected(channel=frame.channel[:64], reason=reason, excerpt=excerpt_of)
            case s.HandedOver(frame, sequence):
                excerpt_of = repr(frame.payload)[:_EXCERPT]
                event = FrameRejected(channel=frame.channel[:64], reason=reason, excerpt=excerpt_of)
                builder.change_send(SendChange(sequence, HANDOVER, "moot", reason=reason))
            case s.Tick() if self._tick_faults > 1:
                # Each try would be another line on record; the log and the metric have them all.
                return
            case _:
                event = FaultReported(code=lifecycle.GATEWAY_FAULT, message=f"{type(signal).__name__}: {reason}")
        builder.record(event, "from_runtime")

    async def _commit(self, builder: StepBuilder) -> Committed | None:
        due = builder.last_sequence - self._snapshot_at >= self._shared.tuning.snapshot_every
        if builder.empty and not due:
            return None
        snapshot = None
        if due or builder.memory.closed:
            snapshot = to_snapshot(builder.last_sequence, builder.memory, builder.base.complete)
        started, fence = self._shared.clock.monotonic(), self.fence
        try:
            self._unsure = True
            committed = await self._shared.engine.commit(builder.step(fence=fence, snapshot=snapshot))
        except (Stale, EngineUnavailable) as exc:
            self._unsure = False
            if not isinstance(exc, Fenced):
                raise
            await self._until_leased()
            if self.fence == fence:
                raise
            self._check_regained(self.view.last_sequence)
            raise Stale("the session goes on under a new fence") from exc
        self._written, self._unsure = True, False
        self._shared.metrics.commit(self._shared.clock.monotonic() - started)
        await self._until_leased()
        self._check_regained(committed.last_sequence)
        if snapshot is not None:
            self._snapshot_at = builder.last_sequence
        return committed

    def _act(self, builder: StepBuilder, committed: Committed | None, done: list[tuple[s.Signal, Any]]) -> None:
        """Everything that may only happen now that the step is on disk."""
        before, self.view = self.view, builder.view
        envelopes = committed.envelopes if committed is not None else ()
        self._show(envelopes, [effect for effect in builder.effects if isinstance(effect, Tell)])
        if envelopes:
            if self.runtime.policy.routes.copies_anything:
                self._shared.backends.wake()
            adapter, metrics = self.runtime.adapter, self._shared.metrics
            for fault in note(envelopes, before, adapter=adapter, metrics=metrics, log=self.log):
                self._outbox.fault(fault.code, fault.message)
        self._shared.interaction_feed.tell(builder.interactions_changed)
        for effect in builder.effects:
            self._perform(effect)
        for signal, answer in done:
            self._finish(signal, answer, envelopes)
        if any(isinstance(envelope.event, SessionMoved) for envelope in envelopes):
            self._outbox.turn_moved()
        self._outbox.poke()
        if self._review is None:
            # Looking through all open calls after each batch would cost a busy session more than its deadlines gain.
            review = guard_call("session", self._set_timer)
            self._review = asyncio.get_running_loop().call_later(REVIEW_AFTER, review)

    def _show(self, envelopes: Sequence[Envelope], tells: Sequence[Tell]) -> None:
        """Show followers what is on record and what is only live, in the order in which it came."""
        shown = 0
        for tell in tells:
            upto = sum(envelope.sequence <= tell.after for envelope in envelopes)
            self.feed.extend(envelopes[shown:upto])
            self.feed.tell(Live(tell.event, tell.after))
            shown = upto
        self.feed.extend(envelopes[shown:])

    def _perform(self, effect: Effect) -> None:
        dispatcher = self._shared.dispatcher
        match effect:
            case Transmit():
                self._outbox.add(effect)
            case Dispatch():
                dispatcher.dispatch(self.inbox, effect, self.view, protocol=self.runtime.protocol)
            case Release():
                if effect.executor is not None:
                    self._shared.slots.withdraw(effect.executor, self.inbox, effect.call_id)
                dispatcher.release(effect)
            case Queue(call_id, executor, due_at):
                self._queue(call_id, executor, due_at)
            case Ask():
                dispatcher.ask(self.inbox, effect)
            case Tell():
                # Shown already, in its place between what is on record.
                pass
            case Resend(sequence):
                self._outbox.again(sequence)

    def _queue(self, call_id: CallId, executor: str, due_at: datetime | None) -> None:
        slots, wait = self._shared.slots, 0.0
        if due_at is not None:
            wait = (due_at - self._shared.clock.now()).total_seconds()
        if wait <= 0:
            slots.wait(executor, self.inbox, call_id)
        else:
            wait_if_open = guard_call("session", self._wait_if_open)
            asyncio.get_running_loop().call_later(wait, wait_if_open, executor, call_id)

    def _wait_if_open(self, executor: str, call_id: CallId) -> None:
        # Meanwhile the call or the session may have ended; a slot given then would never come back.
        if call_id in self.view.calls and not self.closed.is_set():
            self._shared.slots.wait(executor, self.inbox, call_id)

    def _finish(self, signal: s.Signal, answer: Any, envelopes: Sequence[Envelope]) -> None:
        if isinstance(answer, BaseException):
            fail(signal, answer)
            return
        match signal:
            case s.LinkUp(link):
                self._outbox.link_up(link)
            case s.Attempted(call_id, _, Answered() as late) if answer is False:
                self._late.append((call_id, late))
            case s.Delivered(sequences, target):
                if target == RUNTIME:
                    self._outbox.done(sequences)
            case s.LinkDown(_, refused):
                self._outbox.link_down(refused=refused)
            case s.Post(reply=reply):
                wanted = set(answer)
                resolve(reply, [envelope for envelope in envelopes if envelope.sequence in wanted])
            case s.OutcomeGiven(reply=reply) | s.ProgressGiven(reply=reply) | s.CancelOrdered(reply=reply):
                resolve(reply, answer)
            case s.RedriveOrdered(reply=reply):
                resolve(reply, answer)
            case s.OutcomeLate(reply=reply) | s.DismissOrdered(reply=reply):
                resolve(reply, None)
            case s.CloseOrdered(reply=reply) | s.AnswerGiven(reply=reply):
                resolve(reply, None)
            case _:
                pass

    # When things go wrong --------------------------------------------------------------------------------

    def _give_back(self, builder: StepBuilder) -> None:
        """Nothing of a step was written, or nobody knows: the slots it took are free again."""
        for effect in builder.effects:
            if isinstance(effect, Dispatch) and effect.call.executor is not None:
                self._shared.slots.release(effect.call.executor, self.inbox)

    async def _wait_for_engine(self, batch: Iterable[s.Signal], problem: EngineUnavailable) -> None:
        """The store takes no writes: clients are told at once, everything else waits for it."""
        self.log.error("the engine is unavailable", reason=str(problem))
        kept = _without_requests(batch, problem)
        await asyncio.sleep(RETRY_AFTER)
        self.inbox.put_back([signal for signal in kept if not self._requeued(signal)])

    def _requeued(self, signal: s.Signal) -> bool:
        """A call whose claim was not written has lost its slot and queues again."""
        if isinstance(signal, s.SlotFree):
            self._shared.slots.wait(signal.executor, self.inbox, signal.call_id)
            return True
        return False

    async def _known(self, signal: s.Signal) -> dict[str, Call]:
        if isinstance(signal, s.RedriveOrdered | s.DismissOrdered | s.OutcomeLate | s.AnsweredLate):
            row = await self._shared.engine.call(signal.row.call_id)
            return {} if row is None else {row.call_id: row}
        if not isinstance(signal, s.FrameArrived | s.HandedOver):
            return {}
        try:
            drafts = self.runtime.codec.decode(signal.frame)
        except MalformedFrame:
            return {}
        known: dict[str, Call] = {}
        for draft in drafts:
            if isinstance(draft.event, ToolRequested):
                row = await self._shared.engine.latest_call(self.view.session_id, draft.event.native_call_id)
                if row is not None:
                    known[draft.event.native_call_id] = row
        return known

    async def _reload(self) -> None:
        """Fold what somebody else may have written meanwhile."""
        fresh = await load_view(self._shared.engine, self.view.session_id)
        live = self.view
        if fresh.complete is not None and live.complete is None:
            self._snapshot_at = fresh.last_sequence - self._shared.tuning.snapshot_every
        if fresh.last_sequence > self.feed.last_sequence:
            # Followers have not been shown what somebody else has written.
            self.feed.skip_to(fresh.last_sequence)
        self.view = replace(
            fresh,
            first_state=live.first_state,
            touched_at=live.touched_at,
            partial=live.partial,
            live=live.live,
            start=live.start,
        )

    def _set_timer(self) -> None:
        self._review = None
        due = lifecycle.next_due(self.runtime, self.view)
        if due == self._timer_at and self._timer is not None:
            return
        if self._timer is not None and self._timer_at is not None and due is not None and due >= self._timer_at:
            return  # the timer fires early, finds nothing due and is set again
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, due
        if due is not None:
            wait = max(0.0, (due - self._shared.clock.now()).total_seconds()) + 0.001
            if self._tick_faults:
                wait = max(wait, pause_after(self._tick_faults))
            self._timer = asyncio.get_running_loop().call_later(wait, guard_call("session", self._ring))

    def _ring(self) -> None:
        self._timer = self._timer_at = None
        self.inbox.put(s.Tick())


def _without_requests(batch: Iterable[s.Signal], problem: EngineUnavailable) -> list[s.Signal]:
    """Tell clients at once that the store is away; everything else waits for it."""
    kept: list[s.Signal] = []
    for signal in batch:
        if reply_of(signal) is None:
            kept.append(signal)
        else:
            fail(signal, problem)
    return kept
