"""Groups the events of a session by turn, and sums up each event in one line. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from gateway.http.ui.story import TONES, Tone
from gateway.http.ui.text import compact, duration, read_time, shorten

_STARTS = frozenset({"message.posted", "turn.steered"})
"""Kinds that start a turn if they go to the runtime."""
_RESTS = frozenset({"idle", "awaiting_input", "finished", "stopped", "starting"})
"""The states between two turns."""
_PAUSE = timedelta(minutes=2)
"""A pause between events that starts a turn in protocols without states."""
_HOUSEKEEPING = frozenset({"link.changed", "delivery.settled", "session.opened", "session.closed"})
"""Kinds that belong to no turn of the agent; they never start one."""
_OF_CALL = frozenset(
    {
        "tool.requested",
        "tool.canceled",
        "tool.finished",
        "call.progressed",
        "call.linked",
        "context.updated",
        "delivery.settled",
    }
)
"""Kinds that share the row of their call; a failed delivery has its own."""
_FAILURES = frozenset({"fault.reported", "frame.rejected", "outcome.ignored"})
MAY_FAIL = ",".join(sorted(_FAILURES | {"tool.*", "delivery.settled", "link.changed", "session.moved"}))
"""The kinds among which there are failures, as a filter of the API."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One event of the timeline."""

    envelope: Mapping[str, Any]
    at: datetime
    summary: str
    tone: Tone
    call_id: str | None

    @property
    def sequence(self) -> int:
        """The sequence of the event."""
        return self.envelope["sequence"]

    @property
    def kind(self) -> str:
        """The kind of the event."""
        return self.envelope["event"]["kind"]

    @property
    def arrow(self) -> str:
        """The direction: from the runtime, to it, or neither."""
        if self.kind in _HOUSEKEEPING:
            return "·"
        return "←" if self.envelope["direction"] == "from_runtime" else "→"

    @property
    def failed(self) -> bool:
        """Whether it is shown even in a folded turn."""
        return self.tone in {"failed", "unknown"}


@dataclass(slots=True)
class TimelineCall:
    """A call: its request, and later events of it that are shown in the same row."""

    lines: list[TimelineRow]

    @property
    def request(self) -> TimelineRow:
        """The event that requested it."""
        return self.lines[0]

    @property
    def outcome(self) -> TimelineRow | None:
        """The event that ended it; None if it is open, or if it ended in another turn."""
        return self._last("tool.finished")

    @property
    def delivered(self) -> TimelineRow | None:
        """The event of the delivery of its outcome, which few protocols record."""
        return self._last("delivery.settled")

    @property
    def tone(self) -> Tone:
        """The tone of its outcome."""
        return self.outcome.tone if self.outcome else "plain"

    @property
    def failed(self) -> bool:
        """Whether it is shown even in a folded turn."""
        return self.outcome is not None and self.outcome.failed

    @property
    def losses(self) -> Sequence[Mapping[str, Any]]:
        """The losses in its events."""
        return [loss for line in self.lines for loss in line.envelope["losses"]]

    def _last(self, kind: str) -> TimelineRow | None:
        return next((line for line in reversed(self.lines) if line.kind == kind), None)


TimelineItem = TimelineRow | TimelineCall


@dataclass(slots=True)
class AgentTurn:
    """Consecutive events from one stimulus of the agent to the next."""

    lines: list[TimelineRow] = field(default_factory=list[TimelineRow])

    @property
    def title(self) -> str:
        """The stimulus: the first message or steer, otherwise the first call, otherwise the first event."""
        for kinds in ({"message.posted", "turn.steered"}, {"tool.requested"}):
            for line in self.lines:
                if line.kind in kinds:
                    return shorten(line.summary, 90)
        return self.lines[0].kind

    @property
    def first(self) -> int:
        """The sequence of its first event."""
        return self.lines[0].envelope["sequence"]

    @property
    def began(self) -> datetime:
        """The time of its first event."""
        return self.lines[0].at

    @property
    def lasted(self) -> str:
        """Its duration."""
        last = next((line for line in reversed(self.lines) if line.kind not in _HOUSEKEEPING), self.lines[-1])
        return duration(last.at - self.lines[0].at)

    @property
    def losses(self) -> Sequence[Mapping[str, Any]]:
        """The losses in its events."""
        return [loss for line in self.lines for loss in line.envelope["losses"]]

    @property
    def calls(self) -> int:
        """The number of requested tools."""
        return sum(line.kind == "tool.requested" for line in self.lines)

    @property
    def items(self) -> Sequence[TimelineItem]:
        """The events, with those of each call in one item."""
        items: list[TimelineItem] = []
        calls: dict[str | int, TimelineCall] = {}
        for line in self.lines:
            event = line.envelope["event"]
            key = event["sequence"] if line.kind == "delivery.settled" else line.call_id or event.get("native_call_id")
            call = calls.get(key)
            if call is None and line.kind == "tool.requested":
                call = calls[key] = TimelineCall([])
                items.append(call)
            if call is None or line.kind not in _OF_CALL or (line.failed and line.kind != "tool.finished"):
                items.append(line)
                continue
            call.lines.append(line)
            calls[line.sequence] = call
        return items

    @property
    def failures(self) -> Sequence[TimelineItem]:
        """The items that a folded turn still shows."""
        return [item for item in self.items if item.failed]


