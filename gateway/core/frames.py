"""What each native message means: calls, cancels, messages, and everything that is only witnessed. Pure."""

from gateway.core import calls as life
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.effects import Dispatch, Queue, Resend, Tell
from gateway.core.messages import burst_message
from gateway.core.outcomes import open_call, settle
from gateway.core.routing import Matched
from gateway.core.saying import begin_turn, witness
from gateway.core.state import OpenCall
from gateway.envelope import (
    Draft,
    FrameRejected,
    MessagePosted,
    Origin,
    Outcome,
    ToolCanceled,
    ToolRequested,
    call_id as name_call,
)
from gateway.errors import MalformedFrame
from gateway.ports.adapter import Frame
from gateway.ports.engine import (
    RUNTIME,
    CallRow,
    SendChange,
)
from gateway.ports.executor import Answered

OVERLOADED = "The gateway is overloaded; try again later."
_EXCERPT = 500


def take(
    council: Council, build: Building, frame: Frame, *, cursor: str | None = None, overloaded: bool = False
) -> None:
    """Take one native message."""
    build.cursor = cursor or build.cursor
    try:
        drafts = council.codec.decode(frame)
    except MalformedFrame as exc:
        rejected = FrameRejected(
            channel=frame.channel[:64], reason=exc.reason, path=exc.path, excerpt=repr(frame.payload)[:_EXCERPT]
        )
        build.record(rejected, "from_runtime", origin=Origin(council.adapter, council.protocol))
        return
    for draft in drafts:
        _draft(council, build, draft, overloaded=overloaded)


def _draft(council: Council, build: Building, draft: Draft, *, overloaded: bool) -> None:
    match draft.event:
        case event if draft.live:
            build.touched_at = build.now
            build.effects.append(Tell(event))
        case ToolRequested(runs_in="host"):
            _requested(council, build, draft, draft.event, overloaded=overloaded)
        case ToolCanceled():
            _canceled(council, build, draft, draft.event)
        case MessagePosted(burst=burst) if burst is not None:
            burst_message(council, build, draft, draft.event)
        case event:
            witness(council, build, draft, event)


def _requested(council: Council, build: Building, draft: Draft, event: ToolRequested, *, overloaded: bool) -> None:
    sha = life.fingerprint(event.tool, event.arguments)
    waiting = _open_call(build, event.native_call_id)
    if waiting is not None:
        if waiting.args_sha != sha:
            reason = f"call {event.native_call_id[:100]!r} is still open and was sent again with other arguments"
            build.record(FrameRejected(channel="tool.requested", reason=reason), "from_runtime")
        return
    n = 0
    settled = build.known.get(event.native_call_id)
    if settled is not None:
        if settled.args_sha == sha:
            _again(build, settled)
            return
        n = settled.n + 1
    route = council.policy.routes.executor_for(
        runtime=council.runtime, kind=event.kind, tool=event.tool, labels=build.memory.labels
    )
    if not isinstance(route, Matched) and council.policy.routes.unrouted == "ignore" and event.problem is None:
        witness(council, build, draft, event)
        return
    begin_turn(council, build)
    call_id = name_call(
        runtime=council.runtime, native_session_id=build.base.native_id, native_call_id=event.native_call_id, n=n
    )
    sequence, _ = witness(council, build, draft, event.model_copy(update={"call_id": call_id}))
    executor = route.executor if isinstance(route, Matched) else None
    refusal = OVERLOADED if overloaded else _refusal(council, event, executor)
    leaves_now = refusal is None and executor is not None and build.take_slot(executor)
    policy = council.policy.executors.get(executor or "", life.RetryPolicy())
    call = OpenCall(
        call_id=call_id,
        native_call_id=event.native_call_id,
        n=n,
        tool=event.tool,
        arguments=event.arguments,
        args_sha=sha,
        state="dispatched" if leaves_now else "queued",
        attempt=1 if leaves_now else 0,
        created_at=build.now,
        deadline_at=build.now + policy.deadline,
        request_sequence=sequence,
        executor=executor,
    )
    open_call(build, call)
    if refusal is not None:
        settle(council, build, call, life.failure(refusal))
    elif leaves_now:
        build.effects.append(Dispatch(call))
    elif executor is not None:
        build.effects.append(Queue(call_id, executor))


def _refusal(council: Council, event: ToolRequested, executor: str | None) -> str | None:
    """Say why a call cannot go to an executor at all, in words for the agent."""
    if event.problem is not None:
        return event.problem
    if executor is None:
        if event.tool in council.policy.declared:
            return f"The tool {event.tool!r} is not available here."
        return f"Unknown tool: {event.tool}"
    return council.policy.check_arguments(event.tool, event.arguments)


def _again(build: Building, settled: CallRow) -> None:
    """A settled call was asked again, word for word: its outcome is offered again."""
    if settled.outcome_sequence is not None and settled.deliver:
        build.change_send(SendChange(sequence=settled.outcome_sequence, target=RUNTIME, state="pending"))
        build.effects.append(Resend(settled.outcome_sequence))


def _canceled(council: Council, build: Building, draft: Draft, event: ToolCanceled) -> None:
    call = _open_call(build, event.native_call_id)
    known = {"call_id": call.call_id if call else None, "tool": call.tool if call else event.tool}
    witness(council, build, draft, event.model_copy(update=known))
    if call is None:
        return
    reason = event.reason or "Canceled by the agent."
    canceled = Answered(Outcome(outcome="canceled", error=reason))
    settle(council, build, call, canceled, tell_reason=reason, moot=not council.capabilities.answers_cancel)


def _open_call(build: Building, native_call_id: str) -> OpenCall | None:
    return next(
        (c for c in build.calls.values() if c.native_call_id == native_call_id and c.redrive_of is None),
        None,
    )
