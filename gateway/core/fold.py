"""How each recorded event changes what a session remembers. Pure.

`fold` is the only way memory changes, and it sees only what the journal keeps: reading a journal again
gives the same memory.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from gateway.core.state import (
    HELD,
    KEPT_BYTES,
    MOST_ASKED,
    MOST_CONFIRMATIONS,
    Action,
    Asked,
    Confirmation,
    Gate,
    Hosted,
    Remembered,
    Reply,
    Stated,
    Unechoed,
    Wanted,
)
from gateway.events import (
    ActionOrdered,
    ApprovalAsked,
    ApprovalGiven,
    ContextUpdated,
    DeliverySettled,
    Draft,
    Envelope,
    LinkChanged,
    MessageConfirmed,
    MessagePosted,
    Origin,
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
    text_of,
)
from gateway.events.frozen import replace
from gateway.events.weight import weight

HISTORY_LINES = 200
HISTORY_BYTES = 32 * 1024
ENDED = frozenset({"idle", "awaiting_input", "finished", "stopped", "error"})
"""States in which no turn is under way."""
_MOMENT = timedelta(milliseconds=250)
_RUNNING = frozenset({"starting", "running", "awaiting_outcome", "awaiting_approval"})
_MOST_CONFIRMED = 100
_MOST_RECENT = 256
_MOST_UNECHOED = 64
_MOST_ACTIONS = 64
_MOST_WANTED = 1_000
_MOST_HELD = 20
_MOST_TASKS = 16
_HELD_BYTES = 256 * 1024
_LINE = HISTORY_BYTES // 4
_NAME = 256


def fold(memory: Remembered, recorded: Envelope, sequence: int) -> Remembered:
    """Remember what one recorded event means for the session."""
    origin = recorded.origin
    if origin is not None and origin.native_id is not None:
        memory = replace(memory, recent=(*memory.recent, origin.native_id)[-_MOST_RECENT:])
    if recorded.direction == "from_runtime":
        return _heard(memory, recorded, sequence)
    return _said(memory, recorded, sequence)


def _heard(memory: Remembered, recorded: Envelope, sequence: int) -> Remembered:
    now, event = recorded.recorded_at, recorded.event
    match event:
        case LinkChanged(state=state):
            return replace(memory, linked=state == "up")
        case SessionMoved():
            return _moved(memory, event, recorded, sequence)
        case MessagePosted(author=author) if author.role == "system" and is_task(memory, event):
            task = next(task for task in memory.tasks if text_of(event.content).endswith(task))
            return replace(memory, tasks=tuple(kept for kept in memory.tasks if kept is not task))
        case MessagePosted():
            return _agent_spoke(memory, event, now, sequence)
        case ToolRequested():
            return _requested(_active(memory, now), recorded, event, sequence)
        case ToolFinished():
            return _runtime_finished(_active(memory, now), event)
        case ToolCanceled(native_call_id=native):
            return replace(memory, active_at=now, quiet_at=None, wanted=_without(memory.wanted, native))
        case ApprovalAsked() | QuestionAsked() | SecretAsked():
            by_state = recorded.origin is None
            asked = Asked(event, recorded.event_id, sequence, now, weight(event), by_state)
            others = tuple(a for a in memory.asked if (a.event.kind, a.event.id) != (event.kind, event.id))
            if by_state:
                # Only one action can be the one that waits.
                others = tuple(a for a in others if not isinstance(a.event, ApprovalAsked))
            return replace(memory, asked=_newest((*others, asked), MOST_ASKED))
        case ThreadSent(content=content):
            task = text_of(content)
            tasks = (
                (*memory.tasks, task)[-_MOST_TASKS:] if memory.delegates and 0 < len(task) <= _LINE else memory.tasks
            )
            return replace(memory, delegating=memory.delegating + 1, tasks=tasks)
        case ThreadReceived():
            left = max(0, memory.delegating - 1)
            return replace(memory, delegating=left, tasks=memory.tasks if left else ())
        case _:
            return memory


def is_task(memory: Remembered, event: MessagePosted) -> bool:
    """Whether a message is what an agent has handed over to its delegate."""
    text = text_of(event.content)
    return any(text.endswith(task) for task in memory.tasks)


def _said(memory: Remembered, recorded: Envelope, sequence: int) -> Remembered:
    now, event = recorded.recorded_at, recorded.event
    ours = recorded.origin is None
    match event:
        case SessionOpened():
            opened = replace(memory, labels=event.labels, echoes=event.echoes, delegates=event.delegates, closed=False)
            # What a runtime said before its session was closed says nothing of how it is now.
            return replace(opened, state=None, stated=None) if memory.closed else opened
        case SessionClosed():
            over = replace(memory, closed=True, running=False, confirmations=(), linked=False)
            return replace(over, asked=(), wanted={}, hosted={})
        case ContextUpdated():
            return _context_told(memory, event, recorded, now)
        case MessageConfirmed():
            return _confirmed(memory, event, now)
        case ToolFinished(native_call_id=native):
            return _answered(_active(memory, now), native, sequence if ours else None)
        case DeliverySettled(state="delivered", native_id=str(native_id)):
            rest = tuple(u for u in memory.unechoed if u.sequence != event.sequence)
            order = next((u for u in memory.unechoed if u.sequence == event.sequence), None)
            if order is not None and isinstance(order.event, ActionOrdered):
                memory = _ordered(memory, native_id, event.sequence)
            return replace(memory, unechoed=rest)
        case MessagePosted():
            spoken = _with_line(memory.history, now, event.author.name or event.author.role, text_of(event.content))
            # What is held goes with a message of ours; nobody else knows of it.
            held = () if ours else memory.held
            memory = _awake(memory, now, wakes=event.wakes_agent)
            memory = replace(memory, history=spoken, held=held, told_at=sequence)
        case ActionOrdered() if not ours:
            # Another client's: its result names it by the number it has there.
            number = recorded.origin.native_sequence if recorded.origin is not None else None
            return memory if number is None else _ordered(memory, str(number), sequence)
        case ApprovalGiven():
            memory = _decided(memory, event)
        case QuestionAnswered() | SecretSupplied():
            memory = replace(memory, asked=tuple(a for a in memory.asked if not _answers(event, a)))
        case _:
            pass
    if memory.echoes and ours and isinstance(event, Reply):
        said = Unechoed(event, sequence, weight(event))
        return replace(memory, unechoed=_newest((*memory.unechoed, said), _MOST_UNECHOED))
    return memory


def _ordered(memory: Remembered, native_id: str, sequence: int) -> Remembered:
    return replace(memory, orders=dict(list({**memory.orders, native_id: sequence}.items())[-_MOST_ACTIONS:]))


def _answers(event: QuestionAnswered | SecretSupplied, asked: Asked) -> bool:
    wanted = "question.asked" if isinstance(event, QuestionAnswered) else "secret.asked"
    return asked.event.kind == wanted and asked.event.id == event.id


def _decided(memory: Remembered, event: ApprovalGiven) -> Remembered:
    """An approval without an id is about whatever the runtime waits for."""
    answered = [
        a.event.native_call_id
        for a in memory.asked
        if isinstance(a.event, ApprovalAsked) and event.id in {"", a.event.id}
    ]
    kept = tuple(
        a for a in memory.asked if not (isinstance(a.event, ApprovalAsked) and a.event.native_call_id in answered)
    )
    actions = tuple(
        replace(a, decided=True) if not event.id or a.native_call_id in answered else a for a in memory.actions
    )
    return replace(memory, asked=kept, actions=actions)


def _active(memory: Remembered, now: datetime) -> Remembered:
    """Remember that the agent works; a busy one is not remembered anew each millisecond."""
    known = memory.active_at
    if memory.quiet_at is None and known is not None and now - known < _MOMENT:
        return memory
    return replace(memory, active_at=now, quiet_at=None)


def _answered(memory: Remembered, native: str, sequence: int | None) -> Remembered:
    """A host call has its outcome: ours under this sequence, or somebody else's."""
    if native in memory.wanted:
        memory = replace(memory, wanted=_without(memory.wanted, native))
    call = memory.hosted.get(native)
    if call is None:
        return memory
    return replace(memory, hosted={**memory.hosted, native: replace(call, answer=sequence)})


