"""Holds calls until a person allows them: what is asked, what ends the question, and what the routes say now. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from gateway.core.binding import binding_of
from gateway.core.effects import Ask, ask_data
from gateway.core.routing import Ruling, Unfitting
from gateway.core.session import Approvals, Policy, StepBuilder
from gateway.errors import CallHeld, NotApprover, OwnCall
from gateway.events import ApprovalAsked, InteractionId, Origin, Outcome, interaction_id as name_interaction
from gateway.events.frozen import frozen, replace
from gateway.executors.port import Answered
from gateway.store.call import CALLER, GATEWAY, Call, Hold
from gateway.store.step import Enqueue, InteractionChange, InteractionState, SendChange

BY_GATEWAY = Origin(GATEWAY, "dragoman/1")
"""The origin of the question about a held call and of its answer: no memory of a runtime contains them."""
EXECUTOR = "executor"
"""The first word of an executor that answers, before its name."""
_MOST_SHOWN = 2_000
"""Characters of changed arguments that the agent is shown."""
_UNITS = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
)


def notice_target(name: str) -> str:
    """Name the outbound target of a destination that gets notices.

    Its one row for a question says that the destination does not know the current state of the question.
    """
    return f"notice:{name}"


@frozen
class Restored:
    """The backup from which the store was restored."""

    backup_at: datetime
    up_to: int
    """The newest event of the session in it."""

    @property
    def warning(self) -> str:
        """What a person must know about a call that was held then."""
        return f"restored from a backup of {self.backup_at:%Y-%m-%d %H:%M} UTC; it may have run since"


def not_made(error: str) -> Answered:
    """Return the failure of a call whose tool certainly did not run."""
    return Answered(Outcome(outcome="failure", error=error), synthetic=True)


def no_route_fits(tool: str) -> str:
    """Write the text for the agent whose arguments no route of the tool takes."""
    return f"No route takes the tool {tool!r} with these arguments."


def ruling_of(
    builder: StepBuilder, tool: str, arguments: Mapping[str, Any], policy: Policy | None = None
) -> Ruling | Answered | None:
    """Return the route that takes a call, or its failure if it is denied or no route takes these arguments.

    None: no route takes the tool. `policy` is the current one by default.
    """
    found = (policy or builder.runtime.policy).routes.rule_for(
        runtime=builder.runtime.name, tool=tool, labels=builder.memory.labels, arguments=arguments
    )
    match found:
        case Unfitting():
            return not_made(no_route_fits(tool))
        case Ruling(denied=str() as text):
            return not_made(text)
        case _:
            return found


def question_of(call: Call) -> InteractionId:
    """Return the interaction of a held call."""
    return name_interaction(session=call.session_id, native_id=call.call_id, n=call.arguments_sequence or 0)


def ask_about(builder: StepBuilder, call: Call, ruling: Ruling, warning: str | None = None) -> Hold:
    """Record the question about a call under a route; return the change that makes it wait.

    The route has `approve`, or a `warning` says why a person is asked.
    """
    assert ruling.executor is not None
    given_time = None if ruling.approve is None else ruling.approve.timeout
    session, arguments = builder.base.session_id, call.arguments or {}
    place, timeout = f"routes[{ruling.index}]", given_time or builder.runtime.policy.approvals.timeout
    binding = binding_of(session=session, call=call.call_id, tool=call.tool, arguments=arguments, rule=ruling.rule)
    held = replace(call, rule=ruling.rule, place=place, binding=binding, warned=warning is not None)
    asked = _question(held, warning)
    sequence = builder.apply(
        asked, "from_runtime", origin=BY_GATEWAY, caused_by=call.request_sequence, synthetic=True
    ).sequence
    index = len(builder.events) - 1
    builder.sends += [Enqueue(index, notice_target(name)) for name in builder.runtime.policy.approvals.notify]
    hold = Hold(
        call.call_id,
        ruling.executor,
        ruling.rule,
        place,
        binding,
        builder.now,
        builder.now + timeout,
        sequence,
        arguments,
        call.size,
        call.edited,
    )
    builder.interactions.append(
        InteractionChange(
            name_interaction(session=session, native_id=call.call_id, n=sequence),
            "waiting",
            kind=asked.kind,
            request_sequence=sequence,
            expires_at=hold.deadline_at,
            call_id=call.call_id,
        )
    )
    ask_executor(builder, replace(held, deadline_at=hold.deadline_at, arguments_sequence=sequence))
    return hold


def _question(call: Call, warning: str | None = None) -> ApprovalAsked:
    """Return the question about a held call."""
    return ApprovalAsked(
        id=call.call_id,
        native_call_id=call.native_call_id,
        tool=call.tool,
        arguments=dict(call.arguments or {}),
        call_id=call.call_id,
        rule=call.place,
        rule_sha=call.rule,
        binding=call.binding,
        edited=call.edited or None,
        warning=warning,
    )


def ask_executor(builder: StepBuilder, call: Call, before: Policy | None = None) -> None:
    """Send the question about a held call to the executor of a route with `held`, if it may answer.

    After a restart it gets the question again, under the same key. After a reload, `before` is the former policy: an
    executor that was asked under it is not asked again.
    """
    runtime, labels = builder.runtime, builder.memory.labels
    executor = _answerer(builder, call, runtime.policy)
    if executor is None or (before is not None and executor == _answerer(builder, call, before)):
        return
    asked, interaction, until = _question(call), question_of(call), call.deadline_at
    data = ask_data(builder.base, asked, protocol=runtime.protocol, labels=labels, deadline_at=until)
    data["interaction_id"] = interaction
    builder.effects.append(Ask(call.arguments_sequence or 0, interaction, asked.kind, executor, data, until))


def _answerer(builder: StepBuilder, call: Call, policy: Policy) -> str | None:
    """Return the executor that is asked about a held call under a policy.

    A question with a warning, or under a rule that has changed, is for people.
    """
    runtime, labels = builder.runtime.name, builder.memory.labels
    route = policy.routes.executor_for(runtime=runtime, kind="approval.asked", tool=call.tool, labels=labels, held=True)
    if route is None or call.warned or call.arguments is None:
        return None
    found = ruling_of(builder, call.tool, call.arguments, policy)
    if not isinstance(found, Ruling) or found.rule != call.rule:
        return None
    refused = refused_answerer(builder, call, found, f"{EXECUTOR} {route.executor}", policy)
    return route.executor if refused is None else None


def refused_answerer(
    builder: StepBuilder, call: Call, ruling: Ruling | None, by: str, policy: Policy | None = None
) -> OwnCall | NotApprover | None:
    """Return why somebody may not answer: they made the call, would run it, or the rule names others."""
    if call.native_call_id.startswith(f"{CALLER}:{by}:"):
        return OwnCall(f"{by!r} has made this call; somebody else must answer")
    executors = {call.executor, None if ruling is None else ruling.executor} - {None}
    addresses = (policy or builder.runtime.policy).addresses
    own = executors | {name for name, at in addresses.items() if at in {addresses.get(one or "") for one in executors}}
    if by in {f"{EXECUTOR} {name}" for name in own}:
        return OwnCall(f"{by} would run this call; somebody else must answer")
    if ruling is not None and ruling.approve is not None and ruling.approve.by and by not in ruling.approve.by:
        return NotApprover(f"the rule {call.place} names who may answer: {', '.join(ruling.approve.by)}")
    return None


def born_held(builder: StepBuilder, call: Call, ruling: Ruling) -> Call:
    """Record the question about a new call; return the call as it begins."""
    hold = ask_about(builder, call, ruling)
    return replace(
        call,
        state="held",
        attempt=0,
        rule=hold.rule,
        place=hold.place,
        binding=hold.binding,
        held_at=hold.held_at,
        deadline_at=hold.deadline_at,
        arguments_sequence=hold.arguments_sequence,
        unheard_since=hold.held_at if call.answer_to == "caller" else None,
    )


def ask_again(builder: StepBuilder, call: Call, ruling: Ruling, *, warning: str | None = None) -> int:
    """Hold a call that was never sent under a route; return the sequence of the question. An earlier one is moot.

    The call may have other arguments than before.
    """
    if call.state == "held":
        end_question(builder, call)
    hold = ask_about(builder, call, ruling, warning)
    builder.change_call(hold)
    return hold.arguments_sequence


def end_question(builder: StepBuilder, call: Call, state: InteractionState = "moot", *, by: str | None = None) -> None:
    """End the question about a held call, unless that is what the step has done last."""
    change = InteractionChange(question_of(call), state, answered_by=by)
    last = builder.interactions[-1] if builder.interactions else None
    # Only the last one is looked at, because a session that is closed may end many calls.
    if last is None or last.interaction_id != change.interaction_id or last.state == "waiting":
        builder.interactions.append(change)
        _tell_again(builder, call)


def _tell_again(builder: StepBuilder, call: Call, *, due_at: datetime | None = None) -> None:
    """Make the notices about a held call due again."""
    for name in builder.runtime.policy.approvals.notify:
        change = SendChange(call.arguments_sequence or 0, notice_target(name), "pending", due_at=due_at)
        builder.send_changes.append(change)


def reminders_of(approvals: Approvals, call: Call, after: datetime | None) -> list[datetime]:
    """Return when a held call is due for reminders, after a time."""
    if call.state != "held" or call.held_at is None or not approvals.notify:
        return []
    times = [call.held_at + span for span in approvals.remind]
    return [at for at in times if after is None or at > after]


def remind(builder: StepBuilder) -> None:
    """Make the notices due again whose reminder has come; a reload of the session repeats the last reminders."""
    approvals = builder.runtime.policy.approvals
    for call in builder.calls.values():
        due = [at for at in reminders_of(approvals, call, builder.base.reminded_at) if at <= builder.now]
        if due:
            _tell_again(builder, call, due_at=max(due))
            builder.reminded_at = builder.now


def review(builder: StepBuilder, call: Call) -> Answered | bool:
    """Ask the routes again about a call that is about to leave for the first time.

    Returns whether it may leave, or its failure. A call that now needs an approval that it does not have is held; one
    that never needed any keeps the executor with which it was opened.
    """
    if call.arguments is None:
        return True
    found = ruling_of(builder, call.tool, call.arguments)
    if isinstance(found, Answered):
        return found
    if found is None:
        return True if call.rule is None else no_longer_routed(call)
    if found.approve is None or (found.rule, call.approved_sha is not None) == (call.rule, True):
        return True
    ask_again(builder, call, found)
    return False


def no_longer_routed(call: Call) -> Answered:
    """Return the failure of a call whose route is gone."""
    return not_made(f"The call was not made: the tool {call.tool!r} is no longer routed.")


def refuse_held(call: Call) -> None:
    """Refuse an outcome or progress of a call that was not sent.

    Raises:
        CallHeld: the call waits for a person.
    """
    if call.state == "held":
        raise CallHeld("the call waits for a person's approval and was not sent, so it has no outcome and no progress")


def out_of_time(call: Call) -> Answered:
    """Return the outcome of a call that nobody allowed in time."""
    waited = spell(call.deadline_at - (call.held_at or call.created_at))
    text = f"The call was not made: nobody allowed it within {waited}."
    return Answered(Outcome(outcome="expired", error=text), synthetic=True)


def spell(span: timedelta) -> str:
    """Write a duration in the largest unit that divides it, or in seconds."""
    name, unit = next((one for one in _UNITS if span >= one[1] and not span % one[1]), _UNITS[-1])
    count = span / unit
    return f"{count:g} {name}{'' if count == 1 else 's'}"


def asked_again(before: int) -> str:
    """Write how often a person is asked about equal calls of an agent that cancels them and calls again."""
    times = before + 1
    ending = "th" if 10 < times % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(times % 10, "th")
    return f"asked again, {times}{ending} time"


def with_notice(outcome: Outcome, call: Call) -> Outcome:
    """Begin the outcome of a call whose arguments a person changed with a notice for the agent."""
    shown = _compact(call.arguments)
    notice = f"A person changed the arguments to {shown[:_MOST_SHOWN]}{'…' if len(shown) > _MOST_SHOWN else ''}"
    if outcome.outcome != "success":
        return outcome.model_copy(update={"error": f"{notice}\n\n{outcome.error}"})
    result = outcome.result
    if result is not None:
        notice = f"{notice}\n\n{result if isinstance(result, str) else _compact(result)}"
    return outcome.model_copy(update={"result": notice})


def _compact(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
