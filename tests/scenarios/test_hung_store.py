"""A disk that answers nobody, behind a whole gateway: everybody is told in time, and everything goes on afterwards."""

import asyncio
import time
from contextlib import AsyncExitStack

import httpx
import pytest
import structlog

from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.store.sqlite import SqliteEngine
from gateway.store.sqlite.tuning import SqliteTuning
from tests.engines.sqlite_held import FOR_EVER, held
from tests.pace import within
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import success

_PROBE, _REPLY, _ANSWER = 0.5, 1.0, 2.0
_POLLS = 200


@pytest.mark.slow
@pytest.mark.timing
async def test_a_disk_that_hangs_is_told_to_all_in_time_and_costs_no_call(newer: Scene) -> None:
    patient = SqliteTuning(lock=FOR_EVER, probe=_PROBE)
    newer.engine = SqliteEngine(newer.folder / "dragoman.db", SystemClock(), tuning=patient)
    newer.tuning = Tuning(reply=_REPLY, answer=_ANSWER)
    newer.hooks.scripts["ask"] = success("7")
    event = {"kind": "context.updated", "name": "news", "context": {"a": 1}}
    async with newer.running() as gateway:
        session = f"/v1/sessions/{await gateway.session()}"
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        await gateway.post(f"{session}/events", event, status=202)
        with held(newer.folder / "dragoman.db"):
            began = time.monotonic()
            writes = [
                gateway.http.post(f"{session}/events", json=event),
                gateway.http.post(f"{session}/events", json=event, headers={"idempotency-key": "k"}),
                gateway.http.post("/v1/sessions", json={"runtime": "finn", "native_id": "other"}),
                gateway.http.delete(session),
            ]
            writing = asyncio.gather(*writes)
            call = await newer.agent.call("ask", GOOD)
            await until(lambda: _is_queued(gateway, True))
            await _all_say(gateway.http, 503)
            answers = await writing
            assert {answer.status_code for answer in answers} == {503}, [answer.text for answer in answers]
            assert all(answer.headers["retry-after"] for answer in answers)
            assert (await gateway.http.get("/healthz")).status_code == 200
            assert time.monotonic() - began < within(3 * _ANSWER)
            # What is on record is read all the same.
            assert [one["event"]["name"] for one in await gateway.events(kind="context.updated")] == ["news"]
        # What hung is still being worked off, and a look at the disk may wait for that once more.
        await until(lambda: _all_ready(gateway.http))
        assert (await ended(call)).outcome == "success"
        assert len(call.results) == 1
        assert await _is_queued(gateway, False)
    newer.is_clean()


@pytest.mark.slow
async def test_what_was_heard_and_is_not_on_record_at_the_end_is_told(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "100ms"}})
    newer.hooks.scripts["ask"] = success("7")
    newer.engine = SqliteEngine(newer.folder / "dragoman.db", SystemClock(), tuning=SqliteTuning(lock=FOR_EVER))
    told = "unrecorded frames dropped"
    leaving = AsyncExitStack()
    gateway = await leaving.enter_async_context(newer.running())
    with structlog.testing.capture_logs() as logs:

        async def is_told() -> bool:
            return told in [line["event"] for line in logs]

        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        with held(newer.folder / "dragoman.db"):
            calls = [await newer.agent.call("ask", GOOD) for _ in range(3)]
            await until(lambda: _is_queued(gateway, True))
            left = asyncio.create_task(leaving.aclose())
            await until(is_told)
        await left
    assert [line["count"] for line in logs if line["event"] == told] == [len(calls)]


async def _is_queued(gateway: Running, expected: bool) -> bool:
    return ((await gateway.metrics())["dragoman_queue_bytes"] > 0) is expected


async def _all_say(http: httpx.AsyncClient, status: int) -> None:
    assert await _said(http) == {status}


async def _all_ready(http: httpx.AsyncClient) -> bool:
    return await _said(http) == {200}


async def _said(http: httpx.AsyncClient) -> set[int]:
    polls = await asyncio.gather(*(http.get("/readyz") for _ in range(_POLLS)))
    return {poll.status_code for poll in polls}
