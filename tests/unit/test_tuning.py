"""What tests want otherwise than production is a parameter; no name of the product is theirs to replace."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.runtime.tuning import Tuning

TESTS = Path(__file__).parents[1]
NO_TUNING = frozenset({"_MOUNTS", "_registered"})
"""Files of the machine, which a test cannot have otherwise, and the secrets that a process never forgets."""
_MAY_REPLACE = re.compile(r"setattr|(?<!\bself)\.(_\w*|[A-Z\d_]+)\s*=")
"""Stands in a source that replaces such a name."""


def replaced(source: str) -> set[str]:
    """Find the private names and the constants that a source replaces."""
    if not _MAY_REPLACE.search(source):
        return set()
    found = {name for node in ast.walk(ast.parse(source)) for name in _replaced_by(node)}
    return {name for name in found if name.isupper() or (name.startswith("_") and not name.startswith("__"))}


def _replaced_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(attr="setattr") | ast.Name(id="setattr"), args=[first, *rest]):
            match first, rest:
                case _, [ast.Constant(value=str(name)), *_]:
                    yield name
                case ast.Constant(value=str(path)), _:
                    yield path.rpartition(".")[2]
                case _:
                    pass
        case ast.Assign(targets=targets):
            for target in targets:
                match target:
                    case ast.Attribute(value=ast.Name(id="self")):
                        pass
                    case ast.Attribute(attr=name):
                        yield name
                    case _:
                        pass
        case _:
            pass


def test_no_test_replaces_a_private_name_or_a_constant() -> None:
    found = {path.name: names for path in TESTS.rglob("*.py") if (names := replaced(path.read_text()) - NO_TUNING)}
    assert not found


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('monkeypatch.setattr(engine, "_TRIES", 2)', {"_TRIES"}),
        ('monkeypatch.setattr("gateway.engine._TRIES", 2)', {"_TRIES"}),
        ('patched.setattr(engine, "MOST_TRIES", 2)', {"MOST_TRIES"}),
        ('monkeypatch.setattr("gateway.engine.TRIES", 2)', {"TRIES"}),
        ('setattr(engine, "TRIES", 2)', {"TRIES"}),
        ("engine.TRIES = 2", {"TRIES"}),
        ("engine._tries = 2", {"_tries"}),
        ('monkeypatch.setattr(SqliteEngine, "__aenter__", enter)', set[str]()),
        ('monkeypatch.setattr(engine, "read", read)', set[str]()),
        ("self._tries = 2", set[str]()),
    ],
)
def test_what_counts_as_replacing_one(source: str, names: set[str]) -> None:
    assert replaced(source) == names


def test_production_keeps_the_times_that_the_pages_promise() -> None:
    production = Tuning()
    assert production.tools_late + production.gauges < 60, "a lack of tools is reported within a minute"
    assert production.link_gives_up == 600, "a redirect is final only after ten minutes"
    assert production.autostart_longest == 60, "an autostart is retried every minute at least"
