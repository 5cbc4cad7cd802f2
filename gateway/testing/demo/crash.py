"""The demo's crash: kills the gateway during calls while the agents continue, and restarts it."""

import time
from datetime import timedelta
from functools import partial
from typing import Protocol

from gateway.testing.demo.environment import Environment
from gateway.testing.demo.player import Player
from gateway.testing.demo.report import Report


class Side(Protocol):
    """One runtime's side of the game."""

    player: Player

    async def connect(self) -> None: ...
    async def ask_for_cards(self) -> None: ...
    async def play(self) -> None: ...
    async def start_calls(self) -> int: ...
    async def work_offline(self) -> None: ...
    async def wait_reconnected(self) -> None: ...
    async def check_calls_after_crash(self) -> None: ...
    async def check_game(self) -> None: ...


async def crash_in_the_middle(environment: Environment, report: Report, sides: list[Side]) -> bool:
    """Kill the gateway while it waits for the backend, and restart it; return whether both succeeded."""
    async with report.step("all", "kill -9 in the middle of calls") as note:
        calls = sum([await side.start_calls() for side in sides])
        await environment.kill_gateway()
        for side in sides:
            await side.work_offline()
        note.say(f"the gateway is dead, {calls} calls are open, and the agents continue")
    if note.held is not True:
        return False
    async with report.step("all", "restarted", within=None) as note:
        began = time.monotonic()
        await environment.start_gateway(partial(report.output.show_waiting, note))
        for side in sides:
            await side.wait_reconnected()
        note.say("ready, and all runtimes are connected again", timedelta(seconds=time.monotonic() - began))
    return note.held is True
