"""A call that was answered 202 never hangs: dead and stopping workers are reported, and kept answers are delivered."""

import asyncio
import json
import logging
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from dragoman.kit import (
    Callback,
    CallStore,
    Claimed,
    Owed,
    SqliteCallStore,
    StoreUnavailable,
    ToolCall,
    Tools,
)
from dragoman.kit.postgres import PostgresCallStore
from tests.kit.sender import SECRET, Gateway, Sender, serving
from tests.kit.test_stores import ENGINES, backend_on
from tests.pace import PATIENCE

MAY = "; the tool may have run"
LONG = {"rank": "7", "wait": 60.0}


class Rank(BaseModel):
    """The arguments of all tools here."""

    rank: str


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    one = Gateway()
    async with serving(one.app) as url:
        yield one, url


def store_of(kind: str, folder: Path, dsn: str) -> SqliteCallStore | PostgresCallStore:
    return SqliteCallStore(folder / "kit.db") if kind == "sqlite" else PostgresCallStore(dsn)


@asynccontextmanager
async def sending(tools: Tools) -> AsyncGenerator[Sender]:
    app = FastAPI()
    app.include_router(tools.router)
    async with serving(app) as url, httpx.AsyncClient(timeout=PATIENCE) as http:
        yield Sender(url, http)


async def leave(
    store: SqliteCallStore | PostgresCallStore,
    key: str,
    url: str,
    *,
    tool: str = "rank",
    answer: bytes | None = None,
) -> None:
    """Let a worker die with a call that it answered 202."""
    async with store:
        await store.claim(key, "d")
        await store.accept(key, Callback(url, tool, time.time() + 120))
        if answer is not None:
            await store.finish(key, answer)


def tools_on(store: CallStore | None, **more: Any) -> Tools:
    """Declare `rank`, which waits for ever if it is asked for `never`, and `look`, which may run twice."""
    tools = Tools(secret=SECRET, store=store, at_once=0.05, **more)

    async def answer(arguments: Rank) -> str:
        if arguments.rank == "never":
            await asyncio.Event().wait()
        return arguments.rank

    tools.tool("rank")(answer)
    tools.tool("look", idempotent=True)(answer)
    return tools


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
async def test_a_restart_reports_the_calls_that_a_killed_worker_ran_and_leaves_idempotent_ones(
    tmp_path: Path, dsn: str, kind: str, gateway: tuple[Gateway, str]
) -> None:
    backend, (there, url) = backend_on(kind, tmp_path), gateway
    once, again = uuid4().hex, uuid4().hex
    env = {"KIT_DSN": dsn, "KIT_AT_ONCE": "0.1"}
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        async with backend.worker(**env) as (place, process):
            for tool, key in (("ask_for_cards", once), ("look", again)):
                accepted = await Sender(place, http).call(tool, LONG, key, callback=f"{url}/{key}")
                assert accepted.status_code == 202
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with backend.worker(**env) as (place, process):
            [(path, body)] = await there.hears(1)
            assert (path, body["outcome"], body["unknown"]) == (once, "failure", True)
            assert body["error"] == f"the worker that ran this call died{MAY}"
            # The gateway requests an idempotent call again; here it is short of time, and killed once more.
            accepted = await Sender(place, http).call("look", LONG, again, callback=f"{url}/{again}")
            assert accepted.status_code == 202
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with backend.worker(**env) as (place, _):
            repeated = await Sender(place, http).call("ask_for_cards", LONG, once, callback=f"{url}/{once}")
            assert repeated.json() == body
    assert [path for path, _ in there.heard] == [once]
    assert backend.ran() == [f"ask_for_cards {once}", f"look {again}", f"look {again}"]


@pytest.mark.slow
async def test_a_worker_that_stops_reports_the_calls_that_it_interrupts(
    tmp_path: Path, dsn: str, gateway: tuple[Gateway, str]
) -> None:
    del dsn
    backend, (there, url) = backend_on("sqlite", tmp_path), gateway
    once, again = uuid4().hex, uuid4().hex
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as http,
        backend.worker(KIT_AT_ONCE="0.1", KIT_DRAIN="0.2") as (place, process),
    ):
        for tool, key in (("ask_for_cards", once), ("look", again)):
            accepted = await Sender(place, http).call(tool, LONG, key, callback=f"{url}/{key}")
            assert accepted.status_code == 202
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            await process.wait()
        # It has stopped, so everything that it reports is here.
        [(path, body)] = there.heard
    assert path == once
    assert body == {
        "outcome": "failure",
        "error": f"the backend stopped while it ran this call{MAY}",
        "unknown": True,
    }
    assert sorted(backend.ran("canceled")) == sorted([f"canceled {once}", f"canceled {again}"])


