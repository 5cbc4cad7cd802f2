"""Frames that were heard here, are not on record, and may not be written here any more: handed to the session's owner.

A protocol without replay says each thing once. So whoever finds that another instance has its session writes what
it has heard into the session's journal, as it came, with an outbound row whose target is the session's owner. The
owner decides about each in its order, in the same step that settles its row: not before, and not twice.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby

import structlog

from gateway.adapter.port import Codec, Frame
from gateway.clock import Clock, Ids
from gateway.errors import EngineUnavailable, MalformedFrame
from gateway.events import Draft, Envelope, Event, Loss, MessagePosted, Opaque, SessionId, ToolCanceled, ToolRequested
from gateway.guard import FAULTS, is_fault
from gateway.runtime.cluster.notifications import Notifications
from gateway.runtime.session.pending_inputs import PendingInputs
from gateway.runtime.session.signals import HandedOver
from gateway.runtime.session.worker import SessionWorker
from gateway.store.port import Engine
from gateway.store.rows import Send
from gateway.store.step import HANDOVER, Enqueue, SendChange, Step

log = structlog.get_logger(__name__)

CHANNEL = "handed-over"
"""The channel of the opaque event that carries a frame."""
KEPT = timedelta(hours=1)
"""How long a frame is worth deciding about."""
_NOTE = "heard by an instance that no longer carried the session; its owner decides about it"
_TOGETHER, _TOGETHER_BYTES = 100, 1024**2
"""Frames in one step at most, unless a single one has more bytes."""
_PAGE = 500
_LOOK = 2.0
_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class HeldFrame:
    """A frame that may be handed over, written down."""

    text: str
    channel: str
    overloaded: bool

    def event(self) -> Event:
        """Say it as what is kept in the journal; the text also holds what a JSON value may not."""
        payload = {"channel": self.channel, "json": self.text, "overloaded": self.overloaded}
        return Opaque(channel=CHANNEL, payload=payload)


def worth_handing_over(left: PendingInputs, codec: Codec) -> list[HeldFrame]:
    """Choose, in their order, the frames that may be decided about by somebody who may have heard them as well.

    Calls, cancels and numbered messages may come twice. Other messages are left out where the next owner had its
    link already, and so is one whose step may be written. What tells of the runtime's state, or of an error, or is
    only live, is over: the owner has newer word of it.
    """
    unsure = {id(signal) for signal, _ in left.under_way} if left.unsure else frozenset[int]()
    found: list[HeldFrame] = []
    for signal in left.frames:
        try:
            drafts = codec.decode(signal.frame)
        except MalformedFrame:
            continue
        once = signal.alone and id(signal) not in unsure
        if drafts and all(_may_be_decided_later(draft, once=once) for draft in drafts):
            try:
                text = json.dumps(signal.frame.payload)
            except (TypeError, ValueError, RecursionError) as exc:
                log.warning("frame handover failed", reason=str(exc))
            else:
                found.append(HeldFrame(text, signal.frame.channel, signal.overloaded))
    return found


def _may_be_decided_later(draft: Draft, *, once: bool) -> bool:
    match draft.event:
        case ToolRequested() | ToolCanceled():
            return True
        case MessagePosted(burst=burst) if burst is not None:
            return True
        case MessagePosted() | Opaque():
            return once and not draft.live
        case _:
            return False


def read_handed_over(envelope: Envelope) -> HandedOver | None:
    """Read a frame back from the journal; None where it was erased."""
    match envelope.event:
        case Opaque(channel=channel, payload={"channel": str(native), "json": str(text), "overloaded": bool(crowded)}):
            if channel == CHANNEL:
                return HandedOver(Frame(native, json.loads(text)), envelope.sequence, overloaded=crowded)
        case _:
            pass
    return None


class Handover:
    """Leaves frames for other instances, and gives the sessions carried here what others have left for them."""

    def __init__(self, engine: Engine, clock: Clock, ids: Ids, notifications: Notifications) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._notifications = notifications
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look now: a session was taken up, or somebody has left something."""
        self._wake.set()

    # Giving ----------------------------------------------------------------------------------------------

    async def leave(self, session_id: SessionId, left: PendingInputs) -> None:
        """Write down, as soon as the store can be reached, what its owner has to decide about."""
        heard = len(left.frames)
        if left.codec is None or not heard:
            return
        waiting = worth_handing_over(left, left.codec)
        handed, until = len(waiting), self._clock.monotonic() + KEPT.total_seconds()
        about = log.bind(session_id=session_id, heard=heard)
        told = False
        while waiting:
            try:
                row = await self._engine.session(session_id)
                if row is None or row.state == "closed":
                    about.warning("frames heard here are dropped: the session was closed meanwhile")
                    return
                some = _step_size(waiting)
                await self._engine.commit(self._step(session_id, waiting[:some]))
            except EngineUnavailable as exc:
                if self._clock.monotonic() > until:
                    about.error("frames heard here are dropped: the store was away too long", reason=str(exc))
                    return
                if not told:
                    about.warning("frames heard here cannot be handed over yet", reason=str(exc))
                told = True
                await asyncio.sleep(_PAUSE)
            else:
                del waiting[:some]
        if not handed:
            about.info("nothing of the frames heard here is left to decide about")
            return
        about.warning("frames heard here and not written are handed to the session's owner", handed_over=handed)
        self._notifications.tell("handover", [session_id])
        self._wake.set()

    def _step(self, session_id: SessionId, some: Sequence[HeldFrame]) -> Step:
        """Nothing is expected: whoever carries the session now finds that its history has gone on."""
        now, losses = self._clock.now(), (Loss(how="narrowed", path="", note=_NOTE),)
        events = tuple(
            Envelope(
                self._ids.event_id(), session_id, 0, now, "from_runtime", one.event(), losses=losses, synthetic=True
            )
            for one in some
        )
        return Step(session_id, events, sends=tuple(Enqueue(index, HANDOVER) for index in range(len(events))))

    # Taking -------------------------------------------------------------------------------------------------

    async def keep_looking(self, carried: Callable[[], Mapping[SessionId, SessionWorker]], *, shared: bool) -> None:
        """Look whenever it is woken, and from time to time where others share the store; `carried` works here."""
        more = shared
        while True:
            try:
                async with asyncio.timeout(_LOOK if more else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                more = await self._look(carried) or shared
            except EngineUnavailable as exc:
                more = True
                log.warning("orphaned frame query failed", reason=str(exc))

    async def _look(self, carried: Callable[[], Mapping[SessionId, SessionWorker]]) -> bool:
        """Hand what is left to the sessions; says whether there may be more."""
        rows = await self._engine.pending_sends(target=HANDOVER, limit=_PAGE)
        if not rows:
            return False
        workers = carried()
        failed = 0
        for session_id, group in groupby(rows, key=lambda row: row.session_id):
            failed += not await self._see_to_alone(session_id, workers.get(session_id), [*group])
        if len(rows) < _PAGE:
            return failed > 0
        # What nobody takes must not hide what stands behind it.
        for session_id, worker in workers.items():
            mine = await self._engine.pending_sends(session_id=session_id, target=HANDOVER, limit=_PAGE)
            await self._see_to_alone(session_id, worker, mine)
        return True

    async def _see_to_alone(self, session_id: SessionId, worker: SessionWorker | None, rows: Sequence[Send]) -> bool:
        """See to one session; what it fails on must not keep those behind it from theirs."""
        try:
            await self._see_to(session_id, worker, rows)
        except EngineUnavailable as exc:
            text = "frames that others have left cannot be seen to yet"
            log.warning(text, session_id=session_id, reason=str(exc))
            return False
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.note("handover", exc, session_id=session_id)
            return False
        return True

    async def _see_to(self, session_id: SessionId, worker: SessionWorker | None, rows: Sequence[Send]) -> None:
        if worker is None:
            session = await self._engine.session(session_id)
            if session is None or session.state == "closed":
                await self._drop(session_id, rows, "the session was closed meanwhile")
                return
        oldest = self._clock.now() - KEPT
        late = [row for row in rows if row.envelope.recorded_at < oldest]
        if late:
            await self._drop(session_id, late, f"nobody took them up within {KEPT}")
        if worker is not None:
            await self._hand(worker, [row for row in rows if row.envelope.recorded_at >= oldest])

    async def _hand(self, worker: SessionWorker, rows: Iterable[Send]) -> None:
        erased: list[Send] = []
        frames: list[HandedOver] = []
        for row in rows:
            signal = read_handed_over(row.envelope)
            if signal is None:
                erased.append(row)
            else:
                frames.append(signal)
        if erased:
            await self._drop(worker.view.session_id, erased, "they were erased meanwhile")
        count = worker.hand_over(frames)
        if count:
            session_id, runtime = worker.view.session_id, worker.view.runtime
            log.warning(
                "frames of another instance processed",
                session_id=session_id,
                runtime=runtime,
                count=count,
            )

    async def _drop(self, session_id: SessionId, rows: Sequence[Send], reason: str) -> None:
        changes = tuple(SendChange(row.sequence, HANDOVER, "moot", reason=reason) for row in rows)
        await self._engine.commit(Step(session_id, send_changes=changes))
        log.warning("frames of another instance dropped", session_id=session_id, count=len(rows), reason=reason)


def _step_size(waiting: Sequence[HeldFrame]) -> int:
    """Say how many of them go into one step."""
    size = 0
    for number, one in enumerate(waiting[:_TOGETHER]):
        size += len(one.text)
        if number and size > _TOGETHER_BYTES:
            return number
    return min(len(waiting), _TOGETHER)
