"""Questions to people: opened, routed, answered, expired, moot. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway.core.binding import asked_binding_of
from gateway.core.bounds import KEPT_BYTES
from gateway.core.effects import Ask, ask_data
from gateway.core.session import TURN, Policy, StepBuilder, send
from gateway.core.state import MOST_ASKED, Action, Asked
from gateway.errors import ApprovalStale, CannotExpress, Conflict, Inexpressible, InvalidRequest, UseInteraction
from gateway.events import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    InteractionId,
    QuestionAnswered,
    QuestionAsked,
    SecretAsked,
    SecretSupplied,
    SessionId,
    dump_event,
    interaction_id as name_interaction,
)
from gateway.events.weight import weight
from gateway.executors.port import Answer, Replied
from gateway.store.step import InteractionChange

BY_STATE = frozenset({"by_state", "by_group"})
"""The values of the capability `approvals` for runtimes that ask by their state."""
Given = ApprovalGiven | QuestionAnswered | SecretSupplied


def id_of(session_id: SessionId, asked: Asked) -> InteractionId:
    """Return the interaction id of a question."""
    return name_interaction(session=session_id, native_id=asked.event.id, n=asked.sequence)


def open_asked(builder: StepBuilder, asked: Asked) -> None:
    """Show a question to people and send it to the executor of its route; secrets are never routed."""
    runtime = builder.runtime
    expires_at = asked.asked_at + runtime.policy.interaction_timeout
    interaction = id_of(builder.base.session_id, asked)
    builder.interactions.append(
        InteractionChange(
            interaction_id=interaction,
            state="waiting",
            kind=asked.event.kind,
            request_sequence=asked.sequence,
            expires_at=expires_at,
        )
    )
    _ask_executor(builder, asked, _executor_of(builder, asked, runtime.policy))


def _executor_of(builder: StepBuilder, asked: Asked, policy: Policy) -> str | None:
    """Return the executor that gets a question under a policy."""
    if isinstance(asked.event, SecretAsked):
        return None
    tool = asked.event.tool if isinstance(asked.event, ApprovalAsked) else None
    route = policy.routes.executor_for(
        runtime=builder.runtime.name, kind=asked.event.kind, tool=tool, labels=builder.memory.labels
    )
    return None if route is None else route.executor


def _ask_executor(builder: StepBuilder, asked: Asked, executor: str | None) -> None:
    if executor is None:
        return
    runtime, interaction = builder.runtime, id_of(builder.base.session_id, asked)
    expires_at = asked.asked_at + runtime.policy.interaction_timeout
    data = ask_data(
        builder.base, asked.event, protocol=runtime.protocol, labels=builder.memory.labels, deadline_at=expires_at
    )
    builder.effects.append(
        Ask(
            sequence=asked.sequence,
            key=asked.event_id,
            kind=asked.event.kind,
            executor=executor,
            data={**data, "interaction_id": interaction},
            deadline_at=expires_at,
        )
    )


def close_unasked(builder: StepBuilder, before: tuple[Asked, ...]) -> None:
    """Make questions moot that the runtime no longer asks and that the gateway did not answer."""
    kept = {asked.sequence for asked in builder.memory.asked}
    for asked in before:
        if asked.sequence not in kept:
            builder.interactions.append(InteractionChange(id_of(builder.base.session_id, asked), "moot"))


def give(builder: StepBuilder, event: Given, *, by: str) -> int:
    """Send an answer to the runtime if its question is open.

    Raises:
        Conflict: no open question has this id.
        UseInteraction: the id is that of a held call.
        Inexpressible: the scope was not offered, or the runtime does not accept such answers.
        InvalidRequest: the event has a member that only the gateway sets.
    """
    if isinstance(event, ApprovalGiven):
        _refuse_held(builder, event)
        _refuse_marks(event)
    if event.kind not in builder.runtime.capabilities.accepts:
        raise Inexpressible(f"the runtime does not support {event.kind!r}")
    asked = _find(builder, event)
    if asked is None and not isinstance(event, SecretSupplied):
        raise Conflict(f"nothing waits for an answer to {event.id!r}")
    if isinstance(event, ApprovalGiven) and asked is not None:
        event = _completed(event, asked)
    caused_by = asked.sequence if asked is not None else None
    try:
        sequence = send(builder, event, TURN, caused_by=caused_by)
    except CannotExpress as exc:
        raise Inexpressible(exc.reason, path=exc.path) from exc
    if asked is not None:
        change = InteractionChange(id_of(builder.base.session_id, asked), "answered", answered_by=by)
        builder.interactions.append(change)
    return sequence


def _refuse_held(builder: StepBuilder, event: ApprovalGiven) -> None:
    """Refuse an event that answers the question about a held call, unless the runtime has one with the same id."""
    held = (call for call in builder.calls.values() if call.state == "held")
    if _find(builder, event) is None and any(event.id in {call.call_id, call.native_call_id} for call in held):
        raise UseInteraction("this is the approval of a held call: answer its interaction")


def _refuse_marks(event: ApprovalGiven) -> None:
    """Refuse what only the gateway says about its own questions."""
    for name in ("call_id", "arguments", "binding", "rule_sha", "edited", "by"):
        if getattr(event, name) is not None:
            raise InvalidRequest(f"`{name}` is set by the gateway only", pointer=f"/{name}")


def answer(builder: StepBuilder, wanted: InteractionId, body: Mapping[str, Any], *, by: str) -> int:
    """Apply a person's answer and return its event's sequence.

    It is `{"decision", "scope", "reason", "binding"}`, `{"answer"}` or `{"value"}`.

    Raises:
        ApprovalStale: the binding belongs to another request.
        Conflict: the question is answered, expired or moot.
        InvalidRequest: the body does not fit the question.
    """
    asked = next((a for a in builder.memory.asked if id_of(builder.base.session_id, a) == wanted), None)
    if asked is None:
        raise Conflict("this question no longer waits for an answer")
    _check_what_was_seen(builder, asked, wanted, body)
    return give(builder, read_answer(asked, body), by=by)


def _check_what_was_seen(builder: StepBuilder, asked: Asked, wanted: InteractionId, body: Mapping[str, Any]) -> None:
    """Check the binding of an answer to an approval of the runtime, if the answer has one."""
    if "arguments" in body:
        raise InvalidRequest("only the arguments of a held call can be changed", pointer="/arguments")
    event, given = dump_event(asked.event), body.get("binding")
    if given is not None and given != asked_binding_of(
        session=builder.base.session_id, interaction=wanted, asked=event
    ):
        raise ApprovalStale("the binding is not that of this request")


def replied(builder: StepBuilder, asked: Asked, reply: Answer) -> None:
    """Apply an executor's reply; after an unusable one the question stays open for people until its deadline."""
    if not isinstance(reply, Replied) or not reply.reply:
        return
    try:
        given = read_answer(asked, reply.reply)
        give(builder, given, by="executor")
    except (InvalidRequest, Inexpressible):
        return


