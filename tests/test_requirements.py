"""The manifest and the tests agree: every live rule has a test or a vector, and none names a rule that is not there."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.requirements import REQUIREMENTS

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parent / "gateway" / "conformance")


def ids_in_source(source: str) -> Iterator[str]:
    """Find what `mark.requirement(...)` names, wherever it stands: decorator, pytestmark or parameter."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="requirement", value=ast.Attribute(attr="mark")), args=args):
                for arg in args:
                    match arg:
                        case ast.Constant(value=str(name)):
                            yield name
                        case _:
                            yield f"not a literal: {ast.unparse(arg)}"
            case _:
                pass


def ids_in_vectors(content: Any) -> Iterator[str]:
    """Find the `requirements` of a vector file: one vector, a list of them, or a list under any name."""
    match content:
        case list():
            for item in cast("list[Any]", content):
                yield from _own(item)
        case dict():
            members = cast("dict[str, Any]", content)
            yield from _own(members)
            for member in members.values():
                for item in cast("list[Any]", member) if isinstance(member, list) else []:
                    yield from _own(item)
        case _:
            pass


def _own(vector: Any) -> Iterator[str]:
    match vector:
        case {"requirements": [*names]}:
            yield from map(str, names)
        case _:
            pass


def carried() -> dict[str, set[str]]:
    """Map each id that is named anywhere to the files that name it; nothing is imported for it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            for name in ids_in_source(path.read_text(encoding="utf-8")):
                found[name].add(path.name)
    for path in sorted((HERE / "vectors").glob("*/*.json")):
        for name in ids_in_vectors(json.loads(path.read_bytes())):
            found[name].add(f"{path.parent.name}/{path.name}")
    return dict(found)


def test_every_live_rule_has_a_test_or_a_vector() -> None:
    named = carried()
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, rule in REQUIREMENTS.items():
        if rule.live and name not in named:
            missing[rule.held_by].append(name)
    lines = [f"{room} ({len(names)}): {' '.join(names)}" for room, names in sorted(missing.items())]
    assert not lines, "rules without a test, by the room that keeps them:\n" + "\n".join(lines)


def test_every_rule_named_by_a_test_or_a_vector_is_in_the_manifest_and_live() -> None:
    wrong = {
        name: sorted(files)
        for name, files in carried().items()
        if name not in REQUIREMENTS or not REQUIREMENTS[name].live
    }
    assert wrong == {}, "unknown rules, or rules the manifest says are not live"


def test_the_manifest_has_every_rule_of_the_documents() -> None:
    expected = [f"L{n}" for n in range(1, 75)] + [f"N{n}" for n in range(1, 88)] + [f"A{n}" for n in range(1, 41)]
    letters = [chr(n) for n in range(ord("a"), ord("z") + 1)]
    expected += [f"H{n}" for n in range(1, 62)] + [f"H-{letter}" for letter in letters]
    expected += [f"H-{letter * 2}" for letter in letters[:10]] + [f"OH{n}" for n in range(1, 71)]
    assert list(REQUIREMENTS) == expected


def test_every_rule_says_what_it_asks_and_who_keeps_it() -> None:
    for name, rule in REQUIREMENTS.items():
        assert rule.source, name
        assert rule.behaviour.endswith("."), name
        assert rule.deferred is None or rule.not_ours is None, name
        assert (rule.held_by == "nobody") == (rule.not_ours is not None), name
        assert (rule.level == "A") == name.startswith(("A", "H-")), name


def test_ids_are_found_in_every_place_a_mark_can_stand() -> None:
    source = """
pytestmark = pytest.mark.requirement("X1")

class TestSuite:
    @pytest.mark.requirement("X2", "X3")
    async def test_one(self): ...

@pytest.mark.parametrize("a", [pytest.param(1, marks=pytest.mark.requirement("X4"))])
def test_two(a): ...

@pytest.mark.requirement(SOME_NAME)
def test_three(): ...
"""
    assert sorted(ids_in_source(source)) == ["X1", "X2", "X3", "X4", "not a literal: SOME_NAME"]


@pytest.mark.parametrize(
    "content",
    [
        {"requirements": ["X1"], "frame": {"requirements": ["payload, not a rule"]}},
        [{"requirements": ["X1"]}, {"name": "carries nothing"}],
        {"vectors": [{"requirements": ["X1"]}]},
    ],
)
def test_ids_are_found_in_every_form_of_vector_file(content: Any) -> None:
    assert list(ids_in_vectors(content)) == ["X1"]
