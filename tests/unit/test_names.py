"""Names say what everybody would call it, and no two public classes of the product share one."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIRE = ("adapters/*/wire*.py", "adapters/*/*/wire*.py", "gateway/sdk/dragoman/models/*.py")


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


PRIVATE = {
    "adopted": "taken over",
    "bell": "notification, or wake-up",
    "bulletin": "interaction feed",
    "carrier": "owner",
    "council": "runtime context",
    "courier": "event delivery",
    "dice": "jitter",
    "ground": "environment",
    "pump": "session actor",
    "relay": "forwarding",
    "seat": "player",
    "stage": "environment",
    "tally": "counters",
    "tenure": "lease",
    "witness": "record, or backend",
}
"""What we once called things, and what everybody calls them; log texts and labels of metrics are not looked at."""
ALLOWED = {
    "tests/bench/stages.py": {"stage"},  # the stages that a call goes through
    "tests/bench/test_bench.py": {"stage"},
    "tests/unit/packaging/test_container.py": {"stage"},  # as a Dockerfile has them
}


def words_of(path: Path) -> Iterator[tuple[str, int]]:
    """The words of a module's name, of its identifiers and docstrings, each with its line."""
    source = path.read_text(encoding="utf-8")
    if not any(word in f"{path.stem} {source}".lower() for word in PRIVATE):
        return
    tree = ast.parse(source)
    said = [(path.stem, 1)]
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        names = (getattr(node, part, None) for part in ("id", "attr", "name", "arg", "asname"))
        said += [(name, line) for name in names if isinstance(name, str)]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said.append((node.value.value, line))
    for text, line in said:
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text):
            yield word.lower(), line


def test_words_that_only_we_would_know_are_not_used() -> None:
    found: set[str] = set()
    for folder in ("gateway", "adapters", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            for word, line in words_of(path):
                if (one := word.removesuffix("s")) in PRIVATE and one not in ALLOWED.get(name, ()):
                    found.add(f"{name}:{line} {word}: {PRIVATE[one]}")
    assert not found, "\n".join(sorted(found))
