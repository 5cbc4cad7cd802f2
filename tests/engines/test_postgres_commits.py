"""Commits of the PostgreSQL engine whose connection breaks: each is certain in the end, and written once."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineUnavailable
from gateway.events import SessionId
from gateway.store.port import NewSession
from gateway.store.postgres import PostgresEngine
from gateway.store.postgres.tuning import PRODUCTION, PostgresTuning
from gateway.store.rows import StoredAnswer
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    DAY,
    START,
    FakeClock,
    close_session,
    journal,
    open_session,
    row_of,
    said,
    texts,
)
from tests.engines import postgres_server
from tests.engines.postgres_proxy import Cut, Proxy, between
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

LONG = timedelta(hours=1)


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with between(postgres_server.dsn()) as proxy:
        yield proxy


def engine_at(dsn: str, schema: str, tuning: PostgresTuning = PRODUCTION) -> PostgresEngine:
    return PostgresEngine(dsn, FakeClock(), schema=schema, tuning=tuning)


async def check_commits(engine: PostgresEngine, proxy: Proxy, trouble: Callable[[], Awaitable[None]]) -> None:
    """Commit events while there is trouble, and check that each is there exactly once."""
    count, names = 200, [SessionId(f"s-{number}") for number in range(8)]
    for name in names:
        await open_session(engine, name)
    slots = asyncio.Semaphore(32)

    async def commit(number: int) -> None:
        async with slots:
            while True:
                try:
                    await engine.commit(Step(names[number % len(names)], (said(f"text {number}"),)))
                except EngineUnavailable:
                    # So often broken that patience ran out, with the certainty that nothing was written.
                    continue
                return

    disturbing = asyncio.ensure_future(trouble())
    try:
        await asyncio.wait_for(asyncio.gather(*map(commit, range(count))), PATIENCE)
    finally:
        disturbing.cancel()
        proxy.choose = lambda: "never"
    written = [text for name in names for text in await texts(engine, name)]
    assert sorted(written) == sorted(f"text {number}" for number in range(count))
    for name in names:
        row = await row_of(engine, name)
        assert [e.sequence for e in await journal(engine, name)] == list(range(1, row.last_sequence + 1))


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_whose_connection_breaks_is_written_once(proxy: Proxy, schema: str, cut: Cut) -> None:
    async with engine_at(proxy.dsn, schema) as engine:
        await open_session(engine)
        waiting: list[Cut] = [cut, cut, cut]
        proxy.choose = lambda: waiting.pop() if waiting else "never"
        for number in range(5):
            done = await engine.commit(Step(ALICE, (said(str(number)),)))
            assert done.last_sequence == number + 2
        assert proxy.cuts == [cut] * 3
        assert await texts(engine) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_what_is_written_beside_steps_is_certain_too(proxy: Proxy, schema: str, cut: Cut) -> None:
    async with engine_at(proxy.dsn, schema) as engine:

        async def once(work: Callable[[], Awaitable[Any]]) -> Any:
            waiting: list[Cut] = [cut]
            proxy.choose = lambda: waiting.pop() if waiting else "never"
            found = await work()
            assert not waiting
            return found

        first = said()

        async def begin() -> tuple[Any, bool]:
            return await engine.open_session(
                NewSession(session_id=ALICE, runtime="finn", protocol="t/1", native_id="n", labels={}, first=first)
            )

        row, is_new = await once(begin)
        assert (row.last_sequence, is_new) == (1, True)
        await engine.beat("a", url="http://a", ttl=LONG)
        (taken,) = await once(lambda: engine.take_over("a", runtimes={"finn"}, limit=5))
        assert (taken.owner, taken.fence) == ("a", 1)
        answer = StoredAnswer("sha", b"r", START + DAY)
        assert await once(lambda: engine.remember(key="k", scope="s", answer=answer))
        await engine.beat("b", url="http://b", ttl=LONG)
        await engine.release("a")
        taken = await once(lambda: engine.take("b", ALICE))
        assert (taken.owner, taken.fence) == ("b", 2)
        assert await once(lambda: engine.hold("b", "sweep"))
        await close_session(engine)
        await once(lambda: engine.erase(ALICE))
        assert (await row_of(engine)).last_sequence == 1


async def test_connections_that_break_at_random_lose_and_double_nothing(proxy: Proxy, schema: str) -> None:
    jitter = random.Random(7)
    async with engine_at(proxy.dsn, schema) as engine:

        async def disturb() -> None:
            proxy.choose = lambda: jitter.choice(["never", "never", "before", "after"])
            while True:
                await asyncio.sleep(jitter.uniform(0.1, 0.4))
                proxy.cut_all()

        await check_commits(engine, proxy, disturb)
        assert {"before", "after"} <= set(proxy.cuts)


async def test_a_caller_that_goes_away_leaves_a_whole_step_or_none(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as engine:
        await open_session(engine)
        jitter = random.Random(3)
        for number in range(30):
            tasks: list[asyncio.Task[Any]] = [
                asyncio.create_task(engine.commit(Step(ALICE, (said(f"{number}"), said(f"{number}"))))),
                asyncio.create_task(engine.set_note("n", str(number))),
                asyncio.create_task(engine.read(ALICE, limit=5)),
            ]
            await asyncio.sleep(jitter.uniform(0, 0.01))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        done = await engine.commit(Step(ALICE, (said("last"),)))
        written = await texts(engine)
        assert len(written) == done.last_sequence - 1
        assert all(written.count(text) in {0, 2} for text in map(str, range(30)))


async def test_a_commit_whose_fate_cannot_be_asked_waits_and_says_so_once(proxy: Proxy, schema: str) -> None:
    async with engine_at(proxy.dsn, schema, PostgresTuning(pause_longest=0.1)) as engine:
        await open_session(engine)
        with capture_logs() as logged:
            proxy.choose = lambda: "after"
            waiting = asyncio.create_task(engine.commit(Step(ALICE, (said("a"),))))
            async with asyncio.timeout(PATIENCE):
                while True:
                    if len(proxy.cuts) >= 5:
                        break
                    await asyncio.sleep(0.01)
            assert not waiting.done()
            proxy.choose = lambda: "never"
            await asyncio.wait_for(waiting, PATIENCE)
        assert await texts(engine) == ["a"]
        told = [line for line in logged if line["event"].startswith("commit outcome")]
        assert [(line["log_level"], line["event"]) for line in told] == [
            ("warning", "commit outcome query failed"),
            ("info", "commit outcome resolved"),
        ]
        assert "127.0.0.1" in told[0]["reason"]
