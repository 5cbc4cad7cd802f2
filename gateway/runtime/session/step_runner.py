"""Processes the signals of a session: lets the core decide, commits the step, then acts.

One batch is one step is one commit. If the store rejects a step, its signals are decided again on fresh data: without
recorded duplicates, one by one after another writer's commit, and later if the store is unavailable.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from structlog.typing import FilteringBoundLogger

from gateway.adapter.port import Frame
from gateway.core import lifecycle
from gateway.core.effects import Tell
from gateway.core.live import only_live
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.snapshots import to_snapshot
from gateway.core.state import SessionView
from gateway.errors import EngineUnavailable, Fenced, Repeated, Stale
from gateway.events import Live
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.observe import note, note_opened
from gateway.runtime.session import signals as s
from gateway.runtime.session.due import DueTimer
from gateway.runtime.session.effects import EffectRunner
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.load import known_calls, load_view, read_wanted
from gateway.runtime.session.pending_inputs import OWN_RESULTS, PendingInputs, Tried
from gateway.runtime.session.permit import Permit
from gateway.runtime.session.replies import without_requests
from gateway.runtime.session.sender import Sender
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.step_traces import trace_step
from gateway.runtime.session.stepping import FAULTS_AN_INPUT, Answers, StepMaker
from gateway.store.call import Call
from gateway.store.rows import SessionName
from gateway.store.step import Committed, Step

RETRY_AFTER = 0.5
STALE_PATIENCE = 3
"""Immediate retries of a decision before retries with pauses."""

_READ_FOR = frozenset({s.Reread, s.LinkUp, s.WantedDue})
"""Signals whose decision requires a query first."""

Decided = tuple[StepBuilder, Committed | None, Answers]
"""A decision, its committed events, and the reply to each signal."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The parts of one session that a step uses."""

    permit: Permit
    inbox: Inbox
    outbox: Sender
    effects: EffectRunner
    timer: DueTimer
    steps: StepMaker
    feed: Feed


