"""Folds recorded events into the memory of a session. Pure.

Only `fold` changes memory, and it depends only on the journal, so folding a journal again gives the same memory.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway.core.bounds import LINE, fits, newest, with_entry, with_held, with_line, without
from gateway.core.state import (
    HELD,
    MOST_ASKED,
    MOST_CONFIRMATIONS,
    MOST_WANTED,
    Action,
    Asked,
    Confirmation,
    Gate,
    Hosted,
    PendingHostCall,
    Question,
    Remembered,
    Reply,
    RunningTurn,
    Unechoed,
    Unlinked,
    where,
)
from gateway.events import (
    ActionOrdered,
    ApprovalAsked,
    ApprovalGiven,
    CallId,
    CallLinked,
    ContextUpdated,
    DeliverySettled,
    Envelope,
    Event,
    LinkChanged,
    MessageConfirmed,
    MessagePosted,
    QuestionAnswered,
    QuestionAsked,
    SecretAsked,
    SecretSupplied,
    SessionClosed,
    SessionMoved,
    SessionOpened,
    ThreadReceived,
    ThreadSent,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    TurnSteered,
    text_of,
)
from gateway.events.frozen import replace
from gateway.events.weight import weight
from gateway.store.call import CALLER, GATEWAY

ENDED = frozenset({"idle", "awaiting_input", "finished", "stopped", "error"})
"""States without a running turn."""
_MOMENT = timedelta(milliseconds=250)
_RUNNING = frozenset({"starting", "running", "awaiting_outcome", "awaiting_approval"})
_MOST_CONFIRMED = 100
_LONGEST_ERROR = 500
_MOST_RECENT = 256
_MOST_UNECHOED = 64
_MOST_ACTIONS = 64
_MOST_UNLINKED = 64
_MOST_TASKS = 16
_NAME = 256

Changes = dict[str, Any]
"""The changed members of the memory."""


def fold(memory: Remembered, recorded: Envelope) -> Remembered:
    """Return the memory of a session after one more recorded event."""
    origin = recorded.origin
    if origin is not None and origin.adapter == CALLER:
        # Calls from outside are not the runtime's, except those that its own agent may have made.
        return _asked_from_outside(memory, recorded, recorded.event)
    if origin is not None and origin.adapter == GATEWAY:
        # Held calls are in the ledger; the memory only has what the runtime asks.
        return memory
    meanings = _FROM_RUNTIME if recorded.direction == "from_runtime" else _TO_RUNTIME
    meaning = meanings.get(type(recorded.event))
    changes = {} if meaning is None else meaning(memory, recorded, recorded.event)
    if origin is not None and origin.native_id is not None:
        changes["recent"] = (*memory.recent, origin.native_id)[-_MOST_RECENT:]
    return replace(memory, **changes) if changes else memory


def _asked_from_outside(memory: Remembered, recorded: Envelope, event: Event) -> Remembered:
    sha = recorded.origin.correlation if recorded.origin is not None else None
    if sha is None or not isinstance(event, ToolRequested):
        return memory
    call = Unlinked(CallId(event.call_id or ""), event.tool, sha, recorded.sequence, recorded.recorded_at)
    return replace(memory, unlinked=(*memory.unlinked, call)[-_MOST_UNLINKED:])


# Events from the runtime -------------------------------------------------------------------------------------


def _link_changed(_memory: Remembered, _recorded: Envelope, event: LinkChanged) -> Changes:
    return {"linked": event.state == "up"}


def _spoke(memory: Remembered, recorded: Envelope, event: MessagePosted) -> Changes:
    if event.author.role == "system" and is_task(memory, event):
        task = next(task for task in memory.tasks if text_of(event.content).endswith(task))
        return {"tasks": tuple(kept for kept in memory.tasks if kept is not task)}
    now = recorded.recorded_at
    author, text = (event.author.name or "Agent")[:_NAME], " ".join(text_of(event.content).split())[:LINE]
    if event.burst is None:
        return {"active_at": now, "quiet_at": None, "history": with_line(memory.history, now, author, text)}
    waiting = Confirmation(
        call=event.burst.call,
        index=event.burst.index,
        count=event.burst.count,
        sequence=recorded.sequence,
        posted_at=now,
        author=author,
        text=text,
        size=weight(event),
    )
    others = tuple(c for c in memory.confirmations if (c.call, c.index) != (waiting.call, waiting.index))
    return {"active_at": now, "quiet_at": None, "confirmations": (*others, waiting)[-MOST_CONFIRMATIONS:]}


def is_task(memory: Remembered, event: MessagePosted) -> bool:
    """Return whether a message is a task that the agent gave to a delegate."""
    text = text_of(event.content)
    return any(text.endswith(task) for task in memory.tasks)


def _canceled(memory: Remembered, recorded: Envelope, event: ToolCanceled) -> Changes:
    wanted = without(memory.wanted, event.native_call_id)
    return {"active_at": recorded.recorded_at, "quiet_at": None, "wanted": wanted}


def _asked(memory: Remembered, recorded: Envelope, event: Question) -> Changes:
    by_state = recorded.origin is None
    asked = Asked(event, recorded.event_id, recorded.sequence, recorded.recorded_at, weight(event), by_state)
    others = tuple(a for a in memory.asked if (a.event.kind, a.event.id) != (event.kind, event.id))
    if by_state:
        # Only one action can wait for an approval by state.
        others = tuple(a for a in others if not isinstance(a.event, ApprovalAsked))
    return {"asked": newest((*others, asked), MOST_ASKED)}


def _handed_over(memory: Remembered, _recorded: Envelope, event: ThreadSent) -> Changes:
    task, tasks = text_of(event.content), memory.tasks
    if memory.delegates and 0 < len(task) <= LINE:
        tasks = (*tasks, task)[-_MOST_TASKS:]
    return {"delegating": memory.delegating + 1, "tasks": tasks}


def _handed_back(memory: Remembered, _recorded: Envelope, _event: ThreadReceived) -> Changes:
    left = max(0, memory.delegating - 1)
    return {"delegating": left, "tasks": memory.tasks if left else ()}


def _active(memory: Remembered, now: datetime) -> Changes:
    """Remember that the agent works, at most once per `_MOMENT`."""
    known = memory.active_at
    if memory.quiet_at is None and known is not None and now - known < _MOMENT:
        return {}
    return {"active_at": now, "quiet_at": None}


def _moved(memory: Remembered, recorded: Envelope, event: SessionMoved) -> Changes:
    ended = event.state in ENDED and not (memory.delegates and memory.delegating)
    running = not ended if memory.delegates and memory.delegating else event.state in _RUNNING
    gate: Gate | None = None
    if event.state == "awaiting_approval":
        number = recorded.origin.native_sequence if recorded.origin is not None else None
        gate = Gate(recorded.sequence, number, event.waiting_for)
    return {
        "running": running,
        "turn": None
        if ended
        else memory.turn or (RunningTurn(recorded.sequence, recorded.recorded_at) if running else None),
        "state": event.state,
        "stated": where(recorded.origin) or memory.stated,
        "native_state": event.native_state if event.native_state is not None else memory.native_state,
        "active_at": recorded.recorded_at,
        "quiet_at": None,
        "asked": () if ended else memory.still_asked(gate),
        "wanted": {} if ended else memory.wanted,
        "hosted": {} if ended else _awaited(memory.hosted, event),
        "ended_at": recorded.sequence if ended else memory.ended_at,
        "gate": gate,
    }


def _awaited(hosted: Mapping[str, Hosted], event: SessionMoved) -> Mapping[str, Hosted]:
    """Note the calls that a turn waits for; a running turn no longer waits for the call that it named alone."""
    if not hosted or event.state not in {"awaiting_outcome", "running"}:
        return hosted
    waiting = frozenset(event.waiting_for)
    named = "alone" if len(waiting) == 1 else "among"
    changed: dict[str, Hosted] = {}
    for native, call in hosted.items():
        awaited = call.awaited
        if native in waiting:
            awaited = named
        elif awaited == "alone" or (awaited == "among" and event.state == "awaiting_outcome"):
            awaited = "over"
        if awaited != call.awaited:
            changed[native] = replace(call, awaited=awaited)
    return {**hosted, **changed} if changed else hosted


def _requested(memory: Remembered, recorded: Envelope, event: ToolRequested) -> Changes:
    changes = _active(memory, recorded.recorded_at)
    origin = recorded.origin
    if event.runs_in == "runtime":
        return changes | _acted(memory, recorded, event)
    if origin is not None and origin.native_id is not None:
        native = event.native_call_id
        hosted = Hosted(native, size=len(native))
        if fits(memory.wanted, native, MOST_WANTED):
            # The core opens a call for each one that does not fit.
            wanted = PendingHostCall(recorded.sequence, len(native))
            changes["wanted"] = with_entry(memory.wanted, native, wanted, MOST_WANTED)
        changes["hosted"] = with_entry(without(memory.hosted, native), native, hosted, _MOST_RECENT)
    return changes


def _acted(memory: Remembered, recorded: Envelope, event: ToolRequested) -> Changes:
    """Remember an action of the runtime's own."""
    origin = recorded.origin
    correlation = origin.correlation if origin is not None else None
    # After its approval a runtime may send the same action under a new id, which replaces the old one.
    gone, actions, asked = event.supersedes, memory.actions, memory.asked
    again = gone is not None and any(a.native_call_id == gone for a in actions)
    if again:
        actions = tuple(replace(a, finished=True, superseded=True) if a.native_call_id == gone else a for a in actions)
        asked = tuple(a for a in asked if not (isinstance(a.event, ApprovalAsked) and a.event.native_call_id == gone))
    action = Action(
        event.native_call_id,
        correlation,
        event.tool,
        event.arguments,
        recorded.sequence,
        number=origin.native_sequence if origin is not None else None,
        decided=again,
        gated=event.needs_approval,
        size=weight(event.arguments),
        asked_at=recorded.recorded_at,
        linked_to=recorded.linked_to,
    )
    return {"actions": newest((*actions, action), _MOST_ACTIONS), "asked": asked}


