"""Gateway processes that are killed around the answer to a held call: nothing leaves without one, and once with it."""

import signal
from typing import Any

import pytest

from gateway.testing.runtimes.huma.calls import SimCall
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replica_processes import Fleet, fleet

pytestmark = pytest.mark.slow

GIVEN, CHANGED = {"amount": 150}, {"amount": 120}
SCOPES = ["read", "drive", "operate", "answer", "approve"]


@pytest.fixture
def gated(newer: Scene) -> Scene:
    """A scene in which a person is asked about each call of `free`; the executor runs one call at a time."""
    newer.configure(
        {
            "routes": [
                {"match": {"tool": "free"}, "to": "cards", "approve": True},
                {"match": {"tool": "*"}, "to": "cards"},
            ],
            "api": {"keys": [{"name": "lead", "key": API_KEY, "scopes": SCOPES}]},
            "executors": {"cards": {"concurrency": 1, "timeout": "60s"}},
        }
    )
    newer.hooks.scripts["free"] = success("refunded")
    return newer


async def held(scene: Scene, one: Running) -> tuple[SimCall, dict[str, Any]]:
    """Occupy the only slot, then let the agent call; return its call and the question."""
    await scene.agent.wait_connected()
    await scene.agent.call("ask", GOOD)
    await scene.hooks.wait_for(name="ask")
    call = await scene.agent.call("free", GIVEN)
    await one.wait_call(call.call_id, "held")
    (asked,) = await waiting(one)
    return call, asked


async def waiting(one: Running) -> list[dict[str, Any]]:
    return (await one.get("/v1/interactions", state="waiting"))["data"]


async def allow(one: Running, asked: dict[str, Any]) -> None:
    body = {"decision": "allow", "binding": asked["event"]["binding"], "arguments": CHANGED}
    await one.post(f"/v1/interactions/{asked['interaction_id']}/answer", body, status=200)


async def sent_once(scene: Scene, gateways: Fleet, call: SimCall, gate: Gate, session_id: str) -> None:
    """Let the last process begin, and find one request with what the person allowed."""
    last = await gateways.serve("last")
    await last.wait_carries(session_id)
    gate.open()
    assert "refunded" in str((await ended(call)).result)
    (sent,) = scene.hooks.of("free")
    assert (sent.data["arguments"], sent.data["edited"]) == (CHANGED, True)
    assert await waiting(last) == []
    (given,) = await last.events(session_id, kind="approval.given")
    assert (given["event"]["arguments"], given["event"]["by"]) == (CHANGED, "lead")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_an_allow_on_record_is_carried_out_once_by_the_next_process(gated: Scene, engine: str) -> None:
    gate = Gate()
    gated.hooks.scripts["ask"] = gate.answering(success("freed"))
    store = {"type": "sqlite", "path": str(gated.folder / "dragoman.db")} if engine == "sqlite" else None
    async with fleet(gated, lease="4s", engine=store) as gateways:
        one = await gateways.serve("one")
        call, asked = await held(gated, one)
        session_id = await one.session()
        one.signal(signal.SIGKILL)
        await one.ended()
        two = await gateways.serve("two")
        await two.wait_carries(session_id)
        assert await waiting(two) == [asked]
        assert gated.hooks.of("free") == []
        await allow(two, asked)
        assert (await two.call_of(call.call_id))["state"] == "queued"
        two.signal(signal.SIGKILL)
        await two.ended()
        await sent_once(gated, gateways, call, gate, session_id)


async def test_an_answer_at_another_replica_outlives_the_owner(gated: Scene) -> None:
    gate = Gate()
    gated.hooks.scripts["ask"] = gate.answering(success("freed"))
    async with fleet(gated, lease="4s") as gateways:
        one = await gateways.serve("one")
        call, asked = await held(gated, one)
        session_id = await one.session()
        other = await gateways.serve("other")
        await allow(other, asked)
        one.signal(signal.SIGKILL)
        await one.ended()
        await other.wait_carries(session_id)
        assert (await other.call_of(call.call_id))["state"] == "queued"
        other.signal(signal.SIGKILL)
        await other.ended()
        await sent_once(gated, gateways, call, gate, session_id)
