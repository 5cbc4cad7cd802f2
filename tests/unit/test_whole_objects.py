"""An object can all that it can once it is made; entering or starting it gives it nothing that it lacked."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BEGINS = frozenset({"__aenter__", "__enter__", "start"})
_ENTERED = frozenset(
    {"GuardedTransport", "HttpClient", "Owner", "PostgresCallStore", "PostgresEngine", "Served", "SqliteCallStore",
     "SqliteEngine"}
)  # fmt: skip
"""What is public as a context manager that opens a file, a connection or a port, and can do nothing before."""


def completed_later(source: str) -> set[str]:
    """Name the classes that set attributes of their own when they are entered or started."""
    if not any(f"def {name}(" in source for name in _BEGINS):
        return set()
    return {
        one.name
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.ClassDef)
        for method in one.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name in _BEGINS
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def test_no_object_has_to_be_started_before_it_is_whole() -> None:
    found = {
        name
        for package in ("gateway", "adapters")
        for path in (ROOT / package).rglob("*.py")
        for name in completed_later(path.read_text())
    }
    assert found == _ENTERED


def test_what_counts_as_completed_later() -> None:
    assert completed_later("class A:\n    async def __aenter__(self):\n        self.x = 1\n") == {"A"}
    assert completed_later("class A:\n    def start(self):\n        self.x, self.y = 1, 2\n") == {"A"}
    assert completed_later("class A:\n    def start(self):\n        x = self.y\n        x.z = 1\n") == set()
