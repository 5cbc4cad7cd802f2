"""What tests want otherwise than production is a parameter; a private name is nobody's to replace."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
NO_TUNING = frozenset({"_MOUNTS", "_SHARED_FOLDERS", "_known", "_pattern"})
"""Files of the machine, which a test cannot have otherwise, and the secrets that a process never forgets."""


def replaced(source: str) -> set[str]:
    """Find the private names that a source replaces."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]):
                found.add(path.rpartition(".")[2])
            case _:
                pass
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_no_test_replaces_a_private_name() -> None:
    found = {path.name: names for path in TESTS.rglob("*.py") if (names := replaced(path.read_text()) - NO_TUNING)}
    assert not found


def test_what_counts_as_replacing_one() -> None:
    assert replaced('monkeypatch.setattr(engine, "_TRIES", 2)\n') == {"_TRIES"}
    assert replaced('monkeypatch.setattr("gateway.engine._TRIES", 2)\n') == {"_TRIES"}
    assert replaced('monkeypatch.setattr(SqliteEngine, "__aenter__", f)\nmonkeypatch.setattr(a, "TRIES", 1)\n') == set()
