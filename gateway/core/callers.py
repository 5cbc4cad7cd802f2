"""Calls from outside: an API or MCP client calls a tool of the catalog. Pure.

Such a call is recorded in its session and runs like any other. Its outcome goes to the caller and not to the runtime
(gateway/http/README.md#calls-from-outside).
"""

from typing import Any

from gateway.adapter.port import Frame
from gateway.core.calls import cancellation, check_limits, fingerprint, fit_arguments
from gateway.core.holding import ruling_of
from gateway.core.inbound import NewCall, open_call
from gateway.core.own_actions import WITHDRAWN, find_action, link, may_be_an_action
from gateway.core.routing import Ruling
from gateway.core.session import StepBuilder
from gateway.core.trace_context import TraceContext
from gateway.errors import CallDiffers, Conflict, InvalidArguments, UnknownTool
from gateway.events import CallId, Origin, ToolRequested, call_id as name_call
from gateway.events.frozen import frozen
from gateway.events.weight import weight
from gateway.executors.port import Answered
from gateway.store.call import CALLER, Call

BY_ITS_CALLER = "Canceled by its caller."


@frozen
class CallRequest:
    """A caller's request for a call."""

    tool: str
    arguments: dict[str, Any]
    caller: str
    """The name of the API key, or the kind of token, which cannot be the name of an API key."""
    key: str
    """The idempotency key, unique per caller and session; a repeated key is the same call."""
    protocol: str
    """The caller's protocol, for the origin of the call's events."""
    fresh: bool = False
    """Whether the key was generated just now, so that no existing call can have it."""
    trace: TraceContext | None = None
    """The caller's trace context."""
    span: str | None = None
    """The span of the caller's request, if it is traced here; it belongs to the trace of the call."""

    @property
    def native_call_id(self) -> str:
        """The id that replaces the native call id of a runtime."""
        return f"{CALLER}:{self.caller}:{self.key}"


def id_of(runtime: str, native_session_id: str, request: CallRequest) -> CallId:
    """Return the id of the call that this request opens."""
    return name_call(runtime=runtime, native_session_id=native_session_id, native_call_id=request.native_call_id, n=0)


def is_own(call: Call, caller: str) -> bool:
    """Return whether this caller made the call; a caller's name has no colon."""
    return call.answer_to == "caller" and call.native_call_id.startswith(f"{CALLER}:{caller}:")


def same_call(known: Call, request: CallRequest) -> CallId:
    """Return the id of the recorded call if a request repeats it.

    Raises:
        CallDiffers: the key was used for a different request.
    """
    if known.args_sha != fingerprint(request.tool, request.arguments):
        raise CallDiffers(f"the key {request.key!r} was used before for another tool or other arguments")
    return known.call_id


def ask(builder: StepBuilder, request: CallRequest) -> CallId:
    """Open the call of a request, or return the call that the same request opened before.

    Raises:
        CallDiffers: the key was used for a different request.
        UnknownTool: the tool is not in the catalog, or has no executor in this session.
        InvalidArguments: the arguments do not match the tool's schema.
        Overloaded: too many calls are open.
    """
    runtime = builder.runtime
    if builder.memory.closed:
        raise Conflict("the session is closed")
    call_id = id_of(runtime.name, builder.base.native_id, request)
    known = builder.calls.get(call_id) or builder.known.get(call_id)
    if known is not None:
        return same_call(known, request)
    event = ToolRequested(
        native_call_id=request.native_call_id, tool=request.tool, arguments=request.arguments, call_id=call_id
    )
    fitted = fit_arguments(runtime, event)
    ruling = ruling_of(builder, event.tool, fitted.arguments)
    if request.tool not in runtime.policy.declared or ruling is None:
        raise UnknownTool(f"no tool {request.tool[:100]!r} can be called in this session")
    if fitted.problem is not None:
        raise InvalidArguments(fitted.problem)
    size = weight(request.arguments)
    check_limits(builder, size)
    sha = fingerprint(event.tool, event.arguments)
    is_tied = may_be_an_action(runtime, request.caller)
    action = find_action(builder, event.tool, sha) if is_tied else None
    # The correlation links it to an action of the runtime's own, if it is one.
    origin = Origin(CALLER, request.protocol, correlation=sha if is_tied else None)
    native: bytes | None = None
    if runtime.keep_frame is not None and request.protocol.startswith("mcp/"):
        # The only part of the request that is the same at the instance that received it and at the owner.
        frame = Frame("tools/call", {"name": request.tool, "arguments": request.arguments})
        native = runtime.keep_frame(frame, ())
    requested = builder.apply(event, "from_runtime", origin=origin, losses=fitted.losses, native=native)
    if action is not None:
        link(builder, action, call_id, event.tool)
    new = NewCall(
        call_id=call_id,
        native_call_id=event.native_call_id,
        n=0,
        tool=event.tool,
        args_sha=sha,
        request_sequence=requested.sequence,
        ruling=ruling if isinstance(ruling, Ruling) else None,
        arguments=fitted.arguments,
        size=size,
        caller=origin,
        trace=request.trace,
        span=request.span,
    )
    refused = ruling if isinstance(ruling, Answered) else None
    if action is not None and action.withdrawn:
        refused = cancellation(WITHDRAWN)
    open_call(builder, new, refused=refused)
    return call_id
