"""Loads a session from the store: its folded memory and its open calls."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.core.callers import id_of
from gateway.core.fold import fold
from gateway.core.nulls import sent_arguments
from gateway.core.session import RuntimeContext
from gateway.core.snapshots import from_snapshot
from gateway.core.state import SessionView
from gateway.errors import MalformedFrame, NotFound, Truncated
from gateway.events import Envelope, SessionId, ToolRequested, call_id as name_call
from gateway.events.weight import weight
from gateway.runtime.session.signals import (
    AnsweredLate,
    CallAsked,
    CaughtUp,
    DismissOrdered,
    FrameArrived,
    HandedOver,
    OutcomeLate,
    RedriveOrdered,
    Signal,
)
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import Send, SessionRow

_PAGE = 500


async def load_view(engine: Engine, session_id: SessionId) -> SessionView:
    """Load the view of a session, which its decisions use.

    Raises:
        NotFound: there is no such session.
    """
    row = await engine.session(session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    after, memory = from_snapshot(row.snapshot)
    while True:
        try:
            page = await engine.read(session_id, after=after, limit=_PAGE)
        except Truncated as exc:
            after = exc.first_sequence - 1
            continue
        for envelope in page:
            memory = fold(memory, envelope)
        if len(page) < _PAGE:
            break
        after = page[-1].sequence
    opened = [await _open_call(engine, row, call) for call in await engine.open_calls(session_id)]
    return SessionView(
        session_id=session_id,
        runtime=row.runtime,
        native_id=row.native_id,
        memory=memory,
        calls={call.call_id: call for call in opened},
        last_sequence=row.last_sequence,
        cursor=row.cursor,
        listed=row.state,
    )


async def known_calls(engine: Engine, view: SessionView, runtime: RuntimeContext, signal: Signal) -> dict[str, Call]:
    """Load the calls that a signal concerns and the memory no longer holds, by native id or call id."""
    if isinstance(signal, CallAsked):
        row = await engine.call(id_of(view.runtime, view.native_id, signal.request))
        return {} if row is None else {row.call_id: row}
    if isinstance(signal, RedriveOrdered | DismissOrdered | OutcomeLate | AnsweredLate):
        row = await engine.call(signal.row.call_id)
        return {} if row is None else {row.call_id: row}
    known: dict[str, Call] = {}
    for native in _calls_in(view, runtime, signal):
        row = await engine.latest_reuse(view.session_id, native)
        if row is None:
            first = name_call(runtime=view.runtime, native_session_id=view.native_id, native_call_id=native)
            row = await engine.call(first)
        if row is not None:
            known[native] = row
    return known


def _calls_in(view: SessionView, runtime: RuntimeContext, signal: Signal) -> Iterable[str]:
    """Return the native ids of the calls that a signal may open."""
    if isinstance(signal, CaughtUp):
        return view.memory.wanted
    if not isinstance(signal, FrameArrived | HandedOver):
        return ()
    try:
        drafts = runtime.codec.decode(signal.frame)
    except MalformedFrame:
        return ()
    return [draft.event.native_call_id for draft in drafts if isinstance(draft.event, ToolRequested)]


async def read_unconfirmed(engine: Engine, view: SessionView) -> list[Envelope]:
    """Load the agent's messages that wait for a confirmation."""
    found: list[Envelope] = []
    for waiting in view.memory.confirmations:
        try:
            found += await engine.read(view.session_id, after=waiting.sequence - 1, limit=1)
        except Truncated:
            # Removed by retention, so no executor is asked; the message still gets its confirmation.
            continue
    return found


async def when_posted(engine: Engine, session_id: SessionId, rows: Sequence[Send]) -> dict[int, datetime]:
    """Return the times of the messages that these rows confirm; the runtime waits from then on."""
    found: dict[int, datetime] = {}
    for row in rows:
        about = row.envelope.caused_by
        if row.envelope.event.kind != "message.confirmed" or about is None:
            continue
        try:
            messages = await engine.read(session_id, after=about - 1, limit=1)
        except Truncated:
            continue
        if messages:
            found[row.sequence] = messages[0].recorded_at
    return found


async def _open_call(engine: Engine, session: SessionRow, call: Call) -> Call:
    found = await engine.read(session.session_id, after=call.request_sequence - 1, limit=1)
    request = found[0].event if found else None
    if isinstance(request, ToolRequested):
        origin = found[0].origin if call.answer_to == "caller" else None
        arguments = sent_arguments(found[0], request)
        return replace(call, arguments=arguments, size=weight(request.arguments), origin=origin)
    # The request is erased, damaged, or of an unknown kind; the call still ends.
    return call
