"""What the YAML no longer names while calls are at work: an executor, a runtime."""

import asyncio
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.scenarios.environment import GOOD, Scene, ended, plain_http, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import cluster
from tests.scenarios.test_dead_letters import REDRIVE, letters, listed
from tests.scenarios.test_late_callbacks import accepted, call_back, of_size
from tests.scenarios.test_overload import SlowDisk


def rename_executor(scene: Scene) -> None:
    """Give the executor another name, and its route with it."""
    cards = scene.settings["executors"]["cards"]
    scene.configure(
        {"executors": {"cards": None, "cards-v2": cards}, "routes": [{"match": {"tool": "*"}, "to": "cards-v2"}]}
    )


async def test_an_accepted_call_outlives_the_name_of_its_executor(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"idempotent": False}}})
    async with newer.running():
        call, asked = await accepted(newer)
    rename_executor(newer)
    async with newer.running() as gateway:
        assert (await gateway.call_of(call.call_id))["state"] == "accepted"
        assert await letters(gateway) == []
        assert (await gateway.post(REDRIVE, {"unknown": False}, status=200))["found"] == 0
        assert (await call_back(asked, b'{"percent": 40}', page="progress_url")).status_code == 202
        assert (await call_back(asked, of_size(200))).status_code == 200
        assert (await ended(call)).outcome == "success"
    assert len(newer.hooks.asked) == 1


async def test_an_accepted_call_can_be_canceled_without_its_executor(newer: Scene) -> None:
    newer.configure({"limits": {"cancel_grace": "100ms"}})
    async with newer.running():
        call, _ = await accepted(newer)
    rename_executor(newer)
    async with newer.running() as gateway:
        row = await gateway.call_of(call.call_id)
        await gateway.post(f"/v1/calls/{row['call_id']}/cancel", status=202)
        assert (await ended(call)).outcome == "canceled"


async def test_a_reload_leaves_accepted_calls_of_an_executor_that_is_gone_waiting(newer: Scene) -> None:
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        await gateway.wait_call(call.call_id, "accepted")
        rename_executor(newer)
        await gateway.post("/v1/reload", status=200)
        assert (await call_back(asked, of_size(200))).status_code == 200
        assert (await ended(call)).outcome == "success"


async def test_a_call_that_waits_for_an_executor_that_a_reload_removes_has_surely_not_run(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"concurrency": 1}}})
    gate = Gate()
    newer.hooks.scripts["free"] = gate.answering(success())
    async with newer.running() as gateway:
        first = await newer.agent.call("free", {})
        await newer.hooks.wait_for(name="free")
        waiting = await newer.agent.call("ask", GOOD)
        await gateway.wait_call(waiting.call_id, "queued")
        rename_executor(newer)
        await gateway.post("/v1/reload", status=200)
        gate.open()
        assert (await ended(first)).outcome == "success"
        assert "executor 'cards' is no longer configured" in str((await ended(waiting)).error)
        [letter] = await listed(gateway, 1)
        assert (letter["native_call_id"], letter["unknown"]) == (waiting.call_id, False)
    assert newer.hooks.of("ask") == []


async def test_a_call_taken_over_by_a_replica_that_lacks_its_executor_is_unknown(newer: Scene) -> None:
    store = cluster(newer)
    newer.configure({"executors": {"cards": {"idempotent": False}}})
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success())
    async with store.replica() as one:
        await one.wait_carries(await one.session())
        call = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        rename_executor(newer)
        async with store.replica() as other:
            # It falls silent, and the other one takes the session over with the call as it stands.
            one.faults.cut_off = True
            result = await ended(call)
            assert "executor 'cards' is no longer configured; the tool may have run" in str(result.error)
            [letter] = await listed(other, 1)
            assert letter["unknown"]
            assert (await other.post(REDRIVE, {"unknown": False}, status=200))["found"] == 0
            gate.open()
            one.faults.cut_off = False


