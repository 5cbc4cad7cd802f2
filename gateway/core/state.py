"""The inputs of decisions about a session: memory, open calls, start state and live state. Pure."""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from gateway.adapter.port import Capabilities
from gateway.events import (
    ActionOrdered,
    ApprovalAsked,
    ApprovalGiven,
    CallId,
    Draft,
    Event,
    EventId,
    FaultReported,
    MessagePosted,
    MessageStreamed,
    Origin,
    QuestionAnswered,
    QuestionAsked,
    SecretAsked,
    SessionId,
    SessionMoved,
    TurnInterrupted,
    TurnSteered,
)
from gateway.events.frozen import frozen, replace
from gateway.store.call import Call

HELD = "held"
"""Note of the loss on a context that waits for the next message."""
MOST_CONFIRMATIONS = 1_000
"""Agent messages that may wait to be confirmed; the next is refused at once."""
MOST_WANTED = 1_000
"""Calls without an outcome that a session remembers; the history's next one ends as overloaded."""
MOST_ASKED = 100
"""Questions that may wait for a person; for the next, the oldest is denied or skipped."""
UNSTARTED = "sent although the runtime had not said that it has started"
"""The reason on the delivery of new work that could not wait longer."""


@frozen
class Confirmation:
    """An agent message of a burst that the runtime waits to see confirmed."""

    call: str
    index: int
    count: int | None
    sequence: int
    posted_at: datetime
    author: str
    text: str
    size: int = 0

    @property
    def last(self) -> bool:
        """Whether no further message of the burst is known to follow."""
        return self.count is None or self.index >= self.count - 1


Question = ApprovalAsked | QuestionAsked | SecretAsked
QUESTIONS = frozenset({"approval.asked", "question.asked", "secret.asked"})
Reply = MessagePosted | ActionOrdered | ApprovalGiven | QuestionAnswered | TurnSteered | TurnInterrupted


@frozen
class Asked:
    """A question to a person that waits for its answer."""

    event: Question = field(metadata={"pydantic": Field(discriminator="kind")})
    event_id: EventId
    sequence: int
    asked_at: datetime
    size: int = 0
    by_state: bool = False
    """Asked for by a state, and not by name."""


@frozen
class Unechoed:
    """Something we said that the runtime has not sent back yet."""

    event: Reply
    sequence: int
    size: int = 0


@frozen
class Action:
    """Something the runtime does itself."""

    native_call_id: str
    correlation: str | None
    tool: str
    arguments: Mapping[str, Any]
    sequence: int
    number: int | None = None
    """Its number in the runtime's own order."""
    finished: bool = False
    decided: bool = False
    """It was already allowed or denied, or needed no approval."""
    superseded: bool = False
    """The runtime sent it again under another id, which replaces this one."""
    gated: bool = False
    """Its request said that it waits for an approval."""
    size: int = 0
    asked_at: datetime | None = None
    linked_to: CallId | None = None
    """The caller's call that it is."""
    withdrawn: bool = False
    """It ended because it was withdrawn."""


@frozen
class Unlinked:
    """A caller's call that may be an action of the runtime's own, which has not been seen yet."""

    call_id: CallId
    tool: str
    args_sha: str
    sequence: int
    asked_at: datetime


@frozen
class Gate:
    """The state by which a runtime said that it waits for an approval."""

    sequence: int
    number: int | None = None
    """Its number in the runtime's own order."""
    actions: tuple[str, ...] = ()
    """The native call ids of the actions that wait, if the state names them."""


@frozen
class PendingHostCall:
    """A recorded host call without an outcome, for protocols with history; the journal has its request."""

    sequence: int
    size: int = 0


@frozen
class Hosted:
    """A host call of this turn and whether the runtime shows that it waits for it, for protocols with history."""

    native_call_id: str
    answer: int | None = None
    """Sequence of our outcome."""
    awaited: Literal["unsaid", "among", "alone", "over"] = "unsaid"
    """Whether it was named among what the turn waits for, or as the only thing, or once and no longer."""
    size: int = 0


@frozen
class Unheard:
    """An ended call that was held, and whose caller has not received the outcome."""

    call: Call
    text: str
    """What has happened, of bounded length."""
    is_whole: bool
    """Whether that is all of the outcome."""


@frozen
class StatePosition:
    """The position of a state in the runtime's own order."""

    number: int
    time: str

    def is_before(self, other: "StatePosition") -> bool:
        """Return whether this is older, by number and time, because numbers may restart."""
        return self.number < other.number and self.time < other.time


def where(origin: Origin | Draft | None) -> StatePosition | None:
    """Return the position of a state in the runtime's own order; None if it has none."""
    if origin is None or origin.native_sequence is None or origin.native_time is None:
        return None
    return StatePosition(origin.native_sequence, origin.native_time)


