"""Compares what two routes match. Pure."""

from fnmatch import fnmatchcase

from gateway.core.routing import CALL
from gateway.settings.routes import MatchSpec, RouteSpec

_WILD = frozenset("*?[")


def covers(above: RouteSpec, below: RouteSpec) -> bool:
    """Return whether one route certainly matches everything that another one matches; False if unsure."""
    one, other = above.match, below.match
    return (
        is_wider(one.runtime, other.runtime)
        and (one.tool is None or (other.tool is not None and is_wider(one.tool, other.tool)))
        and is_wider(one.event or CALL, other.event or CALL)
        and (one.arguments is None or one.arguments == other.arguments)
        and all(name in other.label and is_wider(glob, other.label[name]) for name, glob in one.label.items())
    )


def is_wider(pattern: str, other: str) -> bool:
    """Return whether a glob certainly matches everything that another one matches; False if unsure."""
    if pattern in ("*", other):
        return True
    if not has_wildcard(other):
        return fnmatchcase(other, pattern)
    # A pattern with stars only that matches the other pattern's text also matches everything that pattern matches.
    return not {"?", "["} & set(pattern) and fnmatchcase(other, pattern)


def may_overlap(one: MatchSpec, other: MatchSpec) -> bool:
    """Return whether two routes may match the same call; False for globs of which neither is the wider one."""
    return (
        _may_meet(one.runtime, other.runtime)
        and _may_meet(one.tool or "*", other.tool or "*")
        and all(_may_meet(glob, other.label[name]) for name, glob in one.label.items() if name in other.label)
    )


def has_wildcard(pattern: str) -> bool:
    """Return whether a text is a glob and no literal name."""
    return bool(_WILD & set(pattern))


def _may_meet(one: str, other: str) -> bool:
    return is_wider(one, other) or is_wider(other, one)
