"""The worker of one session: takes what happened, lets the core decide, commits, then acts.

A session is an actor with one inbox, and this is its loop. Around it: `StepMaker` lets the core decide about a batch,
`EffectRunner` does what a step orders, `Outbox` speaks to the runtime, `Permit` says whether the session may speak,
`DueTimer` rings when a deadline is due, and `Left` is what a session that failed leaves to whoever takes it up again.

One batch is one step is one commit, and nothing is done about anything before its commit has returned.
What queues up meanwhile is the next batch, so that a busy session shares its disk syncs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from logging import DEBUG

import structlog

from gateway.adapter.port import Frame
from gateway.core import lifecycle
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.snapshots import to_snapshot
from gateway.core.state import SessionView
from gateway.errors import Elsewhere, EngineUnavailable, Fenced, MalformedFrame, Repeated, Stale
from gateway.events import CallId
from gateway.guard import is_fault
from gateway.links.once import Once
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.observe import excerpt, note
from gateway.runtime.session import signals as s
from gateway.runtime.session.due import DueTimer
from gateway.runtime.session.effects import EffectRunner
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.left import Left, Tried, what_is_left
from gateway.runtime.session.load import known_calls, load_view
from gateway.runtime.session.outbox import Outbox
from gateway.runtime.session.permit import Permit
from gateway.runtime.session.replies import fail, without_requests
from gateway.runtime.session.resting import has_something_to_say
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.stepping import FAULTS_AN_INPUT, Answers, StepMaker
from gateway.store.call import Call
from gateway.store.rows import Regained
from gateway.store.step import Committed

log = structlog.get_logger(__name__)

BATCH = 256
RETRY_AFTER = 0.5
STALE_PATIENCE = 3
"""How often a decision is made again at once, before it is made with pauses."""

_READ_FOR = frozenset({s.Reread, s.LinkUp})
"""Signals that are decided on what must be read first."""

Decided = tuple[StepBuilder, Committed | None, Answers]
"""A decision, what is on record of it, and what is answered to each signal."""


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
        self.runtime = runtime
        self.permit = Permit(shared.keeper, fence)
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
            permit=self.permit,
        )
        self._timer = DueTimer(self.inbox, shared.clock, lambda: lifecycle.next_due(self.runtime, self.view))
        self._steps = StepMaker(shared, self.inbox, self._outbox, self._timer, drop_link)
        self._effects = EffectRunner(shared, self.inbox, self._outbox, self.feed, log=self.log, is_open=self._is_open)
        self._busy = False
        self._kept = list(kept)
        self._under_way: Sequence[s.Signal] = ()
        self._written = False
        """Whether the step of what is under way is surely on record."""
        self._unsure = False
        """Whether it may be on record."""
        self._handed = 0
        """Up to where what other instances have heard is in the inbox already."""
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
        self.inbox.put_frame(frame, cursor, alone=self.permit.holds)

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
        await self.permit.given()

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
        self._outbox.call_when_said(call)

    def lose(self) -> None:
        """Say nothing more to the runtime: the session is given up here; whoever runs the worker ends it now."""
        self.lost = True
        self._outbox.link_down()

    def suspend(self) -> None:
        """Fall silent: nothing is decided or sent until `resume`; what comes meanwhile waits in the inbox."""
        self.permit.suspend()

    def resume(self, row: Regained) -> None:
        """Go on under a new fence, or begin anew from the store where somebody else has written meanwhile."""
        self.permit.resume(row)
        if row.last_sequence != self.view.last_sequence:
            # Also a session that has nothing to do finds out, unless it is its own step that is not known here yet.
            self.inbox.put(s.Reread())

    @property
    def leased(self) -> bool:
        """Whether the session may speak."""
        return self.permit.holds

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Use another configuration from the next decision on."""
        self.runtime = runtime
        # A bound logger keeps the level it was bound under.
        self.log = log.bind(session_id=self.view.session_id, runtime=self.view.runtime)
        self._effects.log = self.log
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
        return not self._busy and self.inbox.empty and self._outbox.empty and not self._outbox.outgoing.marks

    def write_marks(self) -> None:
        """Put on record soon what is believed to be delivered, without waiting for a step that it rides along with."""
        self._outbox.post_marks()

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
                batch = await self.inbox.take(BATCH)
                # First, since what follows may be said again for whoever asks for it once more.
                batch = self._under_way = [*self._outbox.take_marks(), *batch]
                self._busy, self._written = True, False
                await self._carry(batch)
                self._under_way = ()
                if self._effects.late:
                    await self._effects.look_up_late()
                self._busy = False
        except Fenced:
            self.lose()
            for signal in self._under_way:
                fail(signal, self._elsewhere(unsure=self._written))
            raise
        except BaseException as exc:
            if is_fault(exc):
                self.lost = True
                self._outbox.link_down()
                self.left = self._what_is_left()
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._outbox.link_down()
        if self.lost and self.left is None:
            self.left = self._what_is_left()
        self._timer.cancel()
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
        return what_is_left(
            self.view,
            self.runtime,
            under_way=self._under_way,
            written=self._written,
            kept=self._kept,
            waiting=self.inbox.waiting,
            unsure=self._unsure,
        )

    async def _carry_kept(self) -> None:
        """Decide one by one about what there was when the session failed, so that the one at fault is found."""
        while self._kept:
            signal, times = self._kept[0]
            self._under_way, self._written, self._busy = (signal,), False, True
            await self.permit.given()
            self.permit.check(self.view.last_sequence)
            try:
                await self._carry_alone(signal, aside=times >= FAULTS_AN_INPUT)
            except EngineUnavailable as exc:
                self.log.error("the engine is unavailable", reason=str(exc))  # noqa: TRY400
                await asyncio.sleep(RETRY_AFTER)
                continue
            del self._kept[0]
        self._busy = False

    async def _carry(self, batch: Sequence[s.Signal]) -> None:
        if not self.permit.holds_for(self.view.last_sequence):
            # Clients are told that no lease runs, and everything else waits in the inbox.
            kept = without_requests(batch, EngineUnavailable("no lease runs: the store has not answered"))
            await self.permit.wait(RETRY_AFTER)
            self.inbox.put_back(kept)
            return
        try:
            if not _READ_FOR.isdisjoint(map(type, batch)):
                await self._read_for(batch)
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
                    self._steps.requeued(waiting[0])
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
            known = {} if aside else await known_calls(self._shared.engine, self.view, self.runtime, signal)
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
            self._written = False
            if aside:
                builder, answers = self._steps.aside(self.view, self.runtime, batch), Answers()
            else:
                builder, answers = self._steps.decide(self.view, self.runtime, batch, known=known, repeats=repeats)
            try:
                return builder, await self._commit(builder), answers
            except Repeated as exc:
                self._steps.give_back(builder)
                repeats |= exc.keys
                # A slot that went back with the step is queued for again.
                batch = [signal for signal in batch if not self._steps.requeued(signal)]
            except BaseException:
                self._steps.give_back(builder)
                raise

    async def _commit(self, builder: StepBuilder) -> Committed | None:
        due = builder.last_sequence - self._snapshot_at >= self._shared.tuning.snapshot_every
        if builder.empty and not due:
            return None
        snapshot = None
        if due or builder.memory.closed:
            snapshot = to_snapshot(builder.last_sequence, builder.memory, builder.base.complete)
        started, fence = self._shared.clock.monotonic(), self.permit.fence
        try:
            self._unsure = True
            committed = await self._shared.engine.commit(builder.step(fence=fence, snapshot=snapshot))
        except (Stale, EngineUnavailable) as exc:
            self._unsure = False
            if not isinstance(exc, Fenced):
                raise
            await self.permit.given()
            if self.permit.fence == fence:
                raise
            self.permit.check(self.view.last_sequence)
            raise Stale("the session goes on under a new fence") from exc
        self._written, self._unsure = True, False
        self._shared.metrics.commit(self._shared.clock.monotonic() - started)
        while not self.permit.holds_for(committed.last_sequence):
            await self.permit.wait()
        if snapshot is not None:
            self._snapshot_at = builder.last_sequence
        return committed

    def _act(self, builder: StepBuilder, committed: Committed | None, answers: Answers) -> None:
        """Everything that may only happen now that the step is on disk."""
        before, self.view = self.view, builder.view
        envelopes = committed.envelopes if committed is not None else ()
        self._effects.show(envelopes, builder.effects)
        if envelopes:
            if self.runtime.policy.routes.copies_anything:
                self._shared.backends.wake()
            note(envelopes, before, adapter=self.runtime.adapter, metrics=self._shared.metrics, log=self.log)
            self._outbox.hear(envelopes)
        if changed := builder.interactions_changed:
            self._shared.interaction_feed.tell(changed)
        for effect in builder.effects:
            self._effects.perform(effect, self.view, self.runtime)
        for signal, answer in answers:
            self._effects.finish(signal, answer, envelopes)
        self._outbox.poke()
        self._timer.review()

    def _is_open(self, call_id: CallId) -> bool:
        return call_id in self.view.calls and not self.closed.is_set()

    # When things go wrong --------------------------------------------------------------------------------

    async def _wait_for_engine(self, batch: Iterable[s.Signal], problem: EngineUnavailable) -> None:
        """The store takes no writes: clients are told at once, everything else waits for it."""
        self.log.error("the engine is unavailable", reason=str(problem))
        kept = without_requests(batch, problem)
        await asyncio.sleep(RETRY_AFTER)
        self.inbox.put_back([signal for signal in kept if not self._steps.requeued(signal)])

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