def _runtime_finished(memory: Remembered, recorded: Envelope, event: ToolFinished) -> Changes:
    native = event.native_call_id
    withdrawn = event.outcome == "canceled"
    actions = tuple(
        replace(a, finished=True, withdrawn=a.withdrawn or withdrawn) if a.native_call_id == native else a
        for a in memory.actions
    )
    asked = memory.asked
    if memory.state != "awaiting_approval":
        # Some runtimes already run the action while its approval by state waits. The question stays open.
        asked = tuple(a for a in asked if not (isinstance(a.event, ApprovalAsked) and a.event.native_call_id == native))
    return {**_active(memory, recorded.recorded_at), "actions": actions, "asked": asked}


# Events to the runtime, from the gateway or another client ---------------------------------------------------


def _opened(memory: Remembered, _recorded: Envelope, event: SessionOpened) -> Changes:
    opened: Changes = {"labels": event.labels, "echoes": event.echoes, "delegates": event.delegates, "closed": False}
    # The state from before the session was closed is out of date.
    return {**opened, "state": None, "stated": None} if memory.closed else opened


def _closed(_memory: Remembered, _recorded: Envelope, _event: SessionClosed) -> Changes:
    over = {"closed": True, "running": False, "turn": None, "linked": False}
    return {**over, "confirmations": (), "asked": (), "wanted": {}, "hosted": {}, "unlinked": ()}