async def test_a_function_that_ignores_its_end_is_reported_too(gateway: tuple[Gateway, str]) -> None:
    there, url = gateway
    tools, gate, cancels = Tools(secret=SECRET, at_once=0.05, drain=0.1), asyncio.Event(), 0

    @tools.tool("stubborn")
    async def stubborn(arguments: Rank) -> str:
        nonlocal cancels
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                cancels += 1
        return arguments.rank

    async with sending(tools) as sender:
        assert (await sender.call("stubborn", {"rank": "7"}, "k", callback=url)).status_code == 202
    gate.set()
    [(_, body)] = there.heard
    assert body["unknown"] is True
    # Once when the time to drain is over, and once more when it is no longer waited for.
    assert cancels == 2


async def test_a_request_that_still_waits_is_told_that_its_call_was_interrupted() -> None:
    tools = tools_on(None, drain=0.05)
    sent: list[asyncio.Task[httpx.Response]] = []
    running = asyncio.Event()

    @tools.tool("runs")
    async def runs(arguments: Rank) -> str:
        running.set()
        await asyncio.Event().wait()
        return arguments.rank

    app = FastAPI()
    app.include_router(tools.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=PATIENCE) as http:
        async with tools.lifespan():
            # Without a callback address the request waits for the outcome.
            sent.append(asyncio.create_task(Sender("http://x", http).call("runs", {"rank": "7"}, "k")))
            await running.wait()
        answer = await sent[0]
        late = await Sender("http://x", http).call("runs", {"rank": "7"}, "late")
    assert (answer.status_code, answer.json()["unknown"]) == (200, True)
    assert (late.status_code, "no lifespan runs" in late.json()["detail"]) == (503, True)


