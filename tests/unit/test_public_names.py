"""Production code uses libraries by their public names only, and changes nothing inside them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("gateway", "adapters") for path in (ROOT / folder).rglob("*.py"))
OWN = frozenset({"gateway", "adapters"})
JUSTIFIED = {"gateway/cli/serve.py: os._exit": "Python documents it as public"}
"""Findings that stay, as `path: finding`, each with its reason."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in OWN


def foreign_names(tree: ast.Module) -> set[str]:
    """Collect the names by which a module reaches into libraries."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names if is_foreign(alias.name)}
            case ast.ImportFrom(module=str(module), level=0) if is_foreign(module):
                names |= {alias.asname or alias.name for alias in node.names}
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ) if value is not None and "import_module(" in ast.unparse(value):
                names.add(name)
            case _:
                pass
    return names


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def find_private_uses(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                paths = [alias.name for alias in node.names if is_foreign(alias.name)]
                yield from (path for path in paths if any(map(is_private, path.split("."))))
            case ast.ImportFrom(module=str(module), level=0) if is_foreign(module):
                paths = [f"{module}.{alias.name}" for alias in node.names]
                yield from (path for path in paths if any(map(is_private, path.split("."))))
            case ast.Attribute(attr=attr) if root_of(node) in foreign and (
                is_private(attr) or not isinstance(node.ctx, ast.Load)
            ):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="clear" | "pop" | "update", value=ast.Attribute(attr="__dict__"))):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[target, *_]) if root_of(target) in foreign:
                yield ast.unparse(node)
            case _:
                pass


@pytest.mark.parametrize(
    ("source", "finding"),
    [
        ("import aiohttp._websocket", "aiohttp._websocket"),
        ("from engineio.base_client import _clients", "engineio.base_client._clients"),
        ("import aiohttp\naiohttp.client._log(1)", "aiohttp.client._log"),
        ("x = import_module('socketio')\nx.packet._load", "x.packet._load"),
        ("import json\njson.loads = None", "json.loads"),
        ("import json\nsetattr(json, 'loads', None)", "setattr(json, 'loads', None)"),
        ("client.__dict__.clear()", "client.__dict__.clear()"),
    ],
)
def test_a_private_use_is_found(source: str, finding: str) -> None:
    assert list(find_private_uses(source)) == [finding]


def test_production_code_uses_no_private_name_of_a_library() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {finding}"
        for path in SOURCES
        for finding in find_private_uses(path.read_text(encoding="utf-8"))
    }
    assert found == set(JUSTIFIED)


def test_no_module_switches_the_check_of_private_members_off() -> None:
    """Ruff's SLF001 finds private members of objects, which names alone do not tell."""
    assert [path for path in SOURCES if "SLF001" in path.read_text(encoding="utf-8")] == []