# A runtime -------------------------------------------------------------------------------------------


def take_out_runtime(scene: Scene) -> dict[str, Any]:
    """Leave the configuration with another runtime; returns what puts the old one back."""
    finn = scene.settings["runtimes"]["finn"]
    scene.huma.agent("gill")
    scene.configure({"runtimes": {"finn": None, "gill": {**finn, "agent_id": "gill"}}})
    return {"runtimes": {"finn": finn}}


async def test_an_outcome_whose_commit_outlasts_its_runtime_is_to_be_repeated_and_then_known(newer: Scene) -> None:
    newer.engine = disk = SlowDisk(newer.folder)
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        await gateway.wait_call(call.call_id, "accepted")
        take_out_runtime(newer)
        with disk.held_up() as held:
            early = asyncio.create_task(call_back(asked, of_size(200)))
            await until(lambda: asyncio.sleep(0, bool(held)))
            reload = asyncio.create_task(gateway.post("/v1/reload", status=200))
            answer = await early
        await reload
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/session-owner-unavailable")
        assert answer.json()["detail"].endswith("the request may have been recorded")
        assert (await call_back(asked, of_size(200))).status_code == 200


def is_to_be_repeated(answer: httpx.Response) -> None:
    """It says that the backend is to come again, and what is to be mended."""
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert "the runtime 'finn' of this session is not in the configuration" in answer.json()["detail"]


def warnings_of(logged: Any) -> list[tuple[str, int, int]]:
    text = "open sessions wait for a runtime that is not in the configuration"
    return [(one["runtime"], one["sessions"], one["calls"]) for one in logged if one["event"] == text]


async def test_an_outcome_is_repeated_until_its_runtime_is_back_by_a_reload(newer: Scene) -> None:
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        row = await gateway.wait_call(call.call_id, "accepted")
        back = take_out_runtime(newer)
        with capture_logs() as logged:
            await gateway.post("/v1/reload", status=200)
        assert warnings_of(logged) == [("finn", 1, 1)]
        is_to_be_repeated(await call_back(asked, of_size(200)))
        is_to_be_repeated(await call_back(asked, b'{"percent": 40}', page="progress_url"))
        refused = await gateway.post(f"/v1/calls/{row['call_id']}/cancel", status=409)
        assert "put it back and reload, or close the session" in refused["detail"]
        newer.configure(back)
        with capture_logs() as logged:
            await gateway.post("/v1/reload", status=200)
        assert warnings_of(logged) == []
        assert (await call_back(asked, of_size(200))).status_code == 200
        await newer.agent.wait_connections(2)
        assert (await ended(call)).outcome == "success"


async def test_an_outcome_on_record_is_heard_again_without_its_runtime(newer: Scene) -> None:
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        assert (await call_back(asked, of_size(200))).status_code == 200
        await ended(call)
        take_out_runtime(newer)
        await gateway.post("/v1/reload", status=200)
        assert (await call_back(asked, of_size(200))).status_code == 200


@pytest.mark.parametrize("erase", ["false", "true"])
async def test_a_session_whose_runtime_is_gone_since_a_restart_can_be_closed(newer: Scene, erase: str) -> None:
    async with newer.running() as gateway:
        call, asked = await accepted(newer)
        row = await gateway.wait_call(call.call_id, "accepted")
    back = take_out_runtime(newer)
    async with newer.running(linked=False) as gateway:
        path = f"/v1/sessions/{row['session_id']}"
        is_to_be_repeated(await call_back(asked, of_size(200)))
        answer = await gateway.http.delete(path, params={"erase": erase})
        assert answer.status_code == 204, answer.text
        assert (await gateway.get(path))["state"] == "closed"
        assert (await gateway.call_of(call.call_id))["state"] == "canceled"
        [told] = await newer.hooks.wait_for(name="tool.canceled")
        assert told.data["call_id"] == row["call_id"]
        kinds = [one["event"]["kind"] for one in await gateway.events(row["session_id"])]
        assert set(kinds) == {"opaque"} if erase == "true" else kinds[-2:] == ["tool.finished", "session.closed"]
        assert (await call_back(asked, of_size(200))).status_code == 409
        assert await letters(gateway) == []
        newer.configure(back)
        await gateway.post("/v1/reload", status=200)
        await gateway.wait_link("up")
        newer.hooks.scripts["ask"] = success("anew")
        assert (await ended(await newer.agent.call("ask", GOOD))).result == "anew"


