"""A Protocol is there for what has several implementers, or for a port that others plug into."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORTS = frozenset({"gateway/adapter/port.py", "gateway/executors/port.py", "gateway/store/port.py", "gateway/clock.py"})
"""Where a stranger's class, or a test's clock, takes the place of ours."""


def production() -> dict[str, ast.Module]:
    """All modules that run in production, by path."""
    paths = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}
    return {name: ast.parse(path.read_text()) for name, path in names.items() if "gateway/testing/" not in name}


def bases(node: ast.ClassDef) -> set[str]:
    return {one.id for base in node.bases for one in ast.walk(base) if isinstance(one, ast.Name)}


def members(node: ast.ClassDef) -> Iterator[str]:
    """What a class has of its own: methods, fields, and what its methods set on themselves."""
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def implementers(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Each Protocol outside the ports, with the classes that have all its members."""
    found = [(place, one) for place, tree in modules.items() for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]
    known = {one.name: one for _, one in found}

    def all_of(name: str) -> set[str]:
        if name not in known:
            return set()
        own = set(members(known[name]))
        return own.union(*(all_of(base) for base in bases(known[name]) - {name}))

    protocols = [(place, one) for place, one in found if "Protocol" in bases(one)]
    classes = {one.name for _, one in found} - {one.name for _, one in protocols}
    return {
        f"{place}: {one.name}": {name for name in classes if all_of(one.name) <= all_of(name)}
        for place, one in protocols
        if place not in PORTS
    }


def test_no_protocol_has_one_implementer() -> None:
    found = implementers(production())
    assert {name: sorted(those) for name, those in found.items() if len(those) < 2} == {}


def test_what_counts_as_an_implementer() -> None:
    one = "class Wire(Protocol):\n    def send(self): ...\n\nclass Socket:\n    def send(self): ...\n"
    assert implementers({"a.py": ast.parse(one)}) == {"a.py: Wire": {"Socket"}}
    more = "class Base:\n    def send(self): ...\n\nclass Pipe(Base):\n    size: int\n"
    assert implementers({"a.py": ast.parse(one), "b.py": ast.parse(more)}) == {"a.py: Wire": {"Socket", "Base", "Pipe"}}
