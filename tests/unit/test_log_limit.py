"""One log line per key and window, with the number of its repeats; nothing is left uncounted."""

import asyncio
from typing import Any

from gateway.log_limit import LogLimit
from tests.pace import PATIENCE
from tests.scenarios.environment import until

WINDOW = 0.05


class Lines:
    """Collects lines, and lets a test wait for a number of them."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []
        self._changed = asyncio.Event()

    def write(self, text: str, **facts: Any) -> None:
        self.found.append((text, facts))
        self._changed.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.found) < count:
                self._changed.clear()
                await self._changed.wait()


async def test_repeats_of_a_window_are_one_line_with_their_count() -> None:
    lines, limit = Lines(), LogLimit(WINDOW)
    for number in range(1_000):
        limit(lines.write, "frame rejected", per="session", reason=number)
    assert lines.found == [("frame rejected", {"reason": 0})]
    await lines.wait(2)
    assert lines.found[1] == ("frame rejected", {"reason": 999, "count": 999, "seconds": WINDOW})


async def test_every_key_has_a_line_of_its_own() -> None:
    lines, limit = Lines(), LogLimit(WINDOW)
    for per in ("one", "two", "one", "two"):
        limit(lines.write, "frame rejected", per=per, session=per)
        limit(lines.write, "late outcome ignored", per=per)
    assert [text for text, _ in lines.found] == ["frame rejected", "late outcome ignored"] * 2
    await lines.wait(8)
    assert all(facts["count"] == 1 for _, facts in lines.found[4:])


async def test_keys_beyond_the_bound_share_one_line() -> None:
    lines, limit = Lines(), LogLimit(WINDOW, most=2)
    for number in range(10):
        limit(lines.write, "frame rejected", per=number)
    assert len(lines.found) == 3
    await lines.wait(4)
    assert lines.found[3][1]["count"] == 7


async def test_a_quiet_key_is_forgotten_and_written_at_once_again() -> None:
    lines, limit = Lines(), LogLimit(WINDOW)
    limit(lines.write, "frame rejected", per=1)

    async def is_quiet() -> bool:
        return limit.keys == 0

    await until(is_quiet)
    limit(lines.write, "frame rejected", per=1)
    assert lines.found == [("frame rejected", {})] * 2


def test_a_window_of_an_ended_loop_keeps_no_line_back() -> None:
    limit = LogLimit(60)
    found: list[str] = []

    async def log() -> None:
        limit(found.append, "frame rejected", per=1)

    asyncio.run(log())
    asyncio.run(log())
    limit(found.append, "frame rejected", per=1)
    assert found == ["frame rejected"] * 3
