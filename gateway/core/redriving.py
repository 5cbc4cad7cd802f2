"""How an operator redrives or dismisses an ended call. Pure."""

from gateway.core.calls import check_limits, fit_arguments
from gateway.core.effects import Queue
from gateway.core.holding import born_held, ruling_of
from gateway.core.session import USUAL_RETRY, StepBuilder
from gateway.core.trace_context import call_span, context_of
from gateway.errors import Conflict
from gateway.events import CallId, CallProgressed, ToolRequested, call_id as name_call
from gateway.events.weight import weight
from gateway.executors.port import Answered
from gateway.store.call import Call, Dismissed, Open, Redriven

NO_LONGER_DEAD = "the call was redriven or dismissed meanwhile"


def redrive(builder: StepBuilder, row: Call, request: ToolRequested, *, new_key: bool, deliver: bool) -> CallId:
    """Redrive an ended call as a new call with the same idempotency key.

    If its route needs an approval, it waits for one again, whatever was allowed before. `request` has the arguments
    that a person has allowed, if one was asked.

    Raises:
        Conflict: no route takes the call, the arguments are invalid, or the dead call was redriven meanwhile.
        Overloaded: too many calls are open.
    """
    runtime = builder.runtime
    if row.dead and not builder.known.get(row.call_id, row).dead:
        raise Conflict(NO_LONGER_DEAD)
    fitted = fit_arguments(runtime, request)
    ruling = ruling_of(builder, row.tool, fitted.arguments)
    if ruling is None:
        raise Conflict(f"no route takes the tool {row.tool!r} any more, so there is no executor to try again")
    problem = fitted.problem or (ruling.outcome.error if isinstance(ruling, Answered) else None)
    if isinstance(ruling, Answered) or problem is not None:
        raise Conflict(f"it would be refused before any executor is asked: {problem}")
    executor = ruling.executor or ""
    call_id = name_call(
        runtime=runtime.name,
        native_session_id=builder.base.native_id,
        native_call_id=f"redrive:{row.call_id}",
        n=builder.last_sequence,
    )
    size = weight(request.arguments)
    check_limits(builder, size)
    policy = runtime.policy.executors.get(executor, USUAL_RETRY)
    note = CallProgressed(
        native_call_id=row.native_call_id, call_id=row.call_id, data={"redriven_as": call_id, "new_key": new_key}
    )
    builder.apply(note, "to_runtime", caused_by=row.request_sequence, synthetic=True)
    if row.dead:
        builder.change_call(Redriven(row.call_id), ended=builder.known.get(row.call_id, row))
    call = Call(
        call_id=call_id,
        session_id=builder.base.session_id,
        runtime=runtime.name,
        native_call_id=row.native_call_id,
        n=row.n,
        tool=row.tool,
        arguments=fitted.arguments,
        args_sha=row.args_sha,
        state="queued",
        attempt=0,
        created_at=builder.now,
        deadline_at=builder.now + policy.deadline,
        request_sequence=row.request_sequence,
        executor=executor,
        key=None if new_key else (row.key or row.call_id),
        redrive_of=row.call_id,
        deliver=deliver,
        size=size,
        trace=context_of(row).below(call_span(row.call_id)).record(),
        arguments_sequence=row.arguments_sequence,
        edited=row.edited,
    )
    if ruling.approve is not None:
        builder.change_call(Open(born_held(builder, call, ruling)))
        return call_id
    builder.change_call(Open(call))
    builder.effects.append(Queue(call_id, executor))
    return call_id


def dismissal(row: Call, *, by: str) -> CallProgressed:
    """Return the event of an operator's dismissal of a dead call."""
    return CallProgressed(native_call_id=row.native_call_id, call_id=row.call_id, data={"dismissed_by": by})


def dismiss(builder: StepBuilder, row: Call, *, by: str) -> None:
    """Dismiss a dead call and record the operator.

    Raises:
        Conflict: it was redriven or dismissed meanwhile.
    """
    if not builder.known.get(row.call_id, row).dead:
        raise Conflict(NO_LONGER_DEAD)
    builder.apply(dismissal(row, by=by), "to_runtime", caused_by=row.request_sequence, synthetic=True)
    builder.change_call(Dismissed(row.call_id), ended=builder.known.get(row.call_id, row))
