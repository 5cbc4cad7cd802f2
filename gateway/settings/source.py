"""Reads a YAML file into plain values with their lines.

It accepts the JSON-like core of YAML 1.2: `true`/`false` only, no dates, no `1:30` numbers, no tags that make objects.
Sizes are bounded, and each use of an alias counts.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.errors import InvalidConfiguration, Problem
from gateway.settings.place import Finding, Place, write_place

MAX_BYTES = 1024**2
MAX_DEPTH = 64
MAX_VALUES = 50_000

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_CORE_TAG = "tag:yaml.org,2002:"
_FIXES = {
    "found character '\\t'": "indent with spaces, not tabs",
    "mapping values are not allowed here": "quote a text that contains ': ', and check the indentation",
    "expected a single document": "keep one document per file: remove the '---' in the middle",
    "found undefined alias": "define it with &name first, or quote a text that begins with *",
    "found character '@'": "quote a text that begins with @",
    "found character '`'": "quote a text that begins with `",
    "found character '%'": "quote a text that begins with %",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A file's values as JSON types, and the line of each."""

    values: Any
    lines: Mapping[Place, int]
    findings: tuple[Finding, ...] = ()
    """Errors that leave the rest readable, e.g. a duplicate key."""


@dataclass(frozen=True, slots=True)
class _Scalar:
    value: Any
    line: int
    complaint: str | None = None


@dataclass(frozen=True, slots=True)
class _List:
    items: list["_Node"]
    line: int


@dataclass(frozen=True, slots=True)
class _Mapping:
    entries: list[tuple[_Scalar, "_Node"]]
    line: int


_Node = _Scalar | _List | _Mapping


