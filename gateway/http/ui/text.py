"""Converts untrusted values to safe HTML: text, JSON with its losses, times and durations. Pure."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from markupsafe import Markup, escape

from gateway.core.nulls import NULL_NOTE
from gateway.visible import is_hidden, show_hidden

LONGEST_JSON = 64 * 1024
"""The maximum number of characters of one JSON value on a page."""
LONGEST_TEXT = 4_000
"""The maximum number of characters of one text on a page."""
_CONTENT = frozenset(
    {
        "answer", "arguments", "choices", "content", "context", "data", "error", "extra_args", "instructions", "reason",
        "result", "text", "thought", "tools", "updates", "value",
    }
)  # fmt: skip
"""The members of events and native messages in which senders write; others are ids, times and flags."""
_NOT_PLAIN = re.compile(r"[^\n -~]")
_MOST_MEMBERS = 500
_DEEPEST = 60


def shorten(text: str, longest: int) -> str:
    """Return at most `longest` characters; an ellipsis marks a cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def reveal(text: object) -> Markup:
    """Escape a text for HTML, and show hidden characters except tabs and line feeds as escapes."""
    return Markup(show_hidden(str(escape(str(text))), '<span class="esc">{}</span>'.format, keep="\t\n"))  # noqa: S704


def reveal_short(text: object, longest: int = 200) -> Markup:
    """Return the first line of an untrusted text."""
    return reveal(shorten(" ".join(str(text)[: 4 * longest].split()), longest))


def plain(text: object, longest: int = 200) -> str:
    """Return the first line of an untrusted text for an attribute or a title, which cannot contain markup."""
    return show_hidden(shorten(" ".join(str(text)[: 4 * longest].split()), longest))


def reveal_long(text: object, longest: int = LONGEST_TEXT) -> Markup:
    """Return an untrusted text with its lines, up to a limit."""
    given = text if isinstance(text, str) else str(text)
    if len(given) <= longest:
        return reveal(given)
    return reveal(given[:longest]) + Markup('<span class="cut"> … {:,} characters</span>').format(len(given))


def drops_content(loss: Mapping[str, Any]) -> bool:
    """Return whether a receiver does not get content that the sender wrote; other losses only adapt its form."""
    in_content = not _CONTENT.isdisjoint(str(loss["path"]).split("/"))
    return loss["how"] == "dropped" and in_content and loss["note"] != NULL_NOTE


def describe_losses(losses: Iterable[Mapping[str, Any]]) -> str:
    """List losses in one text."""
    return "; ".join(f"{one['how']} {one['path'] or '/'}" + f": {one['note']}" * bool(one["note"]) for one in losses)


@dataclass(slots=True)
class _Writer:
    marks: Mapping[str, Mapping[str, Any]]
    """Losses by RFC 6901 pointer."""
    whole: bool
    """Whether nothing is cut."""
    room: float = LONGEST_JSON
    parts: list[Markup] = field(default_factory=list[Markup])

    def add(self, kind: str, text: str) -> None:
        self.room -= len(text)
        self.parts.append(Markup('<span class="{}">{}</span>').format(kind, reveal(text)) if kind else reveal(text))


def json_markup(value: Any, losses: Sequence[Mapping[str, Any]] = (), *, whole: bool = False) -> Markup:
    """Format a value as indented, colored JSON, `whole` or cut; a loss marks the place of its pointer."""
    marks = {str(one["path"]): one for one in losses}
    writer = _Writer(marks, whole, math.inf if whole else LONGEST_JSON)
    _write(writer, value, "", 0)
    if writer.room <= 0:
        writer.parts.append(Markup('<span class="cut">\n… cut here; the page of the event shows all of it</span>'))
    return Markup("").join(writer.parts)


def argument_markup(value: Any) -> Markup:
    """Format a whole argument: a text without quotes, unless it could be taken for no text, a number, true or null."""
    if isinstance(value, str) and value.strip() and not _is_scalar(value):
        return reveal(value)
    return json_markup(value, whole=True)


