"""Nothing in production code starts a task, arms a timer or hands a loop a callback past `gateway.guard`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_PRODUCTION = (ROOT / "gateway/testing", ROOT / "gateway/sdk")
"""What is for tests, and what runs in somebody else's process."""
GUARD = ROOT / "gateway/guard.py"

TASKS = frozenset(
    {
        "create_task", "ensure_future", "TaskGroup", "gather", "as_completed", "wait_for", "Task",
        "create_eager_task_factory", "run_coroutine_threadsafe", "eager_task_factory",
    }
)  # fmt: skip
CALLBACKS = frozenset(
    {
        "call_soon", "call_soon_threadsafe", "call_later", "call_at", "add_done_callback", "add_signal_handler",
        "add_reader", "add_writer", "set_exception_handler",
    }
)  # fmt: skip
HARMLESS = frozenset({"discard"})
"""Methods of builtin types that cannot raise, as callbacks."""


def past_guard(source: str) -> Iterator[tuple[int, str]]:
    """Find what goes past guard: the line, and what it calls."""
    if not any(name in source for name in TASKS | CALLBACKS):
        return
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in {"asyncio", "asyncio.tasks", "asyncio.taskgroups"}:
            yield from ((node.lineno, one.name) for one in node.names if one.name in TASKS - {"Task"})
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        if name in TASKS:
            yield node.lineno, name
        if name in CALLBACKS and not any(_is_guarded(argument, tree) for argument in node.args):
            yield node.lineno, name


def _is_guarded(node: ast.expr, tree: ast.Module) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="guard_call")):
            return True
        case ast.Call(func=ast.Name(id="partial"), args=[first, *_]):
            return _is_guarded(first, tree)
        case ast.Attribute(attr=attr) if attr in HARMLESS:
            return True
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            # A name for what guard_call gave.
            given = [
                one.value
                for one in ast.walk(tree)
                if isinstance(one, ast.Assign) and ast.unparse(node) in map(ast.unparse, one.targets)
            ]
            return any(isinstance(one, ast.Call) and _is_guarded(one, tree) for one in given)
        case _:
            return False


def production() -> list[Path]:
    found = [path for folder in ("gateway", "adapters") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if path != GUARD and not any(other in path.parents for other in NOT_PRODUCTION)]


def test_only_guard_starts_tasks_and_timers() -> None:
    files = production()
    assert len(files) > 150
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}" for path in files for line, name in past_guard(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(f())",
        "loop.create_task(f())",
        "async with asyncio.TaskGroup() as group: pass",
        "group.create_task(f())",
        "asyncio.ensure_future(f())",
        "from asyncio import create_task",
        "await asyncio.gather(f(), g())",
        "loop.call_later(1, self._ring)",
        "task.add_done_callback(lambda _: x())",
        "given = other(f)\nloop.call_soon(given)",
        "self._ring = other(f)\nloop.call_soon(self._ring)",
        "loop.call_soon(partial(self._ring, 1))",
    ],
)
def test_what_goes_past_guard_is_found(source: str) -> None:
    lines = [f"    {line}" for line in source.splitlines()]
    assert list(past_guard("\n".join(["async def f():", *lines])))


@pytest.mark.parametrize(
    "source",
    [
        "guard('part', f, tasks)",
        "loop.call_later(1, guard_call('part', f))",
        "ring = guard_call('part', f)\nloop.call_later(1, ring)",
        "self._ring = guard_call('part', f)\nloop.call_later(1, self._ring)",
        "ring = guard_call('part', f)\nloop.call_later(1, partial(ring, 1))",
        "task.add_done_callback(self._running.discard)",
        "await asyncio.wait({task})",
    ],
)
def test_what_goes_through_guard_is_fine(source: str) -> None:
    lines = [f"    {line}" for line in source.splitlines()]
    assert not list(past_guard("\n".join(["async def f():", *lines])))
