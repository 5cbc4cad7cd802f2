"""No two public classes of the product share a name: who reads one must not wonder which it is."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIRE = ("adapters/*/wire*.py", "adapters/*/*/wire*.py", "gateway/executors/webhook/models.py")


def classes() -> Iterator[tuple[str, str]]:
    """All public classes that count, with where they are.

    Forms of the API and models of a protocol's messages are named as they are on the wire. What is for tests counts
    within its own package.
    """
    for path in sorted([*(ROOT / "gateway").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")]):
        name = path.relative_to(ROOT)
        package = name.parts[0]
        if any(name.match(wire) for wire in WIRE):
            continue
        if name.parts[:2] == ("gateway", "testing"):
            package = "/".join(name.parts[: min(4, len(name.parts) - 1)])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if name.parts[:2] == ("gateway", "http") and is_model(node):
                    continue
                product = package in {"gateway", "adapters"}
                yield (node.name if product else f"{package}: {node.name}"), f"{name}:{node.lineno}"


def is_model(node: ast.ClassDef) -> bool:
    """Whether it is a form of the API, in the modules that hold nothing else."""
    return any(isinstance(base, ast.Name) for base in node.bases) and node.name != "Protocol"


def test_no_two_public_classes_have_the_same_name() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for name, place in classes():
        found[name].append(place)
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert not shared, "\n".join(f"{name}: {' '.join(places)}" for name, places in shared.items())