@frozen
class RunningTurn:
    """The running turn."""

    sequence: int
    """The sequence of its first event."""
    started_at: datetime


@frozen
class Remembered:
    """All of a session's memory."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    echoes: bool = False
    delegates: bool = False
    closed: bool = False
    linked: bool = False
    # The conversation.
    context: Mapping[str, Any] | None = None
    """The last complete context of the backend, if the protocol replaces contexts."""
    held: tuple[str, ...] = ()
    """The contexts that wait for the next message, if the protocol has no contexts."""
    history: tuple[str, ...] = ()
    """Conversation lines, `[HH:MM] Name: text`, bounded."""
    confirmations: tuple[Confirmation, ...] = ()
    confirmed: tuple[tuple[str, int, bool | str], ...] = ()
    """Burst and index of the messages confirmed last, for repeats, and whether they were delivered.

    Of one that was not, the beginning of the error; a release before 0.3 has not remembered it.
    """
    # The turn.
    running: bool = False
    turn: RunningTurn | None = None
    """The running turn; a release before 0.3 has not remembered it."""
    state: str | None = None
    """The last state that the runtime reported; None before the first."""
    stated: StatePosition | None = None
    """Its position in the runtime's own order."""
    native_state: str | None = None
    active_at: datetime | None = None
    """When anything last showed that the agent works, or was made to."""
    quiet_at: datetime | None = None
    """When the last message of a burst was confirmed, with nothing after it."""
    ended_at: int = 0
    """The sequence at which a turn was last seen to end."""
    told_at: int = 0
    """The sequence of the last message to the runtime, from any client."""
    gate: Gate | None = None
    """The gate that the runtime waits at, while it waits for an approval."""
    delegating: int = 0
    """How many pieces of work a delegate has in hand; its states look like the agent's own."""
    tasks: tuple[str, ...] = ()
    """Tasks for delegates that have not appeared in the delegates' history yet."""
    # Requests for human input.
    asked: tuple[Asked, ...] = ()
    wanted: Mapping[str, PendingHostCall] = field(default_factory=dict[str, PendingHostCall])
    hosted: Mapping[str, Hosted] = field(default_factory=dict[str, Hosted])
    actions: tuple[Action, ...] = ()
    unlinked: tuple[Unlinked, ...] = ()
    unechoed: tuple[Unechoed, ...] = ()
    orders: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sequences of our orders by the native id under which their results will come."""
    recent: tuple[str, ...] = ()
    """Native ids seen last, for dropping repeats."""

    @property
    def has_worked(self) -> bool:
        """Whether a turn has begun."""
        return self.running or self.ended_at > 0

    def confirmation(self, call: str, index: int) -> Confirmation | None:
        """Find an unconfirmed message of a burst."""
        return next((c for c in self.confirmations if c.call == call and c.index == index), None)

    def action(self, native_call_id: str, correlation: str | None = None) -> Action | None:
        """Find the newest action of the runtime by its id or its correlation; an open one first, because ids repeat."""
        found: Action | None = None
        for action in reversed(self.actions):
            if action.native_call_id == native_call_id or (correlation and action.correlation == correlation):
                if not action.finished:
                    return action
                found = found or action
        return found

    def gated_action(self, *, decided: bool = False) -> Action | None:
        """Find the action that the runtime's state is about, or one that was `decided` already.

        That is the newest action whose request says that it waits, or whose number shows whether it follows the state;
        or none: an older one never waits again.
        """
        action = next((a for a in reversed(self.actions) if a.gated or a.number is not None), None)
        if action is None or action.superseded or (action.decided and not decided):
            return None
        return action if self.can_concern(action, self.gate) else None

    def held_actions(self) -> tuple[Action, ...]:
        """Return the undecided actions that the runtime's state names, in the order of their requests."""
        if self.gate is None:
            return ()
        named = frozenset(self.gate.actions)
        return tuple(a for a in self.actions if a.native_call_id in named and not (a.finished or a.decided))

    def open_actions(self) -> tuple[Action, ...]:
        """Return the actions since the last end of a turn that have not ended."""
        return tuple(a for a in self.actions if not a.finished and a.sequence > self.ended_at)

    def still_asked(self, gate: Gate | None) -> tuple[Asked, ...]:
        """Leave out the approvals that a new state shows as decided: all of them, or those an older one asked for."""
        if gate is None:
            decided = self.state == "awaiting_approval"
            return tuple(a for a in self.asked if not (decided and isinstance(a.event, ApprovalAsked)))
        return tuple(a for a in self.asked if not a.by_state or self._is_about(a, gate))

    def _is_about(self, asked: Asked, gate: Gate) -> bool:
        action = self.action(asked.event.id)
        return action is not None and self.can_concern(action, gate)

    def can_concern(self, action: Action, gate: Gate | None) -> bool:
        """Say whether a state can be about an action: the state is said first (the runtime's numbers tell).

        One that came to its end all the same waits too: some runtimes carry it out before the answer.
        """
        if gate is None:
            # A release before this one has not remembered it.
            return not action.finished
        if gate.actions:
            return action.native_call_id in gate.actions and not action.finished
        came_later = action.sequence > gate.sequence
        if gate.number is None:
            return came_later or not action.finished
        if action.number is None:
            return came_later
        undisturbed = not action.finished or came_later or self.told_at < action.sequence
        return action.number > gate.number and undisturbed


