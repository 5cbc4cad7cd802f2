"""Fills in `${VAR}`, `${VAR:-default}` and `file:/run/secrets/x` in the string values of a configuration.

Expansion happens after parsing, so no value can change the structure, and an expanded value is not expanded or parsed
again. Messages never quote an expanded value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from gateway.settings.place import Finding, Place

MAX_SECRET_FILE = 64 * 1024

_SHORTEST_HIDDEN = 4
_REFERENCE = re.compile(r"\$(?:\$\{|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<bad>\{))")
_FILE = re.compile(r"file:(?!//)(?P<path>\.{0,2}/.+)")


@dataclass(frozen=True, slots=True)
class Expanded:
    """The expanded values, and the parts of them that come from outside the file."""

    values: Any
    outside: Mapping[Place, tuple[str, str]]
    """Each such value, and its text in the file."""
    empty: Mapping[Place, tuple[str, ...]]
    """The empty variables of each value."""
    filled: Mapping[Place, tuple[str, ...]]
    """Each such value, and the texts that variables and files contributed."""
    findings: tuple[Finding, ...] = ()

    def hide(self, message: str) -> str:
        """Replace expanded values in a message by their text in the file."""
        for value, written in sorted(self.outside.values(), key=lambda pair: -len(pair[0])):
            message = message.replace(repr(value), repr(written))
            # Replacing shorter values would garble other words, and they are not secrets.
            if len(value) >= _SHORTEST_HIDDEN:
                message = message.replace(value, written)
        return message


@dataclass(frozen=True, slots=True)
class _Notes:
    env: Mapping[str, str]
    folder: Path
    outside: dict[Place, tuple[str, str]] = field(default_factory=dict[Place, tuple[str, str]])
    empty: dict[Place, tuple[str, ...]] = field(default_factory=dict[Place, tuple[str, ...]])
    filled: dict[Place, tuple[str, ...]] = field(default_factory=dict[Place, tuple[str, ...]])
    findings: list[Finding] = field(default_factory=list[Finding])


def expand(values: Any, *, env: Mapping[str, str], folder: Path) -> Expanded:
    """Expand every string value, but no keys. Relative `file:` paths start at `folder`."""
    notes = _Notes(env, folder)
    expanded = _walk(values, (), notes)
    return Expanded(expanded, notes.outside, notes.empty, notes.filled, tuple(notes.findings))


def _walk(value: Any, place: Place, notes: _Notes) -> Any:
    match value:
        case str():
            return _expand_text(value, place, notes)
        case dict():
            mapping = cast("dict[str, Any]", value)
            return {key: _walk(inner, (*place, key), notes) for key, inner in mapping.items()}
        case list():
            items = cast("list[Any]", value)
            return [_walk(inner, (*place, index), notes) for index, inner in enumerate(items)]
        case _:
            return value


def _expand_text(text: str, place: Place, notes: _Notes) -> str:
    expanded = _fill_in(text, place, notes)
    # Tool descriptions and schemas are texts for the agent, so `file:` has no meaning in them.
    found = None if place[:1] == ("tools",) else _FILE.fullmatch(text)
    if found:
        expanded = _read_secret(_fill_in(found["path"], place, notes), place, notes) or text
    if expanded != text:
        notes.outside[place] = (expanded, text)
        if found or place in notes.filled:
            notes.filled[place] = (expanded, *notes.filled.get(place, ()))
    return expanded


def _fill_in(text: str, place: Place, notes: _Notes) -> str:
    def replace(found: re.Match[str]) -> str:
        if found["bad"]:
            notes.findings.append(
                Finding(
                    place, "'${' starts no variable here; write ${NAME} or ${NAME:-default}, or $${ for a plain '${'"
                )
            )
            return found[0]
        name = found["name"]
        if not name:
            return "${"
        given = notes.env.get(name)
        if given is not None:
            # Editors and `echo` add line breaks and spaces around a value; no setting needs them.
            given = given.strip()
        if found["default"] is not None:
            given = given or found["default"]
        if given == "":
            notes.empty[place] = (*notes.empty.get(place, ()), name)
        if given is None:
            notes.findings.append(
                Finding(place, f"the environment variable {name} is not set; set it, or add it to .env")
            )
            return found[0]
        notes.filled[place] = (*notes.filled.get(place, ()), given)
        return given

    return _REFERENCE.sub(replace, text)


def _read_secret(name: str, place: Place, notes: _Notes) -> str | None:
    path = notes.folder / name
    try:
        if path.is_fifo():
            # Opening a pipe would block until a writer opens it.
            raise ValueError("it is a pipe, not a file")
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_FILE + 1)
        if len(content) > MAX_SECRET_FILE:
            raise ValueError(f"it is larger than {MAX_SECRET_FILE:,} bytes")
        return content.decode("utf-8").strip()
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except OSError as exc:
        reason = (exc.strerror or "it cannot be opened").lower()
    except ValueError as exc:
        reason = str(exc)
    notes.findings.append(
        Finding(place, f"the file it names cannot be used ({reason}); check the path and its permissions")
    )
    return None
