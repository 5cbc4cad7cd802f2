"""No two public classes of the product share a name: who reads one must not wonder which it is."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIRE = ("adapters/*/wire*.py", "adapters/*/*/wire*.py", "gateway/executors/webhook/models.py")


def classes() -> Iterator[tuple[str, str]]:
    """All public classes that count, with where they are.

    Forms of the API and models of a protocol's messages are named as they are on the wire. What is for tests counts
    within its own package.
    """
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in product()}
    models = models_of(trees.values())
    for path, tree in trees.items():
        name = path.relative_to(ROOT)
        package = name.parts[0]
        if any(name.match(wire) for wire in WIRE):
            continue
        if name.parts[:2] == ("gateway", "testing"):
            package = "/".join(name.parts[: min(4, len(name.parts) - 1)])
        mark = "" if package in {"gateway", "adapters"} else f"{package}: "
        api = name.parts[:2] == ("gateway", "http")
        for node in classes_in(tree):
            if not node.name.startswith("_") and not (api and bases_of(node) & models):
                yield f"{mark}{node.name}", f"{name}:{node.lineno}"


def product() -> list[Path]:
    return sorted([*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")])


def classes_in(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def bases_of(node: ast.ClassDef) -> set[str]:
    return {part.id for base in node.bases for part in ast.walk(base) if isinstance(part, ast.Name)}


def models_of(trees: Iterable[ast.Module]) -> set[str]:
    """The names of all models of pydantic: what has a model among its bases is one."""
    nodes = [node for tree in trees for node in classes_in(tree)]
    models = {"BaseModel"}
    while more := {node.name for node in nodes if bases_of(node) & models} - models:
        models |= more
    return models


def test_no_two_public_classes_have_the_same_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in classes():
        found[name].append(place)
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared, "\n".join(f"{name}: {' '.join(places)}" for name, places in shared.items())
