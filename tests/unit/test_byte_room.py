"""A waiting room that is full by bytes."""

import asyncio

from gateway.store.byte_budget import ByteBudget
from tests.pace import PATIENCE


async def test_who_does_not_fit_waits_in_order_and_one_alone_always_fits() -> None:
    room = ByteBudget(100)
    inside: list[str] = []
    doors = {name: asyncio.Event() for name in ("huge", "first", "second", "third")}

    async def visit(name: str, size: int) -> None:
        async with room.held(size):
            inside.append(name)
            await doors[name].wait()
        inside.remove(name)

    async with asyncio.TaskGroup() as group:
        for name, size in (("huge", 1_000), ("first", 60), ("second", 60), ("third", 10)):
            group.create_task(visit(name, size))
            await asyncio.sleep(0)
        assert inside == ["huge"]
        doors["huge"].set()
        await _turns()
        # The third would fit beside the first, but the second came before it.
        assert inside == ["first"]
        doors["first"].set()
        await _turns()
        assert inside == ["second", "third"]
        doors["second"].set()
        doors["third"].set()


async def test_one_that_gives_up_while_it_waits_leaves_no_trace() -> None:
    room = ByteBudget(100)
    async with room.held(100):
        waiting = [asyncio.create_task(_pass_through(room, 50)) for _ in range(2)]
        await _turns()
        waiting[0].cancel()
        await _turns()
    async with asyncio.timeout(PATIENCE):
        await waiting[1]
        async with room.held(100):
            pass


async def _pass_through(room: ByteBudget, size: int) -> None:
    async with room.held(size):
        await asyncio.sleep(0)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
