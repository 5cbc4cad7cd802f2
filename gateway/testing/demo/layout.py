"""Formats a recorded message in a few lines of a given width; omitted members are counted. Pure."""

import json
import re
from collections.abc import Collection, Iterator
from itertools import starmap
from typing import Any, cast

SHORT = 8
"""The number of characters of an id that are shown."""
_MORE = "\0more"
_ID = re.compile(r"(?=\S*\d)[\w+/=.:,-]{21,}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
_BEFORE = re.compile(r"[0-9]*(?=[\[{])|data: (?=[\[{])")
_NAMES = {"type", "kind", "method", "outcome"}
"""Members that identify the type of a message."""

Json = Any


def lay_out(message: str, width: int, most: int, keep: Collection[str] = ()) -> list[str]:
    """Format a message: indent JSON and keep its transport prefix; truncate other text.

    Args:
        message: The recorded text.
        width: The width of a line in characters.
        most: The maximum number of lines.
        keep: Values that are omitted last.
    """
    lines: list[str] = []
    for line in message.strip().splitlines():
        before = _BEFORE.match(line)
        try:
            value = json.loads(line[before.end() :] if before else line)
        except ValueError:
            lines.append(cut(line, width))
            continue
        lines += _fitted(before.group() if before else "", value, width, most - len(lines), keep)
    return lines


def cut(text: str, width: int) -> str:
    """Truncate a text."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_id(text: str) -> str:
    """Truncate a text if it is an id or a long number."""
    return f"{text[:SHORT]}…" if _ID.fullmatch(text) else text


def _fitted(before: str, value: Json, width: int, most: int, keep: Collection[str]) -> list[str]:
    def worth(leaf: tuple[dict[str, Json], str, Json]) -> int:
        return 6 if isinstance(leaf[2], str) and leaf[2] in keep else _worth(leaf[1], leaf[2])

    while True:
        lines = [f"{before}{line}" if n == 0 else line for n, line in enumerate(_write(value, len(before), width, 0))]
        if len(lines) <= most:
            return lines
        # Among members of the same worth, omit the last one.
        worst = min(reversed(list(_leaves(value))), key=worth, default=None)
        if worst is None:
            return [*lines[: most - 1], "…"]
        holder, key, _ = worst
        del holder[key]
        holder[_MORE] = holder.get(_MORE, 0) + 1


def _leaves(value: Json) -> Iterator[tuple[dict[str, Json], str, Json]]:
    """List the members without inner members; a namespaced member (`a/b`) counts as one."""
    if isinstance(value, list):
        for each in cast("list[Json]", value):
            yield from _leaves(each)
    if isinstance(value, dict):
        members = cast("dict[str, Json]", value)
        for key, each in members.items():
            inner = [] if "/" in key else list(_leaves(each))
            if key != _MORE:
                yield from inner or [(members, key, each)]


def _worth(key: str, value: Json) -> int:
    """Rate the importance of a member to a reader."""
    if "/" in key:
        return 1
    if not isinstance(value, str):
        return 3 if isinstance(value, int | float) and value is not False else 0
    if "://" in value or _TIME.match(value):
        return 1
    return 2 if _ID.fullmatch(value) else 5 if key in _NAMES else 4


def _write(value: Json, at: int, width: int, indent: int) -> list[str]:
    """Write a value; the first line starts at column `at`, the others at the indent."""
    if at + len(_whole(value)) <= width or not (isinstance(value, dict | list) and value):
        return [_scalar(value, width - at)]
    if isinstance(value, list):
        return _write_list(cast("list[Json]", value), at, width, indent)
    lines: list[str] = []
    members = cast("dict[str, Json]", value)
    for n, (key, each) in enumerate(members.items(), 1):
        start = "{" if n == 1 else " " * (indent + 1)
        end = "}" if n == len(members) else ","
        if key == _MORE:
            lines.append(f"{start}… {each} more{end}")
            continue
        name = f"{start}{json.dumps(key, ensure_ascii=False)}:"
        column = len(name) + 1 + (at if n == 1 else 0)
        beside = _write(each, column, width - len(end), indent + 2)
        below = _write(each, indent + 2, width - len(end), indent + 2)
        if _cuts(below) < _cuts(beside) and isinstance(each, dict | list):
            lines += [name, f"{' ' * (indent + 2)}{below[0]}", *below[1:]]
        else:
            lines += [f"{name} {beside[0]}", *beside[1:]]
        lines[-1] += end
    return lines


def _write_list(items: list[Json], at: int, width: int, indent: int) -> list[str]:
    """Write the items one below another; simple items before the last one share its line."""
    if not any(isinstance(each, dict | list) for each in items[:-1]):
        before = "".join(f"{_whole(each)}, " for each in items[:-1])
        beside = _write(items[-1], at + 1 + len(before), width - 1, indent + 1)
        below = _write(items[-1], indent + 1, width - 1, indent + 1)
        if before and _cuts(below) < _cuts(beside):
            last = [f"[{before.rstrip()}", f"{' ' * (indent + 1)}{below[0]}", *below[1:]]
        else:
            last = [f"[{before}{beside[0]}", *beside[1:]]
        last[-1] += "]"
        return last
    lines: list[str] = []
    for n, each in enumerate(items, 1):
        inner = _write(each, at + 1 if n == 1 else indent + 1, width - 1, indent + 1)
        lines += [f"{'[' if n == 1 else ' ' * (indent + 1)}{inner[0]}", *inner[1:]]
        lines[-1] += "]" if n == len(items) else ","
    return lines


def _cuts(lines: list[str]) -> int:
    return sum(line.count("…") for line in lines)


def _whole(value: Json) -> str:
    """Write a value on one line."""
    match value:
        case dict():
            return f"{{{', '.join(starmap(_member, cast('dict[str, Json]', value).items()))}}}"
        case list():
            return f"[{', '.join(map(_whole, cast('list[Json]', value)))}]"
        case str():
            return json.dumps(cut_id(value), ensure_ascii=False)
        case _:
            return json.dumps(value)


def _member(key: str, value: Json) -> str:
    return f"… {value} more" if key == _MORE else f"{json.dumps(key, ensure_ascii=False)}: {_whole(value)}"


def _scalar(value: Json, width: int) -> str:
    whole = _whole(value)
    return whole if len(whole) <= width or not isinstance(value, str) else f'{cut(whole[:-1], max(width - 1, 4))}"'
