"""The demo's crash: the gateway is killed in the middle, the agents go on, and it comes back."""

import time
from datetime import timedelta
from typing import Protocol

from gateway.simulators.demo_board import Board
from gateway.simulators.demo_seat import Seat
from gateway.simulators.demo_stage import Stage


class Side(Protocol):
    """One runtime's side of the game."""

    seat: Seat

    async def play(self) -> None: ...
    async def begin_before_the_crash(self) -> int: ...
    async def go_on_alone(self) -> None: ...
    async def wait_until_back(self) -> None: ...
    async def check_after_the_crash(self) -> None: ...
    async def look_back(self) -> None: ...


async def crash_in_the_middle(stage: Stage, board: Board, sides: list[Side]) -> None:
    """Kill the gateway while it waits for the backend, start it again, and see what became of everything."""
    async with board.step("all", "kill -9 in the middle of calls") as note:
        calls = sum([await side.begin_before_the_crash() for side in sides])
        await stage.kill_gateway()
        for side in sides:
            await side.go_on_alone()
        note.say(f"the gateway is dead, {calls} calls are open, and agents go on")
    if note.held is not True:
        return
    async with board.step("all", "started again", within=30) as note:
        began = time.monotonic()
        await stage.start_gateway()
        for side in sides:
            await side.wait_until_back()
        note.say("ready, and all four runtimes are connected again", timedelta(seconds=time.monotonic() - began))
    for side in sides:
        await side.check_after_the_crash()
