"""What a callback address takes while its call is open, and what it takes after the end."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx
from fastapi import Response

from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from tests.engines import postgres_server
from tests.scenarios.environment import GOOD, Running, Scene, ended, plain_http
from tests.scenarios.hooks import Asked, success

CAP = 64 * 1024


async def accepted(scene: Scene) -> tuple[Any, Asked]:
    """Let the agent make a call whose outcome comes by callback."""
    scene.hooks.scripts["ask"] = Response(status_code=202)
    call = await scene.agent.call("ask", GOOD)
    return call, (await scene.hooks.wait_for())[-1]


async def call_back(asked: Asked, body: bytes, *, page: str = "callback_url") -> httpx.Response:
    async with plain_http() as http:
        return await http.post(asked.data[page], content=body, headers={"content-type": "application/json"})


def of_size(size: int, letter: str = "x") -> bytes:
    """Write an outcome of just so many bytes."""
    empty = json.dumps(success(""))
    body = json.dumps(success(letter * (size - len(empty)))).encode()
    assert len(body) == size
    return body


async def ignored(gateway: Running) -> Sequence[dict[str, Any]]:
    return [one["event"] for one in await gateway.events(kind="outcome.ignored")]


async def test_max_response_holds_for_callbacks_before_and_after_the_end(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"max_response": f"{CAP // 1024}KiB"}}})
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        over = await call_back(asked, of_size(CAP + 1))
        assert (over.status_code, "max_response" in over.text) == (413, True)
        assert (await call_back(asked, of_size(CAP + 1), page="progress_url")).status_code == 413
        assert (await call_back(asked, of_size(CAP))).status_code == 200
        assert len(str((await ended(call)).result)) > CAP - 100
        # The same one again, and different ones: below the cap, above it.
        assert (await call_back(asked, of_size(CAP))).status_code == 200
        assert (await call_back(asked, of_size(CAP + 1))).status_code == 413
        assert await ignored(gateway) == []
        assert (await call_back(asked, of_size(CAP, "y"))).status_code == 409
        (one,) = await ignored(gateway)
        assert "result" not in one
        assert one["size"] > CAP - 100
        assert len(one["sha256"]) == 64


async def test_only_one_late_outcome_is_recorded_however_many_come_and_whoever_restarts(newer: Scene) -> None:
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        assert (await call_back(asked, of_size(200))).status_code == 200
        await ended(call)
        for letter in "abc":
            assert (await call_back(asked, of_size(300, letter))).status_code == 409
        (one,) = await ignored(gateway)
        assert one["result"].startswith("aaa")
    async with newer.running() as gateway:
        assert (await call_back(asked, of_size(300, "d"))).status_code == 409
        assert (await call_back(asked, of_size(200))).status_code == 200
        assert len(await ignored(gateway)) == 1


async def test_ten_minutes_after_the_end_everything_is_gone(newer: Scene) -> None:
    async with newer.running():
        call, asked = await accepted(newer)
        assert (await call_back(asked, of_size(200))).status_code == 200
        await ended(call)
        assert (await call_back(asked, of_size(200))).status_code == 200
    # The ten minutes are over at once.
    newer.tuning = Tuning(late=timedelta(0))
    async with newer.running() as gateway:
        for body in (of_size(200), of_size(300)):
            answer = await call_back(asked, body)
            assert (answer.status_code, answer.json()["type"]) == (410, "/problems/call-over")
        assert (await call_back(asked, b"{}", page="progress_url")).status_code == 410
        assert await ignored(gateway) == []


class WrongClock(SystemClock):
    """A clock that is an hour ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_the_ten_minutes_are_by_the_clock_of_the_store_not_of_the_gateway(newer: Scene) -> None:
    schema = postgres_server.new_schema()
    newer.configure({"engine": {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema, "path": None}})
    try:
        async with newer.running():
            call, asked = await accepted(newer)
            assert (await call_back(asked, of_size(200))).status_code == 200
            await ended(call)
        newer.clock = WrongClock()
        async with newer.running():
            assert (await call_back(asked, of_size(200))).status_code == 200
    finally:
        await postgres_server.drop_schema(schema)


async def test_the_progress_of_one_call_is_bounded(newer: Scene) -> None:
    newer.configure({"limits": {"progress": "4KiB"}})
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        statuses = [(await call_back(asked, b'{"n": %d}' % n, page="progress_url")).status_code for n in range(6)]
        assert statuses == [202, 202, 202, 202, 413, 413]
        assert len(await gateway.events(kind="call.progressed")) == 4
        assert (await call_back(asked, of_size(200))).status_code == 200
        await ended(call)
