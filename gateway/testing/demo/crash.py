"""The demo's crash: the gateway is killed in the middle, the agents go on, and it comes back."""

import time
from datetime import timedelta
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
    async def begin_before_the_crash(self) -> int: ...
    async def go_on_alone(self) -> None: ...
    async def wait_until_back(self) -> None: ...
    async def check_after_the_crash(self) -> None: ...
    async def look_back(self) -> None: ...


async def crash_in_the_middle(environment: Environment, report: Report, sides: list[Side]) -> bool:
    """Kill the gateway while it waits for the backend, and start it again; returns whether that could be done."""
    async with report.step("all", "kill -9 in the middle of calls") as note:
        calls = sum([await side.begin_before_the_crash() for side in sides])
        await environment.kill_gateway()
        for side in sides:
            await side.go_on_alone()
        note.say(f"the gateway is dead, {calls} calls are open, and agents go on")
    if note.held is not True:
        return False
    async with report.step("all", "started again", within=30) as note:
        began = time.monotonic()
        await environment.start_gateway()
        for side in sides:
            await side.wait_until_back()
        note.say("ready, and everybody is connected again", timedelta(seconds=time.monotonic() - began))
    return True
