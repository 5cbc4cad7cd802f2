"""Loads a session from the store: its folded memory and its open calls."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from gateway.core.adapt import HYDRATION
from gateway.core.callers import id_of
from gateway.core.fold import fold
from gateway.core.lifecycle import UNREADABLE
from gateway.core.nulls import sent_arguments
from gateway.core.session import RuntimeContext
from gateway.core.snapshots import from_snapshot
from gateway.core.state import SessionView, Unheard
from gateway.core.unheard import unheard_of
from gateway.errors import MalformedFrame, NotFound, Truncated
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    ContextUpdated,
    Envelope,
    QuestionAnswered,
    SecretSupplied,
    SessionId,
    ToolFinished,
    ToolRequested,
    call_id as name_call,
    interaction_id,
)
from gateway.events.weight import weight
from gateway.runtime.signals import (
    AnsweredLate,
    CallAsked,
    DismissOrdered,
    FrameArrived,
    HandedOver,
    OutcomeLate,
    RedriveOrdered,
    Signal,
    WantedDue,
)
from gateway.store.call import Call
from gateway.store.port import Engine
from gateway.store.rows import Send, SessionRow
from gateway.store.step import RUNTIME

_MOST_READ = 100
_READ_BYTES = 1024 * 1024


async def load_view(engine: Engine, session_id: SessionId) -> SessionView:
    """Load the view of a session, which its decisions use.

    Raises:
        NotFound: there is no such session.
    """
    row = await engine.session(session_id)
    if row is None:
        raise NotFound(f"no session {session_id}")
    after, memory = from_snapshot(await engine.snapshot(session_id))
    is_unsaved = False
    while True:
        try:
            page = await engine.read(session_id, after=after)
        except Truncated as exc:
            after = exc.first_sequence - 1
            continue
        for envelope in page:
            memory = fold(memory, envelope)
        if not page.more:
            break
        after, is_unsaved = page[-1].sequence, True
    opened = [await _open_call(engine, row, call) for call in await engine.open_calls(session_id)]
    unheard = [await _unheard(engine, call) for call in await engine.unheard_calls(session_id)]
    return SessionView(
        session_id=session_id,
        runtime=row.runtime,
        native_id=row.native_id,
        memory=memory,
        calls={call.call_id: call for call in opened},
        last_sequence=row.last_sequence,
        cursor=row.cursor,
        listed=row.state,
        unheard={one.call.call_id: one for one in reversed(unheard)},
        is_unsaved=is_unsaved,
    )


async def refresh(engine: Engine, live: SessionView) -> SessionView:
    """Load the view of a session again; what is not recorded stays."""
    return replace(
        await load_view(engine, live.session_id),
        first_state=live.first_state,
        touched_at=live.touched_at,
        partial=live.partial,
        live=live.live,
        start=live.start,
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
    for native in _calls_in(runtime, signal):
        row = await engine.latest_reuse(view.session_id, native)
        if row is None:
            first = name_call(runtime=view.runtime, native_session_id=view.native_id, native_call_id=native)
            row = await engine.call(first)
        if row is not None:
            known[native] = row
    return known


def _calls_in(runtime: RuntimeContext, signal: Signal) -> Iterable[str]:
    """Return the native ids of the calls that a signal may open."""
    if isinstance(signal, WantedDue):
        return [request.native_call_id for _, request in signal.requests]
    if not isinstance(signal, FrameArrived | HandedOver):
        return ()
    try:
        drafts = runtime.codec.decode(signal.frame)
    except MalformedFrame:
        return ()
    return [draft.event.native_call_id for draft in drafts if isinstance(draft.event, ToolRequested)]


async def read_wanted(engine: Engine, view: SessionView, due: WantedDue) -> WantedDue:
    """Read the next requests without a call or an outcome, about 1 MiB of them.

    Raises:
        EngineUnavailable: the store cannot be read.
    """
    called = {call.native_call_id for call in view.calls.values() if call.is_the_runtimes}
    open_requests = {
        wanted.sequence: native
        for native, wanted in view.memory.wanted.items()
        if wanted.sequence > due.after and native not in called
    }
    found: list[tuple[int, ToolRequested]] = []
    size = 0
    for sequence in sorted(open_requests)[:_MOST_READ]:
        request = await _request(engine, view.session_id, sequence)
        if request is None:
            request = ToolRequested(native_call_id=open_requests[sequence], tool="", problem=UNREADABLE)
        found.append((sequence, request))
        size += weight(request.arguments)
        if size >= _READ_BYTES:
            break
    return WantedDue(due.after, found)


async def _request(engine: Engine, session_id: SessionId, sequence: int) -> ToolRequested | None:
    """Read a request; None if retention has removed it, or if this release cannot read it."""
    try:
        found = await engine.read(session_id, after=sequence - 1, limit=1)
    except Truncated:
        return None
    event = found[0].event if found else None
    return event if isinstance(event, ToolRequested) else None


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


async def pending_rows(engine: Engine, session_id: SessionId) -> AsyncIterator[Send]:
    """Yield the rows that wait for the runtime of a session, in order."""
    after, more = 0, True
    while more:
        page = await engine.pending_sends(session_id=session_id, target=RUNTIME, after=after)
        for row in page:
            yield row
            after = row.sequence
        more = page.more


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


def approved_arguments(found: Sequence[Envelope]) -> tuple[dict[str, Any], bool] | None:
    """Return the arguments in the question about a held call, or in its answer, and whether a person changed them."""
    event = found[0].event if found else None
    if not isinstance(event, ApprovalAsked | ApprovalGiven) or event.arguments is None:
        return None
    return event.arguments, bool(event.edited)


async def _open_call(engine: Engine, session: SessionRow, call: Call) -> Call:
    found = await engine.read(session.session_id, after=call.request_sequence - 1, limit=1)
    request = found[0].event if found else None
    if isinstance(request, ToolRequested):
        origin = found[0].origin if call.answer_to == "caller" else None
        if call.arguments_sequence is None:
            arguments = sent_arguments(found[0], request)
            return replace(call, arguments=arguments, size=weight(request.arguments), origin=origin)
        asked = await engine.read(session.session_id, after=call.arguments_sequence - 1, limit=1)
        approved = approved_arguments(asked)
        if approved is not None:
            arguments, edited = approved
            warned = isinstance(event := asked[0].event, ApprovalAsked) and event.warning is not None
            return replace(
                call, arguments=arguments, size=weight(arguments), origin=origin, edited=edited, warned=warned
            )
        return replace(call, origin=origin)
    # The request is erased, damaged, or of an unknown kind; the call still ends.
    return call


async def _unheard(engine: Engine, call: Call) -> Unheard:
    sequence = call.outcome_sequence
    try:
        found = () if sequence is None else await engine.read(call.session_id, after=sequence - 1, limit=1)
    except Truncated:
        found = ()
    event = found[0].event if found else None
    return unheard_of(call, event if isinstance(event, ToolFinished) else None)


async def has_something_to_say(engine: Engine, session_id: SessionId) -> bool:
    """Return whether an event of a client or a person waits for the runtime of a session."""
    async for row in pending_rows(engine, session_id):
        if await _is_client_event(engine, row):
            return True
    return False


async def _is_client_event(engine: Engine, row: Send) -> bool:
    event, about = row.envelope.event, row.envelope.caused_by
    match event:
        case ApprovalGiven() | QuestionAnswered() | SecretSupplied() if about is not None:
            asked = await engine.interaction(interaction_id(session=row.session_id, native_id=event.id, n=about))
            # The gateway itself answers an expired question.
            return asked is None or asked.state != "expired"
        case ContextUpdated(name=name, call_id=call_id):
            return call_id is None and name != HYDRATION
        case ToolFinished():
            return False
        case _:
            return True
