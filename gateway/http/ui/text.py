"""Converts untrusted values to safe HTML: text, JSON with its losses, times and durations. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from markupsafe import Markup, escape

LONGEST_JSON = 64 * 1024
"""The maximum number of characters of one JSON value on a page."""
LONGEST_TEXT = 4_000
"""The maximum number of characters of one text on a page."""
_MOST_MEMBERS = 500
_DEEPEST = 60
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Control characters, including ANSI's escape, bidirectional controls, invisible characters and lone surrogates."""


def shorten(text: str, longest: int) -> str:
    """Return at most `longest` characters; an ellipsis marks a cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def reveal(text: object) -> Markup:
    """Escape a text for HTML, and replace hidden characters by visible escapes such as `\\u202e`."""
    parts: list[Markup] = []
    given, at = str(text), 0
    for match in _HIDDEN.finditer(given):
        code = ord(match[0])
        parts += [escape(given[at : match.start()]), Markup('<span class="esc">{}</span>').format(_name_of(code))]
        at = match.end()
    return Markup("").join([*parts, escape(given[at:])])


def reveal_short(text: object, longest: int = 200) -> Markup:
    """Return the first line of an untrusted text."""
    return reveal(shorten(" ".join(str(text)[: 4 * longest].split()), longest))


def reveal_long(text: object, longest: int = LONGEST_TEXT) -> Markup:
    """Return an untrusted text with its lines, up to a limit."""
    given = text if isinstance(text, str) else str(text)
    if len(given) <= longest:
        return reveal(given)
    return reveal(given[:longest]) + Markup('<span class="cut"> … {:,} characters</span>').format(len(given))


def _name_of(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@dataclass(slots=True)
class _Writer:
    marks: Mapping[str, str]
    """Notes by RFC 6901 pointer."""
    room: int = LONGEST_JSON
    parts: list[Markup] = field(default_factory=list[Markup])

    def add(self, kind: str, text: str) -> None:
        self.room -= len(text)
        self.parts.append(Markup('<span class="{}">{}</span>').format(kind, reveal(text)) if kind else reveal(text))


def json_markup(value: Any, losses: Sequence[Mapping[str, Any]] = ()) -> Markup:
    """Format a value as indented, colored JSON; a loss marks the place of its pointer."""
    marks = {str(one.get("path") or ""): f"{one.get('how')}: {one.get('note')}" for one in losses}
    writer = _Writer(marks)
    _write(writer, value, "", 0)
    if writer.room <= 0:
        writer.parts.append(Markup('<span class="cut">\n… cut here; the curl command below returns all of it</span>'))
    return Markup("").join(writer.parts)


def _write(writer: _Writer, value: Any, pointer: str, depth: int) -> None:
    if writer.room <= 0:
        return
    note = writer.marks.get(pointer)
    if note is not None and pointer:
        writer.parts.append(Markup('<mark title="{}">').format(reveal(note)))
    match value:
        case dict() if value:
            _write_members(writer, cast("dict[str, Any]", value).items(), pointer, depth, "{}")
        case list() if value:
            _write_members(writer, ((None, one) for one in cast("list[Any]", value)), pointer, depth, "[]")
        case str():
            shown = json.dumps(value[:LONGEST_TEXT], ensure_ascii=False)
            writer.add("s", shown)
            if len(value) > LONGEST_TEXT:
                writer.add("cut", f" … {len(value):,} characters")
        case _:
            writer.add("n", json.dumps(value, ensure_ascii=False))
    if note is not None and pointer:
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
        if number == _MOST_MEMBERS:
            writer.add("cut", f"{indent}… more than {_MOST_MEMBERS} members")
            break
        writer.add("", f",{indent}" if number else indent)
        key = str(number) if name is None else name
        if name is not None:
            writer.add("k", json.dumps(name[:LONGEST_TEXT], ensure_ascii=False))
            writer.add("", ": ")
        _write(writer, one, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}", depth + 1)
    writer.add("", "\n" + "  " * depth + brackets[1])


def compact(value: Any, longest: int = 160) -> str:
    """Return a value as JSON on one line."""
    return shorten(json.dumps(value, ensure_ascii=False)[: 4 * longest], longest)


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
    """Format a time relative to now, with one unit: `3 min ago`, `in 2 h`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    number, name = next((number, name) for number, name in _units(max(1, round(abs(seconds)))) if number)
    return f"{number} {name} ago" if seconds > 0 else f"in {number} {name}"
