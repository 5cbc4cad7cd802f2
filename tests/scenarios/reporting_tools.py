"""A function for the python executor whose progress and end are in the hands of a test."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

Report = Callable[[dict[str, Any]], None]


class HeldCalls:
    """One test's view of the calls that run."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.go = asyncio.Event()


HELD: list[HeldCalls] = []
"""The last one is in use."""


async def hold(_call: Mapping[str, Any], report: Report) -> str:
    """Hand the test its `report`, and wait to be let go."""
    held = HELD[-1]
    held.reports.put_nowait(report)
    await held.go.wait()
    return "done"