def expire(builder: StepBuilder) -> None:
    """End questions without an answer in time."""
    for asked in builder.memory.asked:
        if asked.asked_at + builder.runtime.policy.interaction_timeout <= builder.now:
            _give_up(builder, asked)


def end_oldest(builder: StepBuilder, event: Event) -> None:
    """End the oldest questions if a new one would exceed the limit, so that each one gets an answer."""
    room = KEPT_BYTES - weight(event)
    for asked in builder.memory.asked:
        waiting = builder.memory.asked
        if len(waiting) < MOST_ASKED and sum(one.size for one in waiting) <= room:
            return
        _give_up(builder, asked)


def _give_up(builder: StepBuilder, asked: Asked) -> None:
    """Deny an approval, skip a question, or supply no secret, because no answer came."""
    match asked.event:
        case ApprovalAsked(id=native):
            given: Given = ApprovalGiven(id=native, decision="deny")
        case QuestionAsked(id=native):
            given = QuestionAnswered(id=native, answer="")
        case SecretAsked(id=native):
            # An empty secret tells these runtimes to continue without one.
            given = SecretSupplied.model_validate({"id": native, "purpose": _purpose(asked), "value": ""})
    try:
        send(builder, _for(asked, given), TURN, caused_by=asked.sequence, synthetic=True)
    except CannotExpress:
        builder.apply(_for(asked, given), "to_runtime", caused_by=asked.sequence, synthetic=True)
    builder.interactions.append(InteractionChange(id_of(builder.base.session_id, asked), "expired"))


