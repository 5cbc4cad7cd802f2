"""The way out to one runtime session: lanes in order, one sender, and what is known of delivery.

The ledger holds the truth: every outbound row is `pending` until its fate is known. Nothing is kept
here while the link is down, nor more than a page while a runtime is slow to read; when there is room, the
pending rows are read and planned (core.delivery).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from logging import DEBUG
from typing import cast

from structlog.typing import FilteringBoundLogger

from gateway.adapter.port import Frame, Link, Receipt
from gateway.core.contexts import RENEWED, carries_state, renew, tells_state
from gateway.core.delivery import OVERDUE, SURELY_UNSENT, Plan, is_overdue, plan_resend
from gateway.core.effects import Transmit
from gateway.core.lanes import LANES, Lanes
from gateway.core.runtime_context import RuntimeContext
from gateway.core.state import SessionView
from gateway.errors import CannotExpress, EngineUnavailable, LinkLost, Truncated
from gateway.events import SessionId
from gateway.events.weight import weight
from gateway.guard import FAULTS, guard, guard_call, is_fault
from gateway.runtime.observe import excerpt
from gateway.runtime.session.shared import Shared
from gateway.runtime.session.signals import Delivered, Held, Signal
from gateway.store.rows import SendRow
from gateway.store.step import BEHIND, NEWER, RUNTIME, Lane, SendState

_PAGE = 200
_RETRY_LOAD = 1.0
_LOOK_AGAIN = 30.0
MOST_QUEUED = 500
"""Events that wait here for a link that is slow; the ledger alone keeps the next ones."""
_FEW = 16
_LARGE = 64 * 1024
"""Larger events are left to the ledger already where a few wait."""
FAULTS_AN_EVENT = 3
"""How often an event may make a link fail in ways that nobody foresaw, until it is put aside."""
MOST_UNCONFIRMED = 10_000
"""Events that may be on their way without a word on their delivery; the next ones wait."""

PORTION = 32
"""Events said again that may be on their way while no record says that they came; a crash repeats no more of them."""


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    at: float
    note: str | None = None
    """What its row says once it is delivered."""
    repeats: bool = False


class Outbox:
    """Sends one session's outbound events, as `Lanes` sorts them."""

    def __init__(
        self,
        view: SessionView,
        *,
        runtime: RuntimeContext,
        shared: Shared,
        log: FilteringBoundLogger,
        post: Callable[[Signal], None],
        drop_link: Callable[[str], None],
        may_leave: Callable[[Transmit], bool],
        is_held: Callable[[Transmit], bool],
        look: Callable[[], SessionView],
        until_leased: Callable[[], Awaitable[None]],
    ) -> None:
        self.refused = self.state_waits = False
        """Whether a fresh link will be told the state by something that waits for it, as `look_for_state` has found."""
        self.when_said: Callable[[], None] | None = None
        """Called for each event that is to be sent, where somebody waits for one."""
        self._session_id: SessionId = view.session_id
        self._runtime = runtime
        self._log = log
        self._shared = shared
        self._post = post
        self._drop_link = drop_link
        self._may_leave, self._until_leased = may_leave, until_leased
        self._is_held = is_held
        self._look = look
        self._begun = False
        self._unsure_up_to = self._told_up_to = view.last_sequence
        """The newest sequence whose state the runtime may have been told."""
        self._lanes = Lanes(in_order=runtime.capabilities.replaces_context)
        self._first: Transmit | None = None
        """What the next link is told before everything else."""
        self._owed: tuple[SendRow, ...] = ()
        """What a fresh link is told once all that goes before it has been read."""
        self._fresh = True
        self._stored: int = 0
        self._stored_work: int = 0
        """Events, and messages among them, that the ledger alone keeps."""
        self._queued: set[int] = set()
        self._again: set[int] = set()
        self._unconfirmed: deque[_Sent] | None = None
        self._portion: set[int] = set()
        """What was said again, and is not on record as delivered."""
        self._believed: deque[_Sent] = deque(maxlen=PORTION)
        """What was said again last, and believed; a fault may still be about it."""
        self._lost: set[int] = set()
        self._marked: set[int] = set()
        """What is known to be on record, or about to be, as never sent."""
        self._tried: set[int] = set()
        self._faults: dict[int, int] = {}
        """How often the events that made a link fail have done so."""
        self._leaving: int | None = None
        self._link: Link | None = None
        self._sender: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._proving: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._aside: dict[Lane, set[int]] = {}
        """Lanes that wait for a newer release, and the events in them that do."""
        self._loaded = False
        self._more: bool = False

    def reconfigure(self, runtime: RuntimeContext, log: FilteringBoundLogger) -> None:
        """Use another configuration from now on."""
        self._runtime, self._log = runtime, log

    def add(self, item: Transmit) -> None:
        """Send an event that is now on record; kept by the ledger alone while the link is down."""
        if self.when_said is not None:
            self.when_said()
        if self._waiting_since is None:
            self._waiting_since = self._shared.clock.monotonic()
        if item.sequence in self._queued:
            return
        if self._link is None and item.place == "first":
            self._first = item
            return
        if self._is_held(item) or (self._link is None and self._runtime.capabilities.starts_deaf):
            self._mark([item])
        if self._link is not None and not self._more and item.lane not in self._aside and self._has_room_for(item):
            self._queued.add(item.sequence)
            self._lanes.add(item)
            self._start()
            return
        if item.lane in self._aside:
            self._aside[item.lane].add(item.sequence)
            self._post(Delivered((item.sequence,), RUNTIME, "pending", BEHIND))
            return
        self._more = self._more or self._link is not None
        self._stored += 1
        self._stored_work += item.lane == "new_work"

    def _mark(self, items: Iterable[Transmit]) -> None:
        """Put on record that these were never sent; whoever takes the session up later may then send them."""
        fresh = tuple(item.sequence for item in items if item.sequence not in self._marked)
        if fresh:
            self._marked.update(fresh)
            self._post(Held(fresh))

    def _has_room_for(self, item: Transmit) -> bool:
        waiting = len(self._lanes)
        if waiting < _FEW:
            return True
        return waiting < MOST_QUEUED and all(weight(frame.payload) <= _LARGE for frame in item.frames)

    def again(self, sequence: int) -> None:
        """Offer a recorded event again, now or on the next link, to whoever has asked for it."""
        self._shared.metrics.repeated()
        # What has left already is said again; what still waits to leave will be said anyhow.
        if any(sent.sequence == sequence for sent in self._unconfirmed or ()):
            self._queued.discard(sequence)
        if sequence not in self._queued:
            self._again.add(sequence)
            self.reload()

    @property
    def new_work(self) -> int:
        """How many messages wait, those included that the ledger alone keeps while there is no link."""
        waiting = sum(item.lane == "new_work" for item in self._lanes)
        return waiting + self._stored_work + len(self._aside.get("new_work", ()))

    @property
    def waiting(self) -> int:
        """How many events are not known to be delivered, those included that the ledger alone keeps."""
        left = self._stored + sum(map(len, self._aside.values()))
        return len(self._lanes) + len(self._owed) + len(self._unconfirmed or ()) + left

    def done(self, sequences: Collection[int]) -> None:
        """The fate of these rows is on record."""
        self._queued.difference_update(sequences)
        self._tried.difference_update(sequences)
        self._marked.difference_update(sequences)
        for sequence in sequences if self._faults else ():
            self._faults.pop(sequence, None)
        self._lost.difference_update(sequences)
        if self._portion:
            self._portion.difference_update(sequences)
            if self._link is not None:
                self._start()

    def turn_moved(self) -> None:
        """The runtime has said how its turn goes: a message that began one has been seen."""
        self._begun = False

    def poke(self) -> None:
        """What had to wait may perhaps leave now."""
        if self._link is not None and len(self._lanes):
            self._start()

    async def look_for_state(self) -> None:
        """Find out whether something that waits tells a fresh link the state, without waking anybody.

        Raises:
            EngineUnavailable: it cannot be read.
        """
        self.state_waits = tells_state(
            await self._shared.engine.pending_sends(session_id=self._session_id, target=RUNTIME, limit=_PAGE)
        )

    def reload(self) -> None:
        """Read from the ledger what is pending; what was planned here no longer fits it."""
        if self._link is not None:
            self._loaded = False
            self._start()

    def link_up(self, link: Link) -> None:
        """Start on a fresh link: first what the ledger says is pending, then what comes."""
        self.link_down()
        self.refused = False
        self._link, self._loaded, self._fresh = link, False, True
        if self._first is not None:
            self._queued.add(self._first.sequence)
            self._lanes.add(self._first)
            self._first = None
        self._start()

    def link_down(self, *, refused: bool = False) -> None:
        """Stop sending; whatever is not known to be delivered stays pending."""
        self.refused = self.refused or refused
        self._link = None
        self._stored_work = self.new_work
        self._stored = self.waiting
        self._aside = {}
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None
        if self._proving is not None:
            self._proving.cancel()
            self._proving = None
        self._lanes = Lanes(in_order=self._runtime.capabilities.replaces_context)
        self._owed = ()
        self._queued.clear()
        self._lost.update(sent.sequence for sent in self._unconfirmed or ())
        self._unconfirmed = None
        self._portion.clear()
        self._believed.clear()
        self._more = self._begun = False
        for timer in (self._timer, self._patience, self._looking):
            if timer is not None:
                timer.cancel()
        self._timer = self._patience = self._looking = None

    def fault(self, code: str | None, message: str) -> None:
        """The runtime reports an error; where silence means delivery it is about the newest send in the window."""
        capabilities = self._runtime.capabilities
        if capabilities.delivery != "silence" or code not in capabilities.rejects_with:
            return
        since = self._shared.clock.monotonic() - self._runtime.options.delivery_window.total_seconds()
        if self._unconfirmed:
            newest = self._unconfirmed.pop()
        elif self._believed and self._believed[-1].at > since:
            newest = self._believed.pop()
        else:
            return
        self._queued.discard(newest.sequence)
        self._post(Delivered((newest.sequence,), RUNTIME, "refused", f"{code}: {message}"[:500]))

    @property
    def empty(self) -> bool:
        """Whether nothing can leave right now."""
        return self._link is None or all(self._is_held(item) for item in self._lanes)

    def oldest_wait(self) -> float:
        """Say for how many seconds something has waited to leave."""
        return 0.0 if self._waiting_since is None else self._shared.clock.monotonic() - self._waiting_since

    # Sending ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._sender is None or self._sender.done():
            tasks, session_id = self._shared.tasks, self._session_id
            self._sender = guard("outbox", self._send_all, tasks, session_id=session_id)

    async def _send_all(self) -> None:
        link = self._link
        try:
            await self._send_by(link)
        except BaseException as exc:
            if not is_fault(exc):
                raise
            if link is self._link:
                self._link_failed(() if self._leaving is None else (self._leaving,), exc)

    async def _send_by(self, link: Link | None) -> None:
        while link is not None and link is self._link:
            if self._unconfirmed is not None and len(self._unconfirmed) >= MOST_UNCONFIRMED:
                return  # goes on when the oldest has ripened
            if len(self._portion) >= PORTION:
                self._prove_repeats(link)
                return  # goes on when they are on record as delivered
            if not self._loaded:
                await self._load()
            await self._until_leased()
            item = self._lanes.take(self._leaves_now)
            self._leaving = None if item is None else item.sequence
            if item is None and self._more:
                self._loaded = False
                continue
            if item is None:
                self._waiting_since = None
                self._prove_repeats(link)
                return
            if is_overdue(item, self._shared.clock.now()):
                self._post(Delivered((item.sequence,), RUNTIME, "moot", OVERDUE, overdue=True))
                continue
            begins = item.lane == "new_work" and self._runtime.capabilities.one_message_per_turn
            # Known before it leaves: the events of its turn may come before the answer to it.
            self._begun = self._begun or begins
            if not await self._send(link, item):
                return
            if begins and self._begun:
                self._arm_patience()

    async def _send(self, link: Link, item: Transmit) -> bool:
        state: SendState | None = None
        reason: str | None = None
        try:
            item = self._in_newest_form(item)
        except CannotExpress as exc:
            self._post(Delivered((item.sequence,), RUNTIME, "dead", exc.reason))
            return True
        for frame in item.frames:
            await self._until_leased()
            try:
                receipt = await self._send_frame(link, frame, item.sequence)
            except CannotExpress as exc:
                self._post(Delivered((item.sequence,), RUNTIME, "dead", exc.reason))
                self._begun = self._begun and item.lane != "new_work"
                return True
            except LinkLost as exc:
                # The row stays pending, and the next link reads it again.
                self._log.info("a send was cut off", sequence=item.sequence, reason=str(exc))
                if self._runtime.capabilities.delivery != "silence" and not exc.unsent:
                    self._tried.add(item.sequence)
                self._drop_link(str(exc))
                return False
            if receipt.state == "busy":
                self._lanes.add(item)
                return True
            if receipt.state != "sent":
                state, reason = receipt.state, receipt.reason
        self._shared.metrics.frame(self._runtime.name, "to_runtime")
        if item.repeats:
            self._shared.metrics.repeated()
        if state is None and self._runtime.capabilities.delivery != "silence":
            state, reason = "unknown", reason or "the runtime did not confirm it"
        if state is None:
            self._await_silence(item)
        else:
            self._post(Delivered((item.sequence,), RUNTIME, state, reason))
            self._begun = self._begun and not (item.lane == "new_work" and state in {"refused", "moot"})
        return True

    def _await_silence(self, item: Transmit) -> None:
        """Count what has left as on its way, until nothing was said against it for long enough."""
        now, note = self._shared.clock.monotonic(), RENEWED if item.renewed else None
        if self._unconfirmed is None:
            self._unconfirmed = deque()
        self._unconfirmed.append(_Sent(item.sequence, now, note, item.repeats))
        if item.repeats:
            self._portion.add(item.sequence)
        self._arm()

    def _in_newest_form(self, item: Transmit) -> Transmit:
        """Write a state anew that is older than what the runtime was last told.

        Raises:
            CannotExpress: the protocol does not take the newest state.
        """
        if item.state is None:
            return item
        view = self._look()
        if item.renew or item.sequence < self._told_up_to:
            item = renew(item, view.memory, self._runtime.codec)
            self._told_up_to = view.last_sequence
        self._told_up_to = max(self._told_up_to, item.sequence)
        return item

    async def _send_frame(self, link: Link, frame: Frame, sequence: int) -> Receipt:
        if self._log.is_enabled_for(DEBUG):
            self._log.debug("frame >", channel=frame.channel, payload=excerpt(frame.payload), sequence=sequence)
        try:
            receipt = await link.send(frame)
            if not isinstance(cast("object", receipt), Receipt):
                raise TypeError(f"a link answers with a Receipt, not {type(receipt).__name__}")
        except (CannotExpress, LinkLost):
            raise
        except Exception:
            # It may have left.
            if self._runtime.capabilities.delivery != "silence":
                self._tried.add(sequence)
            raise
        return receipt

    def _link_failed(self, sequences: Sequence[int], exc: BaseException) -> None:
        """An adapter, or what plans for it, raised what nobody foresaw: nothing more leaves by this link.

        The next one begins with what is on record. The third time, what made it fail is put aside.
        """
        FAULTS.note("link", exc, session_id=self._session_id, sequences=list(sequences))
        reason = f"the link failed inside the gateway ({type(exc).__name__})"
        for sequence in sequences:
            self._faults[sequence] = self._faults.get(sequence, 0) + 1
            if self._faults[sequence] >= FAULTS_AN_EVENT:
                self._post(Delivered((sequence,), RUNTIME, "dead", reason, fault=True))
        self._link = None
        self._drop_link(reason)

    def _arm_patience(self) -> None:
        """Hold new work no longer where the runtime says nothing of its turn for a while."""
        if self._patience is not None:
            self._patience.cancel()
        patience = self._runtime.options.turn_timeout.total_seconds()
        self._patience = asyncio.get_running_loop().call_later(patience, guard_call("outbox", self._lose_patience))

    def _lose_patience(self) -> None:
        self._patience = None
        self._begun = False
        self.poke()

    def _leaves_now(self, item: Transmit) -> bool:
        begun = self._begun and item.lane == "new_work"
        return not begun and self._may_leave(item) and not self._is_held(item)

    async def _load(self) -> None:
        """Read what is pending and put it in its place, without what is queued already."""
        self._loaded = True
        # What was sent stays pending until it is known to be delivered, and is read again each time.
        limit = _PAGE + len(self._queued) + sum(map(len, self._aside.values()))
        # The fate of some is put on record while the page is read, which may still show them as pending.
        before, again, stored = set(self._queued), self._again, self._stored
        self._again = set()
        try:
            page = await self._shared.engine.pending_sends(session_id=self._session_id, target=RUNTIME, limit=limit)
            rows = self._set_aside(page)
            posted = await self._posted(rows)
        except EngineUnavailable as exc:
            self._log.warning("pending sends cannot be read", reason=str(exc))
            self._loaded = False
            self._again |= again
            await asyncio.sleep(_RETRY_LOAD)
            return
        # What was left to the ledger meanwhile may have come too late for this page.
        self._more = len(page) >= limit or self._stored != stored
        self._stored_work = 0
        if self._more:
            self._again |= again - {row.sequence for row in rows}
        known = before | self._queued | ({sent.sequence for sent in self._unconfirmed or ()} - again)
        found = [row for row in rows if row.sequence not in known]
        self._stored = max(0, self._stored - len(found)) if self._more else 0
        view = self._look()
        plans = plan_resend(
            [*self._owed, *found],
            capabilities=self._runtime.capabilities,
            now=self._shared.clock.now(),
            unsure_up_to=self._unsure_up_to,
            tried=frozenset(self._tried),
            lost=frozenset(self._lost),
            working=any(call.deliver for call in view.calls.values()),
            posted=posted,
            memory=view.memory,
            asked_again=frozenset(again),
            fresh=self._fresh,
            more=self._more,
        )
        self._owed = tuple(plan.row for plan in plans if plan.fate == "later")
        for plan in plans:
            sequence = plan.row.sequence
            self._queued.add(sequence)
            if plan.fate == "later":
                continue
            # Where nobody knows whether it has left, whoever wants it again has looked.
            if plan.fate != "send" and not (plan.fate == "unknown" and sequence in again):
                self._post(Delivered((sequence,), RUNTIME, plan.fate, plan.reason, plan.overdue))
                continue
            item = self._planned(plan)
            if item is not None:
                self._lanes.add(item)
        self._mark(item for item in self._lanes if self._is_held(item))
        self._fresh = self._fresh and self._more

    def _set_aside(self, rows: Sequence[SendRow]) -> list[SendRow]:
        """Leave out what this release cannot say, and what must not overtake it; what is left may be sent.

        The release that wrote it says it: a mark in its row lists it, and lets that release know that it waited.
        """
        self._aside = {}
        left: list[SendRow] = []
        marked: list[int] = []
        for row in rows:
            unknown = row.envelope.stored_kind is not None or row.lane not in LANES
            if not unknown and row.lane not in self._aside:
                left.append(row)
                continue
            self._aside.setdefault(row.lane, set()).add(row.sequence)
            if unknown and not row.waits:
                marked.append(row.sequence)
        # They came while the ledger was read.
        late = self._lanes.remove(lambda item: item.lane in self._aside and item.sequence > min(self._aside[item.lane]))
        for item in late:
            self._queued.discard(item.sequence)
            self._aside[item.lane].add(item.sequence)
        if late:
            self._post(Delivered(tuple([item.sequence for item in late]), RUNTIME, "pending", BEHIND))
        if marked:
            self._log.warning("events wait for the newer release that wrote them", sequences=marked[:_FEW])
            self._post(Delivered(tuple(marked), RUNTIME, "pending", NEWER))
        if self._aside and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_AGAIN, guard_call("outbox", self._look_again))
        return left

    def _look_again(self) -> None:
        """Another process may have dismissed what others waited behind."""
        self._looking = None
        self.reload()

    async def _posted(self, rows: Sequence[SendRow]) -> dict[int, datetime]:
        """Find when the messages were posted that these confirmations are about: their runtime waits from then on."""
        found: dict[int, datetime] = {}
        for row in rows:
            about = row.envelope.caused_by
            if row.envelope.event.kind != "message.confirmed" or about is None:
                continue
            try:
                messages = await self._shared.engine.read(self._session_id, after=about - 1, limit=1)
            except Truncated:
                continue
            if messages:
                found[row.sequence] = messages[0].recorded_at
        return found

    def _planned(self, plan: Plan) -> Transmit | None:
        envelope, sequence = plan.row.envelope, plan.row.sequence
        unsure = sequence <= self._unsure_up_to and plan.row.reason not in SURELY_UNSENT
        try:
            frames = self._runtime.codec.encode(envelope).frames
        except CannotExpress as exc:
            self._post(Delivered((sequence,), RUNTIME, "dead", exc.reason))
            return None
        return Transmit(
            sequence,
            plan.row.lane,
            envelope.event.kind,
            frames,
            envelope.caused_by,
            plan.leave_before,
            state=envelope if carries_state(envelope.event, self._runtime.capabilities) else None,
            renew=self._fresh,
            repeats=unsure or sequence in self._lost or sequence in self._tried,
            place=plan.place,
        )

    # Delivery --------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is None and self._proving is None and self._unconfirmed:
            window = self._runtime.options.delivery_window.total_seconds()
            wait = self._unconfirmed[0].at + window - self._shared.clock.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.01, wait), guard_call("outbox", self._ripen))

    def _ripen(self) -> None:
        """Nothing was said against these sends within the window: they are delivered, if the link still stands."""
        self._timer = None
        if self._link is not None:
            self._start_proving(self._link)

    def _start_proving(self, link: Link) -> None:
        tasks, session_id = self._shared.tasks, self._session_id
        self._proving = guard("outbox", partial(self._believe, link), tasks, again=False, session_id=session_id)

    def _prove_repeats(self, link: Link) -> None:
        """Believe what was said again as soon as it has surely come, lest a gateway that keeps dying says it for ever.

        The silence is still listened to: a fault within the window is about it.
        """
        if self._portion and self._proving is None and any(sent.repeats for sent in self._unconfirmed or ()):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._start_proving(link)

    async def _believe(self, link: Link) -> None:
        asked_at = self._shared.clock.monotonic()
        ripe_before = asked_at - self._runtime.options.delivery_window.total_seconds()
        try:
            await link.prove()
        except LinkLost as exc:
            self._log.info("silence was no delivery", reason=str(exc))
            self._drop_link(str(exc))
            return
        except BaseException as exc:
            if not is_fault(exc):
                raise
            proven = [
                sent for sent in self._unconfirmed or () if sent.at <= (asked_at if sent.repeats else ripe_before)
            ]
            self._link_failed([sent.sequence for sent in proven], exc)
            return
        self._proving = None
        ripe: dict[str | None, list[int]] = {}
        kept: deque[_Sent] = deque()
        for sent in self._unconfirmed or ():
            if sent.at <= (asked_at if sent.repeats else ripe_before):
                ripe.setdefault(sent.note, []).append(sent.sequence)
                if sent.repeats:
                    self._believed.append(sent)
            else:
                kept.append(sent)
        self._unconfirmed = kept or None
        for note, sequences in ripe.items():
            self._post(Delivered(tuple(sequences), RUNTIME, "delivered", note))
        self._arm()
        if self._more or len(self._lanes) or any(sent.repeats for sent in kept):
            self._start()
