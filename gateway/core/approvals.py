"""The answers to the questions about held calls. Pure.

A call that a person allows is asked about at the routes again: the configuration may have changed since it was held.
"""

from collections.abc import Mapping
from typing import Any, cast

from gateway.core.binding import binding_of
from gateway.core.calls import fingerprint, settle
from gateway.core.effects import Queue
from gateway.core.holding import (
    BY_GATEWAY,
    EXECUTOR,
    ask_again,
    end_question,
    no_longer_routed,
    not_made,
    question_of,
    refused_answerer,
    ruling_of,
)
from gateway.core.routing import Ruling
from gateway.core.session import USUAL_RETRY, StepBuilder
from gateway.errors import (
    ApprovalStale,
    BindingRequired,
    Conflict,
    Denied,
    Forbidden,
    InvalidRequest,
    TooLarge,
)
from gateway.events import ApprovalGiven, CallId, CallProgressed, InteractionId
from gateway.events.frozen import frozen, replace
from gateway.events.weight import weight
from gateway.executors.port import Answer, Answered, Replied
from gateway.store.call import Approve, Call

MOST_REASON = 2_000
"""Characters of the reason of a denial."""


@frozen
class _Changed:
    """The arguments that a person allows."""

    arguments: Mapping[str, Any]
    size: int
    edited: bool
    """Whether this answer changes them."""


def held_call(builder: StepBuilder, interaction: InteractionId) -> Call | None:
    """Return the held call that an interaction is about."""
    return next((c for c in builder.calls.values() if c.state == "held" and question_of(c) == interaction), None)


def asked_about(builder: StepBuilder, sequence: int) -> Call | None:
    """Return the held call that an event asks about."""
    held = (call for call in builder.calls.values() if call.state == "held")
    return next((call for call in held if call.arguments_sequence == sequence), None)


def replied(builder: StepBuilder, call: Call, reply: Answer, *, executor: str) -> None:
    """Apply an executor's reply to the question about a held call; an empty or refused one leaves it to people."""
    if not isinstance(reply, Replied) or not reply.reply:
        return
    by = f"{EXECUTOR} {executor}"
    try:
        if "arguments" in reply.reply:
            raise InvalidRequest("an executor does not change the arguments")
        answer(builder, call, reply.reply, by=by)
    except (InvalidRequest, Conflict, Forbidden) as exc:
        data = {"refused_answer": str(exc), "by": by}
        refused = CallProgressed(native_call_id=call.native_call_id, call_id=call.call_id, data=data)
        builder.apply(refused, "to_runtime", origin=BY_GATEWAY, caused_by=call.arguments_sequence, synthetic=True)


def answer(builder: StepBuilder, call: Call, body: Mapping[str, Any], *, by: str) -> int:
    """Apply an answer to the question about a held call; return the sequence of the event that follows.

    It is `{"decision": "allow", "binding", "arguments"}` or `{"decision": "deny", "reason"}`.

    Raises:
        InvalidRequest: the body has another form. Otherwise as `allow` and `deny` do.
    """
    decision, binding, arguments, reason = (body.get(name) for name in ("decision", "binding", "arguments", "reason"))
    if decision not in {"allow", "deny"}:
        raise InvalidRequest('a held call is answered {"decision": "allow" or "deny"}', pointer="/decision")
    if body.get("scope") not in {None, "once"}:
        raise InvalidRequest("a held call is allowed once", pointer="/scope")
    if decision == "deny":
        if reason is not None and not isinstance(reason, str):
            raise InvalidRequest("reason must be a string", pointer="/reason")
        return deny(builder, call.call_id, reason, by=by)
    if binding is not None and not isinstance(binding, str):
        raise InvalidRequest("binding must be a string", pointer="/binding")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidRequest("arguments must be an object", pointer="/arguments")
    return allow(builder, call.call_id, binding, cast("Mapping[str, Any] | None", arguments), by=by)


def allow(
    builder: StepBuilder, call_id: CallId, binding: str | None, arguments: Mapping[str, Any] | None, *, by: str
) -> int:
    """Allow a held call, perhaps with other arguments; return the sequence of the event that follows.

    That is `approval.given`; or, if the routes have changed, the `tool.finished` of a call that may not be made any
    more, or the `approval.asked` under another rule.

    Raises:
        Conflict: the call waits for nobody.
        BindingRequired, ApprovalStale: the binding is missing, or is not that of the question.
        OwnCall: who answers has made the call, or would run it. NotApprover: the rule names others.
        Denied: the routes or the schema refuse the changed arguments. TooLarge: they are too many.
    """
    call = _waiting(builder, call_id)
    if binding is None:
        raise BindingRequired("allow names the `binding` of what was shown to a person", pointer="/binding")
    if binding != call.binding:
        raise ApprovalStale("the binding is not that of the question; look at the call again")
    # Also of changed arguments that another rule takes: whom this rule does not name answers nothing.
    _check_answerer(builder, call, ruling_of(builder, call.tool, call.arguments or {}), by)
    changed = _change(builder, call, arguments)
    found = ruling_of(builder, call.tool, changed.arguments)
    _check_answerer(builder, call, found, by)
    if changed.edited and not isinstance(found, Ruling):
        raise Denied(_why(call, found))
    if not isinstance(found, Ruling):
        settle(builder, call, no_longer_routed(call) if found is None else found)
        return builder.last_sequence
    if found.approve is not None and found.rule != call.rule:
        edited = call.edited or changed.edited
        return ask_again(builder, replace(call, arguments=changed.arguments, size=changed.size, edited=edited), found)
    return _approve(builder, call, found, changed, by)


