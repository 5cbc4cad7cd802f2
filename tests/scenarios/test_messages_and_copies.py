"""What an agent says is delivered and confirmed; copies of events reach their destinations, signed and in order."""

from typing import Any

from fastapi import Response

from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import SECRET, Asked, Said

CHAT = {"match": {"event": "message.posted"}, "to": "cards"}
COPIES = "/copies/log"


def with_chat(scene: Scene, **runtime: Any) -> None:
    scene.configure({"routes": [CHAT], "runtimes": {"finn": runtime}})


async def test_each_message_of_a_burst_is_delivered_and_then_confirmed(newer: Scene) -> None:
    newer.hooks.scripts["message.posted"] = {"delivered": True, "context": {"seen": True}}
    with_chat(newer)
    async with newer.running() as gateway:
        said = await newer.agent.say(["Hello", "Anyone?"], {"channel": 7})
        assert [(one.index, one.success, one.assumed) for one in said] == [(0, True, False), (1, True, False)]
        assert [one.payload and one.payload["context"]["seen"] for one in said] == [True, True]
        first, second = newer.hooks.of("message.posted")
        assert first.data["session_id"] == await gateway.session()
        assert first.data["event"]["content"] == [{"type": "text", "text": "Hello"}]
        assert first.data["event"]["extra_args"] == {"channel": 7}
        assert [one.data["event"]["burst"]["index"] for one in (first, second)] == [0, 1]
        posted = await gateway.events(kind="message.posted")
        assert [one["event_id"] for one in posted] == [first.key, second.key]
        assert len(await gateway.wait_events("message.confirmed", 2)) == 2


async def test_a_message_that_was_not_delivered_is_confirmed_as_failed_and_ends_the_burst(newer: Scene) -> None:
    newer.hooks.scripts["message.posted"] = {"delivered": False, "error": "The room is closed."}
    with_chat(newer)
    async with newer.running():
        [said] = await newer.agent.say(["Hello", "Anyone?"])
        assert said.payload == {"messageIndex": 0, "success": False, "error": "The room is closed."}


async def test_a_delivery_that_takes_too_long_is_confirmed_as_failed_in_time(newer: Scene) -> None:
    async def never(_asked: Asked) -> Said:
        await newer.agent.wait_for(lambda frame: frame["type"] == "addon-tool-event")
        return {"delivered": True}

    newer.hooks.scripts["message.posted"] = never
    with_chat(newer, confirm_timeout="200ms")
    async with newer.running():
        [said] = await newer.agent.say(["Hello"])
        assert not said.success
        assert not said.assumed
    frames = [frame for _, frame in newer.agent.received if frame["type"] == "addon-tool-event"]
    assert len(frames) == 1


async def test_a_broken_backend_confirms_nothing_as_delivered(newer: Scene) -> None:
    newer.hooks.scripts["message.posted"] = Response("<html>", media_type="text/html")
    with_chat(newer)
    async with newer.running():
        [said] = await newer.agent.say(["Hello"])
        assert not said.success
        assert said.payload is not None
        assert "HTML" in said.payload["error"]


async def test_without_a_route_a_message_is_confirmed_once_it_is_on_record(newer: Scene) -> None:
    async with newer.running() as gateway:
        said = await newer.agent.say(["Hello", "Anyone?"])
        assert [one.success for one in said] == [True, True]
        assert len(await gateway.events(kind="message.posted")) == 2
    assert newer.hooks.asked == []


async def test_a_client_that_is_told_nothing_of_confirmations_is_sent_none(both: Scene) -> None:
    async with both.running() as gateway:
        await both.agent.say(["Hello"])
        await gateway.wait_events("message.posted")
        await ended(await both.agent.call("ask", GOOD))
    confirmed = [frame for _, frame in both.agent.received if frame["type"] == "addon-tool-event"]
    assert len(confirmed) == (1 if both.dialect == "0.2" else 0)


# Copies ---------------------------------------------------------------------------------------------------


