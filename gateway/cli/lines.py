"""Formats events and attempts as single lines: time, number, and the most important members."""

import json
import re
from datetime import datetime
from typing import Any, cast

from rich.text import Text

from gateway.visible import show_hidden

_BREAKS = re.compile(r"[\t-\r\x85\u2028\u2029]+")
_LONGEST = 4_000
_KIND_WIDTH = 18

OURS = frozenset(
    {
        "session.opened", "session.closed", "link.changed", "frame.rejected", "outcome.ignored", "delivery.settled",
        "call.progressed", "call.linked",
    }
)  # fmt: skip
"""Kinds that the gateway itself records."""

_ARROWS = {"in": ("←", "<-"), "out": ("→", "->"), "own": ("·", "- ")}
_STYLES = {
    "message": "cyan", "tool": "magenta", "call": "magenta", "approval": "bold yellow", "question": "bold yellow",
    "secret": "bold yellow", "context": "blue", "turn": "blue", "action": "blue", "fault": "bold red",
    "frame": "red", "outcome": "red", "session": "green", "link": "green",
}  # fmt: skip
_OUTCOMES = {"success": "green", "failure": "red", "expired": "red", "canceled": "yellow"}


def clean(text: object, longest: int = _LONGEST) -> str:
    """Make an untrusted text safe for a terminal: one bounded line that shows hidden characters as escapes."""
    line = show_hidden(_BREAKS.sub(" ", str(text)[: 2 * longest]).strip())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def clean_line(line: str) -> str:
    """Make one line of an untrusted text safe for a terminal; keep its indentation and length."""
    return show_hidden(line)


def compact(value: Any, longest: int = _LONGEST) -> str:
    """Write JSON on one line."""
    return clean(json.dumps(value, ensure_ascii=False), longest)


def event_line(item: dict[str, Any], *, plain: bool, narrow: bool = False) -> Text:
    """Format an envelope or a live event of a stream.

    `plain` uses ASCII arrows. `narrow` omits the columns' padding, for small terminals.
    """
    event = _members(item.get("event"))
    kind = str(event.get("kind", "?"))
    live = bool(item.get("live"))
    direction = _direction(item, kind)
    number, clock = "" if live else clean(item.get("sequence", "")), _clock(item.get("recorded_at"))
    line = Text.assemble(
        (clock.partition(".")[0] if narrow else clock, "dim"),
        f" {number} " if narrow else f" {number:>6} ",
        (_ARROWS[direction][plain], "bold"),
        " ",
        (clean(kind, 40) if narrow else f"{clean(kind, 40):<{_KIND_WIDTH}}", _STYLES.get(kind.partition(".")[0], "")),
        " ",
        facts_of(event),
    )
    for loss in map(_members, _elements(item.get("losses"))):
        line.append(f"  [{clean(loss.get('how'))}: {clean(loss.get('note') or loss.get('path'), 200)}]", "yellow")
    linked = item.get("linked_to")
    if linked:
        line.append(f"  [is call {clean(linked, 80)}]")
    if live or linked:
        line.stylize("dim")
    return line


def attempt_line(attempt: dict[str, Any]) -> Text:
    """Format one attempt of a call: start, number, duration, response, and when the next one was due."""
    facts = [
        f"attempt {clean(attempt.get('n', '?'), 20)}",
        _duration(attempt.get("started_at"), attempt.get("ended_at")),
        "" if attempt.get("sent", True) else "not sent",
        "" if attempt.get("status") is None else f"status {clean(attempt['status'], 20)}",
        clean(attempt.get("reason") or ""),
        "may have run" if attempt.get("unsure") else "",
        f"next at {_clock(attempt['due_at'])}" if attempt.get("due_at") else "",
    ]
    line = Text.assemble((_clock(attempt.get("started_at")), "dim"), " ", "; ".join(filter(None, facts)))
    if body := attempt.get("body"):
        line.append(f"\n  {clean(attempt.get('content_type') or 'body', 80)}: {clean(body, 2_048)}", "dim")
    return line


def _duration(start: object, end: object) -> str:
    try:
        seconds = (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(start))).total_seconds()
    except (ValueError, TypeError):
        return "no end recorded"
    return f"{seconds:.3f} s"


