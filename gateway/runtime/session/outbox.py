"""The sender of one session: sends the next event of `Outgoing` and reports the result.

One task runs while there are events to send. Without a link nothing is queued in memory, and for a slow runtime at most
one page. With free capacity, the pending rows are loaded from the ledger and planned again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from logging import DEBUG
from typing import cast, get_args

from structlog.typing import FilteringBoundLogger

from gateway.adapter.port import Link, Receipt, ReceiptState
from gateway.core.adapt import is_plain
from gateway.core.effects import Transmit
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import SessionView
from gateway.errors import CannotExpress, EngineUnavailable, LinkLost
from gateway.events import Envelope
from gateway.guard import FAULTS, guard, guard_call, in_time, is_fault, is_to_end, spawn
from gateway.runtime.observe import excerpt
from gateway.runtime.session.load import pending_rows, when_posted
from gateway.runtime.session.outgoing import PAGE, Attempt, Attempts, Idle, Outgoing, Read
from gateway.runtime.session.permit import Permit
from gateway.runtime.session.results import SENT, read_result
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.signals import AttemptsDue, Delivered, Signal
from gateway.store.rows import Send
from gateway.store.step import RUNTIME

_RETRY_LOAD = 1.0
_SLACK = 0.25
"""The part of a window by which its ping may be delayed, to piggyback on an event."""
_STATES: tuple[str, ...] = get_args(ReceiptState)
_TAKEN = Receipt("sent")


class Outbox:
    """Sends the outbound events of one session."""

    def __init__(
        self,
        view: SessionView,
        *,
        runtime: RuntimeContext,
        shared: Shared,
        log: FilteringBoundLogger,
        post: Callable[[Signal], None],
        drop_link: Callable[[str], None],
        permit: Permit,
    ) -> None:
        """Prepare; nothing is sent unless `permit` holds."""
        self.view = view
        """The current session; the step runner updates it."""
        self.outgoing = Outgoing(view, runtime)
        self._on_queued: Callable[[], None] | None = None
        self._session_id = view.session_id
        self._shared = shared
        self._log = log
        self._post = post
        self._drop_link = drop_link
        self._permit = permit
        self._link: Link | None = None
        self._sender: asyncio.Task[None] | None = None
        self._proof: asyncio.Future[None] | None = None
        """The last query of the link: whether all earlier sends have arrived."""
        self._attempts_due = False
        """Whether the inbox holds a signal for attempts."""
        self._current: int | None = None
        """The event that was taken out last; an unexpected failure concerns it."""
        self._sending: Transmit | None = None
        """The event whose send waits for the link."""
        self._proof_hangs: asyncio.TimerHandle | None = None
        self._ripening: asyncio.TimerHandle | None = None
        self._ripe_at = 0.0
        """The end of the window of this timer, which fires later."""
        self._patience: asyncio.TimerHandle | None = None

    def reconfigure(self, runtime: RuntimeContext, log: FilteringBoundLogger) -> None:
        """Replace the configuration."""
        self._log = log
        self.outgoing.reconfigure(runtime)

    def add(self, item: Transmit) -> None:
        """Queue a committed event; `poke` starts the sender."""
        if self._on_queued is not None:
            self._on_queued()
        self.outgoing.add(item, now=self._shared.clock.monotonic())

    def call_when_queued(self, call: Callable[[], None] | None) -> None:
        """Call `call` for each event that is queued or offered again; None ends that."""
        self._on_queued = call

    def resend(self, sequence: int) -> None:
        """Offer a recorded event again, now or on the next link."""
        self._shared.metrics.repeated()
        if self._on_queued is not None:
            self._on_queued()
        if self.outgoing.resend(sequence):
            self.reload()

    def done(self, sequences: Collection[int]) -> None:
        """Note rows with a recorded fate."""
        if self.outgoing.done(sequences):
            self._start()

    def take_marks(self) -> Sequence[Signal]:
        """Take the delivery marks that piggyback on the current step."""
        return self.outgoing.in_flight.take_marks() if self.outgoing.in_flight.marks else ()

    def post_marks(self) -> None:
        """Request a step for delivery marks that found no other step."""
        for signal in self.take_marks():
            self._post(signal)

    def plan_attempts(self, builder: StepBuilder) -> Attempts:
        """Return the attempts that a step commits or resets."""
        return self.outgoing.plan_attempts(builder, sending=self._running or self._ends)

    def attempts_settled(self) -> None:
        """Note that a step has recorded the attempts that were due."""
        self._attempts_due = False

    def _request_attempts(self) -> None:
        """Request one step that records attempts."""
        if not self._attempts_due:
            self._attempts_due = True
            self._post(AttemptsDue())

    def poke(self) -> None:
        """Check whether queued events may leave now."""
        if self.outgoing.lanes.count:
            self._start()

    def reload(self) -> None:
        """Load the pending rows again, because the plan is outdated."""
        self.outgoing.reread()
        self._start()

    async def check_state_queued(self) -> None:
        """Check whether a queued event already tells a new link the state without waking the agent.

        Raises:
            EngineUnavailable: the store cannot be read.
        """
        self.outgoing.state_waits = False
        async for row in pending_rows(self._shared.engine, self._session_id):
            if is_plain(row.envelope.event):
                self.outgoing.state_waits = True
                return

    def link_up(self, link: Link) -> None:
        """Start on a new link: pending rows first, then new events."""
        self.link_down()
        self._link = link
        self.outgoing.link_up()
        self._start()

    def link_down(self, *, refused: bool = False) -> None:
        """Stop sending; undelivered events stay pending."""
        self._link = None
        self.post_marks()
        interrupted, self._sending = self._sending, None
        self.outgoing.link_down(refused=refused, interrupted=None if interrupted is None else interrupted.sequence)
        if self.outgoing.attempts_due:
            self._request_attempts()
        running = (self._sender, self._proof, self._proof_hangs, self._ripening, self._patience)
        self._sender = self._proof = self._proof_hangs = self._ripening = self._patience = None
        for one in running:
            if one is not None:
                one.cancel()

    def apply_events(self, envelopes: Iterable[Envelope]) -> None:
        """Apply recorded events of the runtime that concern sends."""
        for envelope in envelopes:
            event = envelope.event
            match event.kind:
                case "session.moved":
                    # The runtime reported on its turn, so it has seen the message that started it.
                    self.outgoing.turn_moved()
                case "fault.reported":
                    self._post_all(self.outgoing.fault(event.code, event.message, now=self._shared.clock.monotonic()))
                case _:
                    pass

    @property
    def settled(self) -> bool:
        """Whether nothing is being sent or can leave now, and every known delivery is recorded."""
        answered = self._proof is not None and self._proof.done()
        if self.sending or self.outgoing.in_flight.marks or answered:
            return False
        return self.outgoing.is_held_up(self.view)

    @property
    def sending(self) -> bool:
        """Whether a send waits for its receipt."""
        return self._sending is not None and self._link is not None

    def oldest_wait(self) -> float:
        """Return the age of the oldest waiting event in seconds."""
        since = self.outgoing.waiting_since
        return 0.0 if since is None else self._shared.clock.monotonic() - since

    def _post_all(self, signals: Iterable[Signal]) -> None:
        for signal in signals:
            self._post(signal)

    # Sending ---------------------------------------------------------------------------------------------

    @property
    def _running(self) -> bool:
        """Whether the sending task runs."""
        return self._sender is not None and not self._sender.done()

    @property
    def _ends(self) -> bool:
        """Whether the process is about to end and could cut off a send between its attempt and its first byte."""
        return self._shared.drain.over.is_set()

    def _start(self) -> None:
        """Start the sending task unless it runs."""
        link = self._link
        if link is not None and not self._running and not self._ends:
            send = partial(self._send_all, link)
            self._sender = guard("outbox", send, self._shared.tasks, again=False, session_id=self._session_id)

    async def _send_all(self, link: Link) -> None:
        """Perform the next steps of `Outgoing` until it is idle."""
        try:
            while link is self._link and not self._ends:
                if not self._permit.holds:
                    await self._permit.wait_held()
                self._current = None
                following = self.outgoing.next(self.view, self._shared.clock)
                match following:
                    case Transmit():
                        if not await self._send(link, following):
                            return
                    case Idle(prove):
                        if prove:
                            self._prove_repeats(link)
                        return
                    case Read():
                        await self._read()
                    case Attempt():
                        self._request_attempts()
                        return
                    case Delivered():
                        self._post(following)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if link is self._link:
                self._link_failed(() if self._current is None else (self._current,), exc)

    async def _send(self, link: Link, item: Transmit) -> bool:
        """Send an event and note the result; return whether the next event may leave."""
        self._current = item.sequence
        result: Receipt | Exception = _TAKEN
        try:
            if item.state is not None:
                item = self.outgoing.in_newest_form(item, self.view)
            if not self._permit.holds:
                await self._permit.wait_held()
            if self._log.is_enabled_for(DEBUG):
                for frame in item.frames:
                    about = {"channel": frame.channel, "payload": excerpt(frame.payload)}
                    self._log.debug("frame >", **about, sequence=item.sequence)
            receipt = await self._ask_link(link, item) if item.frames else _TAKEN
            if not isinstance(receipt, Receipt):
                raise TypeError(f"send_all of a link must return a Receipt, not {type(receipt).__name__}")
            if receipt.state not in _STATES:
                raise ValueError(f"the state of a Receipt must be one of {', '.join(_STATES)}, not {receipt.state!r}")
            if receipt.state != "sent" or receipt.reason is not None:
                result = receipt
        except Exception as exc:  # noqa: BLE001 - a table interprets it, and a fault is raised below
            result = exc
        if is_to_end():
            # The adapter turned the cancellation into a result, but `link_down` has noted the event as interrupted.
            raise asyncio.CancelledError
        return self._note_result(item, result)

    async def _ask_link(self, link: Link, item: Transmit) -> object:
        self._sending = item
        try:
            async with in_time(self._shared.tuning.adapter, "the adapter's send"):
                answer = cast("Awaitable[object] | None", link.send_all(item.frames))
                return None if answer is None else await answer
        finally:
            # A send that is canceled with its link ends after `link_down`, perhaps during the next one.
            if self._sending is item:
                self._sending = None

    def _note_result(self, item: Transmit, result: Receipt | Exception) -> bool:
        """Note the result of a send; return whether the next event may leave."""
        silent = self.outgoing.runtime.capabilities.delivery == "silence"
        meaning = SENT if silent and result is _TAKEN else read_result(result, silent=silent)
        now = self._shared.clock.monotonic()
        for signal in self.outgoing.note_result(item, meaning, now=now):
            self._post(signal)
        if meaning.unsent and self.outgoing.attempts_due:
            self._request_attempts()
        if meaning is SENT:
            if self._ripening is None:
                self._await_silence()
            elif now >= self._ripe_at or self.outgoing.in_flight.is_crowded:
                # The ping leaves after this event.
                self._ripening.cancel()
                self._ripen()
        if isinstance(result, LinkLost):
            self._log.info("send interrupted", sequence=item.sequence, reason=str(result))
            self._drop_link(str(result))
            return False
        if isinstance(result, Receipt):
            if meaning.then == "next":
                self._shared.metrics.frame(self.outgoing.runtime.name, "to_runtime")
                if item.repeats:
                    self._shared.metrics.repeated()
        elif not isinstance(result, CannotExpress):
            raise result
        if item.lane == "new_work" and self.outgoing.awaits_turn:
            self._hold_new_work()
        return True

    def _link_failed(self, sequences: Sequence[int], exc: BaseException) -> None:
        """End the link after an unexpected exception of the adapter or the planning.

        The next link starts from the ledger. The third failure quarantines the event that caused it.
        """
        FAULTS.get().note("link", exc, session_id=self._session_id, sequences=list(sequences))
        reason = f"the link failed inside the gateway ({type(exc).__name__})"
        self._post_all(self.outgoing.link_failed(sequences, reason))
        self._link = None
        self._drop_link(reason)

    def _hold_new_work(self) -> None:
        """Limit how long new work waits for a runtime that does not report on its turn."""
        if self._patience is not None:
            self._patience.cancel()
        patience = self.outgoing.runtime.options.turn_timeout.total_seconds()
        self._patience = asyncio.get_running_loop().call_later(patience, guard_call("outbox", self._release_new_work))

    def _release_new_work(self) -> None:
        self._patience = None
        self.outgoing.turn_moved()
        self.poke()

    # The ledger ------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Load and queue the pending rows."""
        engine, reading = self._shared.engine, self.outgoing.begin_reading()
        try:
            after, page, more = 0, list[Send](), True
            while more and not page:
                found = await engine.pending_sends(session_id=self._session_id, target=RUNTIME, after=after, limit=PAGE)
                page, more = [row for row in found if row.sequence not in reading.known], found.more
                after = found[-1].sequence if found else after
            posted = await when_posted(engine, self._session_id, page)
        except EngineUnavailable as exc:
            engine.outage.failed(exc, "query for pending events")
            self.outgoing.reread()
            await asyncio.sleep(_RETRY_LOAD)
            return
        self._post_all(self.outgoing.take(reading, page, posted, self.view, more=more, now=self._shared.clock.now()))

    # Delivery confirmed by silence ------------------------------------------------------------------------

    def _await_silence(self) -> None:
        """Schedule one check at the end of the window for all sends, if there are any."""
        in_flight = self.outgoing.in_flight
        if (in_flight.sent or in_flight.marks) and self._ripening is None and self._proof is None:
            self._ripe_at = self._shared.clock.monotonic() + self.outgoing.window
            wait = self.outgoing.window * (1 + _SLACK)
            self._ripening = asyncio.get_running_loop().call_later(wait, guard_call("outbox", self._ripen))

    def _ripen(self) -> None:
        """Confirm sends with a window of silence, if the link is still up."""
        self._ripening = None
        self.post_marks()
        if self._link is not None and self.outgoing.in_flight.sent:
            self._prove(self._link)

    def _prove_repeats(self, link: Link) -> None:
        if self._proof is None and self.outgoing.in_flight.retransmits and self.outgoing.in_flight.repeats:
            if self._ripening is not None:
                self._ripening.cancel()
                self._ripening = None
            self._prove(link)

    def _prove(self, link: Link) -> None:
        """Ask the link whether everything sent so far has arrived."""
        asked_at = self._shared.clock.monotonic()
        try:
            self._proof = spawn("outbox", link.prove(), self._shared.tasks)
        except Exception as exc:  # noqa: BLE001 - an exception of an adapter ends its link
            self._doubt(exc, asked_at)
        else:
            self._proof.add_done_callback(guard_call("outbox", partial(self._confirm, asked_at)))
            hangs = guard_call("outbox", partial(self._give_up_proof, asked_at))
            self._proof_hangs = asyncio.get_running_loop().call_later(self._shared.tuning.adapter, hangs)

    def _give_up_proof(self, asked_at: float) -> None:
        seconds = self._shared.tuning.adapter
        self._doubt(TimeoutError(f"the adapter's prove took longer than {seconds:g} s"), asked_at)

    def _confirm(self, asked_at: float, proof: "asyncio.Future[None]") -> None:
        exc = asyncio.CancelledError() if proof.cancelled() else proof.exception()
        if proof is not self._proof:
            return
        # Also after a failure: a session without a link has no sends in progress.
        self._proof = None
        if self._proof_hangs is not None:
            self._proof_hangs.cancel()
            self._proof_hangs = None
        if exc is not None:
            self._doubt(exc, asked_at)
            return
        for signal in self.outgoing.in_flight.confirm(asked_at=asked_at, window=self.outgoing.window):
            self._post(signal)
        self._await_silence()
        if self.outgoing.has_more:
            self._start()

    def _doubt(self, exc: BaseException, asked_at: float) -> None:
        if isinstance(exc, LinkLost):
            self._log.info("delivery not confirmed", reason=str(exc))
            self._drop_link(str(exc))
        else:
            self._link_failed(self.outgoing.in_flight.list_proven(asked_at=asked_at, window=self.outgoing.window), exc)
