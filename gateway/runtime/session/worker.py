"""The worker of one session: its inbox, its way out and its work, as everybody else sees them.

A session is an actor with one inbox. Around it: `StepRunner` lets the core decide about a batch, commits and acts,
`Outbox` speaks to the runtime, `Permit` says whether the session may speak, `DueTimer` rings when a deadline is due,
and `PendingInputs` is what a session that failed leaves to whoever takes it up again.

One batch is one step is one commit, and nothing is done about anything before its commit has returned. What queues up
meanwhile is the next batch, so that a busy session shares its disk syncs.
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
from gateway.runtime.session.outbox import Outbox
from gateway.runtime.session.pending_inputs import PendingInputs, Tried, is_again
from gateway.runtime.session.permit import Permit
from gateway.runtime.session.replies import fail
from gateway.runtime.session.resting import has_something_to_say
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.step_runner import SessionParts, StepRunner
from gateway.runtime.session.stepping import StepMaker
from gateway.store.rows import Regained

log = structlog.get_logger(__name__)

BATCH = 256


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
        said_again: Iterable[Tried] = (),
    ) -> None:
        """Prepare; what is `kept` is decided about first, one by one, and alone what is `said_again` once it is."""
        self.permit = Permit(shared.keeper, fence)
        self.lost = False
        """Whether the session was given up here while it goes on elsewhere, or here anew."""
        self.left: PendingInputs | None = None
        """What it had before it when it failed, or was given up here."""
        self.feed = Feed(view.last_sequence)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed when the worker ends. Several tasks wait for it, so none may cancel it."""
        self.replaying = False
        """Whether a link has not said yet that all of the history has come; nothing is acted on until then."""
        self._shared = shared
        self.inbox = Inbox(
            frames=inbound_frames,
            size=inbound_bytes,
            resumes=runtime.capabilities.resumes,
            is_live=self._is_live,
            overflow=drop_link,
        )
        self.log = log.bind(session=label_session(view))
        self._outbox = Outbox(
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
        self._kept = list(kept)
        self._said_again = list(said_again)
        self._busy = bool(self._kept)
        self._handed = 0
        """Up to where what other instances have heard is in the inbox already."""

    @property
    def view(self) -> SessionView:
        """The session as it is by now."""
        return self._runner.view

    # What others call ------------------------------------------------------------------------------------

    def connecting(self) -> None:
        """A new link is being made; it resumes where the last one was cut."""
        self.replaying = self._runner.runtime.capabilities.resumes
        self.inbox.reopen(self.cursor)
        self.inbox.put(s.Connecting())

    def put(self, signal: s.Signal) -> None:
        """Let the session know of something."""
        self.inbox.put(signal)

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        """Take a frame from the link."""
        self._shared.metrics.frame(self._runner.view.runtime, "from_runtime")
        if self.log.is_enabled_for(DEBUG):
            self.log.debug("frame <", channel=frame.channel, payload=excerpt(frame.payload))
        alone = self.permit.holds
        at_once = frame.live and alone and cursor is None and self.inbox.is_waited_for
        if not (at_once and self._runner.show(frame)):
            self.inbox.put_frame(frame, cursor, alone=alone)

    def hand_over(self, frames: Sequence[s.HandedOver]) -> int:
        """Take frames that another instance has heard; returns how many were not here yet."""
        fresh = [one for one in frames if one.sequence > self._handed]
        if fresh and not self.closed.done():
            self._handed = fresh[-1].sequence
            # They stand in the journal behind what is known here.
            for signal in (s.Reread(), *fresh):
                self.inbox.put(signal)
        return len(fresh)

    def take_pending(self) -> PendingInputs | None:
        """Take out what was to be decided about; once the session was given up here, and its link has ended."""
        if self.left is None:
            return None
        later = tuple((signal, 0) for signal in self.inbox.empty_out() if isinstance(signal, s.FrameArrived))
        left, self.left = self.left, None
        return replace(left, waiting=(*left.waiting, *later))

    def caught_up(self, *, starting: bool | None = None) -> None:
        """Take note that a replay is over, unless a part of it was turned away."""
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
        """Wait until a link may be made: the session can take its frames, and a lease runs under which it may speak."""
        await self.inbox.has_capacity()
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

    def call_when_queued(self, call: Callable[[], None] | None) -> None:
        """Have `call` run whenever an event is queued for the runtime or offered again; None ends it."""
        self._outbox.call_when_queued(call)

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
        # A bound logger keeps the level it was bound under.
        self.log = log.bind(session=label_session(self.view))
        self._runner.runtime, self._runner.log = runtime, self.log
        self._effects.log = self.log
        self._outbox.reconfigure(runtime, self.log)

    def send_again(self, sequence: int) -> None:
        """Offer a recorded event to the runtime again; its row is pending already."""
        self._outbox.again(sequence)

    @property
    def settled(self) -> bool:
        """Whether nothing waits inside: no signal to decide, no event to send."""
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
        """Put on record soon what is believed to be delivered, without waiting for a step that it rides along with."""
        self._outbox.post_marks()

    @property
    def oldest_unsent(self) -> float:
        """How many seconds the oldest outbound event has waited."""
        return self._outbox.oldest_wait()

    # The work --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the session is closed or the task is canceled.

        Raises:
            Fenced: the session has changed hands; nothing was written or sent since.
        """
        try:
            await self._runner.carry_retained(self._kept)
            self._busy = False
            while not self._runner.view.memory.closed:
                while self.inbox.empty:
                    await self.inbox.filled()
                batch = self.inbox.take(BATCH)
                self._busy = True
                if self._said_again and not (batch := await self._isolate_repeated(batch)):
                    self._busy = False
                    continue
                # First, since what follows may be said again for whoever asks for it once more.
                marks = self._outbox.take_marks()
                await self._runner.carry([*marks, *batch] if marks else batch)
                if self._effects.late:
                    await self._effects.look_up_late()
                self._busy = False
                # While it waits it keeps nothing of what it has done.
                del batch, marks
        except Fenced:
            self.lose()
            for signal in self._runner.under_way:
                fail(signal, self._elsewhere(unsure=self._runner.written))
            raise
        except BaseException as exc:
            if is_fault(exc):
                self.lose()
                self.left = self._runner.collect_pending(self._kept, self._said_again)
            raise
        finally:
            self._end()

    async def _isolate_repeated(self, batch: list[s.Signal]) -> list[s.Signal]:
        """Decide alone about a frame that the session has failed on, where one comes first; what is behind it waits."""
        for place, signal in enumerate(batch):
            known = next((one for one in self._said_again if is_again(signal, one[0])), None)
            if known is None:
                continue
            self.inbox.put_back(batch[place:] if place else batch[1:])
            if place:
                return batch[:place]
            self._said_again.remove(known)
            self._kept.append((signal, known[1]))
            await self._runner.carry_retained(self._kept)
            return []
        return batch

    def _end(self) -> None:
        self._outbox.link_down()
        if self.lost and self.left is None:
            self.left = self._runner.collect_pending(self._kept, self._said_again)
        elif not self.lost and not self.view.memory.closed:
            self._tell_unwritten()
        self._timer.cancel()
        self._shared.slots.forget(self.inbox)
        self._shared.tool_watch.drop(self.view.session_id)
        for signal in self.inbox.empty_out():
            if isinstance(signal, s.SlotFree):
                self._shared.slots.release(signal.executor, self.inbox)
            if self.lost:
                fail(signal, self._elsewhere())
        if self.lost:
            for signal in self._runner.under_way:
                fail(signal, self._elsewhere(unsure=True))
        self.feed.close()
        finish(self.closed)

    def _tell_unwritten(self) -> None:
        """Say what the runtime has said for the last time, and the store has not taken before the end."""
        unwritten = len(self._runner.collect_pending(self._kept, self._said_again).frames)
        if unwritten:
            self.log.warning("unrecorded frames dropped", heard=unwritten)

    def _elsewhere(self, *, unsure: bool = False) -> Elsewhere:
        what = "; the request may be on record or not" if unsure else ""
        return Elsewhere(self.view.session_id, f"the session has changed hands meanwhile{what}", unsure=unsure)

    def _next_due(self) -> datetime | None:
        return lifecycle.next_due(self._runner.runtime, self._runner.view)

    def _is_open(self, call_id: CallId) -> bool:
        return call_id in self.view.calls and not self.closed.done()
