"""Production code reads the wall clock in the system clock only, and its order depends on no address.

A contract in `pyproject.toml` holds the modules.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READS = frozenset({"now", "utcnow", "today"})
TYPES = frozenset({"datetime", "date"})
ALLOWED = {
    "gateway/cli": "another process",
    "gateway/sdk": "somebody else's process",
    "gateway/testing": "the other side of the wire",
}
"""Folders that are no part of the gateway's process, and why."""


def found_by(look: Callable[[str], Iterator[tuple[int, str]]]) -> set[str]:
    """Look at each production module except those of other processes."""
    return {
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in ("gateway", "adapters")
        for path in (ROOT / folder).rglob("*.py")
        if not any(path.is_relative_to(ROOT / one) for one in ALLOWED)
        for line, text in look(path.read_text(encoding="utf-8"))
    }


def reads(source: str) -> Iterator[tuple[int, str]]:
    """Find reads of the wall clock by the classes of `datetime`, called or passed on."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in READS:
            owner = ast.unparse(node.value)
            if owner.rpartition(".")[2] in TYPES:
                yield node.lineno, f"{owner}.{node.attr}"


def test_only_other_processes_read_the_wall_clock() -> None:
    assert found_by(reads) == set()


@pytest.mark.parametrize(
    "source", ["datetime.now(UTC)", "dt.datetime.utcnow()", "field(default_factory=date.today)", "f(now=datetime.now)"]
)
def test_a_read_is_found(source: str) -> None:
    assert len(list(reads(source))) == 1


@pytest.mark.parametrize("source", ["clock.now()", "self._clock.now()", "datetime.fromtimestamp(0, UTC)"])
def test_a_clock_is_fine(source: str) -> None:
    assert not list(reads(source))


HASHED_BY_VALUE = frozenset(
    {"str", "int", "tuple", "None", "SessionId", "CallId", "InteractionId", "DedupeKey", "Direction"}
)


def sets_of_objects(source: str) -> Iterator[tuple[int, str]]:
    """Find sets whose members are hashed by their address, so that their order differs from run to run."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "set":
            names = {part for one in ast.walk(node.slice) for part in _names(one)}
            if names - HASHED_BY_VALUE:
                yield node.lineno, ast.unparse(node)


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(name) | ast.Constant(str(name)):
            yield name
        case ast.Attribute(attr=name):
            yield name
        case _:
            pass


def test_no_set_is_ordered_by_addresses() -> None:
    assert found_by(sets_of_objects) == set(), "use a dict with the value None"


def test_a_set_of_objects_is_found() -> None:
    assert [text for _, text in sets_of_objects("a: set[asyncio.Task[int]]; b: set[tuple[str, int]]")] == [
        "set[asyncio.Task[int]]"
    ]