@frozen
class Start:
    """The start state of a runtime, as reported over the current link."""

    state: Literal["unknown", "starting", "overdue", "ready"] = "ready"
    since: datetime | None = None
    """Since when new work may have to wait; None while no link stands."""
    newest: int = -1
    """The number of the newest reported state."""

    @property
    def waits(self) -> bool:
        """Whether new work must wait."""
        return self.state in {"unknown", "starting"}


def observe_start(start: Start, draft: Draft, now: datetime) -> Start:
    """Apply a reported state; repeats count, outdated states do not.

    An error outside the history concerns the start itself, which is then not waited for.
    """
    match draft.event:
        case SessionMoved(state=state) if not draft.live:
            number = draft.native_sequence
            if number is not None and (number < start.newest or (number == start.newest and start.state != "unknown")):
                return start
            newest = start.newest if number is None else number
            if state != "starting":
                return replace(start, state="ready", newest=newest)
            since = start.since if start.waits or start.since is None else now
            return replace(start, state="starting", since=since, newest=newest)
        case FaultReported() if draft.native_id is None and start.waits:
            return replace(start, state="overdue")
        case _:
            return start


def start_caught_up(start: Start, *, is_starting: bool | None) -> Start:
    """Apply the result of the link's query: if the runtime starts now, earlier states do not count."""
    if is_starting:
        return replace(start, state="starting")
    return replace(start, state="ready") if is_starting is False and start.state == "unknown" else start


def overdue_at(start: Start, wait: timedelta) -> datetime | None:
    """Say when new work has waited long enough."""
    return start.since + wait if start.since is not None and start.waits else None


def describe_unstarted(start: Start, event: Event) -> str | None:
    """Return the note on the delivery of an event."""
    is_work = isinstance(event, MessagePosted | TurnSteered | ActionOrdered)
    return UNSTARTED if is_work and start.state == "overdue" else None


MOST_STREAMED = 65_536
_LOOSE = 2_048


@frozen
class Streamed:
    """The streamed part of a message; chunks are appended without copying the rest."""

    joined: str = ""
    loose: str = ""
    message_id: str | None = None

    def add(self, piece: MessageStreamed) -> "Streamed":
        """Add the next piece; one of another message starts anew."""
        if piece.message_id != self.message_id:
            return Streamed(loose=piece.text, message_id=piece.message_id)
        loose = self.loose + piece.text
        if len(loose) <= _LOOSE:
            return Streamed(self.joined, loose, self.message_id)
        return Streamed(_end_of(self.joined + loose), message_id=self.message_id)

    @property
    def text(self) -> str:
        """The last of it, which is all that is kept."""
        return _end_of(self.joined + self.loose)


def _end_of(text: str) -> str:
    return text[-MOST_STREAMED:]


@frozen
class SessionView:
    """All that decisions about a session rest on: its identity, its memory and its open calls."""

    session_id: SessionId
    runtime: str
    native_id: str
    memory: Remembered = field(default_factory=Remembered)
    calls: Mapping[CallId, Call] = field(default_factory=dict[CallId, Call])
    last_sequence: int = 0
    cursor: str | None = None
    """The cursor at which the link resumes, in the protocol's own form."""
    first_state: str = "idle"
    """The state it is listed with before the runtime has said one."""
    listed: str = "idle"
    """The state that lists show, as the store has it."""
    touched_at: datetime | None = None
    """When something live (typing) last showed that the agent works; not on record."""
    partial: Streamed = Streamed()
    """The streamed part of an incomplete message; not recorded."""
    live: bool = True
    """False while a link replays history: nothing of it is acted on."""
    start: Start = Start()
    """Whether the runtime has started, as reported over this link; not recorded."""
    reminded_at: datetime | None = None
    """When the last reminders of held calls were due; not recorded, so that a new owner repeats the last ones."""
    unheard: Mapping[CallId, Unheard] = field(default_factory=dict[CallId, Unheard])
    """The newest ended calls that the conversation may be told of."""
    is_unsaved: bool = False
    """Whether loading it folded more than one page of events behind its snapshot."""


def first_state(capabilities: Capabilities) -> str:
    """Name the state a session is listed with before its runtime has said one."""
    return "starting" if capabilities.turns == "signalled" else "idle"