def deny(builder: StepBuilder, call_id: CallId, reason: str | None, *, by: str) -> int:
    """Deny a held call; the agent gets the reason without the name. Return the sequence of the answer.

    Raises:
        Conflict: the call waits for nobody.
        OwnCall, NotApprover: as of `allow`.
        InvalidRequest: the reason is too long.
    """
    call = _waiting(builder, call_id)
    if reason is not None and len(reason) > MOST_REASON:
        raise InvalidRequest(f"reason has at most {MOST_REASON:,} characters", pointer="/reason")
    _check_answerer(builder, call, ruling_of(builder, call.tool, call.arguments or {}), by)
    given = ApprovalGiven(
        id=call_id,
        native_call_id=call.native_call_id,
        decision="deny",
        reason=reason or None,
        call_id=call_id,
        binding=call.binding,
        by=by,
    )
    sequence = builder.apply(given, "to_runtime", origin=BY_GATEWAY, caused_by=call.arguments_sequence).sequence
    who = "the backend" if by.startswith(f"{EXECUTOR} ") else "a person"
    text = f"The call was not made: {who} denied it{f': {reason}' if reason else '.'}"
    end_question(builder, call, "answered", by=by)
    settle(builder, call, not_made(text))
    return sequence


def _waiting(builder: StepBuilder, call_id: CallId) -> Call:
    call = builder.calls.get(call_id)
    if call is None or call.state != "held" or call.arguments is None:
        raise Conflict("this call no longer waits for an approval")
    if call.deadline_at <= builder.now:
        raise Conflict("nobody allowed this call in time")
    return call


def _check_answerer(builder: StepBuilder, call: Call, found: Ruling | Answered | None, by: str) -> None:
    """Check that the answerer neither made the call nor would run it, and is named if the rule names somebody."""
    refusal = refused_answerer(builder, call, found if isinstance(found, Ruling) else None, by)
    if refusal is not None:
        raise refusal


def _change(builder: StepBuilder, call: Call, arguments: Mapping[str, Any] | None) -> _Changed:
    """Check changed arguments as those of a request are."""
    known = call.arguments or {}
    if arguments is None or fingerprint(call.tool, dict(arguments)) == fingerprint(call.tool, dict(known)):
        return _Changed(known, call.size, edited=False)
    fitted = builder.runtime.policy.fit_arguments(call.tool, arguments)
    if fitted.problem is not None:
        raise Denied(fitted.problem)
    size = weight(arguments)
    if len(builder.calls) > 1 and size - call.size + builder.open_bytes > builder.runtime.policy.open_bytes:
        raise TooLarge("the arguments of the open calls of the session would be too large (limits.open_bytes)")
    return _Changed(fitted.arguments, size, edited=True)


def _why(call: Call, found: Answered | None) -> str:
    refused = no_longer_routed(call) if found is None else found
    return refused.outcome.error or ""


def _approve(builder: StepBuilder, call: Call, ruling: Ruling, changed: _Changed, by: str) -> int:
    executor = ruling.executor or ""
    arguments, edited = dict(changed.arguments), call.edited or changed.edited
    binding = binding_of(
        session=call.session_id, call=call.call_id, tool=call.tool, arguments=arguments, rule=ruling.rule
    )
    given = ApprovalGiven(
        id=call.call_id,
        native_call_id=call.native_call_id,
        decision="allow",
        call_id=call.call_id,
        arguments=arguments,
        binding=binding,
        rule_sha=ruling.rule,
        edited=edited or None,
        by=by,
    )
    sequence = builder.apply(given, "to_runtime", origin=BY_GATEWAY, caused_by=call.arguments_sequence).sequence
    end_question(builder, call, "answered", by=by)
    policy = builder.runtime.policy.executors.get(executor, USUAL_RETRY)
    builder.change_call(
        Approve(
            call.call_id,
            executor,
            binding,
            builder.now + policy.deadline,
            sequence,
            fingerprint(call.tool, arguments),
            arguments,
            changed.size,
            edited,
        )
    )
    builder.effects.append(Queue(call.call_id, executor))
    return sequence