def _without(wanted: Mapping[str, Wanted], native_call_id: str) -> Mapping[str, Wanted]:
    if native_call_id not in wanted:
        return wanted
    return {native: entry for native, entry in wanted.items() if native != native_call_id}


def _moved(memory: Remembered, event: SessionMoved, recorded: Envelope, sequence: int) -> Remembered:
    ended = event.state in ENDED and not (memory.delegates and memory.delegating)
    gate: Gate | None = None
    if event.state == "awaiting_approval":
        gate = Gate(sequence, recorded.origin.native_sequence if recorded.origin is not None else None)
    return replace(
        memory,
        running=not ended if memory.delegates and memory.delegating else event.state in _RUNNING,
        state=event.state,
        stated=where(recorded.origin) or memory.stated,
        native_state=event.native_state if event.native_state is not None else memory.native_state,
        active_at=recorded.recorded_at,
        quiet_at=None,
        asked=() if ended else _still_asked(memory, gate),
        wanted={} if ended else memory.wanted,
        hosted={} if ended else _awaited(memory.hosted, event),
        ended_at=sequence if ended else memory.ended_at,
        gate=gate,
    )


def where(origin: Origin | Draft | None) -> Stated | None:
    """Say where a state stands in the runtime's own order; None where it does not tell."""
    if origin is None or origin.native_sequence is None or origin.native_time is None:
        return None
    return Stated(origin.native_sequence, origin.native_time)