def _direction(item: dict[str, Any], kind: str) -> str:
    # An event that the gateway has inferred about a runtime has no origin.
    if item.get("direction") == "to_runtime" and kind not in OURS:
        return "out"
    inferred = not item.get("live") and item.get("origin") is None
    return "own" if inferred or kind in OURS else "in"


def facts_of(event: dict[str, Any], longest: int = _LONGEST) -> Text:
    """Format the most important members of an event, all of an unknown kind; each request has `longest` characters."""
    match event:
        case {"kind": "message.posted", "content": content}:
            author = _members(event.get("author"))
            name = clean(author.get("name") or author.get("id") or author.get("role") or "?", 80)
            cut = "" if event.get("complete", True) else " (cut off)"
            return Text.assemble((f"{name}: ", "bold"), _write_text(content), cut)
        case {"kind": "context.updated", "name": name, "context": context}:
            description = f" {clean(event['description'])}" if event.get("description") else ""
            return Text(f"{clean(name)}:{description} {compact(context)}")
        case {"kind": "tool.requested" | "approval.asked" | "action.ordered"}:
            name = event.get("tool") or event.get("action") or ""
            known = {"kind", "tool", "action", "arguments", "call_id", "native_call_id", "id", "preview"}
            ran = " (done by the runtime)" if event.get("runs_in") == "runtime" else ""
            rest = _rest(
                event, known | {"runs_in", "needs_approval", "scopes", "rule", "rule_sha", "binding", "edited"}
            )
            return Text.assemble(
                (clean(name, longest), "bold"), f" {compact(event.get('arguments') or {}, longest)}{ran}", rest
            )
        case {"kind": "tool.finished", "outcome": outcome}:
            text = event.get("error") if outcome != "success" else compact(event.get("result"))
            style = _OUTCOMES.get(str(outcome), "")
            unknown = " (unknown)" if event.get("unknown") else ""
            name = (clean(event.get("tool") or event.get("native_call_id")), "bold")
            return Text.assemble(name, " ", (f"{clean(outcome)}{unknown}", style), f" {clean(text or '')}")
        case {"kind": "tool.canceled", "native_call_id": call}:
            return Text.assemble((clean(event.get("tool") or call), "bold"), f" {clean(event.get('reason') or '')}")
        case {"kind": "message.confirmed", "index": index}:
            fate = ("delivered", "green") if event.get("delivered", True) else ("not delivered", "red")
            return Text.assemble(f"message {clean(index)} ", fate, f" {clean(event.get('error') or '')}")
        case {"kind": "session.moved", "state": state}:
            return Text.assemble((clean(state), "bold"), _rest(event, {"kind", "state", "native_state"}))
        case {"kind": "question.asked", "text": text}:
            choices = ", ".join(clean(choice, longest) for choice in _elements(event.get("choices")))
            return Text(clean(text, longest) + (f" [{choices}]" if choices else ""))
        case {"kind": "secret.supplied"}:
            return Text(f"{clean(event.get('purpose', ''))} ***")
        case {"kind": "message.streamed" | "thought.shared" | "turn.steered", "text": text}:
            return Text(clean(text))
        case _:
            return Text(_rest(event, {"kind"}, longest).strip())


def _write_text(content: Any) -> str:
    if isinstance(content, str):
        return clean(content)
    return " ".join(clean(_members(part).get("text") or compact(part)) for part in _elements(content))


def _members(value: object) -> dict[str, Any]:
    # A gateway of another release may send another type.
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _elements(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _rest(event: dict[str, Any], known: set[str], longest: int = _LONGEST) -> str:
    shown = {name: value for name, value in event.items() if name not in known and value not in (None, "", [], {})}
    return "".join(
        f" {clean(name)}={clean(value, longest) if isinstance(value, str) else compact(value, longest)}"
        for name, value in shown.items()
    )


def _clock(recorded_at: object) -> str:
    """Format a time in this machine's zone."""
    try:
        at = datetime.fromisoformat(str(recorded_at)) if recorded_at else datetime.now().astimezone()
    except ValueError:
        return "??:??:??.???"
    return at.astimezone().strftime("%H:%M:%S.%f")[:-3]
