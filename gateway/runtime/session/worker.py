"""The worker of one session: its inbox, outbox and processing loop.

A session is an actor with one inbox. `StepRunner` lets the core decide a batch, commits and acts; `Sender` sends to the
runtime; `Permit` tells whether the session may act; `DueTimer` fires at deadlines; `PendingInputs` holds the inputs of
a failed session for its next worker.

One batch is one step is one commit, and nothing is acted on before its commit. Signals that arrive meanwhile form the
next batch, so a busy session shares its disk syncs.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from logging import DEBUG

import structlog

from gateway.adapter.port import Frame
from gateway.core import lifecycle
from gateway.core.session import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import Elsewhere, Fenced, MalformedFrame
from gateway.events import CallId
from gateway.guard import is_fault
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.feeds.wakeup import finish
from gateway.runtime.observe import excerpt, label_session
from gateway.runtime.session import signals as s
from gateway.runtime.session.due import DueTimer
from gateway.runtime.session.effects import EffectRunner
from gateway.runtime.session.inbox import Inbox
from gateway.runtime.session.pending_inputs import PendingInputs, Tried, is_same_frame
from gateway.runtime.session.permit import Permit
from gateway.runtime.session.replies import fail
from gateway.runtime.session.resting import has_something_to_say
from gateway.runtime.session.sender import Sender
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.step_runner import SessionParts, StepRunner
from gateway.runtime.session.stepping import StepMaker
from gateway.store.rows import Regained

log = structlog.get_logger(__name__)

BATCH = 256


class SessionWorker:
    """Processes one session; `run` is its only task."""

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
        retained: Iterable[Tried] = (),
        replayed: Iterable[Tried] = (),
    ) -> None:
        """Prepare; `retained` inputs are decided first, one by one; frames that equal one of `replayed`, alone."""
        self.permit = Permit(shared.keeper, fence)
        self.lost = False
        """Whether this worker gave up the session to another instance or to a new worker."""
        self.pending: PendingInputs | None = None
        """The undecided inputs of a worker that failed or gave up the session."""
        self.feed = Feed(view.last_sequence, session_id=view.session_id, all_sessions=shared.all_sessions)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed when the worker ends. Several tasks wait for it, so none may cancel it."""
        self.replaying = False
        """Whether the link still replays history; nothing is acted on until catch-up."""
        self._shared = shared
        self.inbox = Inbox(
            frames=inbound_frames,
            size=inbound_bytes,
            resumes=runtime.capabilities.resumes,
            is_live=self._is_live,
            overflow=drop_link,
        )
        self.log = log.bind(session=label_session(view))
        self._outbox = Sender(
            view,
            runtime=runtime,
            shared=shared,
            log=self.log,
            post=self.inbox.put,
            drop_link=drop_link,
            permit=self.permit,
        )
        self._timer = DueTimer(self.inbox, shared.clock, self._next_due)
        self._effects = EffectRunner(shared, self.inbox, self._outbox, self.feed, log=self.log, is_open=self._is_open)
        self._runner = StepRunner(
            view,
            runtime=runtime,
            shared=shared,
            parts=SessionParts(
                permit=self.permit,
                inbox=self.inbox,
                outbox=self._outbox,
                effects=self._effects,
                timer=self._timer,
                steps=StepMaker(shared, self.inbox, self._outbox, self._timer, drop_link),
                feed=self.feed,
            ),
            log=self.log,
        )
        self._retained = list(retained)
        self._replayed = list(replayed)
        self._busy = bool(self._retained)
        self._handed = 0
        """The sequence up to which frames of other instances are in the inbox."""

    @property
    def view(self) -> SessionView:
        """The current session."""
        return self._runner.view

    # Interface ------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """Prepare for a new link, which resumes at the last cursor."""
        self.replaying = self._runner.runtime.capabilities.resumes
        self.inbox.reopen(self.cursor)
        self.inbox.put(s.Connecting())

    def put(self, signal: s.Signal) -> None:
        """Put a signal into the inbox."""
        self.inbox.put(signal)

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Put a frame of the link into the inbox."""
        self._shared.metrics.frame(self._runner.view.runtime, "from_runtime")
        if self.log.is_enabled_for(DEBUG):
            self.log.debug("frame <", channel=frame.channel, payload=excerpt(frame.payload))
        alone = self.permit.holds
        needs_no_step = frame.live and alone and cursor is None and self.inbox.is_idle
        if not (needs_no_step and self._runner.publish_live(frame)):
            self.inbox.put_frame(frame, cursor, alone=alone)

    def hand_over(self, frames: Sequence[s.HandedOver]) -> int:
        """Put frames of another instance into the inbox; return the number of new ones."""
        fresh = [one for one in frames if one.sequence > self._handed]
        if fresh and not self.closed.done():
            self._handed = fresh[-1].sequence
            # They follow the known events in the journal.
            for signal in (s.Reread(), *fresh):
                self.inbox.put(signal)
        return len(fresh)

    def take_pending(self) -> PendingInputs | None:
        """Take out the undecided inputs, after the session was given up and its link has ended."""
        if self.pending is None:
            return None
        later = tuple((signal, 0) for signal in self.inbox.take_all() if isinstance(signal, s.FrameArrived))
        pending, self.pending = self.pending, None
        return replace(pending, waiting=(*pending.waiting, *later))

    def caught_up(self, *, starting: bool | None = None) -> None:
        """Note the end of a replay, unless frames of it were refused."""
        self.replaying = False
        if not self.inbox.shut:
            self.inbox.put(s.CaughtUp(starting))

    def _is_live(self, frame: Frame) -> bool:
        try:
            drafts = self._runner.runtime.codec.decode(frame)
        except MalformedFrame:
            return False
        return bool(drafts) and all(draft.live for draft in drafts)

    async def has_capacity(self) -> None:
        """Wait until a link may connect: the inbox has capacity, and the lease is valid."""
        await self.inbox.has_capacity()
        await self.permit.wait_held()

    @property
    def cursor(self) -> str | None:
        """The cursor at which a new link resumes."""
        return self.view.cursor

    async def has_work(self) -> bool:
        """Return whether a link is needed: before the first link, or for waiting events.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        return self.cursor is None or await has_something_to_say(self._shared.engine, self.view.session_id)

    def call_when_queued(self, call: Callable[[], None] | None) -> None:
        """Call `call` for each event that is queued or offered again; None ends that."""
        self._outbox.call_when_queued(call)

    def give_up(self) -> None:
        """Send nothing more, because the session is given up; the caller ends the worker."""
        self.lost = True
        self._outbox.link_down()

    def suspend(self) -> None:
        """Pause decisions and sends until `resume`; signals wait in the inbox."""
        self.permit.suspend()

    def resume(self, row: Regained) -> None:
        """Resume under a new fence; restart from the store if another instance has written."""
        self.permit.resume(row)
        if row.last_sequence != self.view.last_sequence:
            # An idle session must also detect the writes of other instances.
            self.inbox.put(s.Reread())

    @property
    def leased(self) -> bool:
        """Whether the session may act."""
        return self.permit.holds

    def reconfigure(self, runtime: RuntimeContext) -> None:
        """Replace the configuration from the next decision on."""
        # A bound logger keeps its level.
        self.log = log.bind(session=label_session(self.view))
        self._runner.runtime, self._runner.log = runtime, self.log
        self._effects.log = self.log
        self._outbox.reconfigure(runtime, self.log)

    def send_again(self, sequence: int) -> None:
        """Offer a recorded event to the runtime again; its row must be pending."""
        self._outbox.resend(sequence)

    @property
    def settled(self) -> bool:
        """Whether no signal waits to be decided and no event to be sent."""
        return not self._busy and self.inbox.empty and self._outbox.settled

    @property
    def in_flight(self) -> str | None:
        """Name the work that keeps the session from being settled; None if it is."""
        if self._busy or not self.inbox.empty:
            return "uncommitted step"
        if self._outbox.sending:
            return "unconfirmed send"
        return None if self._outbox.settled else "unsent event"

    def write_marks(self) -> None:
        """Commit the delivery marks soon, without waiting for another step."""
        self._outbox.post_marks()

    @property
    def oldest_unsent(self) -> float:
        """The age of the oldest outbound event in seconds."""
        return self._outbox.oldest_wait()

    # Processing --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Process batches until the session is closed or the task is canceled.

        Raises:
            Fenced: another instance owns the session; nothing was written or sent since.
        """
        try:
            await self._runner.carry_retained(self._retained)
            self._busy = False
            while not self._runner.view.memory.closed:
                while self.inbox.empty:
                    await self.inbox.wait_filled()
                batch = self.inbox.take(BATCH)
                self._busy = True
                if self._replayed and not (batch := await self._isolate_repeated(batch)):
                    self._busy = False
                    continue
                # First, because the batch may request a delivered outcome again.
                marks = self._outbox.take_marks()
                await self._runner.carry([*marks, *batch] if marks else batch)
                if self._effects.late:
                    await self._effects.process_late()
                self._busy = False
                # An idle worker holds no references to its last batch.
                del batch, marks
        except Fenced:
            self.give_up()
            for signal in self._runner.under_way:
                fail(signal, self._elsewhere(unsure=self._runner.written))
            raise
        except BaseException as exc:
            if is_fault(exc):
                self.give_up()
                self.pending = self._runner.collect_pending(self._retained, self._replayed)
            raise
        finally:
            self._end()

    async def _isolate_repeated(self, batch: list[s.Signal]) -> list[s.Signal]:
        """Decide a frame alone on which the session has failed; later signals wait."""
        for place, signal in enumerate(batch):
            known = next((one for one in self._replayed if is_same_frame(signal, one[0])), None)
            if known is None:
                continue
            self.inbox.put_back(batch[place:] if place else batch[1:])
            if place:
                return batch[:place]
            self._replayed.remove(known)
            self._retained.append((signal, known[1]))
            await self._runner.carry_retained(self._retained)
            return []
        return batch

    def _end(self) -> None:
        self._outbox.link_down()
        if self.lost and self.pending is None:
            self.pending = self._runner.collect_pending(self._retained, self._replayed)
        elif not self.lost and not self.view.memory.closed:
            self._log_unrecorded()
        self._timer.cancel()
        self._shared.slots.forget(self.inbox)
        self._shared.tool_watch.drop(self.view.session_id)
        for signal in self.inbox.take_all():
            if isinstance(signal, s.SlotFree):
                self._shared.slots.release(signal.executor, self.inbox)
            if self.lost:
                fail(signal, self._elsewhere())
        if self.lost:
            for signal in self._runner.under_way:
                fail(signal, self._elsewhere(unsure=True))
        self.feed.close()
        finish(self.closed)

    def _log_unrecorded(self) -> None:
        """Log the number of frames that could not be recorded before the end."""
        unrecorded = len(self._runner.collect_pending(self._retained, self._replayed).frames)
        if unrecorded:
            self.log.warning("unrecorded frames dropped", count=unrecorded)

    def _elsewhere(self, *, unsure: bool = False) -> Elsewhere:
        doubt = "; the request may have been recorded" if unsure else ""
        return Elsewhere(self.view.session_id, f"the session has moved to another instance{doubt}", unsure=unsure)

    def _next_due(self) -> datetime | None:
        return lifecycle.next_due(self._runner.runtime, self._runner.view)

    def _is_open(self, call_id: CallId) -> bool:
        return call_id in self.view.calls and not self.closed.done()
