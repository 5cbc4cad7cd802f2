"""Executors that answer the questions about held calls: what they are asked, what counts, what people decide."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.http.ui.story import tell
from gateway.testing.runtimes.huma.calls import SimCall
from gateway.testing.runtimes.huma.rules import ResultFrame
from tests.scenarios.environment import GOOD, Running, Scene, until
from tests.scenarios.hooks import SECRET, Asked, Said
from tests.scenarios.notified import GIVEN, held, notify

QUESTION = "approval.asked"
ROUTE = {"match": {"event": QUESTION}, "to": "policy", "held": True}


@pytest.fixture
def gated(newer: Scene) -> Scene:
    return answered(notify(newer, notify=[]), ROUTE)


def answered(scene: Scene, route: dict[str, Any], path: str = "policy", **approve: Any) -> Scene:
    """Let an executor of its own get the questions, by a route."""
    policy = {
        "type": "webhook",
        "url": f"{scene.hooks.url}/{path}",
        "secret": SECRET,
        "idempotent": True,
        "backoff": {"initial": "10ms", "maximum": "20ms"},
    }
    gate = {"match": {"tool": "free"}, "to": "cards", "approve": approve or True}
    scene.configure({"executors": {"policy": policy}, "routes": [gate, {"match": {"tool": "*"}, "to": "cards"}, route]})
    return scene


def allow(asked: Asked) -> Said:
    return {"decision": "allow", "binding": asked.data["event"]["binding"]}


async def asks(scene: Scene, gateway: Running) -> tuple[SimCall, Asked]:
    """Let the agent call; return its call and the question that the executor got."""
    await scene.agent.wait_connected()
    call = await scene.agent.call("free", GIVEN)
    (asked,) = await scene.hooks.wait_for(name=QUESTION)
    return call, asked


async def ended(call: SimCall) -> ResultFrame:
    """Return the result that the agent reads."""
    await call.result()
    assert call.reading is not None
    return call.reading


async def waits(gateway: Running) -> dict[str, Any]:
    """Return the only question that waits for people."""

    async def look() -> dict[str, Any] | None:
        found = (await gateway.get("/v1/interactions", state="waiting"))["data"]
        return found[0] if found else None

    return await until(look)


async def refusal(gateway: Running) -> tuple[str, str]:
    """Return who answered in vain, and why."""

    async def look() -> dict[str, Any] | None:
        return next((one["event"]["data"] for one in await gateway.events(kind="call.progressed")), None)

    data = await until(look)
    return data["by"], data["refused_answer"]


async def test_an_executor_allows_the_call_that_it_is_shown(gated: Scene) -> None:
    gated.hooks.scripts[QUESTION] = allow
    async with gated.running() as gateway:
        call, asked = await asks(gated, gateway)
        assert (await ended(call)).outcome == "success"
        (question,) = (await gateway.get("/v1/interactions"))["data"]
        assert (question["state"], question["answered_by"]) == ("answered", "executor policy")
        assert asked.data["interaction_id"] == question["interaction_id"] == asked.key
        event = asked.data["event"]
        assert (event["tool"], event["arguments"], event["binding"]) == ("free", GIVEN, question["binding"])
        (given,) = await gateway.events(kind="approval.given")
        assert (given["event"]["by"], given["event"]["binding"]) == ("executor policy", event["binding"])


async def test_an_executor_denies_with_a_reason(gated: Scene) -> None:
    gated.hooks.scripts[QUESTION] = {"decision": "deny", "reason": "Over the limit."}
    async with gated.running() as gateway:
        call, _ = await asks(gated, gateway)
        assert (await ended(call)).error == "The call was not made: the backend denied it: Over the limit."
        assert gated.hooks.of("free") == []


async def test_an_empty_answer_leaves_the_call_to_people(gated: Scene) -> None:
    gated.hooks.scripts[QUESTION] = {}
    async with gated.running() as gateway:
        call, _ = await asks(gated, gateway)
        question = await waits(gateway)
        body = {"decision": "allow", "binding": question["binding"]}
        await gateway.post(f"/v1/interactions/{question['interaction_id']}/answer", body, status=200)
        assert (await ended(call)).outcome == "success"
        assert await gateway.events(kind="call.progressed") == []


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"decision": "allow"}, "allow names the `binding` of what was shown to a person"),
        ({"decision": "allow", "binding": "0" * 64}, "the binding is not that of the question; look at the call again"),
        ({"decision": "allow", "arguments": {"amount": 1}}, "an executor does not change the arguments"),
        ({"decision": "perhaps"}, 'a held call is answered {"decision": "allow" or "deny"}'),
    ],
)
async def test_an_answer_that_does_not_count_leaves_the_call_to_people(
    gated: Scene, reply: dict[str, Any], reason: str
) -> None:
    gated.hooks.scripts[QUESTION] = reply
    async with gated.running() as gateway:
        await asks(gated, gateway)
        assert await refusal(gateway) == ("executor policy", reason)
        question = await waits(gateway)
        story = tell(await gateway.get(f"/v1/calls/{question['call_id']}"), datetime.now(UTC))
        assert "The answer of executor policy does not count" in [step.title for step in story.steps]
        assert gated.hooks.of("free") == []


@pytest.mark.parametrize(
    ("route", "path", "approve"),
    [
        pytest.param({**ROUTE, "to": "cards"}, "policy", {}, id="the executor of the call"),
        pytest.param(ROUTE, "tools", {}, id="another name at its address"),
        pytest.param({**ROUTE, "held": False}, "policy", {}, id="a route for other approvals"),
        pytest.param(ROUTE, "policy", {"by": ["lead"]}, id="a rule that names others"),
    ],
)
async def test_who_may_not_answer_is_not_asked(
    gated: Scene, route: dict[str, Any], path: str, approve: dict[str, Any]
) -> None:
    gated.hooks.scripts[QUESTION] = allow
    answered(gated, route, path, **approve)
    async with gated.running() as gateway:
        await gated.agent.wait_connected()
        await gated.agent.call("free", GIVEN)
        await waits(gateway)
        # A call behind it has passed the same executors.
        await (await gated.agent.call("ask_for_cards", GOOD)).result()
        assert gated.hooks.of(QUESTION) == []
        assert gated.hooks.of("free") == []


async def test_a_rule_that_names_the_executor_is_answered_by_it_alone(gated: Scene) -> None:
    gated.hooks.scripts[QUESTION] = allow
    answered(gated, ROUTE, by=["executor policy"])
    async with gated.running() as gateway:
        call, _ = await asks(gated, gateway)
        assert (await ended(call)).outcome == "success"


async def test_an_executor_is_asked_again_after_a_restart_under_the_same_key(gated: Scene) -> None:
    never = asyncio.Event()

    async def hang(_asked: Asked) -> Said:
        await never.wait()
        return {}

    gated.hooks.scripts[QUESTION] = hang
    async with gated.running() as gateway:
        call, first = await asks(gated, gateway)
    gated.hooks.scripts[QUESTION] = allow
    async with gated.running() as gateway:
        second = (await gated.hooks.wait_for(2, name=QUESTION))[1]
        assert (second.key, second.data["event"]) == (first.key, first.data["event"])
        await gateway.wait_call(call.call_id, "succeeded")


async def test_a_reload_that_adds_the_route_asks_about_calls_that_are_held_already(newer: Scene) -> None:
    scene = notify(newer, notify=[])
    scene.hooks.scripts[QUESTION] = {}
    async with scene.running() as gateway:
        call, question = await held(scene, gateway)
        answered(scene, ROUTE)
        await gateway.post("/v1/reload", status=200)
        (asked,) = await scene.hooks.wait_for(name=QUESTION)
        assert asked.key == question["interaction_id"]
        # An executor that has left the call to people is not asked again; another one is.
        scene.configure({"limits": {"interaction_timeout": "3m"}})
        await gateway.post("/v1/reload", status=200)
        scene.hooks.scripts[QUESTION] = allow
        policy = scene.settings["executors"]["policy"]
        routes = [*scene.settings["routes"][:-1], {**ROUTE, "to": "other"}]
        scene.configure({"executors": {"other": policy}, "routes": routes})
        await gateway.post("/v1/reload", status=200)
        assert (await ended(call)).outcome == "success"
        answered_by = (await gateway.get("/v1/interactions"))["data"][0]["answered_by"]
        assert answered_by == "executor other"
        assert len(scene.hooks.of(QUESTION)) == 2


async def test_a_person_may_answer_before_the_executor(gated: Scene) -> None:
    answers = asyncio.Event()

    async def late(asked: Asked) -> Said:
        await answers.wait()
        return allow(asked)

    gated.hooks.scripts[QUESTION] = late
    async with gated.running() as gateway:
        call, _ = await asks(gated, gateway)
        question = await waits(gateway)
        await gateway.post(f"/v1/interactions/{question['interaction_id']}/answer", {"decision": "deny"}, status=200)
        assert "a person denied it" in str((await ended(call)).error)
        answers.set()
        await (await gated.agent.call("ask_for_cards", GOOD)).result()
        assert len(await gateway.events(kind="approval.given")) == 1
        assert gated.hooks.of("free") == []