def _fold_context(memory: Remembered, recorded: Envelope, event: ContextUpdated) -> Changes:
    changes = _awake(recorded.recorded_at, wakes=event.wakes_agent)
    if any(loss.note == HELD for loss in recorded.losses):
        held = with_held(memory.held, event.description or event.name)
        return {**changes, "context": event.context, "held": held}
    invented = {loss.path.removeprefix("/context/") for loss in recorded.losses if loss.how == "invented"}
    given = {key: value for key, value in event.context.items() if key not in invented}
    return {**changes, "context": given}


def _awake(now: datetime, *, wakes: bool) -> Changes:
    return {"active_at": now, "quiet_at": None} if wakes else {}


def _confirmed(memory: Remembered, recorded: Envelope, event: MessageConfirmed) -> Changes:
    found = memory.confirmation(event.native_call_id, event.index)
    if found is None:
        return {}
    rest = tuple(c for c in memory.confirmations if c is not found)
    history = memory.history
    if event.delivered:
        history = with_line(history, found.posted_at, found.author, found.text)
    now, fate = recorded.recorded_at, event.delivered or (event.error or "")[:_LONGEST_ERROR]
    return {
        "confirmations": rest,
        "confirmed": (*memory.confirmed, (event.native_call_id, event.index, fate))[-_MOST_CONFIRMED:],
        "history": history,
        "active_at": now,
        "quiet_at": now if found.last and not rest else None,
    }


def _answered(memory: Remembered, recorded: Envelope, event: ToolFinished) -> Changes:
    """Remember the outcome of a host call, from the gateway or another client."""
    changes = _active(memory, recorded.recorded_at)
    native = event.native_call_id
    if native in memory.wanted:
        changes["wanted"] = without(memory.wanted, native)
    call = memory.hosted.get(native)
    if call is not None:
        ours = recorded.sequence if recorded.origin is None else None
        changes["hosted"] = with_entry(memory.hosted, native, replace(call, answer=ours), _MOST_RECENT)
    return changes


def _linked(memory: Remembered, recorded: Envelope, event: CallLinked) -> Changes:
    if recorded.origin is not None:
        # Only the gateway links calls.
        return {}
    call_id = CallId(event.call_id)
    return {
        "unlinked": tuple(call for call in memory.unlinked if call.call_id != call_id),
        "actions": tuple(
            replace(action, linked_to=call_id) if action.sequence == recorded.caused_by else action
            for action in memory.actions
        ),
    }


