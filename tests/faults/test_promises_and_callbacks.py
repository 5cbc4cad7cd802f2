"""kill -9 around a 202: the call waits for its callback over any number of processes."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.scene import Scene

pytestmark = [
    pytest.mark.faults,
    pytest.mark.fault("SIGKILL around a 202 and its callback", simulated="accepted-call-has-no-deadline"),
]

on_postgres = pytest.mark.parametrize(("dialect", "store"), [("0.2", "postgres")])


async def call_back(scene: Scene, body: dict[str, Any]) -> httpx.Response:
    """Send an outcome to the address that the first request named."""
    address = urlsplit(str(scene.backend.seen[0].content["callback_url"]))
    return await scene.http.post(f"{address.path}?{address.query}", json=body)


@on_postgres
async def test_an_accepted_call_outlives_its_gateway_and_takes_its_callback_from_the_next(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run()
        call = await scene.call("later")
        await scene.recorded(call, "accepted")
        body = scene.promised().success()
        scene.kill()
        await scene.dead()
        await scene.run()
        await scene.recorded(call, "accepted")
        assert (await call_back(scene, body)).status_code == 200
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await scene.settled()
        await scene.verify()
        assert len(scene.backend.seen) == 1
        await scene.stop()
        await scene.verify_journal()


@on_postgres
async def test_a_callback_whose_gateway_died_may_be_sent_again(tmp_path: Path, dialect: Dialect, store: str) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run("after-outcome")
        call = await scene.call("later")
        await scene.recorded(call, "accepted")
        body = scene.promised().success()
        with pytest.raises(httpx.TransportError):
            await call_back(scene, body)
        await scene.dead()
        await scene.run()
        assert (await call_back(scene, body)).status_code == 200
        assert (await call_back(scene, {"outcome": "failure", "error": "no"})).status_code == 409
        await call.result()
        await scene.settled()
        await scene.verify()
        await scene.stop()
        await scene.verify_journal()


@on_postgres
async def test_a_promise_that_was_not_recorded_is_an_unknown_outcome_and_its_callback_is_ignored(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run("before-promise")
        call = await scene.call("later")
        await scene.dead()
        await scene.run()
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "failure"
        body = scene.promised().success()
        assert (await call_back(scene, body)).status_code == 409
        await scene.settled()
        await scene.verify()
        assert len(scene.backend.seen) == 1
        await scene.stop()
        await scene.verify_journal()
