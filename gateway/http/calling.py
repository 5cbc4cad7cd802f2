"""Opens a caller's call at the instance that owns the session."""

import re
from urllib.parse import quote

import orjson
from starlette.responses import Response

from gateway.core.callers import CallRequest, is_own
from gateway.errors import Elsewhere
from gateway.events import CallId, SessionId
from gateway.events.frozen import replace
from gateway.http.auth import Caller, is_forwarded
from gateway.http.forward import TRACEPARENT, TRACESTATE, response_of
from gateway.http.reply import dump
from gateway.http.route import ApiRequest
from gateway.store.call import Call

_PROTOCOL = "dragoman/1"
_SPOKEN = "dragoman-protocol"
"""A header with the caller's protocol, for the instance that owns the session."""
_SPAN = "dragoman-span"
"""A header with the span of the caller's request, for the same instance."""
_PLAIN_PROTOCOL = re.compile(r"mcp/[0-9A-Za-z.-]{1,32}")
_PLAIN_SPAN = re.compile(r"[0-9a-f]{16}")


def protocol_of(request: ApiRequest) -> str:
    """Return the caller's protocol for the origin of events: this API, unless a forwarded request names another."""
    spoken = request.headers.get(_SPOKEN, "")
    return spoken if is_forwarded(request) and _PLAIN_PROTOCOL.fullmatch(spoken) else _PROTOCOL


def span_of(request: ApiRequest) -> str | None:
    """Return the span of the caller's request at the instance that has forwarded it."""
    span = request.headers.get(_SPAN, "")
    return span if is_forwarded(request) and _PLAIN_SPAN.fullmatch(span) else None


async def note_shown(request: ApiRequest, call: Call, caller: Caller, *, waited: float) -> None:
    """Record that the caller of a held call is shown its outcome, or has waited for it so many seconds."""
    if not is_own(call, caller.name) or (call.is_open and not waited):
        return
    gateway = request.api_state.gateway
    await gateway.calls.note_listened(call, until=gateway.clock.now() if call.is_open else None)


async def open_call(request: ApiRequest, session_id: SessionId, asked: CallRequest, caller: Caller) -> Call | Response:
    """Open a call here or at the session's owner; return the owner's response if it refuses the call.

    The caller waits here, because the owner may change before the call ends. If the owner does not respond, the next
    owner looks for the call by its id, and opens it under that id if it is not on record.

    Raises:
        Elsewhere: no instance took the session over in time; `unsure` if the call may be on record.
    """
    forwarder = request.api_state.gateway.forwarder
    until = forwarder.patience()
    unsure: Elsewhere | None = None
    while True:
        try:
            return await _open(request, session_id, asked, caller, until)
        except Elsewhere as exc:
            if not exc.unsure or is_forwarded(request):
                if unsure is None:
                    raise
                raise unsure from exc
            unsure = exc
        try:
            await forwarder.pause(session_id, until=until)
        except Elsewhere as exc:
            raise unsure from exc
        # The same key is the same call, so that it cannot run twice.
        asked = replace(asked, fresh=False)


async def _open(
    request: ApiRequest, session_id: SessionId, asked: CallRequest, caller: Caller, until: float
) -> Call | Response:
    callers = request.api_state.gateway.callers
    try:
        return await callers.ask(session_id, asked)
    except Elsewhere as exc:
        if exc.unsure or is_forwarded(request):
            raise
    forwarding = request.api_state.forwarding
    path = f"/v1/sessions/{quote(session_id, safe='')}/calls"
    body = dump({"tool": asked.tool, "arguments": asked.arguments, "key": asked.key})
    more = [(_SPOKEN, asked.protocol)]
    if asked.trace is not None:
        more += [(TRACEPARENT, str(asked.trace)), (TRACESTATE, asked.trace.state)]
    if asked.span is not None:
        more.append((_SPAN, asked.span))
    written = forwarding.request_of(request, caller, path, body, *more)
    answered = await forwarding.ask_owner(session_id, written, until=until)
    if answered is None:
        return await callers.ask(session_id, asked)
    if answered.status not in {200, 202}:
        return response_of(answered)
    return await callers.wait(CallId(orjson.loads(answered.body)["call_id"]), 0)
