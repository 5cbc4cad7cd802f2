"""Functions of every temper for the python executor; imported by path, as a user's own module would be."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

Call = Mapping[str, Any]

canceled = asyncio.Event()


class KeyboardError(Exception):
    """An error without a message."""


async def echo(call: Call) -> Any:
    return dict(call)


async def reports(_call: Call, *, report: Callable[[Any], None]) -> int:
    report({"percent": 40})
    await asyncio.sleep(0)
    report({"percent": 80})
    return 7


async def sends(report: Call) -> Any:
    return dict(report)


async def nothing(_call: Call) -> None:
    return


async def number(_call: Call) -> int:
    return 7


async def whole_form(_call: Call) -> Any:
    updates = [{"name": "table", "context": {"cards": 3}, "description": "Three left."}]
    return {"outcome": "success", "result": {"got": 1}, "updates": updates, "wakes_agent": False}


async def wrong_form(_call: Call) -> Any:
    return {"outcome": "splendid"}


async def silent_failure(_call: Call) -> Any:
    return {"outcome": "failure"}


async def refuses(_call: Call) -> Any:
    raise LookupError("No cards are left on the table.")


async def rambles(_call: Call) -> Any:
    raise ValueError("line\n\x1b[31mline\u2028" * 10_000)


async def stumbles(_call: Call) -> Any:
    raise KeyboardError


async def leaves(_call: Call) -> Any:
    raise SystemExit


async def gives_up(_call: Call) -> Any:
    raise asyncio.CancelledError


async def dates(_call: Call) -> Any:
    return {"on": date(2026, 11, 20)}


async def not_a_number(_call: Call) -> Any:
    return float("nan")


async def huge_number(_call: Call) -> Any:
    return 2**80


async def endless(_call: Call) -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return circle


async def surrogate(_call: Call) -> Any:
    return "\ud800"


async def flood(_call: Call) -> Any:
    return "x" * 2 * 1024**2


async def allows(_call: Call) -> Any:
    return {"decision": "allow"}


async def vandal(call: dict[str, Any]) -> None:
    call["arguments"].clear()
    call.clear()


async def sleeps(_call: Call) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        canceled.set()


async def stubborn(_call: Call) -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue


def blocking(_call: Call) -> None:
    return


async def two_arguments(_call: Call, _other: int) -> None:
    return


class _Callable:
    async def __call__(self, _call: Call) -> None:
        return


callable_object = _Callable()
