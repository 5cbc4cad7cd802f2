"""Links the runtime's own actions to the calls that its agent makes at our MCP server, so each is shown once. Pure.

The action arrives over the runtime's link and the call over HTTP, in any order; the action may arrive much later, after
a catch-up. They are matched by tool and arguments, oldest first. If a runtime changes the arguments, the end of the
action decides by tool and order, because its call has started by then. The number of remembered actions and calls is
bounded.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from gateway.adapter.port import McpCallCodec
from gateway.core.calls import cancellation, fingerprint, settle
from gateway.core.session import RuntimeContext, StepBuilder
from gateway.core.state import Action, Unlinked
from gateway.events import CallId, CallLinked, Draft, ToolFinished, ToolRequested
from gateway.events.frozen import frozen
from gateway.store.step import SendChange, SendState

WITHIN = timedelta(seconds=60)
"""The longest delay of an action after its call over an open link."""
HOLD = timedelta(seconds=10)
"""The time that copies of an action are held, because a call that is the same action gets its own copies."""
WITHDRAWN = "The agent has given up its action."
ABANDONED = "The agent failed before it reported the end of its action."
TICKET: Final = "tool ticket"
"""The caller that uses the ticket which a native session received when the gateway created it."""


@frozen
class McpCallRef:
    """The tool and the arguments of an MCP call, with the names of the catalog."""

    tool: str
    args_sha: str

    def is_asked_by(self, call: Unlinked) -> bool:
        return (self.tool, self.args_sha) == (call.tool, call.args_sha)


def resolve_call(runtime: RuntimeContext, tool: str, arguments: Mapping[str, Any]) -> McpCallRef | None:
    """Return the catalog tool that an action calls; None if it calls none. Runtimes may prefix the names."""
    if not runtime.capabilities.reports_mcp_calls:
        return None
    made = cast("McpCallCodec", runtime.codec).mcp_call(tool, arguments)
    if made is None:
        return None
    declared = runtime.policy.declared
    ends = [made.tool] if made.tool in declared else [one for one in declared if made.tool.endswith(f"_{one}")]
    ours = max(ends, key=len, default=None)
    return None if ours is None else McpCallRef(ours, fingerprint(ours, made.arguments))


def may_be_an_action(runtime: RuntimeContext, caller: str) -> bool:
    """Return whether the runtime's own agent is the caller: only the agent received the session's ticket."""
    return runtime.capabilities.reports_mcp_calls and caller == TICKET


def runtime_acts(builder: StepBuilder, draft: Draft, event: ToolRequested) -> None:
    """Record an action of the runtime's own.

    With approvals by state, the same action under a new id replaces the earlier one.
    """
    known: Action | None = None
    if draft.correlation and builder.runtime.capabilities.approvals == "by_state":
        known = builder.memory.action("", draft.correlation)
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
    """Record the end of an action of the runtime's own, with its tool and its request."""
    action = builder.memory.action(event.native_call_id, draft.correlation)
    order = builder.memory.orders.get(event.native_call_id)
    linked_to: CallId | None = None
    if action is not None:
        completed = {"native_call_id": event.native_call_id or action.native_call_id, "tool": event.tool or action.tool}
        event = event.model_copy(update=completed)
        linked_to = _link_at_last(builder, action, withdrawn=event.outcome == "canceled")
    cause = action.sequence if action is not None else order
    builder.apply(event, "from_runtime", draft=draft, caused_by=cause, linked_to=linked_to)
    if event.outcome == "canceled":
        # Also in a replay: the memory may drop the action before its end.
        withdraw(builder, linked_to, event.error)


def end_abandoned(builder: StepBuilder, actions: Sequence[Action]) -> None:
    """Record the unknown end of actions that the runtime was working on when it failed."""
    for action in actions:
        event = ToolFinished(
            native_call_id=action.native_call_id, tool=action.tool, outcome="failure", error=ABANDONED, unknown=True
        )
        builder.apply(event, "from_runtime", caused_by=action.sequence, linked_to=action.linked_to, synthetic=True)


def _find_call(builder: StepBuilder, meant: McpCallRef) -> Unlinked | None:
    """Find the earlier call of an action that arrives only now."""
    return next((call for call in builder.memory.unlinked if meant.is_asked_by(call) and _is_near(builder, call)), None)


def find_action(builder: StepBuilder, tool: str, args_sha: str) -> Action | None:
    """Find the earlier action that makes a call which starts only now.

    While no turn runs, this may be an action of the previous turn that the runtime has withdrawn or lost.
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
    """Return whether an action belongs to the running turn and has not ended."""
    return not action.finished and action.sequence > builder.memory.ended_at


def _is_open(builder: StepBuilder, action: Action) -> bool:
    return (action.withdrawn or not action.finished) and _is_fresh(builder, action, WITHIN)


def _link_at_last(builder: StepBuilder, action: Action, *, withdrawn: bool) -> CallId | None:
    """Return the call of an action that has ended, and link it; later calls cannot belong to it.

    A `withdrawn` action cancels its call, so only a call that started after it may match.
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
    """Record that an action of the runtime's own is a caller's call."""
    if action.linked_to is None:
        _change_copies(builder, action, "moot", "told as the call that it is linked to")
    linked = CallLinked(native_call_id=action.native_call_id, tool=tool, call_id=call_id)
    builder.apply(linked, "to_runtime", caused_by=action.sequence)


def withdraw(builder: StepBuilder, call_id: CallId | None, reason: str | None) -> None:
    """End the call of an action that the runtime has withdrawn."""
    call = None if call_id is None else builder.calls.get(call_id)
    if call is not None:
        text = reason or WITHDRAWN
        settle(builder, call, cancellation(text), tell_reason=text)


def _is_near(builder: StepBuilder, call: Unlinked) -> bool:
    """Return whether an action that arrives now may have made a call; a replayed action may be of any age."""
    return not builder.live or builder.now <= call.asked_at + WITHIN


def _is_fresh(builder: StepBuilder, action: Action, within: timedelta) -> bool:
    return action.asked_at is not None and builder.now < action.asked_at + within


def _change_copies(builder: StepBuilder, action: Action, state: SendState, reason: str | None = None) -> None:
    """Release or drop the copies of an action's request while they are certainly held."""
    if _is_fresh(builder, action, HOLD):
        targets = builder.copies_of("tool.requested", action.tool)
        builder.send_changes += [SendChange(action.sequence, target, state, reason=reason) for target in targets]