def _still_asked(memory: Remembered, gate: Gate | None) -> tuple[Asked, ...]:
    """Leave out the approvals that a new state shows to be decided: all of them, or those asked for by an older one."""
    if gate is None:
        decided = memory.state == "awaiting_approval"
        return tuple(a for a in memory.asked if not (decided and isinstance(a.event, ApprovalAsked)))
    return tuple(a for a in memory.asked if not a.by_state or _is_about(memory, a, gate))


def _is_about(memory: Remembered, asked: Asked, gate: Gate) -> bool:
    action = memory.action(asked.event.id)
    return action is not None and memory.is_behind(action, gate)


def _awaited(hosted: Mapping[str, Hosted], event: SessionMoved) -> Mapping[str, Hosted]:
    """Note which calls a turn waits for; one that goes on no longer waits for what it waited for alone."""
    if not hosted or event.state not in {"awaiting_outcome", "running"}:
        return hosted
    named = "alone" if len(event.waiting_for) == 1 else "among"
    found: dict[str, Hosted] = {}
    for native, call in hosted.items():
        if native in event.waiting_for:
            found[native] = replace(call, awaited=named)
        elif call.awaited == "alone" or (call.awaited == "among" and event.state == "awaiting_outcome"):
            found[native] = replace(call, awaited="over")
        else:
            found[native] = call
    return found


def _requested(memory: Remembered, recorded: Envelope, event: ToolRequested, sequence: int) -> Remembered:
    origin = recorded.origin
    if event.runs_in == "host":
        if origin is None or origin.native_id is None:
            return memory
        wanted = {**memory.wanted, event.native_call_id: Wanted(event, sequence, weight(event))}
        kept = _newest(tuple(wanted.values()), _MOST_WANTED)
        call = Hosted(event.native_call_id, size=len(event.native_call_id))
        hosted = _newest((*_others(memory.hosted, event.native_call_id), call), _MOST_RECENT)
        return replace(
            memory,
            wanted={entry.event.native_call_id: entry for entry in kept},
            hosted={entry.native_call_id: entry for entry in hosted},
        )
    correlation = origin.correlation if origin is not None else None
    again = [a for a in memory.actions if _is_sent_again(a, event, correlation)]
    # The same again after its approval is the same decision, under a new id; the old one is over.
    gone = {a.native_call_id for a in again}
    actions = tuple(
        replace(a, finished=True, superseded=True) if a.native_call_id in gone else a for a in memory.actions
    )
    asked = memory.asked
    if gone:
        asked = tuple(a for a in asked if not (isinstance(a.event, ApprovalAsked) and a.event.native_call_id in gone))
    action = Action(
        event.native_call_id,
        correlation,
        event.tool,
        event.arguments,
        sequence,
        number=origin.native_sequence if origin is not None else None,
        decided=bool(again),
        gated=event.needs_approval,
        size=weight(event.arguments),
    )
    return replace(memory, actions=_newest((*actions, action), _MOST_ACTIONS), asked=asked)


def _is_sent_again(action: Action, event: ToolRequested, correlation: str | None) -> bool:
    if action.native_call_id == event.supersedes:
        return True
    return correlation is not None and action.correlation == correlation and action.tool == event.tool


