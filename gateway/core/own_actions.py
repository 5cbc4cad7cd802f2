"""What the runtime does itself, and which of it is a call at our MCP server, to be shown and counted once. Pure.

The runtime's link tells of the action and HTTP brings the call, either of them first, and the action perhaps much
later, when a link has caught up. They belong together by tool and arguments, the oldest first. Where a runtime changes
arguments on the way, the action's end decides by tool and order: if it has made a call here, that has begun by then.
Only so many of either are kept.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

from gateway.core.calls import cancellation, fingerprint, settle
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import Action, Unlinked
from gateway.events import CallId, CallLinked, Draft, ToolFinished, ToolRequested
from gateway.events.frozen import frozen
from gateway.store.step import SendChange, SendState

WITHIN = timedelta(seconds=60)
"""How much later than its call an action may be told over a link that stands."""
HOLD = timedelta(seconds=10)
"""For how long copies of an action wait to see whether it is a call that is told itself."""
WITHDRAWN = "The agent has given up its action."
TICKET: Final = "tool ticket"
"""The caller that came by the ticket which a native session was told when we created it."""


@frozen
class McpCallRef:
    """What an action asks an MCP server for, in the words of the catalog."""

    tool: str
    args_sha: str

    def is_asked_by(self, call: Unlinked) -> bool:
        return (self.tool, self.args_sha) == (call.tool, call.args_sha)


def resolve_call(runtime: RuntimeContext, tool: str, arguments: Mapping[str, Any]) -> McpCallRef | None:
    """Say which of our tools an action calls; None where it surely calls none. Runtimes may prefix the names."""
    told = runtime.capabilities.mcp_action
    if told is None or tool != told.action:
        return None
    match arguments.get(told.tool), arguments.get(told.arguments):
        case str(name), dict():
            given = cast("dict[str, Any]", arguments[told.arguments])
            declared = runtime.policy.declared
            ends = [name] if name in declared else [one for one in declared if name.endswith(f"_{one}")]
            ours = max(ends, key=len, default=None)
            return None if ours is None else McpCallRef(ours, fingerprint(ours, given))
        case _:
            return None


def may_be_an_action(runtime: RuntimeContext, caller: str) -> bool:
    """Whether a caller's call was made by the runtime's own agent: it alone was told the session's ticket."""
    return runtime.capabilities.mcp_action is not None and caller == TICKET


def runtime_acts(builder: StepBuilder, draft: Draft, event: ToolRequested) -> None:
    """The runtime does something itself; the same again under a new id replaces what was asked before."""
    known = builder.memory.action("", draft.correlation) if draft.correlation else None
    linked_to: CallId | None = None
    if known is not None and known.tool == event.tool and event.supersedes is None:
        event = event.model_copy(update={"supersedes": known.native_call_id})
        linked_to = known.linked_to
    meant = resolve_call(builder.runtime, event.tool, event.arguments)
    call = None if meant is None or linked_to is not None else _find_call(builder, meant)
    if call is not None:
        linked_to = call.call_id
    copies_at = None if meant is None else builder.now + HOLD
    builder.apply(event, "from_runtime", draft=draft, linked_to=linked_to, copies_at=copies_at)
    if call is not None:
        link(builder, builder.memory.actions[-1], call.call_id, call.tool)


def runtime_finished(builder: StepBuilder, draft: Draft, event: ToolFinished) -> None:
    """The runtime has done something: name its tool and what it answers."""
    action = builder.memory.action(event.native_call_id, draft.correlation)
    order = builder.memory.orders.get(event.native_call_id)
    linked_to: CallId | None = None
    if action is not None:
        completed = {"native_call_id": event.native_call_id or action.native_call_id, "tool": event.tool or action.tool}
        event = event.model_copy(update=completed)
        linked_to = _link_at_last(builder, action, withdrawn=event.outcome == "canceled")
    cause = action.sequence if action is not None else order
    builder.apply(event, "from_runtime", draft=draft, caused_by=cause, linked_to=linked_to)
    if event.outcome == "canceled" and builder.live:
        withdraw(builder, linked_to, event.error)


