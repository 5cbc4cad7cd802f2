"""Places in the YAML, and findings at them. Pure."""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.errors import Problem, Severity

Place = tuple[str | int, ...]
"""Keys and list positions from the top of the file, e.g. ("routes", 2, "match", "tool")."""

_MOST_ALIKE = 4
"""Findings with the same text in one section that are listed; one more line counts the rest."""
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_*-]+")


@dataclass(frozen=True, slots=True)
class Finding:
    """An error, a warning or a note at a place; a note has no fix in the configuration."""

    place: Place
    message: str
    severity: Severity = "error"


def write_place(place: Place) -> str:
    """Write a place for display: `routes[2].match.tool`."""
    text = ""
    for step in place:
        match step:
            case int():
                text += f"[{step}]"
            case str() if _PLAIN_KEY.fullmatch(step):
                text += f".{step}" if text else step
            case str():
                text += f"[{step[:80]!r}]"
    return text


def line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """Find the line of a place, or of the nearest enclosing place in the file."""
    for end in range(len(place), -1, -1):
        line = lines.get(place[:end])
        if line is not None:
            return line
    return 1


def overlap(one: Place, other: Place) -> bool:
    """Whether one place is the other or lies inside it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def suggest(word: str, known: Iterable[str]) -> str:
    """Suggest the closest known word, or list the known words."""
    words = sorted(set(known))
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not words:
        return "none is configured"
    shown = ", ".join(words[:12])
    return f"known: {shown}{', …' if len(words) > 12 else ''}"


def report(findings: Iterable[Finding], lines: Mapping[Place, int]) -> tuple[Problem, ...]:
    """Sort findings by line without duplicates; of many with the same text, list the first ones and count the rest."""
    alike = defaultdict[tuple[str | int | None, str, str], dict[Problem, None]](dict)
    for finding in findings:
        problem = Problem(
            path=write_place(finding.place),
            message=finding.message,
            line=line_of(finding.place, lines),
            severity=finding.severity,
        )
        alike[next(iter(finding.place), None), finding.message, finding.severity][problem] = None
    problems = [problem for group in alike.values() for problem in _shorten(sorted(group, key=_order))]
    return tuple(sorted(problems, key=_order))


def _order(problem: Problem) -> tuple[int, str, str]:
    return problem.line or 1, problem.path, problem.message


def _shorten(group: list[Problem]) -> list[Problem]:
    shown, rest = group[:_MOST_ALIKE], group[_MOST_ALIKE:]
    if len(rest) <= 1:
        return group
    return [*shown, replace(rest[0], message=f"{rest[0].message} (and {len(rest) - 1} more like this)")]