class _Unreadable(Exception):
    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read_source(path: Path) -> Source:
    """Read one configuration file.

    Raises:
        InvalidConfiguration: it is missing, unreadable, too large, not UTF-8, or not YAML.
    """
    try:
        return parse_source(_read_text(path))
    except _Unreadable as exc:
        raise InvalidConfiguration(str(path), (Problem(path="", message=str(exc), line=exc.line),)) from exc


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as exc:
        raise _Unreadable("there is no such file; check the path, or start from config/gateway.yaml") from exc
    except IsADirectoryError as exc:
        raise _Unreadable("this is a folder; name the YAML file in it") from exc
    except (OSError, ValueError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise _Unreadable(f"the file cannot be read ({reason}); check its permissions") from exc
    if len(content) > MAX_BYTES:
        raise _Unreadable(f"the file is larger than {MAX_BYTES:,} bytes; is this the configuration?")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise _Unreadable(f"byte {exc.start} is not UTF-8; save the file as UTF-8", line) from exc


def parse_source(text: str) -> Source:
    """Turn YAML text into values and lines."""
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        root = _read_document(events)
    except yaml.MarkedYAMLError as exc:
        raise _syntax(exc) from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise _Unreadable("a control character that YAML does not allow; remove or escape it", line) from exc
    flat = _Flat()
    values: Any = None if root is None else flat.take(root, ())
    # An empty file, or one of comments only, is a configuration of defaults.
    return Source(dict[str, Any]() if values is None else values, flat.lines, tuple(flat.findings))


def _syntax(exc: yaml.MarkedYAMLError) -> _Unreadable:
    mark = exc.problem_mark or exc.context_mark
    wrong = exc.problem or exc.context or "this is not YAML"
    fix = next((fix for start, fix in _FIXES.items() if (exc.problem or "").startswith(start)), None)
    if exc.context and exc.problem:
        wrong = f"{exc.context}, {exc.problem}"
    column = f" (column {mark.column + 1})" if mark else ""
    line = mark.line + 1 if mark else 1
    return _Unreadable(f"not YAML: {wrong}{column}{f'; {fix}' if fix else ''}", line)


def _read_document(events: Iterator[Any]) -> _Node | None:
    anchors: dict[str, _Node] = {}
    root: _Node | None = None
    documents = 0
    for event in events:
        match event:
            case yaml.DocumentStartEvent():
                documents += 1
                if documents > 1:
                    raise _Unreadable("a second document begins here; keep one document per file", _line(event))
            case yaml.StreamStartEvent() | yaml.StreamEndEvent() | yaml.DocumentEndEvent():
                pass
            case _:
                root = _read_node(event, events, anchors, 1)
    return root


def _line(event: Any) -> int:
    return event.start_mark.line + 1


def _read_node(event: Any, events: Iterator[Any], anchors: dict[str, _Node], depth: int) -> _Node:
    line = _line(event)
    if depth > MAX_DEPTH:
        raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels", line)
    match event:
        case yaml.AliasEvent():
            if event.anchor not in anchors:
                raise _Unreadable(f"found undefined alias {event.anchor!r}; define it with &{event.anchor} first", line)
            return anchors[event.anchor]
        case yaml.ScalarEvent():
            node: _Node = _read_scalar(event, line)
        case yaml.SequenceStartEvent():
            node = _List([], line)
            for item in events:
                if isinstance(item, yaml.SequenceEndEvent):
                    break
                node.items.append(_read_node(item, events, anchors, depth + 1))
        case _:
            node = _Mapping([], line)
            for item in events:
                if isinstance(item, yaml.MappingEndEvent):
                    break
                key = _read_node(item, events, anchors, depth + 1)
                value = _read_node(next(events), events, anchors, depth + 1)
                if not isinstance(key, _Scalar):
                    raise _Unreadable("a key must be a plain text", key.line)
                node.entries.append((key, value))
    # Registered only when complete, so that a value cannot contain itself.
    if event.anchor is not None:
        anchors[event.anchor] = node
    return node


def _read_scalar(event: yaml.ScalarEvent, line: int) -> _Scalar:
    text = event.value
    tag = event.tag if isinstance(event.tag, str) else None
    if tag not in (None, "!") and not tag.startswith(_CORE_TAG):
        return _Scalar(None, line, f"the tag {tag[:40]!r} is not supported; remove it")
    kind = tag.removeprefix(_CORE_TAG) if tag else None
    if kind not in (None, "!", "str", "int", "float", "bool", "null"):
        return _Scalar(None, line, f"the tag '!!{kind[:40]}' is not supported; remove it")
    if kind in ("!", "str") or (event.style is not None and kind is None):
        return _Scalar(text, line)
    return _resolve(text, line)


def _resolve(text: str, line: int) -> _Scalar:
    if text in _NULL:
        return _Scalar(None, line)
    if text in _BOOLEANS:
        return _Scalar(_BOOLEANS[text], line)
    if _NOT_FINITE.fullmatch(text):
        return _Scalar(None, line, f"{text} is not allowed in JSON; write a finite number, or quote it")
    if _INTEGER.fullmatch(text):
        number = int(text, 0 if text[:2] in ("0x", "0o") else 10) if len(text) <= 24 else 2**64
        small = -(2**63) <= number < 2**63
        complaint = None if small else "this whole number does not fit into 64 bits; quote it if it is a text"
        return _Scalar(number if small else None, line, complaint)
    return _resolve_float(text, line) if _FLOAT.fullmatch(text) else _Scalar(text, line)


def _resolve_float(text: str, line: int) -> _Scalar:
    value = float(text)
    if not math.isfinite(value):
        return _Scalar(None, line, "this number is too large; quote it if it is a text")
    return _Scalar(value, line)


class _Flat:
    """Converts nodes to plain values and expands aliases, within one budget for the whole file."""

    def __init__(self) -> None:
        self.lines: dict[Place, int] = {}
        self.findings: list[Finding] = []
        self._left = MAX_VALUES

    def take(self, node: _Node, place: Place, line: int | None = None) -> Any:
        self._spend(node)
        if len(place) > MAX_DEPTH:
            raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels, aliases written out", node.line)
        self.lines[place] = line or node.line
        match node:
            case _Scalar():
                if node.complaint:
                    self.findings.append(Finding(place, node.complaint))
                return node.value
            case _List():
                return [self.take(item, (*place, index)) for index, item in enumerate(node.items)]
            case _Mapping():
                return self._mapping(node, place)

    def _spend(self, node: _Node) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Unreadable(f"more than {MAX_VALUES:,} values, aliases written out; simplify the file", node.line)

    def _mapping(self, node: _Mapping, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[_Node] = []
        first: dict[str, int] = {}
        for key, value in node.entries:
            if key.value == "<<":
                merged += value.items if isinstance(value, _List) else [value]
                continue
            if not isinstance(key.value, str):
                self.lines[(*place, str(key.value))] = key.line
                text = f"the key {key.value!r} is not a text; write it in quotes: '{key.value}'"
                self.findings.append(Finding((*place, str(key.value)), text))
                continue
            inner = (*place, key.value)
            if key.value in first:
                text = (
                    f"duplicate key in {write_place(place) or 'the file'}, first on line {first[key.value]}; keep one"
                )
                self.lines[inner] = key.line
                self.findings.append(Finding(inner, text))
                continue
            first[key.value] = key.line
            values[key.value] = self.take(value, inner, key.line)
        for other in merged:
            values = self._merge(other, place, values)
        return values

    def _merge(self, node: _Node, place: Place, values: dict[str, Any]) -> dict[str, Any]:
        self._spend(node)
        if not isinstance(node, _Mapping):
            self.findings.append(Finding((*place, "<<"), "only a mapping (or a list of them) can be merged with <<"))
            return values
        missing = [(key, value) for key, value in node.entries if key.value not in values]
        return values | self._mapping(_Mapping(missing, node.line), place)
