"""How classes hang together: what has a Protocol has several implementers, and an object is whole once it is made."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORTS = frozenset({"gateway/adapter/port.py", "gateway/executors/port.py", "gateway/store/port.py", "gateway/clock.py"})
"""Where a stranger's class, or a test's clock, takes the place of ours."""


@cache
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

    @cache
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


def callbacks_put_in(modules: dict[str, ast.Module]) -> list[str]:
    """Find where an attribute that holds a callback is assigned by somebody else than its object."""
    names: set[str] = set()
    for tree in modules.values():
        for node in ast.walk(tree):
            match node:
                case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=kind):
                    if "Callable[" in ast.unparse(kind):
                        names.add(name)
                case _:
                    pass
    return [
        f"{place}:{node.lineno}"
        for place, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]


def test_no_callback_is_put_into_an_object_that_was_made_without_it() -> None:
    assert callbacks_put_in(production()) == []


def test_what_counts_as_putting_a_callback_in() -> None:
    made = "def __init__(self, b):\n    self.told: Callable[[], None] | None = None\n    b.told = self.x\n"
    assert callbacks_put_in({"a.py": ast.parse(made)}) == ["a.py:3"]
    assert callbacks_put_in({"a.py": ast.parse(made.replace("b.told", "self.told"))}) == []