def _others(hosted: Mapping[str, Hosted], native_call_id: str) -> tuple[Hosted, ...]:
    return tuple([call for call in hosted.values() if call.native_call_id != native_call_id])


def _runtime_finished(memory: Remembered, event: ToolFinished) -> Remembered:
    actions = tuple(
        replace(action, finished=True) if action.native_call_id == event.native_call_id else action
        for action in memory.actions
    )
    asked = memory.asked
    if memory.state != "awaiting_approval":
        # While an approval by state waits, some runtimes carry the action out already; it waits all the same.
        asked = tuple(
            a
            for a in asked
            if not (isinstance(a.event, ApprovalAsked) and a.event.native_call_id == event.native_call_id)
        )
    return replace(memory, actions=actions, asked=asked)


def _awake(memory: Remembered, now: datetime, *, wakes: bool) -> Remembered:
    return replace(memory, active_at=now, quiet_at=None) if wakes else memory


def _context_told(memory: Remembered, event: ContextUpdated, recorded: Envelope, now: datetime) -> Remembered:
    memory = _awake(memory, now, wakes=event.wakes_agent)
    if any(loss.note == HELD for loss in recorded.losses):
        told = event.description or event.name
        return replace(memory, context=event.context, held=_light((*memory.held, told)[-_MOST_HELD:], _HELD_BYTES))
    invented = {loss.path.removeprefix("/context/") for loss in recorded.losses if loss.how == "invented"}
    given = {key: value for key, value in event.context.items() if key not in invented}
    return replace(memory, context=given)


def _agent_spoke(memory: Remembered, event: MessagePosted, now: datetime, sequence: int) -> Remembered:
    author, text = (event.author.name or "Agent")[:_NAME], " ".join(text_of(event.content).split())[:_LINE]
    if event.burst is None:
        return replace(memory, active_at=now, quiet_at=None, history=_with_line(memory.history, now, author, text))
    waiting = Confirmation(
        call=event.burst.call,
        index=event.burst.index,
        count=event.burst.count,
        sequence=sequence,
        posted_at=now,
        author=author,
        text=text,
    )
    others = tuple(c for c in memory.confirmations if (c.call, c.index) != (waiting.call, waiting.index))
    return replace(memory, active_at=now, quiet_at=None, confirmations=(*others, waiting)[-MOST_CONFIRMATIONS:])


def _confirmed(memory: Remembered, event: MessageConfirmed, now: datetime) -> Remembered:
    found = memory.confirmation(event.native_call_id, event.index)
    if found is None:
        return memory
    rest = tuple(c for c in memory.confirmations if c is not found)
    history = memory.history
    if event.delivered:
        history = _with_line(history, found.posted_at, found.author, found.text)
    quiet = now if found.last and not rest else None
    told = (*memory.confirmed, (event.native_call_id, event.index, event.delivered))[-_MOST_CONFIRMED:]
    return replace(memory, confirmations=rest, confirmed=told, history=history, active_at=now, quiet_at=quiet)


def _with_line(history: tuple[str, ...], at: datetime, name: str, text: str) -> tuple[str, ...]:
    flat = " ".join(text.split())
    if not flat:
        return history
    return _light((*history, f"[{at:%H:%M}] {name}: {flat}"[:_LINE])[-HISTORY_LINES:], HISTORY_BYTES)


def _light(texts: tuple[str, ...], most_bytes: int) -> tuple[str, ...]:
    """Keep the newest texts that fit, and always the last."""
    sizes = [len(text.encode()) + 1 for text in texts]
    return texts[_surplus(sizes, most_bytes) :]


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


_Entry = TypeVar("_Entry", bound=_Sized)


def _newest(entries: tuple[_Entry, ...], most: int) -> tuple[_Entry, ...]:
    """Keep the newest, within count and bytes, and always the last."""
    kept = entries[-most:]
    return kept[_surplus([entry.size for entry in kept], KEPT_BYTES) :]


def _surplus(sizes: Sequence[int], most_bytes: int) -> int:
    """Count how many of the oldest must go."""
    over, first = sum(sizes) - most_bytes, 0
    while over > 0 and first < len(sizes) - 1:
        over -= sizes[first]
        first += 1
    return first
