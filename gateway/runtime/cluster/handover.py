"""Hands unrecorded frames of a lost session to the instance that owns the session now.

A protocol without replay sends each frame once. An instance that loses a session therefore writes the received frames
unchanged into the session's journal, each with an outbound row whose target is the owner. The owner processes them in
order. The step that processes a frame also settles its row, so no frame is processed twice.
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
from gateway.runtime.notifications import Notifications
from gateway.runtime.session.actor import Actor
from gateway.runtime.session.inbox import PendingInputs
from gateway.runtime.signals import HandedOver
from gateway.store.port import Engine
from gateway.store.rows import Send
from gateway.store.step import HANDOVER, Enqueue, SendChange, Step

log = structlog.get_logger(__name__)

CHANNEL = "handed-over"
"""The channel of the opaque event that carries a frame."""
KEPT = timedelta(hours=1)
"""The time after which a frame is dropped unprocessed."""
_NOTE = "received by an instance that no longer owned the session; its owner processes it"
_TOGETHER, _TOGETHER_BYTES = 100, 1024**2
"""Maximum frames and bytes in one step; a single larger frame gets a step of its own."""
_PAGE = 500
_MOST_NAMED = 10
"""Calls that one log line names."""
_LOOK = 2.0
_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class SerializedFrame:
    """A frame that may be handed over, serialized."""

    text: str
    channel: str
    overloaded: bool

    def event(self) -> Event:
        """Return the event for the journal; the frame stays text, since a JSON value cannot hold every frame."""
        payload = {"channel": self.channel, "json": self.text, "overloaded": self.overloaded}
        return Opaque(channel=CHANNEL, payload=payload)


def worth_handing_over(pending: PendingInputs, codec: Codec) -> list[SerializedFrame]:
    """Select, in order, the frames that an owner can process even if it received some of them itself.

    Calls, cancels and numbered messages are deduplicated, so they always qualify. Other messages qualify only if the
    next owner had no link yet and their step was certainly not written. Live events and reports of state or errors are
    skipped, because the owner has newer ones.
    """
    uncertain = {id(signal) for signal, _ in pending.under_way} if pending.unsure else frozenset[int]()
    found: list[SerializedFrame] = []
    for signal in pending.frames:
        try:
            drafts = codec.decode(signal.frame)
        except MalformedFrame:
            continue
        is_unique = signal.alone and id(signal) not in uncertain
        if drafts and all(_may_be_handed_over(draft, is_unique=is_unique) for draft in drafts):
            try:
                text = json.dumps(signal.frame.payload)
            except (TypeError, ValueError, RecursionError) as exc:
                log.warning("frame handover failed", reason=str(exc))
            else:
                found.append(SerializedFrame(text, signal.frame.channel, signal.overloaded))
    return found


def _may_be_handed_over(draft: Draft, *, is_unique: bool) -> bool:
    match draft.event:
        case ToolRequested() | ToolCanceled():
            return True
        case MessagePosted(burst=burst) if burst is not None:
            return True
        case MessagePosted() | Opaque():
            return is_unique and not draft.live
        case _:
            return False


def read_handed_over(envelope: Envelope) -> HandedOver | None:
    """Read a frame back from the journal; None if it was erased."""
    match envelope.event:
        case Opaque(channel=channel, payload={"channel": str(native), "json": str(text), "overloaded": bool(crowded)}):
            if channel == CHANNEL:
                return HandedOver(Frame(native, json.loads(text)), envelope.sequence, overloaded=crowded)
        case _:
            pass
    return None


class Handover:
    """Writes frames for other instances, and gives the sessions that run here the frames written for them."""

    def __init__(self, engine: Engine, clock: Clock, ids: Ids, notifications: Notifications) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._notifications = notifications
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look for frames now, since a session was taken over or another instance wrote frames."""
        self._wake.set()

    # Sending ---------------------------------------------------------------------------------------------

    async def leave(self, session_id: SessionId, pending: PendingInputs) -> None:
        """Write the frames that the session's owner must process; retry until the store is reachable."""
        if answered := pending.answered_calls:
            log.warning(
                "executor answers dropped",
                reason="another instance owns the session",
                session_id=session_id,
                call_ids=answered[:_MOST_NAMED],
                count=len(answered),
            )
        received = len(pending.frames)
        if pending.codec is None or not received:
            return
        waiting = worth_handing_over(pending, pending.codec)
        handed, until = len(waiting), self._clock.monotonic() + KEPT.total_seconds()
        session_log = log.bind(session_id=session_id, received=received)
        while waiting:
            try:
                row = await self._engine.session(session_id)
                if row is None or row.state == "closed":
                    session_log.warning("unrecorded frames dropped", reason="the session was closed meanwhile")
                    return
                some = _step_size(waiting)
                await self._engine.commit(self._step(session_id, waiting[:some]))
            except EngineUnavailable as exc:
                if self._clock.monotonic() > until:
                    session_log.error("unrecorded frames dropped", reason=f"the store was away too long: {exc}")
                    return
                self._engine.outage.failed(exc, "handover of frames")
                await asyncio.sleep(_PAUSE)
            else:
                del waiting[:some]
        if not handed:
            session_log.info("no unrecorded frame needs a handover")
            return
        session_log.warning("unrecorded frames handed to the session's owner", handed_over=handed)
        self._notifications.tell("handover", [session_id])
        self._wake.set()

    def _step(self, session_id: SessionId, some: Sequence[SerializedFrame]) -> Step:
        # Without an expected sequence: the owner notices the new events by itself.
        now, losses = self._clock.now(), (Loss(how="narrowed", path="", note=_NOTE),)
        events = tuple(
            Envelope(
                self._ids.event_id(), session_id, 0, now, "from_runtime", one.event(), losses=losses, synthetic=True
            )
            for one in some
        )
        return Step(session_id, events, sends=tuple(Enqueue(index, HANDOVER) for index in range(len(events))))

    # Receiving -----------------------------------------------------------------------------------------------

    async def keep_looking(self, actors: Callable[[], Mapping[SessionId, Actor]], *, shared: bool) -> None:
        """Look when woken, and regularly if others share the store; `actors` returns those of this process."""
        more = shared
        while True:
            try:
                async with asyncio.timeout(_LOOK if more else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                more = await self._look(actors) or shared
            except EngineUnavailable as exc:
                more = True
                self._engine.outage.failed(exc, "query for orphaned frames")

    async def _look(self, get_actors: Callable[[], Mapping[SessionId, Actor]]) -> bool:
        """Give pending frames to the sessions; return whether there may be more."""
        rows = await self._engine.pending_sends(target=HANDOVER, limit=_PAGE)
        if not rows:
            return False
        actors = get_actors()
        failed = 0
        for session_id, group in groupby(rows, key=lambda row: row.session_id):
            failed += not await self._try_process(session_id, actors.get(session_id), [*group])
        if not rows.more:
            return failed > 0
        # Frames of sessions without an actor must not hide later frames.
        for session_id, actor in actors.items():
            mine = await self._engine.pending_sends(session_id=session_id, target=HANDOVER, limit=_PAGE)
            await self._try_process(session_id, actor, mine)
        return True

    async def _try_process(self, session_id: SessionId, actor: Actor | None, rows: Sequence[Send]) -> bool:
        """Process the frames of one session; a failure is logged and must not affect other sessions."""
        try:
            await self._process(session_id, actor, rows)
        except EngineUnavailable as exc:
            self._engine.outage.failed(exc, "frames of another instance")
            return False
        except BaseException as exc:
            if not is_fault(exc):
                raise
            FAULTS.get().note("handover", exc, session_id=session_id)
            return False
        return True

    async def _process(self, session_id: SessionId, actor: Actor | None, rows: Sequence[Send]) -> None:
        if actor is None:
            session = await self._engine.session(session_id)
            if session is None or session.state == "closed":
                await self._drop(session_id, rows, "the session was closed meanwhile")
                return
        oldest = self._clock.now() - KEPT
        late = [row for row in rows if row.envelope.recorded_at < oldest]
        if late:
            await self._drop(session_id, late, f"they were not processed within {KEPT}")
        if actor is not None:
            await self._hand(actor, [row for row in rows if row.envelope.recorded_at >= oldest])

    async def _hand(self, actor: Actor, rows: Iterable[Send]) -> None:
        erased: list[Send] = []
        frames: list[HandedOver] = []
        for row in rows:
            signal = read_handed_over(row.envelope)
            if signal is None:
                erased.append(row)
            else:
                frames.append(signal)
        if erased:
            await self._drop(actor.view.session_id, erased, "they were erased meanwhile")
        count = actor.hand_over(frames)
        if count:
            session_id, runtime = actor.view.session_id, actor.view.runtime
            log.warning("frames of another instance processed", session_id=session_id, runtime=runtime, count=count)

    async def _drop(self, session_id: SessionId, rows: Sequence[Send], reason: str) -> None:
        changes = tuple(SendChange(row.sequence, HANDOVER, "moot", reason=reason) for row in rows)
        await self._engine.commit(Step(session_id, send_changes=changes))
        log.warning("frames of another instance dropped", session_id=session_id, count=len(rows), reason=reason)


def _step_size(waiting: Sequence[SerializedFrame]) -> int:
    """Return the number of frames that fit into the next step."""
    size = 0
    for number, one in enumerate(waiting[:_TOGETHER]):
        size += len(one.text)
        if number and size > _TOGETHER_BYTES:
            return number
    return min(len(waiting), _TOGETHER)
