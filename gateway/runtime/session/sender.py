"""Sends the outbound events of one session in the order of `Outbox`, and proves their arrival.

A send that its link completes at once needs no task. A task runs while a link, the ledger or the lease must be awaited;
no later event leaves meanwhile. Without a link nothing is queued in memory, and for a slow runtime at most one page.
With free capacity, the pending rows are loaded from the ledger and planned again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from logging import DEBUG
from typing import TYPE_CHECKING, cast, get_args

from gateway.adapter.port import Link, Receipt, ReceiptState
from gateway.core.adapt import is_plain
from gateway.core.effects import Transmit
from gateway.core.session import StepBuilder
from gateway.errors import CannotExpress, EngineUnavailable, LinkLost
from gateway.events import Envelope
from gateway.guard import FAULTS, guard, guard_call, in_time, is_fault, is_to_end
from gateway.runtime.observe import excerpt
from gateway.runtime.session.load import pending_rows, when_posted
from gateway.runtime.session.outbox import PAGE, Attempts, Outbox
from gateway.runtime.session.row import BUSY, SENT, read_result
from gateway.runtime.session.shared import Shared
from gateway.runtime.signals import AttemptsDue, Delivered, Signal
from gateway.store.rows import Send
from gateway.store.step import RUNTIME

if TYPE_CHECKING:
    from gateway.runtime.session.actor import Actor

_RETRY_LOAD = 1.0
_SLACK = 0.25
"""The part of a window by which its ping may be delayed, to piggyback on an event."""
_STATES: tuple[str, ...] = get_args(ReceiptState)
_TAKEN = Receipt("sent")

_Wait = Callable[[], Awaitable[object]]


class Sender:
    """Sends the outbound events of one session."""

    def __init__(self, actor: "Actor", shared: Shared) -> None:
        """Prepare; nothing is sent unless the permit of `actor` holds."""
        self.outbox = Outbox(actor.view, actor.runtime)
        self._actor = actor
        self._post = actor.inbox.put
        self._on_queued: Callable[[], None] | None = None
        self._session_id = actor.session_id
        self._shared = shared
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        """Waits for the link, the ledger or the lease."""
        self._proof: asyncio.Task[None] | None = None
        """Asks the link whether all earlier sends have arrived."""
        self._attempts_due = False
        """Whether the inbox holds a signal for attempts."""
        self._sending: Awaitable[object] | None = None
        """The send that waits for the link."""
        self._overtaking: asyncio.Task[None] | None = None
        """The send of an interrupt beside it."""
        self._freed = False
        """Whether recorded fates made room for other events."""
        self._ripening: asyncio.TimerHandle | None = None
        self._ripe_at = 0.0
        """The end of the window of this timer, which fires later."""
        self._patience: asyncio.TimerHandle | None = None

    def add(self, item: Transmit) -> None:
        """Queue a committed event; `poke` starts the sender."""
        if self._on_queued is not None:
            self._on_queued()
        self.outbox.add(item, now=self._shared.clock.monotonic())

    def call_when_queued(self, call: Callable[[], None] | None) -> None:
        """Call `call` for each event that is queued or offered again; None ends that."""
        self._on_queued = call

    def resend(self, sequence: int) -> None:
        """Offer a recorded event again, now or on the next link."""
        if self._on_queued is not None:
            self._on_queued()
        if self.outbox.resend(sequence):
            self._shared.metrics.repeated()
            self.reload()

    def done(self, sequences: Collection[int]) -> None:
        """Note rows with a recorded fate."""
        self._freed = self.outbox.done(sequences) or self._freed

    def post_marks(self) -> None:
        """Request a step for delivery marks that found no other step."""
        self._post_all(self.outbox.take_marks())

    def plan_attempts(self, builder: StepBuilder) -> Attempts | None:
        """Return the attempts of a step; None if it has none."""
        return self.outbox.plan_attempts(builder, sending=self._link is None or self._waits or self._ends)

    def attempts_settled(self) -> None:
        """Note that a step has recorded the attempts that were due."""
        self._attempts_due = False

    def _request_attempts(self) -> None:
        """Request one step that records attempts."""
        if not self._attempts_due:
            self._attempts_due = True
            self._post(AttemptsDue())

    def poke(self) -> None:
        """Send the queued events that may leave now."""
        if self.outbox.lanes.count or self._freed:
            self._freed = False
            self._start()

    def reload(self) -> None:
        """Load the pending rows again, because the plan is outdated."""
        self.outbox.reread()
        self._start()

    async def check_state_queued(self) -> None:
        """Check whether a queued event already tells a new link the state without waking the agent.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        self.outbox.state_waits = False
        async for row in pending_rows(self._shared.engine, self._session_id):
            if is_plain(row.envelope.event):
                self.outbox.state_waits = True
                return

    def link_up(self, link: Link) -> None:
        """Start on a new link: pending rows first, then new events."""
        if self._link is not None or self.outbox.linked:
            self.link_down()
        self._link = link
        self.outbox.link_up()
        self._start()

    def link_down(self, *, refused: bool = False) -> None:
        """Stop sending; undelivered events stay pending."""
        self._link = self._sending = None
        self.post_marks()
        self.outbox.link_down(refused=refused)
        if self.outbox.attempts_due:
            self._request_attempts()
        running = (self._task, self._overtaking, self._proof, self._ripening, self._patience)
        self._task = self._overtaking = self._proof = self._ripening = self._patience = None
        for one in running:
            if one is not None:
                one.cancel()

    def apply_events(self, envelopes: Iterable[Envelope]) -> None:
        """Apply recorded events of the runtime that concern sends."""
        for event in (envelope.event for envelope in envelopes):
            if event.kind == "session.moved":
                # The runtime reported on its turn, so it has seen the message that started it.
                self.outbox.awaits_turn = False
            elif event.kind == "fault.reported":
                self._post_all(self.outbox.fault(event.code, event.message, now=self._shared.clock.monotonic()))

    @property
    def settled(self) -> bool:
        """Whether nothing is being sent or can leave now, and every known delivery is recorded."""
        return not self.sending and not self.outbox.marks and self.outbox.is_held_up(self._actor.view)

    @property
    def sending(self) -> bool:
        """Whether a send waits for its receipt."""
        return (self._sending is not None or self._overtaking is not None) and self._link is not None

    def oldest_wait(self) -> float:
        """Return the age of the oldest waiting event in seconds."""
        since = self.outbox.waiting_since
        return 0.0 if since is None else self._shared.clock.monotonic() - since

    def _post_all(self, signals: Iterable[Signal]) -> None:
        for signal in signals:
            self._post(signal)

    # Sending ---------------------------------------------------------------------------------------------

    @property
    def _waits(self) -> bool:
        """Whether a task waits before the next event may leave."""
        return self._task is not None and not self._task.done()

    @property
    def _ends(self) -> bool:
        """Whether the process is about to end and could cut off a send between its attempt and its first byte."""
        return self._shared.drain.over.happened

    def _start(self) -> None:
        """Send what may leave now; a task waits if the link, the ledger or the lease requires it."""
        link = self._link
        if link is None:
            return
        try:
            if self._waits:
                self._overtake(link)
                return
            wait = self._send_until_wait(link)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            self._link_failed((), exc)
            return
        if wait is not None:
            self._task = self._await_in_task(partial(self._go_on, link, wait), self._sending)

    async def _go_on(self, link: Link, wait: _Wait | None) -> None:
        """Wait, and send what may leave then."""
        try:
            while wait is not None:
                await wait()
                wait = self._send_until_wait(link)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if link is self._link:
                self._link_failed((), exc)

    def _await_in_task(self, make: _Wait, answer: object) -> "asyncio.Task[None]":
        """Run `make`, which awaits an answer of the link, in a task."""
        task = guard("outbox", make, self._shared.tasks, again=False, session_id=self._session_id)
        if isinstance(answer, Coroutine):
            # A task that is canceled before its first step never awaits it, and Python would warn.
            task.add_done_callback(guard_call("outbox", lambda _: answer.close()))
        return task

    def _send_until_wait(self, link: Link) -> _Wait | None:
        """Perform the next steps of `Outbox` until it is idle; return what must be awaited before, if anything."""
        while link is self._link and not self._ends:
            if not self._actor.permit.holds:
                return self._actor.permit.wait_held
            match self.outbox.next(self._actor.view, self._shared.clock):
                case Transmit() as item:
                    if (answer := self._send(link, item)) is not None:
                        self._sending = answer
                        return partial(self._await_answer, item, answer)
                case Delivered() as fate:
                    self._post(fate)
                case "read":
                    return self._read
                case "attempt":
                    self._request_attempts()
                    return None
                case "prove":
                    if self._proof is None and self.outbox.repeats:
                        self._ripen()
                    return None
                case "idle":
                    return None
        return None

    def _overtake(self, link: Link) -> None:
        """Hand the link an interrupt beside a send that waits, perhaps until the tool of the turn ends."""
        able = self._actor.permit.holds and not self._ends
        while able and link is self._link and self._sending is not None and self._overtaking is None:
            item = self.outbox.take_interrupt(self._actor.view)
            if item is None:
                return
            if (answer := self._send(link, item)) is not None:
                self._overtaking = self._await_in_task(partial(self._await_overtaking, item, answer), answer)

    async def _await_overtaking(self, item: Transmit, answer: Awaitable[object]) -> None:
        result = await self._ask(answer, "the adapter's send")
        self._overtaking = None
        self._note_result(item, result)
        self._start()

    def _send(self, link: Link, item: Transmit) -> Awaitable[object] | None:
        """Send an event and note the result; return the answer if the link waits for it."""
        answer: object = _TAKEN
        try:
            if item.state is not None:
                item = self.outbox.in_newest_form(item, self._actor.view)
            if self._actor.log.is_enabled_for(DEBUG):
                for frame in item.frames:
                    about = {"channel": frame.channel, "payload": excerpt(frame.payload)}
                    self._actor.log.debug("frame >", **about, sequence=item.sequence)
            if item.frames:
                answer = cast("object", link.send_all(item.frames))
        except BaseException as exc:
            if not is_fault(exc):
                raise
            answer = exc
        if isinstance(answer, Receipt | BaseException) or not isinstance(answer, Awaitable):
            self._note_result(item, answer)
            return None
        return cast("Awaitable[object]", answer)

    async def _await_answer(self, item: Transmit, answer: Awaitable[object]) -> None:
        """Wait for the result of a send and note it."""
        result = await self._ask(answer, "the adapter's send")
        self._sending = None
        self._note_result(item, result)

    async def _ask(self, answer: Awaitable[object], what: str) -> object:
        """Await an answer of the link; return an exception of the adapter instead of raising it."""
        result: object
        try:
            async with in_time(self._shared.tuning.adapter, what):
                result = await answer
        except BaseException as exc:
            if not is_fault(exc):
                raise
            result = exc
        if is_to_end():
            # The adapter turned the cancellation into a result.
            raise asyncio.CancelledError
        return result

    def _note_result(self, item: Transmit, result: object) -> None:
        """Note the result of a send; an unexpected exception ends the link."""
        if not isinstance(result, Receipt | BaseException):
            result = TypeError(f"send_all of a link must return a Receipt, not {type(result).__name__}")
        elif isinstance(result, Receipt) and result.state not in _STATES:
            result = ValueError(f"the state of a Receipt must be one of {', '.join(_STATES)}, not {result.state!r}")
        meaning = read_result(result, silent=self.outbox.silent)
        now = self._shared.clock.monotonic()
        self._post_all(self.outbox.note_result(item, meaning, now=now))
        if self.outbox.attempts_due and meaning is not SENT:
            self._request_attempts()
        if meaning is SENT:
            if self._ripening is None:
                self._await_silence()
            elif now >= self._ripe_at or self.outbox.is_crowded:
                # The ping leaves after this event.
                self._ripen()
        if isinstance(result, LinkLost):
            self._actor.log.info("send interrupted", sequence=item.sequence, reason=str(result))
            self._link = None
            self._actor.drop_link(str(result))
        elif isinstance(result, Receipt):
            if meaning is not BUSY:
                self._shared.metrics.frame(self.outbox.runtime.name, "to_runtime")
                if item.repeats:
                    self._shared.metrics.repeated()
        elif not isinstance(result, CannotExpress):
            self._link_failed((item.sequence,), result)
        if item.lane == "new_work" and self.outbox.awaits_turn:
            self._hold_new_work()

    def _link_failed(self, sequences: Sequence[int], exc: BaseException) -> None:
        """End the link after an unexpected exception of the adapter or the planning.

        The next link starts from the ledger. The third failure quarantines the event that caused it.
        """
        FAULTS.get().note("link", exc, session_id=self._session_id, sequences=list(sequences))
        reason = f"the link failed inside the gateway ({type(exc).__name__})"
        self._post_all(self.outbox.link_failed(sequences, reason))
        self._link = None
        self._actor.drop_link(reason)

    def _hold_new_work(self) -> None:
        """Limit how long new work waits for a runtime that does not report on its turn."""
        if self._patience is not None:
            self._patience.cancel()
        patience = self.outbox.runtime.options.turn_timeout.total_seconds()
        self._patience = asyncio.get_running_loop().call_later(patience, guard_call("outbox", self._release_new_work))

    def _release_new_work(self) -> None:
        self._patience = None
        self.outbox.awaits_turn = False
        self.poke()

    # The ledger ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Load and queue the pending rows."""
        engine, known = self._shared.engine, self.outbox.begin_reading()
        try:
            after, page, more = 0, list[Send](), True
            while more and not page:
                found = await engine.pending_sends(session_id=self._session_id, target=RUNTIME, after=after, limit=PAGE)
                page, more = [row for row in found if row.sequence not in known], found.more
                after = found[-1].sequence if found else after
            posted = await when_posted(engine, self._session_id, page)
        except EngineUnavailable as exc:
            engine.outage.failed(exc, "query for pending events")
            self.outbox.reread()
            await asyncio.sleep(_RETRY_LOAD)
            return
        self._post_all(self.outbox.take(known, page, posted, self._actor.view, more=more, now=self._shared.clock.now()))

    # Delivery confirmed by silence -------------------------------------------------------------------------

    def _await_silence(self) -> None:
        """Schedule one check at the end of the window for all sends, if there are any."""
        if (self.outbox.sent or self.outbox.marks) and self._ripening is None and self._proof is None:
            self._ripe_at = self._shared.clock.monotonic() + self.outbox.window
            wait = self.outbox.window * (1 + _SLACK)
            self._ripening = asyncio.get_running_loop().call_later(wait, guard_call("outbox", self._ripen))

    def _ripen(self) -> None:
        """Ask the link whether all sends have arrived, if it is still up."""
        if self._ripening is not None:
            self._ripening.cancel()
            self._ripening = None
        self.post_marks()
        if self._link is None or not self.outbox.sent:
            return
        asked_at = self._shared.clock.monotonic()
        try:
            answer = self._link.prove()
        except Exception as exc:  # noqa: BLE001 - an exception of an adapter ends its link
            self._doubt(exc, asked_at)
        else:
            self._proof = self._await_in_task(partial(self._await_proof, answer, asked_at), answer)

    async def _await_proof(self, answer: Awaitable[None], asked_at: float) -> None:
        result = await self._ask(answer, "the adapter's prove")
        self._proof = None
        if isinstance(result, BaseException):
            self._doubt(result, asked_at)
            return
        self._post_all(self.outbox.confirm(asked_at=asked_at))
        self._await_silence()
        self._start()

    def _doubt(self, exc: BaseException, asked_at: float) -> None:
        if isinstance(exc, LinkLost):
            self._actor.log.info("delivery not confirmed", reason=str(exc))
            self._actor.drop_link(str(exc))
        else:
            self._link_failed([row.sequence for row in self.outbox.list_proven(asked_at=asked_at)], exc)
