"""No test sleeps to give something time to go wrong, and no test fails because the machine is slow."""

import ast
from pathlib import Path

import pytest

from tests.pace import PATIENCE

TESTS = Path(__file__).parents[1]
OWN_TIME = (TESTS / "bench", TESTS / "simulation")
"""Measurements over a time have to let it pass, and simulated time costs nothing."""


def bare_sleeps(source: str) -> list[int]:
    """Find the lines of sleeps outside a loop, which paces or asks again, that no comment above gives a reason for."""
    lines, found = source.splitlines(), list[int]()
    if "sleep" not in source:
        return found

    def look(node: ast.AST, *, looping: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            looping = False
        looping = looping or isinstance(node, ast.While | ast.For | ast.AsyncFor)
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="asyncio" | "time"), attr="sleep") | ast.Name(id="sleep"),
                args=[given],
            ):
                # Zero is a turn of the loop, and no time.
                yields = isinstance(given, ast.Constant) and given.value == 0
                if not (looping or yields or lines[node.lineno - 2].lstrip().startswith("#")):
                    found.append(node.lineno)
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            look(child, looping=looping)

    look(ast.parse(source), looping=False)
    return found


def short_timeouts(source: str) -> list[int]:
    """Find the lines with a wait for an event shorter than `PATIENCE` that no comment above gives a reason for."""
    lines = source.splitlines()
    found = list[int]()
    for node in ast.walk(ast.parse(source)):
        match node:
            case (
                ast.Call(
                    func=ast.Attribute(value=ast.Name(id="asyncio"), attr="timeout"),
                    args=[ast.Constant(value=int() | float() as seconds)],
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id="asyncio"), attr="wait_for"),
                    args=[_, ast.Constant(value=int() | float() as seconds)],
                )
                | ast.Call(func=ast.Attribute(attr="result"), args=[ast.Constant(value=int() | float() as seconds)])
            ) if seconds < PATIENCE and not lines[node.lineno - 2].lstrip().startswith("#"):
                found.append(node.lineno)
            case _:
                pass
    return found


@pytest.mark.parametrize(
    "folder", [path.name for path in sorted(TESTS.iterdir()) if path.is_dir() and path not in OWN_TIME]
)
def test_a_sleep_has_its_reason(folder: str) -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in (TESTS / folder).rglob("*.py")
        for line in bare_sleeps(path.read_text())
    }
    assert not found


@pytest.mark.parametrize(
    "folder", [path.name for path in sorted(TESTS.iterdir()) if path.is_dir() and path not in OWN_TIME]
)
def test_a_short_timeout_has_its_reason(folder: str) -> None:
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in (TESTS / folder).rglob("*.py")
        for line in short_timeouts(path.read_text())
    }
    assert not found


def test_which_timeouts_are_short() -> None:
    short = "async def test():\n    f()\n    async with asyncio.timeout(5):\n        await g()\n"
    assert short_timeouts(short) == [3]
    assert short_timeouts(short.replace("f()", "# A drain takes at most ten seconds.")) == []
    assert short_timeouts(short.replace("5", "PATIENCE")) == []
    assert short_timeouts(short.replace("5", "60")) == []
    for wait in ("asyncio.wait_for(g(), 20)", "call.result(20)"):
        assert short_timeouts(f"async def test():\n    f()\n    await {wait}\n") == [3]
        assert short_timeouts(f"async def test():\n    f()\n    await {wait.replace('20', 'PATIENCE')}\n") == []


def test_what_counts_as_a_reason() -> None:
    bare = "async def test():\n    f()\n    await asyncio.sleep(0.5)\n    assert not g()\n"
    assert bare_sleeps(bare) == [3]
    assert bare_sleeps(bare.replace("f()", "# How long it lasts is the fault.")) == []
    assert bare_sleeps(bare.replace("asyncio.sleep", "sleep")) == [3]
    assert bare_sleeps("while not f():\n    time.sleep(0.1)\n") == []
    assert bare_sleeps("for a in b:\n    def f():\n        time.sleep(0.1)\n") == [3]
    assert bare_sleeps("async def f():\n    await asyncio.sleep(0)\n") == []