class StepRunner:
    """Runs the steps of one session; decisions use its `view`."""

    def __init__(
        self,
        view: SessionView,
        *,
        runtime: RuntimeContext,
        shared: Shared,
        parts: SessionParts,
        log: FilteringBoundLogger,
    ) -> None:
        self.view = view
        self.runtime = runtime
        self.log = log
        self.under_way: Sequence[s.Signal] = ()
        self.written = False
        """Whether the current step is certainly committed."""
        self._unsure = False
        """Whether it may be committed."""
        self._shared = shared
        self._permit = parts.permit
        self._inbox = parts.inbox
        self._outbox = parts.outbox
        self._effects = parts.effects
        self._timer = parts.timer
        self._steps = parts.steps
        self._feed = parts.feed
        self._snapshot_at = view.last_sequence
        self._unsaved = self._shared.tuning.snapshot_bytes if view.is_unsaved else 0
        """The stored bytes of the events since the snapshot."""
        self._snapshot_size = 0

    def collect_pending(self, retained: Sequence[Tried], replayed: Sequence[Tried]) -> PendingInputs:
        """Collect the inputs to decide again: those of the current step, retained and waiting ones."""
        tried = {id(signal): times for signal, times in retained}
        now = {id(signal) for signal in self.under_way}
        # A link that replays sends unrecorded frames again.
        resumes = self.runtime.capabilities.resumes
        kinds = OWN_RESULTS if resumes else (*OWN_RESULTS, s.FrameArrived)
        later = [*(one for one in retained if id(one[0]) not in now), *((one, 0) for one in self._inbox.waiting)]
        failed = [] if self.written else [(one, tried.get(id(one), 0) + 1) for one in self.under_way]
        frames = [one for one in failed if resumes and isinstance(one[0], s.FrameArrived)]
        return PendingInputs(
            self.view.last_sequence,
            tuple(one for one in failed if isinstance(one[0], kinds)),
            tuple(one for one in later if isinstance(one[0], kinds)),
            replayed=(*replayed, *frames),
            unsure=self._unsure,
            codec=None if resumes else self.runtime.codec,
        )

    def publish_live(self, frame: Frame) -> bool:
        """Publish a live frame while no step runs; return False if the frame requires a step."""
        shown = only_live(self.runtime, self.view, frame, now=self._shared.clock.now())
        if shown is None:
            return False
        view, events = shown
        self.view = self._outbox.view = view
        for live in events:
            self._feed.tell(live)
        if self.runtime.policy.routes.copying_live:
            self._copy_live(events)
        return True

    def _copy_live(self, events: Iterable[Live]) -> None:
        """Copy live events to the destinations of their routes."""
        routes, view = self.runtime.policy.routes, self.view
        name = SessionName(view.session_id, view.runtime, view.native_id, view.memory.labels)
        for live in events:
            targets = routes.copies_for(
                runtime=name.runtime, kind=live.event.kind, tool=None, labels=name.labels, live=True
            )
            self._shared.backends.copy_live(targets, name, live)

    # Normal steps ---------------------------------------------------------------------------------------

    async def carry(self, batch: Sequence[s.Signal]) -> None:
        """Make one step of a batch.

        Raises:
            Fenced: another instance owns the session; nothing was written.
        """
        self.under_way, self.written = batch, False
        try:
            if not self._permit.holds_for(self.view.last_sequence):
                await self._wait_for_lease(batch)
                return
            if not _READ_FOR.isdisjoint(map(type, batch)):
                batch = await self._read_for(batch)
        except BaseException as exc:
            # No decision used the granted slots.
            self._steps.release_granted(batch)
            if not isinstance(exc, EngineUnavailable):
                raise
            await self._wait_for_engine(batch, exc)
            self.under_way = ()
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
        self.under_way = ()

    async def _decide_and_commit(
        self, batch: Sequence[s.Signal], known: Mapping[str, Call], *, is_quarantined: bool = False
    ) -> Decided:
        """Decide and commit; decide again if a native id is recorded that the memory no longer holds.

        Raises:
            Stale, EngineUnavailable: nothing was written, and its slots are free again.
        """
        metrics, monotonic = self._shared.metrics, self._shared.clock.monotonic
        repeats: set[str] = set()
        while True:
            self.written = False
            if is_quarantined:
                builder, answers = self._steps.quarantine(self.view, self.runtime, batch), Answers()
            else:
                builder, answers = self._steps.decide(self.view, self.runtime, batch, known=known, repeats=repeats)
            fence = self._permit.fence
            try:
                attempts = self._outbox.plan_attempts(builder)
                if attempts is not None:
                    builder.write_attempts(*attempts)
                step = self._step(builder, fence)
                if step is None:
                    return builder, None, answers
                started, self._unsure = monotonic(), True
                committed = await self._shared.engine.commit(step)
                self.written, self._unsure = True, False
                metrics.commit(monotonic() - started)
                note_opened(step.calls, metrics)
                while not self._permit.holds_for(committed.last_sequence):
                    await self._permit.wait()
            except BaseException as exc:
                self._steps.release_slots(builder)
                if self._unsure and isinstance(exc, Stale | EngineUnavailable):
                    self._unsure = False
                    if isinstance(exc, Fenced):
                        await self._check_fence(fence, exc)
                if not isinstance(exc, Repeated):
                    raise
                repeats |= exc.keys
                # Request a slot again that the failed step returned.
                batch = [signal for signal in batch if not self._steps.requeue_slot(signal)]
            else:
                if attempts is not None:
                    self._outbox.outbox.note_attempts(attempts)
                self._unsaved += committed.size
                if step.snapshot is not None:
                    self._snapshot_at, self._unsaved = builder.last_sequence, 0
                    self._snapshot_size = len(step.snapshot)
                return builder, committed, answers

    def _step(self, builder: StepBuilder, fence: int) -> Step | None:
        """Build the step of a decision, with a due snapshot; None if there is nothing to write."""
        tuning, events = self._shared.tuning, builder.last_sequence - self._snapshot_at
        # A snapshot is never written for fewer bytes of events than its own.
        due = events >= tuning.snapshot_every or self._unsaved >= max(tuning.snapshot_bytes, self._snapshot_size)
        if builder.empty and not due:
            return None
        snapshot = None
        if due or builder.memory.closed:
            snapshot = to_snapshot(builder.last_sequence, builder.memory)
        return builder.step(fence=fence, snapshot=snapshot)

    async def _check_fence(self, fence: int, fenced: Fenced) -> None:
        """Check after a fence error whether this process owns the session under a new fence.

        Raises:
            Stale: it does, and no other instance has written.
            Fenced: another instance has written.
        """
        await self._permit.wait_held()
        if self._permit.fence != fence:
            self._permit.check(self.view.last_sequence)
            raise Stale("the session has a new fence") from fenced

    def _act(self, builder: StepBuilder, committed: Committed | None, answers: Answers) -> None:
        """Perform the effects of a committed step."""
        before, shared = self.view, self._shared
        self.view = self._outbox.view = builder.view
        envelopes = committed.envelopes if committed is not None else ()
        try:
            # Executors and the runtime first, because they wait.
            if envelopes:
                self._outbox.apply_events(envelopes)
            for effect in builder.effects:
                self._effects.perform(effect, self.view, self.runtime)
            for signal, answer in answers:
                self._effects.finish(signal, answer, envelopes)
            self._outbox.poke()
        finally:
            self._effects.publish(envelopes, builder.effects)
            if self.runtime.policy.routes.copying_live:
                self._copy_live([Live(one.event, one.after) for one in builder.effects if isinstance(one, Tell)])
            if envelopes:
                if self.runtime.policy.routes.copying:
                    shared.backends.wake()
                note(envelopes, before, adapter=self.runtime.adapter, metrics=shared.metrics, log=self.log)
                if shared.traces is not None:
                    trace_step(shared.traces, builder, envelopes)
                if self.runtime.options.takes_mcp:
                    shared.tool_watch.note(before.session_id, before.runtime, envelopes)
            if builder.interactions:
                shared.interaction_feed.tell(tuple(change.interaction_id for change in builder.interactions))
        shared.reviews.add(self._timer)

    # Queries before a decision -----------------------------------------------------------------------------

    async def _read_for(self, batch: Sequence[s.Signal]) -> Sequence[s.Signal]:
        """Run the queries that the signals of a batch require; return the batch with their results.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        if any(isinstance(signal, s.Reread) for signal in batch):
            await self._reload()
        if any(isinstance(signal, s.LinkUp) for signal in batch) and lifecycle.hydrates(self.runtime, self.view.memory):
            await self._outbox.check_state_queued()
        engine, view = self._shared.engine, self.view
        return [await read_wanted(engine, view, one) if isinstance(one, s.WantedDue) else one for one in batch]

    async def _reload(self) -> None:
        """Fold events that other writers may have committed, and load the pending sends again."""
        fresh = await load_view(self._shared.engine, self.view.session_id)
        live = self.view
        if fresh.last_sequence < live.last_sequence:
            self.log.error(
                "the store has lost recorded events, as after a failover to a standby without them",
                known=live.last_sequence,
                found=fresh.last_sequence,
            )
        if fresh.last_sequence > self._feed.last_sequence:
            # Followers have not seen events of other writers.
            self._feed.skip_to(fresh.last_sequence)
        self.view = self._outbox.view = replace(
            fresh,
            first_state=live.first_state,
            touched_at=live.touched_at,
            partial=live.partial,
            live=live.live,
            start=live.start,
        )
        self._outbox.reload()

    # Failed steps -------------------------------------------------------------------

    async def carry_retained(self, retained: list[Tried]) -> None:
        """Decide the inputs of a failed session one by one, to isolate the faulty one."""
        while retained:
            signal, times = retained[0]
            self.under_way, self.written = (signal,), False
            if not self._permit.holds:
                await self._permit.wait_held()
            self._permit.check(self.view.last_sequence)
            try:
                await self._carry_alone(signal, is_quarantined=times >= FAULTS_AN_INPUT)
            except EngineUnavailable as exc:
                self._shared.engine.outage.failed(exc, "decision")
                await asyncio.sleep(RETRY_AFTER)
                continue
            del retained[0]
            self.under_way = ()

    async def _carry_one_by_one(self, batch: Sequence[s.Signal]) -> None:
        waiting = deque(batch)
        try:
            while waiting:
                self.under_way, self.written = tuple(waiting), False
                if isinstance(waiting[0], s.SlotFree):
                    # Its slot was returned with the step, so it requests one again, on fresh data.
                    await self._reload()
                    self._steps.requeue_slot(waiting[0])
                else:
                    await self._carry_alone(waiting[0])
                waiting.popleft()
        except EngineUnavailable as exc:
            # All other signals wait as well, so that no cancel overtakes its call.
            await self._wait_for_engine(waiting, exc)

    async def _carry_alone(self, signal: s.Signal, *, is_quarantined: bool = False) -> None:
        """Decide one signal on fresh data, with repeated ids from the ledger, or quarantine it.

        Raises:
            EngineUnavailable: nothing was written.
            Fenced: nothing was written.
        """
        for tries in count(1):
            known = {} if is_quarantined else await known_calls(self._shared.engine, self.view, self.runtime, signal)
            try:
                decided = await self._decide_and_commit([signal], known, is_quarantined=is_quarantined)
            except Fenced:
                raise
            except Stale as exc:
                if tries >= STALE_PATIENCE:
                    self.log.warning("decision still stale; retrying", signal=type(signal).__name__, reason=str(exc))
                    await asyncio.sleep(RETRY_AFTER)
                await self._reload()
            else:
                self._act(*decided)
                return

    async def _wait_for_lease(self, batch: Sequence[s.Signal]) -> None:
        """Wait without a lease: reject client requests and keep all other signals with their slots."""
        internal = without_requests(batch, EngineUnavailable("the lease has expired: the store does not respond"))
        await self._permit.wait(RETRY_AFTER)
        self._inbox.put_back(internal)
        self.under_way = ()

    async def _wait_for_engine(self, batch: Iterable[s.Signal], problem: EngineUnavailable) -> None:
        """Wait for an unavailable store: reject client requests at once and keep all other signals."""
        self._shared.engine.outage.failed(problem, "decision")
        internal = without_requests(batch, problem)
        await asyncio.sleep(RETRY_AFTER)
        self._inbox.put_back([signal for signal in internal if not self._steps.requeue_slot(signal)])