def _is_scalar(text: str) -> bool:
    try:
        return not isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _write(writer: _Writer, value: Any, pointer: str, depth: int) -> None:
    if writer.room <= 0:
        return
    loss = writer.marks.get(pointer)
    if loss is not None and pointer:
        kind = "dropped" if drops_content(loss) else "adapted"
        writer.parts.append(Markup('<mark class="{}" title="{}">').format(kind, plain(describe_losses([loss]), 400)))
    match value:
        case dict() | list() if writer.whole and depth == _DEEPEST:
            # Each further level would take a line with its indentation for each member.
            writer.add("n", json.dumps(value, ensure_ascii=False))
        case dict() if value:
            _write_members(writer, cast("dict[str, Any]", value).items(), pointer, depth, "{}")
        case list() if value:
            _write_members(writer, ((None, one) for one in cast("list[Any]", value)), pointer, depth, "[]")
        case str():
            longest = len(value) if writer.whole else LONGEST_TEXT
            writer.add("s", json.dumps(value[:longest], ensure_ascii=False))
            if len(value) > longest:
                writer.add("cut", f" … {len(value):,} characters")
        case _:
            writer.add("n", json.dumps(value, ensure_ascii=False))
    if loss is not None and pointer:
        writer.parts.append(Markup("</mark>"))


def _write_members(writer: _Writer, members: Any, pointer: str, depth: int, brackets: str) -> None:
    writer.add("", brackets[0])
    if depth >= _DEEPEST:
        writer.add("cut", " … ")
        writer.add("", brackets[1])
        return
    indent = "\n" + "  " * (depth + 1)
    for number, (name, one) in enumerate(members):
        if writer.room <= 0:
            return
        if number == _MOST_MEMBERS and not writer.whole:
            writer.add("cut", f"{indent}… more than {_MOST_MEMBERS} members")
            break
        writer.add("", f",{indent}" if number else indent)
        key = str(number) if name is None else name
        if name is not None:
            writer.add("k", json.dumps(name if writer.whole else name[:LONGEST_TEXT], ensure_ascii=False))
            writer.add("", ": ")
        _write(writer, one, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", depth + 1)
    writer.add("", "\n" + "  " * depth + brackets[1])


def compact(value: Any, longest: int = 160) -> str:
    """Return a value as JSON on one line."""
    return shorten(json.dumps(value, ensure_ascii=False)[: 4 * longest], longest)


def editable(value: Any) -> str:
    """Return a value as indented JSON for a text field; hidden characters are escapes of JSON."""
    return _NOT_PLAIN.sub(_escape_hidden, json.dumps(value, ensure_ascii=False, indent=2))


def _escape_hidden(found: re.Match[str]) -> str:
    character = found[0]
    if not is_hidden(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def read_time(text: str) -> datetime:
    """Parse a time of the API."""
    return datetime.fromisoformat(text)


def duration(span: timedelta | float) -> str:
    """Format a duration with its two largest units: `40 ms`, `1.24 s`, `2 h 3 min`."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.00095:
        return f"{seconds * 1_000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + " s"
    return " ".join(_two(_units(round(seconds))))


def _units(seconds: int) -> Iterator[tuple[int, str]]:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        yield seconds // size, name
        seconds %= size


def _two(units: Iterator[tuple[int, str]]) -> list[str]:
    found = [(number, name) for number, name in units]
    first = next(at for at, (number, _) in enumerate(found) if number)
    return [f"{number} {name}" for number, name in found[first : first + 2] if number]


def ago(at: datetime, now: datetime) -> str:
    """Format a time relative to now, within an hour with seconds: `3 min 20 s ago`, `in 2 h`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    whole = max(1, round(abs(seconds)))
    text = " ".join(_two(_units(whole))[: 2 if whole < 3_600 else 1])
    return f"{text} ago" if seconds > 0 else f"in {text}"