def _find_call(builder: StepBuilder, meant: McpCallRef) -> Unlinked | None:
    """Find the call that an action has made which is told only now."""
    return next((call for call in builder.memory.unlinked if meant.is_asked_by(call) and _is_near(builder, call)), None)


def find_action(builder: StepBuilder, tool: str, args_sha: str) -> Action | None:
    """Find the action that has made a call which begins only now.

    While no turn runs, that may be one of the turn before, which the runtime has given up or has lost.
    """
    memory, asked = builder.memory, McpCallRef(tool, args_sha)
    found = [
        action
        for action in memory.actions
        if not action.superseded
        and action.linked_to is None
        and (_waits(builder, action) or (not memory.running and _is_open(builder, action)))
        and resolve_call(builder.runtime, action.tool, action.arguments) == asked
    ]
    return min(found, key=lambda action: not _waits(builder, action), default=None)


def _waits(builder: StepBuilder, action: Action) -> bool:
    """Whether an action of the turn that runs has not come to its end."""
    return not action.finished and action.sequence > builder.memory.ended_at


def _is_open(builder: StepBuilder, action: Action) -> bool:
    return (action.withdrawn or not action.finished) and _is_fresh(builder, action, WITHIN)


def _link_at_last(builder: StepBuilder, action: Action, *, withdrawn: bool) -> CallId | None:
    """An action has come to an end: say which call it is. It is known now, or never.

    One that is `withdrawn` takes its call along, so that nobody else's may be taken for it.
    """
    if action.linked_to is not None or action.finished or action.superseded:
        return action.linked_to
    meant = resolve_call(builder.runtime, action.tool, action.arguments)
    if meant is None:
        return None
    same_tool = [
        call
        for call in builder.memory.unlinked
        if call.tool == meant.tool and (call.sequence > action.sequence or (not withdrawn and _is_near(builder, call)))
    ]
    call = next((call for call in same_tool if meant.is_asked_by(call)), same_tool[0] if same_tool else None)
    if call is None:
        _change_copies(builder, action, "pending")
        return None
    link(builder, action, call.call_id, call.tool)
    return call.call_id


def link(builder: StepBuilder, action: Action, call_id: CallId, tool: str) -> None:
    """Put on record that an action of the runtime's own is a caller's call."""
    if action.linked_to is None:
        _change_copies(builder, action, "moot", "told as the call that it is linked to")
    linked = CallLinked(native_call_id=action.native_call_id, tool=tool, call_id=call_id)
    builder.apply(linked, "to_runtime", caused_by=action.sequence)


def withdraw(builder: StepBuilder, call_id: CallId | None, reason: str | None) -> None:
    """The runtime has given an action up: the call that it is ends with it."""
    call = None if call_id is None else builder.calls.get(call_id)
    if call is not None:
        text = reason or WITHDRAWN
        settle(builder, call, cancellation(text), tell_reason=text)


def withdraw_all(builder: StepBuilder) -> None:
    """History has ended: what it showed as given up is so still."""
    for action in builder.memory.actions:
        if action.withdrawn:
            withdraw(builder, action.linked_to, None)


def _is_near(builder: StepBuilder, call: Unlinked) -> bool:
    """Whether an action that is told now may have made a call; what history tells may have happened any time."""
    return not builder.live or builder.now <= call.asked_at + WITHIN


def _is_fresh(builder: StepBuilder, action: Action, within: timedelta) -> bool:
    return action.asked_at is not None and builder.now < action.asked_at + within


def _change_copies(builder: StepBuilder, action: Action, state: SendState, reason: str | None = None) -> None:
    """Let copies of an action's request go, or give them up, while they are surely held."""
    if _is_fresh(builder, action, HOLD):
        targets = builder.copies_of("tool.requested", action.tool)
        builder.send_changes += [SendChange(action.sequence, target, state, reason=reason) for target in targets]