def read_answer(asked: Asked, body: Mapping[str, Any]) -> Given:
    """Parse the answer to a question.

    Raises:
        InvalidRequest: the body is invalid; the text names the allowed form and never quotes a secret.
    """
    match asked.event:
        case ApprovalAsked(id=native):
            decision, scope = body.get("decision"), body.get("scope")
            if decision not in {"allow", "deny"}:
                raise InvalidRequest('an approval is answered {"decision": "allow" or "deny"}', pointer="/decision")
            if scope is not None and scope not in {"once", "session", "always"}:
                raise InvalidRequest("scope is once, session or always", pointer="/scope")
            reason = body.get("reason")
            if reason is not None and not isinstance(reason, str):
                raise InvalidRequest("reason must be a string", pointer="/reason")
            return ApprovalGiven(id=native, decision=decision, scope=scope, reason=reason)
        case QuestionAsked(id=native):
            text = body.get("answer")
            if not isinstance(text, str):
                raise InvalidRequest('a question is answered {"answer": "text"}; "" skips it', pointer="/answer")
            return QuestionAnswered(id=native, answer=text)
        case SecretAsked(id=native):
            value = body.get("value")
            if not isinstance(value, str):
                raise InvalidRequest('a secret is answered {"value": "text"}', pointer="/value")
            return SecretSupplied.model_validate({"id": native, "purpose": _purpose(asked), "value": value})


def _purpose(asked: Asked) -> str:
    return asked.event.purpose if isinstance(asked.event, SecretAsked) else "secret"


def _find(builder: StepBuilder, event: Given) -> Asked | None:
    kinds = {"approval.given": "approval.asked", "question.answered": "question.asked"}
    wanted = kinds.get(event.kind, "secret.asked")
    return next((a for a in builder.memory.asked if a.event.kind == wanted and a.event.id == event.id), None)


def _completed(event: ApprovalGiven, asked: Asked) -> ApprovalGiven:
    assert isinstance(asked.event, ApprovalAsked)
    if event.scope is not None and event.scope not in asked.event.scopes:
        offered = ", ".join(asked.event.scopes)
        raise Inexpressible(f"scope {event.scope!r} was not offered; offered: {offered}", path="/scope")
    return event.model_copy(update={"native_call_id": event.native_call_id or asked.event.native_call_id})


def _for(asked: Asked, given: Event) -> Event:
    return _completed(given, asked) if isinstance(given, ApprovalGiven) else given


def ask_again(builder: StepBuilder) -> None:
    """Show all open questions again, and send them to their executors again, after a catch-up or a restart."""
    for asked in builder.memory.asked:
        open_asked(builder, asked)


def ask_new_executors(builder: StepBuilder, before: Policy) -> None:
    """Send each open question to its executor, unless that has got it under the former policy."""
    for asked in builder.memory.asked:
        executor = _executor_of(builder, asked, builder.runtime.policy)
        if executor != _executor_of(builder, asked, before):
            _ask_executor(builder, asked, executor)


def derive_approval(builder: StepBuilder) -> None:
    """Open the approval of a runtime that asks by its state, if its subject is not yet asked about.

    `by_state`, the subject is the newest action that can wait for one: the state may arrive before its action, while an
    older action still runs. An action without a number in the runtime's own order must say that it waits. `by_group`,
    it is all actions that the state names: of several, the approval shows each one in its arguments, and no tool.
    """
    memory, able = builder.memory, builder.runtime.capabilities
    if memory.state != "awaiting_approval":
        return
    if able.approvals == "by_group":
        held = memory.held_actions()
    else:
        pending = memory.gated_action()
        held = () if pending is None else (pending,)
    if not held or any(a.event.id == held[0].native_call_id for a in memory.asked):
        return
    first = held[0]
    if len(held) == 1:
        tool, arguments = first.tool, dict(first.arguments)
    else:
        tool, arguments = None, {"actions": [_show_action(action) for action in held]}
    asked = ApprovalAsked(id=first.native_call_id, native_call_id=first.native_call_id, tool=tool, arguments=arguments)
    builder.apply(asked, "from_runtime", caused_by=first.sequence)
    if builder.live:
        open_asked(builder, builder.memory.asked[-1])


def _show_action(action: Action) -> dict[str, Any]:
    return {"native_call_id": action.native_call_id, "tool": action.tool, "arguments": dict(action.arguments)}