def with_copies(scene: Scene, **destination: Any) -> None:
    log = {
        "url": scene.hooks.url + COPIES, "secret": SECRET, "backoff": {"initial": "20ms", "maximum": "40ms"},
    }  # fmt: skip
    scene.configure(
        {
            "destinations": {"log": {**log, **destination}},
            "routes": [{"match": {"event": "tool.*"}, "copy_to": "log"}, {"match": {"tool": "*"}, "to": "cards"}],
        }
    )


def copies(scene: Scene) -> list[Asked]:
    return [one for one in scene.hooks.asked if "callback_url" not in one.data and "event_id" in one.data]


async def wait_copies(scene: Scene, count: int) -> list[Asked]:
    return await scene.hooks.change.until(
        lambda: found if len(found := copies(scene)) >= count else None,
        PATIENCE,
        what=lambda: f"{count} copies, {len(copies(scene))} came",
    )


async def dead_letters(gateway: Running, count: int) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        found = (await gateway.get("/v1/dead-letters"))["data"]
        return found if len(found) >= count else None

    return await until(look)


async def test_copies_are_signed_complete_and_in_the_order_of_the_session(both: Scene) -> None:
    with_copies(both)
    async with both.running() as gateway:
        for number in range(5):
            await ended(await both.agent.call("free", {"number": number}))
        seen = await wait_copies(both, 10)
        recorded = [one for one in await gateway.events() if one["event"]["kind"].startswith("tool.")]
    # With their positions, from which the destination can read on even after a restore.
    assert [one.data for one in seen] == recorded
    assert all(one.data["position"].startswith(f"{one.data['sequence']}.") for one in seen)
    assert [one.key for one in seen] == [one["event_id"] for one in recorded]
    assert [one.kind for one in seen] == ["tool.requested", "tool.finished"] * 5


async def test_a_copy_that_must_be_repeated_holds_back_those_behind_it(newer: Scene) -> None:
    failed: list[str] = []

    def stumble(asked: Asked) -> Said:
        if asked.kind == "tool.requested" and asked.attempt < 3:
            failed.append(asked.key)
            return Response(status_code=500)
        return Response()

    with_copies(newer)
    newer.hooks.scripts[COPIES] = stumble
    async with newer.running():
        await ended(await newer.agent.call("free", {}))
        await ended(await newer.agent.call("free", {}))
        seen = await wait_copies(newer, 8)
    taken = [one.data["sequence"] for one in seen if not (one.key in failed and one.attempt < 3)]
    assert taken == sorted(taken)
    assert len(taken) == 4
    assert len(failed) == 4


async def test_a_copy_nobody_takes_becomes_a_dead_letter_and_can_be_sent_again(newer: Scene) -> None:
    with_copies(newer, attempts=2)
    newer.hooks.scripts[COPIES] = Response(status_code=500)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        letters = await dead_letters(gateway, 2)
        assert [one["type"] for one in letters] == ["delivery", "delivery"]
        assert {one["target"] for one in letters} == {"destination:log"}
        assert "500" in letters[0]["reason"]
        assert len(copies(newer)) == 4
        newer.hooks.scripts[COPIES] = Response()
        letter = letters[0]
        path = f"/v1/sessions/{letter['session_id']}/events/{letter['sequence']}/redeliver"
        await gateway.post(path, {"target": letter["target"]}, status=202)
        again = (await wait_copies(newer, 5))[-1].data
        assert {name: again[name] for name in letter["envelope"]} == letter["envelope"]

        async def only_one_left() -> bool:
            return len((await gateway.get("/v1/dead-letters"))["data"]) == 1

        await until(only_one_left)


async def test_a_destination_that_is_gone_is_switched_off_until_it_is_enabled(newer: Scene) -> None:
    with_copies(newer)
    newer.hooks.scripts[COPIES] = Response(status_code=410)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        await wait_copies(newer, 1)
        await ended(await newer.agent.call("free", {}))
        assert len(copies(newer)) == 1
        newer.hooks.scripts[COPIES] = Response()
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        assert len(copies(newer)) == 1
        await gateway.post("/v1/destinations/log/enable", status=200)
        seen = await wait_copies(newer, 7)
        recorded = [one for one in await gateway.events() if one["event"]["kind"].startswith("tool.")]
    assert [one.data for one in seen[1:]] == recorded
