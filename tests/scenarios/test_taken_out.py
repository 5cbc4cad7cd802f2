"""What the YAML no longer names while calls are at work: an executor, a runtime."""

from tests.scenarios.environment import GOOD, Scene, ended
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import cluster
from tests.scenarios.test_dead_letters import REDRIVE, letters, listed
from tests.scenarios.test_late_callbacks import accepted, call_back, of_size


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
            result = await ended(call, within=15)
            assert "executor 'cards' is no longer configured; the tool may have run" in str(result.error)
            [letter] = await listed(other, 1)
            assert letter["unknown"]
            assert (await other.post(REDRIVE, {"unknown": False}, status=200))["found"] == 0
            gate.open()
            one.faults.cut_off = False
