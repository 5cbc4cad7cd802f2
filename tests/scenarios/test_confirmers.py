"""An agent's message is confirmed by what delivers it: a client, or the copy to a destination, sent by any instance."""

import asyncio
from typing import Any

from fastapi import Response

from gateway.testing.runtimes.huma.agent import Confirmation
from tests.scenarios.environment import Running, Scene
from tests.scenarios.hooks import SECRET, Asked, Gate, Said
from tests.scenarios.replicas import cluster

CHAT = "/copies/chat"


def with_copies(scene: Scene, *, names: tuple[str, ...] = ("chat",), **runtime: Any) -> None:
    place = {"url": scene.hooks.url + CHAT, "secret": SECRET, "backoff": {"initial": "20ms", "maximum": "40ms"}}
    scene.configure(
        {
            "destinations": {name: {**place, "attempts": 2} for name in names},
            "routes": [{"match": {"event": "message.posted"}, "copy_to": list(names)}],
            "runtimes": {"finn": runtime},
        }
    )


async def confirm(gateway: Running, message: dict[str, Any], **more: Any) -> tuple[int, Any]:
    burst = message["event"]["burst"]
    event = {"kind": "message.confirmed", "native_call_id": burst["call"], "index": burst["index"], **more}
    answer = await gateway.http.post(f"/v1/sessions/{message['session_id']}/events", json=event)
    return answer.status_code, answer.json()


async def said(saying: "asyncio.Task[list[Confirmation]]") -> tuple[bool, str | None]:
    [one] = await saying
    assert not one.assumed
    assert one.payload is not None
    return one.success, one.payload.get("error")


async def test_a_message_is_confirmed_only_after_its_copy_is_delivered(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["message.posted"] = gate.answering(Response())
    with_copies(newer)
    async with newer.running() as gateway:
        saying = asyncio.create_task(newer.agent.say(["Hello"]))
        await newer.hooks.wait_for(1, name="message.posted")
        assert await gateway.events(kind="message.confirmed") == []
        gate.open()
        assert await said(saying) == (True, None)


async def test_a_message_whose_copy_is_dead_was_not_delivered(newer: Scene) -> None:
    newer.hooks.scripts["message.posted"] = Response("the room is closed", status_code=500)
    with_copies(newer)
    async with newer.running():
        success, error = await said(asyncio.create_task(newer.agent.say(["Hello"])))
    assert not success
    assert error is not None
    assert error.startswith("'chat' did not take the message: ")
    assert "(after 2 attempts)" in error


async def test_a_copy_that_is_delivered_after_a_restart_confirms_its_message(newer: Scene) -> None:
    refused = True

    def busy_at_first(_asked: Asked) -> Said:
        return Response(status_code=503, headers={"retry-after": "1"}) if refused else Response()

    newer.hooks.scripts["message.posted"] = busy_at_first
    with_copies(newer)
    newer.configure({"destinations": {"chat": {"attempts": 50}}})
    async with newer.running() as gateway:
        saying = asyncio.create_task(newer.agent.say(["Hello"]))
        await newer.hooks.wait_for(1, name="message.posted")
        assert await gateway.events(kind="message.confirmed") == []
    refused = False
    async with newer.running():
        assert await said(saying) == (True, None)


async def test_a_client_confirms_a_message_also_after_a_restart(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"confirm": "client"}}})
    async with newer.running() as gateway:
        saying = asyncio.create_task(newer.agent.say(["Hello"]))
        [message] = await gateway.wait_events("message.posted")
    async with newer.running() as gateway:
        assert (await confirm(gateway, message, context={"seen": True}))[0] == 202
        assert await said(saying) == (True, None)
        status, problem = await confirm(gateway, message)
        assert (status, problem["detail"].startswith("no message 0 of call")) == (409, True)


async def test_a_client_that_does_not_confirm_in_time_leaves_the_delivery_unknown(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"confirm": "client", "confirm_timeout": "200ms"}}})
    async with newer.running():
        success, error = await said(asyncio.create_task(newer.agent.say(["Hello"])))
        assert (success, error) == (False, "delivery not known: nothing confirmed it within 0.2 s")


async def test_a_burst_that_the_agent_aborts_waits_for_nobody(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"confirm": "client"}}})
    async with newer.running() as gateway:
        saying = asyncio.create_task(newer.agent.say(["Hello"], call_id="burst-1"))
        [message] = await gateway.wait_events("message.posted")
        await newer.agent.abort("burst-1")
        [confirmed] = await gateway.wait_events("message.confirmed")
        assert confirmed["losses"][0]["note"] == "not sent: the agent aborted the burst"
        assert (await confirm(gateway, message))[0] == 409
        assert await saying == []
    assert [frame for _, frame in newer.agent.received if frame["type"] == "addon-tool-event"] == []


async def test_a_copy_that_another_instance_delivers_confirms_the_message(newer: Scene) -> None:
    with_copies(newer)
    gill = newer.huma.agent("gill")
    store = cluster(newer)
    async with store.replica() as a:
        # The delivery shows that this instance holds the destination, and it keeps it.
        assert await said(asyncio.create_task(newer.agent.say(["Hello"]))) == (True, None)
        async with store.replica() as b:
            opened = await b.post("/v1/sessions", {"runtime": "finn", "native_id": "gill"}, status=201)
            await b.wait_carries(opened["session_id"])
            assert not await a.carries(opened["session_id"])
            assert await said(asyncio.create_task(gill.say(["Hello"]))) == (True, None)
