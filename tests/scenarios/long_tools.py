"""Tools of a Python executor that take ten minutes."""

import asyncio
from collections.abc import Mapping

SPEC: Mapping[str, object] = {
    "type": "python",
    "call": "tests.scenarios.long_tools:wait_ten_minutes",
    "timeout": "15m",
    "deadline": "20m",
}

started: list[str] = []
canceled: list[str] = []
patience = 600.0
"""Seconds for which the tool `wait` waits."""


async def wait_ten_minutes(call: dict[str, object]) -> object:
    """Return the tool's name at once, or wait for `patience` if the tool is `wait`."""
    started.append(str(call["tool"]))
    if call["tool"] != "wait":
        return call["tool"]
    try:
        # This is the work of the tool.
        await asyncio.sleep(patience)
    except asyncio.CancelledError:
        canceled.append(str(call["tool"]))
        raise
    return None
