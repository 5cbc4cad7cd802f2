"""What is said again after a restart or a cut, and in which form (ENGINE.md 5, number 4)."""

import pytest
from fastapi.responses import Response

from tests.scenarios.hooks import success
from tests.scenarios.house import GOOD, Scene, ended, plain_http, until

TEXT = {"kind": "message.posted", "content": "Your turn, Finn!"}


def texts(scene: Scene) -> list[bool]:
    """Say of each frame that carried the message whether it woke the agent."""
    return [frame["triggering"] for _, frame in scene.agent.received if frame.get("context", {}).get("message")]


async def said(scene: Scene, count: int) -> None:
    """Wait until the message has come so often."""

    async def look() -> bool:
        return len(texts(scene)) >= count

    await until(look)


@pytest.mark.parametrize("cut", ["restart", "link"])
async def test_a_wake_that_is_said_again_does_not_cancel_the_calls_that_it_led_to(newer: Scene, cut: str) -> None:
    newer.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    newer.hooks.scripts["ask"] = Response(status_code=202)
    async with newer.running() as gateway:
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", TEXT, status=202)
        await said(newer, 1)
        call = await newer.agent.call("ask", GOOD)
        [asked] = await newer.hooks.wait_for(1)
        await gateway.wait_call(call.call_id, "accepted")
        if cut == "link":
            await newer.agent.drop()
            await said(newer, 2)
            assert texts(newer) == [True, False]
    async with newer.running() as gateway:
        await said(newer, 2)
        assert set(texts(newer)[1:]) == {False}
        async with plain_http() as http:
            assert (await http.post(asked.data["callback_url"], json=success("cards"))).status_code == 200
        assert (await ended(call)).outcome == "success"


async def test_a_wake_that_may_be_lost_is_said_again_as_it_was_where_no_call_is_open(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    async with newer.running() as gateway:
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", TEXT, status=202)
        await said(newer, 1)
    async with newer.running():
        await said(newer, 2)
        assert texts(newer) == [True, True]
