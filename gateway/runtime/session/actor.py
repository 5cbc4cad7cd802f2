"""One session: its inbox, and the batch of signals that it decides, commits and acts on.

A session has no task. `Turns` calls it when it is ready, and again when its step is committed; nothing is acted on
before its commit. Signals that arrive meanwhile form the next batch, so a busy session shares its disk syncs.

| state | until |
|---|---|
| idle | a signal arrives |
| ready | a turn decides the next batch |
| committing | the store has written the step, or refused it |
| acting | a turn performs the effects |
| suspended | it has read the store, its lease is valid again, or a pause after a failed commit ends |
| ended | for ever: it was closed, has failed, or belongs to another instance or a new object |

| a step fails with | reaction |
|---|---|
| `Repeated` | it is decided again without the recorded events |
| `Stale` | the session is read again, and its signals are decided one by one; after three times with pauses |
| `Fenced` | as `Stale` if this process has a new fence and nobody else has written; otherwise the session is released |
| `EngineUnavailable` | the requests of clients fail; after a pause it is decided again |
| any other exception | the session restarts from the store and decides the inputs of the step one by one |
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import DEBUG
from typing import TYPE_CHECKING, Literal

import structlog

from gateway.adapter.port import Frame
from gateway.core import lifecycle
from gateway.core.live import only_live
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import Elsewhere, EngineUnavailable, Fenced, MalformedFrame, Repeated, Stale
from gateway.guard import FAULTS, guard, guard_call, is_fault
from gateway.runtime import signals as s
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.lease import Permit
from gateway.runtime.observe import excerpt, label_session, note_calls
from gateway.runtime.session.decide import Decider, SignalBatch
from gateway.runtime.session.due import DueTimer
from gateway.runtime.session.effects import EffectRunner
from gateway.runtime.session.inbox import Inbox, PendingInputs, Tried, collect, split_repeated
from gateway.runtime.session.load import has_something_to_say, known_calls, read_wanted, refresh
from gateway.runtime.session.sender import Sender
from gateway.runtime.session.shared import Shared
from gateway.runtime.signals import without_requests
from gateway.runtime.wakeup import finish
from gateway.settings.model import Limits
from gateway.store.rows import Regained
from gateway.store.step import Committed, Step

if TYPE_CHECKING:
    from gateway.runtime.session.link import Supervisor
    from gateway.runtime.session.turn import Turns

log = structlog.get_logger(__name__)

MOST_SIGNALS, MOST_BYTES = 64, 1024 * 1024
"""Signals of one batch, and the bytes of its frames; a single larger frame is a batch of its own."""
RETRY_AFTER = 0.5
STALE_PATIENCE = 3
"""Immediate retries of a decision before retries with pauses."""
_END = 30.0
"""Seconds in which the store reports on the step of an ended session."""

_READ_FOR = frozenset({s.Reread, s.LinkUp, s.WantedDue})
"""Signals whose decision requires a query first."""

State = Literal["idle", "ready", "committing", "acting", "suspended", "ended"]
Reason = Literal["no lease", "reads the store", "the store is unavailable", "its decisions are outdated"]


class Actor:
    """One owned session."""

    def __init__(
        self,
        view: SessionView,
        *,
        fence: int,
        runtime: RuntimeContext,
        shared: Shared,
        turns: "Turns",
        limits: Limits,
        ended: "Callable[[Actor, BaseException | None], None]",
        retained: Iterable[Tried] = (),
        replayed: Iterable[Tried] = (),
    ) -> None:
        """Prepare; `retained` inputs are decided first, one by one; frames that equal one of `replayed`, alone.

        `ended` is called when the session is closed, or with the exception that it cannot continue after.
        """
        self.state: State = "idle"
        self.reason: Reason | None = None
        """Why it was suspended last; None since the last committed step."""
        self.since = 0.0
        """The time from which on it has been suspended."""
        self.permit = Permit(shared.keeper, fence)
        self.session_id = view.session_id
        self.link: Supervisor | None = None
        """Maintains its link; None if the protocol has none."""
        self.gone = "the session has stopped on this instance"
        """Why it takes no requests once it has ended without being closed."""
        self.feed = Feed(view.last_sequence, session_id=view.session_id, all_sessions=shared.all_sessions)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed at the end. Several tasks wait for it, so none may cancel it."""
        self.replaying = False
        """Whether the link still replays history; nothing is acted on until catch-up."""
        self._shared = shared
        self._turns = turns
        self.view = view
        self.runtime = runtime
        self._ended = ended
        self.inbox = Inbox(
            frames=limits.inbound_frames,
            size=limits.inbound_bytes,
            resumes=runtime.capabilities.resumes,
            is_live=self._is_live,
            overflow=self.drop_link,
            filled=self._note_signal,
        )
        self.log = log.bind(session=label_session(view))
        self.sender = Sender(self, shared)
        self.timer = DueTimer(self.inbox, shared.clock, lambda: lifecycle.next_due(self.runtime, self.view))
        self._effects = EffectRunner(self, shared)
        self._decider = Decider(self, shared)
        self._batch: SignalBatch | None = None
        self._alone = deque(SignalBatch([signal], alone=True, times=times) for signal, times in retained)
        """Signals to decide one by one before those of the inbox."""
        self._replayed = list(replayed)
        self._handed = 0
        """The sequence up to which frames of other instances are in the inbox."""
        self._is_outdated = False
        """Whether the session must be read again before the next decision."""
        self._waiting: asyncio.TimerHandle | asyncio.Task[None] | None = None
        """What ends the suspension."""
        self._left: list[s.Signal] = []
        """The signals that waited at the end."""
        self._has_pending = False
        """Whether the session is gone and `take_pending` has not returned its undecided inputs yet."""
        self._in_store: asyncio.Future[None] | None = None
        """Completed when the store reports on the step of an ended session."""
        if self._alone:
            self._get_ready()

    # Interface ------------------------------------------------------------------------------------

    @property
    def links(self) -> Sequence[asyncio.Task[None]]:
        """The task that maintains its link, if the protocol has links."""
        return () if self.link is None else (self.link.task,)

    def drop_link(self, reason: str) -> None:
        """Close the current link, if there is one; the next one opens by itself."""
        if self.link is not None:
            self.link.drop(reason)

    def connecting(self) -> None:
        """Prepare for a new link, which resumes at the last cursor."""
        self.replaying = self.runtime.capabilities.resumes
        self.inbox.reopen(self.view.cursor)
        self.inbox.put(s.Connecting())

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Put a frame of the link into the inbox, unless it is live and can be published at once."""
        self._shared.metrics.frame(self.view.runtime, "from_runtime")
        if self.log.is_enabled_for(DEBUG):
            self.log.debug("frame <", channel=frame.channel, payload=excerpt(frame.payload))
        alone = self.permit.holds
        needs_no_step = frame.live and alone and cursor is None and self.state == "idle" and not self.inbox.shut
        if not (needs_no_step and self._publish_live(frame)):
            self.inbox.put_frame(frame, cursor, alone=alone)

    def hand_over(self, frames: Sequence[s.HandedOver]) -> int:
        """Put frames of another instance into the inbox; return the number of new ones."""
        fresh = [one for one in frames if one.sequence > self._handed]
        if fresh and self.state != "ended":
            self._handed = fresh[-1].sequence
            # They follow the known events in the journal.
            for signal in (s.Reread(), *fresh):
                self.inbox.put(signal)
        return len(fresh)

    def caught_up(self, *, starting: bool | None = False) -> None:
        """Note the end of a replay, unless frames of it were refused."""
        self.replaying = False
        if not self.inbox.shut:
            self.inbox.put(s.CaughtUp(starting))

    async def has_work(self) -> bool:
        """Return whether a link is needed: before the first link, or for waiting events.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        return self.view.cursor is None or await has_something_to_say(self._shared.engine, self.session_id)

    def resume(self, row: Regained) -> None:
        """Resume under a new fence; restart from the store if another instance has written."""
        self.permit.resume(row)
        if row.last_sequence != self.view.last_sequence:
            # An idle session must also detect the writes of other instances.
            self.inbox.put(s.Reread())
        if self.state == "suspended" and self.reason == "no lease":
            self.go_on()

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Replace the configuration from the next decision on."""
        # A bound logger keeps its level.
        self.log = log.bind(session=label_session(self.view))
        before, self.runtime = self.runtime.policy, runtime
        self.sender.outbox.reconfigure(runtime)
        if runtime.policy is not before:
            self.inbox.put(s.Rerouted(before))

    @property
    def in_flight(self) -> str | None:
        """Name the work that keeps the session from being settled; None if it is."""
        if self.state != "idle":
            return "uncommitted step"
        if self.sender.sending:
            return "unconfirmed send"
        return None if self.sender.settled else "unsent event"

    def find_delay(self, now: float) -> str | None:
        """Say what the session has waited for too long, if anything; a step that the store keeps is logged once."""
        if self.state == "suspended" and now - self.since > self._shared.tuning.session_waits:
            return f"has been suspended for {now - self.since:.0f} s: {self.reason}"
        batch = self._batch
        if self.state != "committing" or batch is None or now - batch.since <= self._shared.tuning.store_waits:
            return None
        text = f"the store has not reported on its step for {now - batch.since:.0f} s"
        if not batch.is_late:
            batch.is_late = True
            FAULTS.get().note("store", TimeoutError(text), session=label_session(self.view))
        return text

    # Live frames ------------------------------------------------------------------------------------------

    def _is_live(self, frame: Frame) -> bool:
        try:
            drafts = self.runtime.codec.decode(frame)
        except MalformedFrame:
            return False
        return bool(drafts) and all(draft.live for draft in drafts)

    def _publish_live(self, frame: Frame) -> bool:
        """Publish a live frame while the session is idle; return False if the frame requires a step."""
        shown = only_live(self.runtime, self.view, frame, now=self._shared.clock.now())
        if shown is None:
            return False
        self.view, events = shown
        for live in events:
            self._effects.publish_live(live)
        return True

    # States ------------------------------------------------------------------------------------------------

    def _note_signal(self) -> None:
        if self.state == "idle":
            self._get_ready()

    def _get_ready(self) -> None:
        self.state = "ready"
        self._turns.decide_soon(self)

    def _suspend(self, reason: Reason, seconds: float | None = None) -> None:
        """Pause until `go_on`, at most for `seconds`."""
        if self.reason is None:
            self.since = self._shared.clock.monotonic()
        self.state, self.reason = "suspended", reason
        if seconds is not None:
            self._waiting = asyncio.get_running_loop().call_later(seconds, _GO_ON, self)

    def go_on(self) -> None:
        """End a suspension: act on the committed step, or decide."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        if self._batch is not None and self._batch.may_act:
            self.state = "acting"
            self._turns.act_soon(self)
        else:
            self._get_ready()

    # Decide ------------------------------------------------------------------------------------------------

    def decide(self) -> Step | None:
        """Decide the next batch; return the step to commit, or None if there is none, or none yet.

        Raises:
            Fenced: another instance has written.
        """
        if not self.permit.holds_for(self.view.last_sequence):
            self._await_lease()
            return None
        while True:
            batch = self._batch = self._batch or self._take()
            if batch is None:
                self.state, self.reason = "idle", None
                return None
            if not batch.signals:
                self._batch = None
                continue
            if batch.fenced is not None:
                if batch.fence == self.permit.fence:
                    raise batch.fenced
                # This process has a new fence, and nobody else has written.
                batch.fenced = None
                self._isolate(batch)
                return None
            if self._must_read(batch):
                self._suspend("reads the store")
                read = partial(self._read, batch)
                self._waiting = guard("session", read, self._shared.tasks, again=False, session_id=self.session_id)
                return None
            if not batch.has_slots:
                batch.signals = [signal for signal in batch.signals if not self._decider.requeue_slot(signal)]
                batch.has_slots = True
                continue
            return self._make_step(batch)

    def _take(self) -> SignalBatch | None:
        """Take the next signals, with the delivery marks that their step may record."""
        if self._alone:
            return self._alone.popleft()
        signals = self.inbox.take(MOST_SIGNALS, size=MOST_BYTES)
        if not signals:
            return None
        if self._replayed:
            signals, later, known = split_repeated(signals, self._replayed)
            self.inbox.put_back(later)
            if known is not None:
                self._replayed.remove(known)
                return SignalBatch(signals, alone=True, times=known[1])
        # First, because the batch may request a delivered outcome again.
        marks = self.sender.outbox.take_marks()
        return SignalBatch([*marks, *signals] if marks else signals)

    def _make_step(self, batch: SignalBatch) -> Step | None:
        batch.fence = self.permit.fence
        batch.step = step = self._decider.make_step(batch)
        if step is None:
            self.state = "acting"
            return None
        batch.written = "unsure"
        self.state, batch.since = "committing", self._shared.clock.monotonic()
        return step

    def _await_lease(self) -> None:
        """Wait without a lease: fail the requests of clients, and keep all other signals with their slots."""
        problem = EngineUnavailable("the lease has expired: the store does not respond")
        self._fail_requests(problem)
        without_requests(self.inbox.take_requests(), problem)
        self._suspend("no lease", self.permit.patience)

    # Queries before a decision -----------------------------------------------------------------------------

    def _must_read(self, batch: SignalBatch) -> bool:
        if self._is_outdated:
            return True
        if batch.is_read or batch.is_quarantined:
            return False
        return batch.alone or not _READ_FOR.isdisjoint(map(type, batch.signals))

    async def _read(self, batch: SignalBatch) -> None:
        """Run the queries that the decision of a batch requires."""
        engine = self._shared.engine
        try:
            if self._is_outdated:
                await self._reload()
            if batch.alone:
                batch.known = await known_calls(engine, self.view, self.runtime, batch.signals[0])
            else:
                await self._read_for(batch)
            batch.is_read = True
        except EngineUnavailable as exc:
            self._wait_for_engine(batch, exc)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            self.fail(exc)
        else:
            # This task ends by itself.
            self._waiting = None
            self.go_on()

    async def _read_for(self, batch: SignalBatch) -> None:
        kinds, engine = dict.fromkeys(map(type, batch.signals)), self._shared.engine
        if s.Reread in kinds:
            await self._reload()
        if s.LinkUp in kinds and lifecycle.hydrates(self.runtime, self.view.memory):
            await self.sender.check_state_queued()
        for place, signal in enumerate(batch.signals):
            if isinstance(signal, s.WantedDue):
                batch.signals[place] = await read_wanted(engine, self.view, signal)

    async def _reload(self) -> None:
        """Fold events that other writers may have committed, and load the pending sends again."""
        known, self.view = self.view, await refresh(self._shared.engine, self.view)
        if self.view.last_sequence < known.last_sequence:
            self.log.error(
                "the store has lost recorded events, as after a failover to a standby without them",
                known=known.last_sequence,
                found=self.view.last_sequence,
            )
        if self.view.last_sequence > self.feed.last_sequence:
            # Followers have not seen events of other writers.
            self.feed.skip_to(self.view.last_sequence)
        self._is_outdated = False
        self.sender.reload()

    # Commit ------------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Undo a decision whose step the store has no capacity for."""
        if self._batch is not None:
            self._undo(self._batch)
        if self._in_store is not None:
            finish(self._in_store)
        else:
            self.state = "ready"

    def settle(self, result: Committed | Exception) -> None:
        """Take the result of the step; its effects are performed by `act`.

        Raises:
            Exception: nobody expected it, and the step may be written.
        """
        if self._in_store is not None:
            finish(self._in_store)
        batch = self._batch
        if batch is None or batch.step is None:
            # The session has ended long ago.
            return
        if self.state != "ended":
            self.state = "acting"
        if not isinstance(result, Exception):
            batch.committed, batch.written = result, "yes"
            self._shared.metrics.commit(self._shared.clock.monotonic() - batch.since)
            note_calls(batch.step, self.view, self._shared.metrics, now=self._shared.clock.now())
            return
        if isinstance(result, Stale | EngineUnavailable):
            self._undo(batch)
        if self.state != "ended":
            self._handle_error(batch, result)

    def _handle_error(self, batch: SignalBatch, exc: Exception) -> None:
        match exc:
            case EngineUnavailable():
                self._wait_for_engine(batch, exc)
            case Repeated(keys=keys):
                batch.repeats |= keys
                self._get_ready()
            case Fenced():
                # Until the lease is valid it is unknown whether this process has a new fence.
                batch.fenced = exc
                self._get_ready()
            case Stale():
                self._isolate(batch, exc)
            case _:
                raise exc

    def _undo(self, batch: SignalBatch) -> None:
        self._release_slots(batch)
        batch.undo()

    def _release_slots(self, batch: SignalBatch) -> None:
        """Release the slots of a decision that is not acted on, or those granted to undecided signals."""
        if not batch.has_slots:
            return
        batch.has_slots = False
        if batch.builder is not None:
            self._decider.release_slots(batch.builder)
        else:
            self._decider.release_granted(batch.signals)

    def _isolate(self, batch: SignalBatch, exc: Stale | None = None) -> None:
        """Decide the signals of a stale step one by one on fresh data."""
        self._is_outdated = True
        batch.stale += 1
        if not batch.alone:
            apart = [SignalBatch([one], alone=True, has_slots=False, stale=1) for one in batch.signals]
            self._alone.extendleft(reversed(apart))
            self._batch = None
        elif batch.stale >= STALE_PATIENCE and exc is not None:
            signal = type(batch.signals[0]).__name__
            self.log.warning("decision still stale; retrying", signal=signal, reason=str(exc))
            self._suspend("its decisions are outdated", RETRY_AFTER)
            return
        self._get_ready()

    def _wait_for_engine(self, batch: SignalBatch, problem: EngineUnavailable) -> None:
        """Wait for an unavailable store: fail the requests of clients at once, and keep all other signals."""
        self._shared.engine.outage.failed(problem, "decision")
        self._undo(batch)
        batch.repeats.clear()
        self._fail_requests(problem)
        if batch.stale and not batch.times:
            self._join(batch)
        self._suspend("the store is unavailable", RETRY_AFTER)

    def _join(self, batch: SignalBatch) -> None:
        """Decide the signals of a stale step together again, because each step of its own would wait for the store."""
        self._batch = SignalBatch(batch.signals, has_slots=False)
        while self._alone and not self._alone[0].times:
            self._batch.signals += self._alone.popleft().signals

    def _fail_requests(self, problem: BaseException) -> None:
        """Fail the requests of clients that are taken out of the inbox and not committed."""
        for batch in (self._batch, *self._alone):
            if batch is not None:
                batch.signals = without_requests(batch.signals, problem)

    # Act -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Perform the effects of the committed step, and take up the next signals.

        Raises:
            Fenced: another instance has written.
        """
        batch = self._batch
        assert batch is not None
        builder, committed = batch.builder, batch.committed
        assert builder is not None
        known = self.view.last_sequence if committed is None else committed.last_sequence
        if not self.permit.holds_for(known):
            self._suspend("no lease", self.permit.patience)
            return
        self._decider.note_committed(batch)
        before, self.view = self.view, builder.view
        # From here on the slots belong to the attempts.
        batch.has_slots = False
        self._effects.act(batch, before)
        self._batch = self.reason = None
        self._shared.reviews.add(self.timer)
        if self.view.memory.closed:
            self.end()
            self._ended(self, None)
        elif self._alone or not self.inbox.empty:
            self._get_ready()
        else:
            self.state = "idle"
            self.inbox.done()

    # The end -------------------------------------------------------------------------------------------------

    def fail(self, exc: BaseException) -> None:
        """Let the session restart from the store, or release it if another instance owns it."""
        if self.state != "ended":
            self._ended(self, exc)

    def end(self, *, gone: str | None = None) -> None:
        """End at once: take no signal, send nothing, start nothing; the store may still write the last step.

        Unless it is closed, the requests of its clients fail. If it continues elsewhere or as a new object, `gone` says
        so, and `take_pending` returns its inputs.
        """
        if self.state == "ended":
            return
        if self.state == "committing":
            self._in_store = asyncio.get_running_loop().create_future()
        self.state = "ended"
        if gone is not None:
            self.gone, self._has_pending = gone, True
        if self._waiting is not None:
            self._waiting.cancel()
        self.timer.cancel()
        self.sender.link_down()
        self._shared.slots.forget(self.session_id)
        self._shared.tool_watch.drop(self.session_id)
        self._left = self.inbox.take_all()
        self._decider.release_granted(self._left)
        if self._batch is not None:
            self._release_slots(self._batch)
        if not self.view.memory.closed:
            self._fail_all()
            if gone is None and (unrecorded := len(self._collect().frames)):
                self.log.warning("unrecorded frames dropped", count=unrecorded)
        self.feed.close()
        finish(self.closed)

    def _fail_all(self) -> None:
        text, doubt = self.gone, "; the request may have been recorded"
        for batch in (SignalBatch(self._left), *self._alone, self._batch):
            if batch is not None:
                unsure = batch.written != "no"
                problem = Elsewhere(self.session_id, text + doubt * unsure, unsure=unsure)
                without_requests(batch.signals, problem)

    async def wait_settled(self, *, within: float = _END) -> None:
        """Wait after the end until the store has reported on the last step."""
        if self._in_store is not None:
            await asyncio.wait({self._in_store}, timeout=within)

    def take_pending(self) -> PendingInputs | None:
        """Take out the undecided inputs of a session that is gone, once; frames may arrive until its link has ended."""
        if not self._has_pending:
            return None
        self._has_pending = False
        self._left += self.inbox.take_all()
        pending = self._collect()
        self._batch, self._left = None, []
        self._alone.clear()
        return pending

    def _collect(self) -> PendingInputs:
        waiting = [(signal, alone.times) for alone in self._alone for signal in alone.signals]
        waiting += [(signal, 0) for signal in self._left]
        return collect(self.view.last_sequence, self._batch, waiting, self._replayed, self.runtime)


_GO_ON = guard_call("session", Actor.go_on)