def _delivered(memory: Remembered, _recorded: Envelope, event: DeliverySettled) -> Changes:
    if event.state != "delivered" or event.native_id is None:
        return {}
    rest = tuple(u for u in memory.unechoed if u.sequence != event.sequence)
    order = next((u for u in memory.unechoed if u.sequence == event.sequence), None)
    if order is not None and isinstance(order.event, ActionOrdered):
        return {"unechoed": rest, "orders": _with_order(memory, event.native_id, event.sequence)}
    return {"unechoed": rest}


def _fold_message(memory: Remembered, recorded: Envelope, event: MessagePosted) -> Changes:
    now = recorded.recorded_at
    return {
        **_awake(now, wakes=event.wakes_agent),
        **_replied(memory, recorded, event),
        "history": with_line(memory.history, now, event.author.name or event.author.role, text_of(event.content)),
        # Held contexts are sent with the gateway's next message; other clients do not know them.
        "held": () if recorded.origin is None else memory.held,
        "told_at": recorded.sequence,
    }


def _action_ordered(memory: Remembered, recorded: Envelope, event: ActionOrdered) -> Changes:
    if recorded.origin is None:
        return _replied(memory, recorded, event)
    # The result of another client's order refers to it by the runtime's number.
    number = recorded.origin.native_sequence
    return {} if number is None else {"orders": _with_order(memory, str(number), recorded.sequence)}


def _with_order(memory: Remembered, native_id: str, sequence: int) -> Mapping[str, int]:
    return dict(list({**memory.orders, native_id: sequence}.items())[-_MOST_ACTIONS:])


def _decided(memory: Remembered, recorded: Envelope, event: ApprovalGiven) -> Changes:
    """Remember a decision; one without an id applies to the action that the runtime waits for."""
    decided = [a.event for a in memory.asked if isinstance(a.event, ApprovalAsked) and event.id in {"", a.event.id}]
    # A question without a call is closed only by its own id.
    answered = {one.native_call_id for one in decided if one.native_call_id is not None}
    ids = {one.id for one in decided}
    if memory.gate is not None and not answered.isdisjoint(memory.gate.actions):
        # A decision about a group is one about each of its actions.
        answered.update(memory.gate.actions)
    kept = tuple(
        a
        for a in memory.asked
        if not (isinstance(a.event, ApprovalAsked) and (a.event.id in ids or a.event.native_call_id in answered))
    )
    actions = tuple(
        replace(a, decided=True) if not event.id or a.native_call_id in answered else a for a in memory.actions
    )
    return {**_replied(memory, recorded, event), "asked": kept, "actions": actions}


def _question_answered(memory: Remembered, recorded: Envelope, event: QuestionAnswered) -> Changes:
    kept = tuple(a for a in memory.asked if not (isinstance(a.event, QuestionAsked) and a.event.id == event.id))
    return {**_replied(memory, recorded, event), "asked": kept}


def _secret_supplied(memory: Remembered, _recorded: Envelope, event: SecretSupplied) -> Changes:
    return {
        "asked": tuple(a for a in memory.asked if not (isinstance(a.event, SecretAsked) and a.event.id == event.id))
    }


def _replied(memory: Remembered, recorded: Envelope, event: Reply) -> Changes:
    """Remember an event that waits for its echo, if the runtime sends echoes."""
    if not memory.echoes or recorded.origin is not None:
        return {}
    said = Unechoed(event, recorded.sequence, weight(event))
    return {"unechoed": newest((*memory.unechoed, said), _MOST_UNECHOED)}


_Meaning = Callable[[Remembered, Envelope, Any], Changes]

_FROM_RUNTIME: Mapping[type, _Meaning] = {
    ToolRequested: _requested,
    ToolFinished: _runtime_finished,
    ToolCanceled: _canceled,
    MessagePosted: _spoke,
    SessionMoved: _moved,
    LinkChanged: _link_changed,
    ApprovalAsked: _asked,
    QuestionAsked: _asked,
    SecretAsked: _asked,
    ThreadSent: _handed_over,
    ThreadReceived: _handed_back,
}
"""The functions for events from the runtime; other types do not change the memory."""

_TO_RUNTIME: Mapping[type, _Meaning] = {
    ToolFinished: _answered,
    ContextUpdated: _fold_context,
    MessagePosted: _fold_message,
    MessageConfirmed: _confirmed,
    ApprovalGiven: _decided,
    QuestionAnswered: _question_answered,
    SecretSupplied: _secret_supplied,
    ActionOrdered: _action_ordered,
    TurnSteered: _replied,
    TurnInterrupted: _replied,
    DeliverySettled: _delivered,
    CallLinked: _linked,
    SessionOpened: _opened,
    SessionClosed: _closed,
}
"""The functions for events to the runtime; other types do not change the memory."""