def group(envelopes: Sequence[Mapping[str, Any]]) -> Sequence[AgentTurn]:
    """Group consecutive events by turn."""
    turns: list[AgentTurn] = []
    resting, before = True, None
    for envelope in envelopes:
        line = _line(envelope)
        event = envelope["event"]
        moves = event["kind"] == "session.moved"
        starts = (event["kind"] in _STARTS and envelope["direction"] == "to_runtime") or (
            moves and resting and event["state"] not in _RESTS
        )
        paused = before is not None and line.at - before > _PAUSE and event["kind"] not in _HOUSEKEEPING
        if not turns or paused or (starts and _has_work(turns[-1])):
            turns.append(AgentTurn())
        if moves:
            resting = event["state"] in _RESTS
        elif event["kind"] in {"tool.requested", "message.posted"}:
            resting = False
        turns[-1].lines.append(line)
        if event["kind"] not in _HOUSEKEEPING:
            before = line.at
    return turns


def _has_work(turn: AgentTurn) -> bool:
    return any(line.kind not in _HOUSEKEEPING | {"session.moved"} for line in turn.lines)


def _line(envelope: Mapping[str, Any]) -> TimelineRow:
    event = envelope["event"]
    call_id = event.get("call_id") or envelope.get("linked_to")
    return TimelineRow(envelope, read_time(envelope["recorded_at"]), summarize(event), _tone(event), call_id)


def _tone(event: Mapping[str, Any]) -> Tone:
    match event:
        case {"kind": "tool.finished", "unknown": True}:
            return "unknown"
        case {"kind": "tool.finished", "outcome": str(outcome)}:
            return TONES.get(outcome, "plain")
        case {"kind": "delivery.settled" | "link.changed" | "session.moved", "state": str(state)}:
            is_plain = state in {"up", "delivered"} or (event["kind"] == "session.moved" and state != "error")
            return "plain" if is_plain else TONES.get(state, "plain")
        case {"kind": "approval.asked" | "question.asked" | "secret.asked"}:
            return "waiting"
        case {"kind": str(kind)} if kind in _FAILURES:
            return "failed"
        case _:
            return "plain"


@dataclass(frozen=True, slots=True)
class CallSpan:
    """The bar of a call, in units of an SVG of width 200; None leaves a part out."""

    asked: float
    started: float | None
    answered: float
    delivered: float | None
    took: str
    hint: str


def span_of(call: TimelineCall, row: Mapping[str, Any] | None, turn: AgentTurn | None, now: datetime) -> CallSpan:
    """Place a call within its turn, or within its own time; `row` is the call of the API, if there is one."""
    asked = call.request.at
    started = read_time(row["started_at"]) if row and row["started_at"] else None
    if call.outcome is not None:
        answered = call.outcome.at
    elif row is not None:
        answered = read_time(row["finished_at"]) if row["finished_at"] else now
    else:
        answered = turn.lines[-1].at if turn else asked
    delivered = call.delivered.at if call.delivered else None
    begins, ends = (turn.began, turn.lines[-1].at) if turn else (asked, delivered or answered)
    whole = max((ends - begins).total_seconds(), 0.001)

    def place(at: datetime) -> float:
        return round(198 * min(1.0, max(0.0, (at - begins).total_seconds() / whole)), 1)

    moments = {"started": started, "answered" if call.outcome else "open": answered, "delivered": delivered}
    return CallSpan(
        place(asked),
        None if started is None else place(started),
        place(answered),
        None if delivered is None else place(delivered),
        duration(answered - asked),
        ", ".join(f"{name} after {duration(at - asked)}" for name, at in moments.items() if at is not None),
    )


def summarize(event: Mapping[str, Any]) -> str:
    """Sum up an event in one line."""
    match event:
        case {"kind": "message.posted", "content": content}:
            return _text(content)
        case {"kind": "tool.requested", "tool": tool}:
            return f"{tool} {compact(event.get('arguments') or {}, 160)}"
        case {"kind": "tool.finished", "outcome": outcome}:
            return f"{event.get('tool') or ''} {outcome}: {answer_of(event)}"
        case {"kind": "session.moved", "state": state}:
            native = event.get("native_state")
            return f"{state} ({native})" if native and native != state else str(state)
        case {"kind": "link.changed", "state": state}:
            return f"{state}: {event['reason']}" if event.get("reason") else str(state)
        case {"kind": "delivery.settled", "sequence": sequence, "target": target, "state": state}:
            reason = f": {event['reason']}" if event.get("reason") else ""
            return f"event {sequence} to {target} {state}{reason}"
        case {"kind": "approval.asked" | "approval.given"}:
            return " ".join(str(event[name]) for name in ("decision", "tool") if event.get(name)) + (
                f" {compact(event['arguments'], 120)}" if event.get("arguments") else ""
            )
        case {"kind": "question.asked" | "thought.shared" | "turn.steered", "text": text}:
            return str(text)
        case _:
            rest = {name: value for name, value in event.items() if name != "kind" and value not in (None, "", [], {})}
            return compact(rest, 200) if rest else ""


def answer_of(event: Mapping[str, Any]) -> str:
    """Return the result of a `tool.finished`, or its error."""
    return event.get("error") or compact(event.get("result"), 160)


def subject_of(event: Mapping[str, Any]) -> str:
    """Return the tool with its arguments, the question or the secret that an event asks a person for."""
    subject = next(
        str(event[name]) for name in ("tool", "text", "prompt", "name", "purpose", "kind") if event.get(name)
    )
    return f"{subject} {compact(event['arguments'], 80)}" if event.get("arguments") else subject


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    return " ".join(map(_block_text, parts))


def _block_text(block: Any) -> str:
    match block:
        case {"text": text}:
            return str(text)
        case _:
            return compact(block)
