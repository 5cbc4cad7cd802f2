"""The manifest and the tests agree: every live rule has a test or a vector, and none names a rule that is not there."""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.requirements import REQUIREMENTS

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parent / "gateway" / "testing" / "conformance")


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOVED = {"faults", "slow"}
"""Marks of what `make test` leaves out."""


def quick(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through the tests of `make test`: past what carries a mark that moves it, as a whole file or in part."""
    match tree:
        case ast.Module(body=body) if any(_is_pytestmark(node) and _is_moved(node) for node in body):
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if any(map(_is_moved, tree.decorator_list)):
            return
        case ast.Call(func=ast.Attribute(attr="param"), keywords=named) if any(map(_is_moved, named)):
            return
        case _:
            yield tree
            for child in ast.iter_child_nodes(tree):
                yield from quick(child)


def _is_pytestmark(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="pytestmark")]):
            return True
        case _:
            return False


def _is_moved(node: ast.AST) -> bool:
    match node:
        # The parameters of a decorated test are looked at one by one.
        case ast.Call(func=ast.Attribute(attr="parametrize")):
            return False
        case ast.Attribute(attr=name, value=ast.Attribute(attr="mark")) if name in MOVED:
            return True
        case _:
            return any(map(_is_moved, ast.iter_child_nodes(node)))


def ids_in_source(source: str) -> Iterator[str]:
    """Find what `mark.requirement(...)` names, wherever it stands: decorator, pytestmark or parameter."""
    if "requirement" in source:
        yield from _ids_in(ast.walk(ast.parse(source)))


def ids_of_make_test(source: str) -> Iterator[str]:
    """Find what tests name that `make test` runs."""
    if "requirement" in source:
        yield from _ids_in(quick(ast.parse(source)))


def _ids_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
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


def owned(ids_in: Callable[[str], Iterable[str]] = ids_in_source) -> dict[str, set[str]]:
    """Map each id that is named anywhere to the files that name it; nothing is imported for it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            for name in ids_in(path.read_text(encoding="utf-8")):
                found[name].add(path.name)
    for path in sorted((HERE / "vectors").glob("*/*.json")):
        for name in ids_in_vectors(json.loads(path.read_bytes())):
            found[name].add(f"{path.parent.name}/{path.name}")
    return dict(found)


def test_every_live_rule_has_a_test_or_a_vector() -> None:
    named = owned(ids_of_make_test)
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for name, rule in REQUIREMENTS.items():
        if rule.live and name not in named:
            missing[rule.held_by].append(name)
    lines = [f"{room} ({len(names)}): {' '.join(names)}" for room, names in sorted(missing.items())]
    assert not lines, "rules without a test in `make test`, by the room that keeps them:\n" + "\n".join(lines)


PORTS = ("adapter/port.py", "clock.py", "executors/port.py", "store/port.py")


def port_methods() -> Iterator[tuple[str, str]]:
    """All methods of the ports, with the file that has them."""
    for path in [HERE.parent / "gateway" / name for name in PORTS]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.ClassDef(bases=[ast.Name(id="Protocol")], body=body):
                    yield from ((path.name, one.name) for one in body if isinstance(one, _FUNCTIONS))
                case _:
                    pass


def test_every_method_of_a_port_has_a_test_in_make_test() -> None:
    methods = list(port_methods())
    assert len(methods) > 50
    missing = {name for _, name in methods if not name.startswith("__")}
    for folder in FOLDERS:
        for path in folder.rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if any(name in source for name in missing):
                nodes = list(quick(ast.parse(source)))
                missing -= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
                # What a double has, the product asks for.
                missing -= {node.name for node in nodes if isinstance(node, _FUNCTIONS)}
                missing -= {node.id for node in nodes if isinstance(node, ast.Name)}
    assert [f"{file}: {name}" for file, name in methods if name in missing] == []


def test_what_is_moved_to_make_faults_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\S+)` \| \d", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    moved = set[str]()
    for path in HERE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if not any(f"mark.{mark}" in source for mark in MOVED):
            continue
        tree = ast.parse(source)
        if len(list(ast.walk(tree))) != len(list(quick(tree))):
            moved.add(f"{path.relative_to(HERE).parts[0]}/")
    assert listed == moved, "tests/README.md lists the folders of what is moved, with their seconds"


def test_the_targets_leave_out_and_run_what_is_marked() -> None:
    makefile = (HERE.parent / "Makefile").read_text(encoding="utf-8")
    [left_out] = re.findall(r"pytest .*-m \"(.*?)\"", makefile)
    assert left_out == " and ".join(f"not {mark}" for mark in sorted(MOVED))
    assert f"({' or '.join(sorted(MOVED))})" in (HERE / "faults" / "table.py").read_text(encoding="utf-8")
    assert "faults FAULTS=--all" in makefile
    script = (HERE.parent / ".ci" / "run").read_text(encoding="utf-8")
    assert "make all" in script.splitlines()


def test_what_is_moved_to_make_faults_is_told_from_what_is_not() -> None:
    source = """
@pytest.mark.slow
@pytest.mark.requirement("X1")
def test_one(): ...

@pytest.mark.parametrize("a", [
    pytest.param(1, marks=[pytest.mark.slow, pytest.mark.requirement("X2")]),
    pytest.param(2, marks=pytest.mark.requirement("X3")),
])
def test_two(a): ...

class TestThree:
    pytestmark = pytest.mark.requirement("X4")
"""
    assert list(ids_of_make_test(source)) == ["X3", "X4"]
    assert list(ids_of_make_test(f"pytestmark = [pytest.mark.faults]\n{source}")) == []


def test_every_rule_named_by_a_test_or_a_vector_is_in_the_manifest_and_live() -> None:
    wrong = {
        name: sorted(files)
        for name, files in owned().items()
        if name not in REQUIREMENTS or not REQUIREMENTS[name].live
    }
    assert wrong == {}, "unknown rules, or rules the manifest says are not live"


def test_the_manifest_has_every_rule_of_the_documents() -> None:
    expected = [f"L{n}" for n in range(1, 75)] + [f"N{n}" for n in range(1, 88)] + [f"A{n}" for n in range(1, 41)]
    letters = [chr(n) for n in range(ord("a"), ord("z") + 1)]
    expected += [f"H{n}" for n in range(1, 62)] + [f"H-{letter}" for letter in letters]
    expected += [f"H-{letter * 2}" for letter in letters[:10]] + [f"OH{n}" for n in range(1, 71)]
    expected += [f"OV{n}" for n in range(1, 50)] + ["OV49a"] + [f"OV{n}" for n in range(50, 94)]
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