class Slow(SqliteCallStore):
    """A store that claims the key `slow` only when a test lets it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.began, self.gate = asyncio.Event(), asyncio.Event()

    async def claim(self, key: str, digest: str) -> Claimed:
        if key == "slow":
            self.began.set()
            await self.gate.wait()
        return await super().claim(key, digest)


async def test_a_call_that_is_claimed_while_the_backend_stops_runs_after_the_next_start(tmp_path: Path) -> None:
    store = Slow(tmp_path / "kit.db")
    tools = tools_on(store, drain=PATIENCE)
    app = FastAPI()
    app.include_router(tools.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x", timeout=PATIENCE) as http:
        sender = Sender("http://x", http)
        async with AsyncExitStack() as running:
            await running.enter_async_context(tools.lifespan())
            asked = asyncio.create_task(sender.call("rank", {"rank": "7"}, "slow"))
            await store.began.wait()
            stopping = asyncio.create_task(running.aclose())
            async with asyncio.timeout(PATIENCE):
                while (await sender.call("rank", {"rank": "7"}, "other")).status_code != 503:
                    continue
            store.gate.set()
            refused = await asked
            assert (refused.status_code, refused.json()["detail"]) == (503, "the backend is stopping")
            await stopping
        async with tools.lifespan():
            answer = await sender.call("rank", {"rank": "7"}, "slow")
    assert (answer.status_code, answer.json()) == (200, {"outcome": "success", "result": "7"})


class Unsteady(SqliteCallStore):
    """A store that is away at the second claim."""

    claims = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.failed = asyncio.Event()

    async def claim(self, key: str, digest: str) -> Claimed:
        self.claims += 1
        if self.claims == 2:
            self.failed.set()
            raise StoreUnavailable("away")
        return await super().claim(key, digest)


async def test_a_call_that_another_worker_runs_is_waited_for_while_the_store_is_away(tmp_path: Path) -> None:
    store = Unsteady(tmp_path / "kit.db")
    async with SqliteCallStore(tmp_path / "kit.db") as other, sending(tools_on(store)) as sender:
        assert (await other.claim("k", _digest("rank", {"rank": "7"}))).state == "new"
        asked = asyncio.create_task(sender.call("rank", {"rank": "7"}, "k"))
        async with asyncio.timeout(PATIENCE):
            await store.failed.wait()
        await other.finish("k", b'{"outcome": "success", "result": "of another worker"}')
        assert (await asked).json() == {"outcome": "success", "result": "of another worker"}


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_start_sends_the_answers_that_no_callback_took(
    tmp_path: Path, dsn: str, kind: str, gateway: tuple[Gateway, str]
) -> None:
    there, url = gateway
    there.statuses = [503]
    key, answer = uuid4().hex, {"outcome": "success", "result": "kept"}
    await leave(store_of(kind, tmp_path, dsn), key, url, answer=json.dumps(answer).encode())
    async with tools_on(store_of(kind, tmp_path, dsn)).lifespan():
        assert [body for _, body in await there.hears(2)] == [answer] * 2
    async with store_of(kind, tmp_path, dsn) as store:
        assert not await store.take_owed((), 100)


async def test_all_that_a_dead_worker_owes_is_delivered_in_one_sweep(
    tmp_path: Path, gateway: tuple[Gateway, str]
) -> None:
    there, url = gateway
    async with SqliteCallStore(tmp_path / "kit.db") as store:
        for number in range(50):
            await store.claim(f"k-{number}", "d")
            await store.accept(f"k-{number}", Callback(url, "rank", time.time() + 120))
            await store.finish(f"k-{number}", b'{"outcome": "success"}')
    async with tools_on(SqliteCallStore(tmp_path / "kit.db")).lifespan():
        await there.hears(1)
        began = time.monotonic()
        await there.hears(50)
    # The next sweep comes ten seconds after the first.
    assert time.monotonic() - began < 9


@pytest.mark.parametrize("status", [401, 404, 409, 410])
async def test_a_callback_that_refuses_for_good_is_logged_and_not_asked_again(
    tmp_path: Path, gateway: tuple[Gateway, str], caplog: pytest.LogCaptureFixture, status: int
) -> None:
    there, url = gateway
    there.statuses = [status]
    await leave(SqliteCallStore(tmp_path / "kit.db"), "k", url, answer=b'{"outcome": "success"}')
    for _ in range(2):
        async with tools_on(SqliteCallStore(tmp_path / "kit.db")).lifespan():
            await there.hears(1)
    assert len(there.heard) == 1
    assert f"refused the outcome of k with {status}" in caplog.text


async def test_a_callback_that_cannot_be_reached_stays_owed_to_the_next_start(
    tmp_path: Path, gateway: tuple[Gateway, str], caplog: pytest.LogCaptureFixture
) -> None:
    there, url = gateway
    with caplog.at_level(logging.WARNING, "dragoman.kit"):
        async with sending(tools_on(SqliteCallStore(tmp_path / "kit.db"), drain=0.2)) as sender:
            away = "http://127.0.0.1:9/"
            accepted = await sender.call("rank", {"rank": "never"}, "k", callback=away)
            assert accepted.status_code == 202
    assert "1 outcomes that are not delivered" in caplog.text
    with sqlite3.connect(tmp_path / "kit.db") as file:
        assert file.execute("UPDATE callbacks SET url = ?", (url,)).rowcount == 1
    file.close()
    async with tools_on(SqliteCallStore(tmp_path / "kit.db")).lifespan():
        [(_, body)] = await there.hears(1)
    assert body["unknown"] is True


async def test_a_call_of_a_tool_that_no_longer_exists_is_reported(
    tmp_path: Path, gateway: tuple[Gateway, str], caplog: pytest.LogCaptureFixture
) -> None:
    there, url = gateway
    await leave(SqliteCallStore(tmp_path / "kit.db"), "k", url, tool="removed")
    async with tools_on(SqliteCallStore(tmp_path / "kit.db")).lifespan():
        [(_, body)] = await there.hears(1)
    assert body["unknown"] is True
    assert body["error"].endswith("this backend no longer has the tool 'removed'")
    assert "the outcome of k (removed) is unknown" in caplog.text


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_living_worker_is_never_reported(
    tmp_path: Path, dsn: str, kind: str, gateway: tuple[Gateway, str]
) -> None:
    there, url = gateway
    keys = {name: uuid4().hex for name in ("runs", "answered")}
    async with store_of(kind, tmp_path, dsn) as living:
        for key in keys.values():
            await living.claim(key, "d")
            await living.accept(key, Callback(url, "rank", time.time() + 120))
        await living.finish(keys["answered"], b"{}")
        await leave(store_of(kind, tmp_path, dsn), uuid4().hex, url)
        async with tools_on(store_of(kind, tmp_path, dsn)).lifespan():
            await there.hears(1)
        owed = await living.finish(keys["runs"], b"{}")
        assert owed is not None
        assert owed.url == url
    assert len(there.heard) == 1
    left: dict[str, bytes | None] = {}
    async with store_of(kind, tmp_path, dsn) as store, asyncio.timeout(PATIENCE):
        # PostgreSQL notices the end of the other worker's connection a little later.
        while not left.keys() >= set(keys.values()):
            left |= {one.key: one.answer for one in await store.take_owed((), 100)}
            await asyncio.sleep(0.01)
    assert left == dict.fromkeys(keys.values(), b"{}")


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_call_whose_promise_outlives_its_promiser_is_delivered_by_the_worker_that_runs_it(
    tmp_path: Path, dsn: str, kind: str, gateway: tuple[Gateway, str]
) -> None:
    there, url = gateway
    tools, gate, key = tools_on(store_of(kind, tmp_path, dsn)), asyncio.Event(), uuid4().hex

    @tools.tool("gated")
    async def gated(arguments: Rank, call: ToolCall) -> str:
        del call
        await gate.wait()
        return arguments.rank

    async with sending(tools) as sender:
        # This one waits for the outcome, and another worker is asked meanwhile and answers 202, then dies.
        asked = asyncio.create_task(sender.call("gated", {"rank": "7"}, key))
        async with store_of(kind, tmp_path, dsn) as other:
            async with asyncio.timeout(PATIENCE):
                while (await other.claim(key, _digest("gated", {"rank": "7"}))).state != "running":
                    await other.forget(key)
            await other.accept(key, Callback(url, "gated", time.time() + 120))
        gate.set()
        assert (await asked).json()["result"] == "7"
        [(_, body)] = await there.hears(1)
    assert body == {"outcome": "success", "result": "7"}


def _digest(tool: str, arguments: dict[str, Any]) -> str:
    return sha256(json.dumps([tool, arguments], sort_keys=True, ensure_ascii=True).encode()).hexdigest()


@pytest.mark.parametrize("kind", ENGINES)
async def test_several_workers_that_start_at_once_deliver_each_answer(
    tmp_path: Path, dsn: str, kind: str, gateway: tuple[Gateway, str]
) -> None:
    there, url = gateway
    keys = [uuid4().hex for _ in range(50)]
    async with store_of(kind, tmp_path, dsn) as dead:
        for place, key in enumerate(keys):
            await dead.claim(key, "d")
            await dead.accept(key, Callback(f"{url}/{key}", "rank", time.time() + 120))
            if place % 2:
                await dead.finish(key, b"{}")
    workers = [tools_on(store_of(kind, tmp_path, dsn)) for _ in range(3)]
    async with workers[0].lifespan(), workers[1].lifespan(), workers[2].lifespan():
        await there.hears(len(keys))
    assert sorted(path for path, _ in there.heard) == sorted(keys)


@pytest.mark.parametrize("kind", ENGINES)
async def test_take_owed_leaves_idempotent_calls_without_an_answer(tmp_path: Path, dsn: str, kind: str) -> None:
    key, done = uuid4().hex, uuid4().hex
    await leave(store_of(kind, tmp_path, dsn), key, "http://x/", tool="look")
    await leave(store_of(kind, tmp_path, dsn), done, "http://x/", tool="look", answer=b"{}")
    async with store_of(kind, tmp_path, dsn) as store:

        async def owed(*idempotent: str) -> list[Owed]:
            return [one for one in await store.take_owed(idempotent, 100) if one.key in {key, done}]

        assert [(one.key, one.answer) for one in await owed("look")] == [(done, b"{}")]
        assert (await store.claim(key, "d")).state == "abandoned"


async def test_a_file_of_an_older_release_is_used_as_it_is(tmp_path: Path, gateway: tuple[Gateway, str]) -> None:
    there, url = gateway
    with sqlite3.connect(tmp_path / "kit.db") as file:
        file.execute(
            "CREATE TABLE claims (key TEXT PRIMARY KEY, digest TEXT NOT NULL, owner TEXT NOT NULL,"
            " claimed_at REAL NOT NULL, answer BLOB) WITHOUT ROWID"
        )
        file.execute("INSERT INTO claims VALUES ('old', 'd', 'gone', ?, x'7b7d')", (time.time(),))
    file.close()
    await leave(SqliteCallStore(tmp_path / "kit.db"), "new", url)
    async with SqliteCallStore(tmp_path / "kit.db") as store:
        assert (await store.claim("old", "d")).answer == b"{}"
    async with tools_on(SqliteCallStore(tmp_path / "kit.db")).lifespan():
        [(_, body)] = await there.hears(1)
    assert body["unknown"] is True
