"""Stores under kill -9 and between workers: what is not idempotent is never run twice, and every call has an answer."""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from dragoman.kit import CallStore, KeyReused, MemoryCallStore, SqliteCallStore, StoreUnavailable
from dragoman.kit.postgres import PostgresCallStore
from tests.engines.postgres_proxy import between
from tests.kit.sender import Backend, Gateway, Sender, serving
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import until

ENGINES = ["sqlite", "postgres"]
POINTS = ["before-claim", "after-claim", "while-running", "before-finish", "after-finish"]


def backend_on(kind: str, folder: Path) -> Backend:
    return Backend(folder, f"sqlite:{folder / 'kit.db'}" if kind == "sqlite" else kind)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("kind", "tool"), [*((kind, "ask_for_cards") for kind in ENGINES), ("sqlite", "look")])
async def test_a_worker_killed_at_any_point_runs_nothing_twice_that_may_not_be(
    tmp_path: Path, dsn: str, kind: str, point: str, tool: str
) -> None:
    backend, key = backend_on(kind, tmp_path), uuid4().hex
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        async with backend.worker(point, KIT_DSN=dsn) as (url, process):
            with pytest.raises(httpx.TransportError):
                await Sender(url, http).call(tool, {"rank": "7"}, key)
            assert await process.wait() == -9
        async with backend.worker(KIT_DSN=dsn) as (url, _):
            again = [await Sender(url, http).call(tool, {"rank": "7"}, key) for _ in range(2)]
    done = {"outcome": "success", "result": "Nobody has a 7."}
    ran, lost = len(backend.ran(tool)), point in {"after-claim", "while-running", "before-finish"}
    assert again[0].content == again[1].content
    if tool == "look" or not lost:
        assert again[0].json() == done
        assert ran == (2 if point in {"while-running", "before-finish"} else 1)
    else:
        assert again[0].json()["outcome"] == "failure"
        assert again[0].json()["unknown"] is True
        assert ran == (0 if point == "after-claim" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
async def test_two_workers_on_one_store_run_a_call_once_and_both_know_its_outcome(
    tmp_path: Path, dsn: str, kind: str
) -> None:
    backend, keys = backend_on(kind, tmp_path), [uuid4().hex for _ in range(10)]
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as http,
        backend.worker(KIT_DSN=dsn) as (one, _),
        backend.worker(KIT_DSN=dsn) as (other, _),
    ):
        wanted = {"rank": "7", "wait": 0.3}
        asked = [Sender(url, http).call("ask_for_cards", wanted, key) for key in keys for url in (one, other)]
        answers = await asyncio.gather(*asked)
    assert {answer.json()["result"] for answer in answers} == {"Nobody has a 7."}
    assert sorted(backend.ran()) == sorted(f"ask_for_cards {key}" for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
async def test_who_was_told_later_hears_of_a_call_whose_worker_died(tmp_path: Path, dsn: str, kind: str) -> None:
    backend, there, key = backend_on(kind, tmp_path), Gateway(), uuid4().hex
    async with (
        serving(there.app) as callback,
        httpx.AsyncClient(timeout=PATIENCE) as http,
        backend.worker(KIT_DSN=dsn) as (one, process),
        backend.worker(KIT_DSN=dsn) as (other, _),
    ):
        arguments = {"rank": "7", "wait": 60.0}
        for url in (one, other):
            later = await Sender(url, http).call("ask_for_cards", arguments, key, callback=callback)
            assert later.status_code == 202
        process.send_signal(signal.SIGKILL)
        await process.wait()
        [(_, body)] = await there.hears(1)
    assert backend.ran() == [f"ask_for_cards {key}"]
    assert body["outcome"] == "failure"
    assert body["unknown"] is True


@pytest.fixture(params=["memory", *ENGINES])
def store(request: pytest.FixtureRequest, tmp_path: Path, dsn: str) -> CallStore:
    match request.param:
        case "memory":
            return MemoryCallStore()
        case "sqlite":
            return SqliteCallStore(tmp_path / "kit.db")
        case _:
            return PostgresCallStore(dsn)


async def test_a_store_says_what_is_known_of_a_key(store: CallStore) -> None:
    key = uuid4().hex
    async with store:
        assert (await store.claim(key, "d")).state == "new"
        # One worker never claims twice at once: what it finds without an answer was left by itself.
        assert (await store.claim(key, "d")).state == "abandoned"
        await store.forget(key)
        assert (await store.claim(key, "d")).state == "new"
        await store.finish(key, b"answer")
        done = await store.claim(key, "d")
        assert (done.state, done.answer) == ("done", b"answer")
        await store.forget(key)
        assert (await store.claim(key, "d")).state == "done"
        with pytest.raises(KeyReused):
            await store.claim(key, "other")


@pytest.mark.parametrize("kind", ENGINES)
async def test_an_owner_that_is_gone_keeps_nothing_any_more(tmp_path: Path, dsn: str, kind: str) -> None:
    def make() -> CallStore:
        return SqliteCallStore(tmp_path / "kit.db") if kind == "sqlite" else PostgresCallStore(dsn)

    one, other, key = make(), make(), uuid4().hex
    async with other:
        async with one:
            await one.claim(key, "d")
            assert (await other.claim(key, "d")).state == "running"
        assert (await other.claim(key, "d")).state == "abandoned"
        async with one:
            await one.finish(key, b"too late")
            assert (await one.claim(key, "d")).state == "running"


async def test_a_file_that_cannot_be_had_is_said_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere/kit\.db"):
        await SqliteCallStore(tmp_path / "nowhere" / "kit.db").__aenter__()


async def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(StoreUnavailable):
        await PostgresCallStore("postgresql://nobody:secret@127.0.0.1:9/none").__aenter__()


async def test_a_lost_server_is_logged_once_with_its_end(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async def told(count: int) -> list[str] | None:
        found = [one.getMessage() for one in caplog.records if one.getMessage().startswith("the store")]
        return found if len(found) == count else None

    async with between(dsn) as proxy, PostgresCallStore(proxy.dsn):
        proxy.point_at(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
        proxy.cut_all()
        await until(partial(told, 1))
        # The store looks every five seconds; one more look fails too.
        await asyncio.sleep(5.5)
        proxy.point_at(dsn)
        first, last = await until(partial(told, 2))
    assert (first.partition(":")[0], last) == ("the store is unavailable", "the store is available again")


async def test_memory_says_where_it_is_not_enough(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The other processes of a parallel run have the same command and parent.
    monkeypatch.setattr(sys, "argv", [str(tmp_path)])
    async with MemoryCallStore():
        assert not caplog.records
        async with MemoryCallStore():
            assert "several workers" in caplog.text