async def test_a_close_without_the_runtime_that_the_store_does_not_take_leaves_all_as_it_was(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as gateway:
        await gateway.wait_carries(session_id := await gateway.session())
        call, asked = await accepted(newer)
        await gateway.wait_call(call.call_id, "accepted")
        back = take_out_runtime(newer)
        await gateway.post("/v1/reload", status=200)
        path = f"/v1/sessions/{session_id}"
        gateway.faults.broken = True
        answer = await gateway.http.delete(path)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/session-owner-unavailable")
        gateway.faults.broken = False
        assert (await gateway.get(path))["owner"] is None
        newer.configure(back)
        await gateway.post("/v1/reload", status=200)
        target = httpx.URL(asked.data["callback_url"]).raw_path.decode()
        async with plain_http() as http:
            assert (await http.post(gateway.url + target, json=success("by callback"))).status_code == 200
        assert (await ended(call)).result == "by callback"


async def test_a_close_without_the_runtime_is_decided_again_after_the_write_of_another(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as gateway:
        await gateway.wait_carries(session_id := await gateway.session())
        call, _ = await accepted(newer)
        await gateway.wait_call(call.call_id, "accepted")
        take_out_runtime(newer)
        await gateway.post("/v1/reload", status=200)
        gateway.faults.stale, gateway.faults.stale_kind = 1, "session.closed"
        assert (await gateway.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        await gateway.wait_call(call.call_id, "canceled")


async def test_a_start_warns_of_sessions_whose_runtime_is_gone(newer: Scene) -> None:
    async with newer.running() as gateway:
        call, _ = await accepted(newer)
        await gateway.wait_call(call.call_id, "accepted")
    take_out_runtime(newer)
    with capture_logs() as logged:
        async with newer.running(linked=False) as gateway:

            async def warned() -> bool:
                return bool(warnings_of(logged))

            await until(warned)
    assert warnings_of(logged) == [("finn", 1, 1)]


async def test_a_replica_without_the_runtime_keeps_no_outcome_from_coming_again_and_can_close(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as one:
        session_id = await one.session()
        await one.wait_carries(session_id)
        _, asked = await accepted(newer)
        take_out_runtime(newer)
        async with store.replica() as other:
            target = httpx.URL(asked.data["callback_url"]).raw_path.decode()
            # While it is carried, its owner is asked.
            async with plain_http() as http:
                assert (await http.post(one.url + target.replace("outcome", "progress"), json={})).status_code == 202
                assert (await http.post(other.url + target.replace("outcome", "progress"), json={})).status_code == 202
            one.faults.cut_off = True

            async def nobodys() -> httpx.Response | None:
                async with plain_http() as http:
                    answer = await http.post(other.url + target, json=success("by callback"))
                return answer if "is not in the configuration" in answer.text else None

            is_to_be_repeated(await until(nobodys))
            answer = await other.http.delete(f"/v1/sessions/{session_id}", params={"erase": "true"})
            assert answer.status_code == 204, answer.text
            assert (await other.get(f"/v1/sessions/{session_id}"))["state"] == "closed"
            one.faults.cut_off = False

            async def gone() -> bool:
                return not await one.carries(session_id)

            # Whoever carried it finds it closed, and writes nothing more.
            await until(gone)
            assert {event["event"]["kind"] for event in await other.events(session_id)} == {"opaque"}
