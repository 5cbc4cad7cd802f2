"""An event that need not wait costs no commit for its attempt, and one that a turn releases costs none either."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.events import SessionMoved
from tests.engines.sqlite_looker import all_of
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway

COMMITS = "dragoman_journal_commit_seconds_count"
MESSAGE: dict[str, Any] = {"kind": "message.posted", "content": "Hello."}


async def commits(running: Running) -> int:
    return int((await running.metrics())[COMMITS])


async def counted(running: Running, least: int) -> int:
    """Wait until so many commits are counted, which happens after their events can be read; return the count."""

    async def look() -> int | None:
        found = await commits(running)
        return found if found >= least else None

    return await until(look)


async def delivered(database: Path, runtime: PlainRuntime, texts: int) -> None:
    """Wait until so many messages were heard, and each is on record as delivered."""
    await runtime.change.until(lambda: len(runtime.heard) >= texts, 15.0, what=lambda: str(runtime.heard))

    async def settled() -> bool:
        with all_of(database) as copy:
            return not copy.execute("SELECT count(*) FROM outbound WHERE state = 'pending'").fetchone()[0]

    await until(settled)


async def moved(running: Running, runtime: PlainRuntime, state: Any, count: int) -> None:
    runtime.say(SessionMoved(state=state))
    await running.wait_events("session.moved", count)


async def test_a_message_that_can_leave_costs_one_commit_and_one_for_its_delivery(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as (running, runtime):
        await running.wait_events("link.changed")
        before = await counted(running, 1)
        await running.post(f"/v1/sessions/{await running.session()}/events", MESSAGE, status=202)
        await delivered(tmp_path / "plain.db", runtime, 1)
        assert await counted(running, before + 2) - before == 2


async def test_the_step_that_ends_a_turn_records_the_attempt_of_the_message_that_it_releases(tmp_path: Path) -> None:
    runtime = PlainRuntime()
    runtime.capabilities = replace(runtime.capabilities, one_message_per_turn=True)
    async with plain_gateway(tmp_path, runtime=runtime) as (running, _):
        await moved(running, runtime, "running", 1)
        before = await counted(running, 2)
        await running.post(f"/v1/sessions/{await running.session()}/events", MESSAGE, status=202)
        assert await counted(running, before + 1) - before == 1
        assert runtime.heard == []
        await moved(running, runtime, "idle", 2)
        await delivered(tmp_path / "plain.db", runtime, 1)
        # The message, the end of the turn with the attempt, the delivery.
        assert await counted(running, before + 3) - before == 3
