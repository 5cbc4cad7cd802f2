"""Live events are copied once, in the order of their session, and a destination that hangs delays nothing."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from gateway.events import MessagePosted, MessageStreamed, Text, TypingChanged
from gateway.runtime.delivery import live_copies
from gateway.runtime.tuning import Tuning
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import herm_environment
from tests.scenarios.hooks import SECRET, Asked, Gate, Hooks, Said
from tests.scenarios.plain_runtime import plain_gateway

COPIES = "/copies/log"
PIECES = 40
LOST = 'dragoman_live_copies_lost_total{destination="log"}'
TYPING = TypingChanged(typing=True)


def copying(hooks: Hooks, *routes: dict[str, Any]) -> dict[str, Any]:
    log = {"url": hooks.url + COPIES, "secret": SECRET, "concurrency": 1, "timeout": "1h"}
    return {"destinations": {"log": log}, "routes": [{**route, "copy_to": "log"} for route in routes]}


def live(event: str) -> dict[str, Any]:
    return {"match": {"event": event}, "live": True}


async def lost(gateway: Running, count: int) -> None:
    async def look() -> bool:
        return (await gateway.metrics()).get(LOST) == count

    await until(look)


async def test_a_live_event_is_copied_with_its_session_and_not_recorded(tmp_path: Path) -> None:
    async with Hooks() as hooks, plain_gateway(tmp_path, settings=copying(hooks, live("typing.*"))) as (gateway, finn):
        finn.say(TYPING)
        finn.say(TypingChanged(typing=False))
        started, stopped = await hooks.wait_for(2)
        [row] = (await gateway.get("/v1/sessions"))["data"]
        session = {name: row[name] for name in ("session_id", "runtime", "native_id", "labels")}
        assert started.kind == "typing.changed"
        assert started.data == {
            "live": True,
            "after_sequence": row["last_sequence"],
            "event": {"kind": "typing.changed", "typing": True},
            "session": session,
        }
        assert stopped.data["event"]["typing"] is False
        assert started.key != stopped.key
        assert await gateway.events(kind="typing.changed") == []


async def test_live_events_of_a_session_are_copied_one_by_one_in_order(tmp_path: Path) -> None:
    async with Hooks() as hooks:
        gate = Gate()
        hooks.scripts[COPIES] = gate.answering({})
        settings = copying(hooks, live("message.streamed"))
        async with plain_gateway(tmp_path, settings=settings) as (gateway, finn):
            finn.say(MessageStreamed(text="0"))
            await hooks.wait_for(1)
            for number in range(1, PIECES):
                finn.say(MessageStreamed(text=str(number)))
            finn.say(MessagePosted(content=(Text(text="Hello"),)), "m-1")
            await gateway.wait_events("message.posted")
            gate.open()
            seen = await hooks.wait_for(PIECES)
        assert [one.data["event"]["text"] for one in seen] == [str(number) for number in range(PIECES)]
        assert hooks.most_running == 1


async def test_pieces_that_take_no_step_are_copied_in_order(tmp_path: Path) -> None:
    async with Hooks() as hooks, herm_environment(tmp_path) as made:
        made.configure(copying(hooks, live("message.streamed")))
        async with made.running():
            for number in range(PIECES):
                made.agent.emit(
                    {"type": "agent.message", "content": [{"type": "text", "text": f"{number}"}], "delta": True},
                    durable=False,
                )
            seen = await hooks.wait_for(PIECES)
    assert [one.data["event"]["text"] for one in seen] == [str(number) for number in range(PIECES)]


async def test_without_live_on_their_route_live_events_are_not_copied(tmp_path: Path) -> None:
    async with Hooks() as hooks:
        settings = copying(hooks, {"match": {"event": "message.*"}}, live("typing.*"))
        async with plain_gateway(tmp_path, settings=settings) as (_, finn):
            finn.say(TYPING)
            finn.say(MessageStreamed(text="Hel"))
            finn.say(MessagePosted(content=(Text(text="Hello"),)), "m-1")
            finn.say(TYPING)
            seen = await hooks.wait_for(3)
            assert sorted(one.kind for one in seen) == ["message.posted", "typing.changed", "typing.changed"]


@pytest.mark.slow
async def test_a_hanging_destination_delays_nothing_and_what_finds_the_queue_full_is_lost(
    tmp_path: Path,
) -> None:
    patient = Tuning(live_copy=2 * PATIENCE)
    async with Hooks() as hooks:
        gate = Gate()

        async def hang(asked: Asked) -> Said:
            if asked.kind == "message.streamed":
                await gate.wait()
            return Response()

        hooks.scripts[COPIES] = hang
        settings = copying(hooks, live("message.*")) | {"limits": {"drain": "1s", "inbound_frames": 5_000}}
        async with plain_gateway(tmp_path, settings=settings, tuning=patient) as (gateway, finn):
            for number in range(live_copies.MOST_WAITING + 7):
                finn.say(MessageStreamed(text=str(number)))
            # The only copy of a recorded event that this destination takes at a time is not held up.
            finn.say(MessagePosted(content=(Text(text="Hello"),)), "m-1")
            await hooks.wait_for(name="message.posted")
            assert hooks.running == 1
            await lost(gateway, 7)
            gate.open()
            seen = await hooks.wait_for(live_copies.MOST_WAITING, name="message.streamed")
        assert [one.data["event"]["text"] for one in seen] == [str(n) for n in range(live_copies.MOST_WAITING)]


async def test_live_events_that_wait_too_long_are_lost_and_new_ones_arrive(
    tmp_path: Path,
) -> None:
    hasty = Tuning(live_copy=2.0)
    async with Hooks() as hooks:
        gate = Gate()
        hooks.scripts[COPIES] = gate.answering({})
        settings = copying(hooks, live("message.*"))
        async with plain_gateway(tmp_path, settings=settings, tuning=hasty) as (gateway, finn):
            for number in range(3):
                finn.say(MessageStreamed(text=str(number)))
            await lost(gateway, 3)
            gate.open()
            finn.say(MessageStreamed(text="new"))
            await until(lambda: _has_text(hooks, "new"))


async def test_a_failed_live_event_is_not_sent_again(tmp_path: Path) -> None:
    async with Hooks() as hooks, plain_gateway(tmp_path, settings=copying(hooks, live("typing.*"))) as (gateway, finn):
        hooks.scripts[COPIES] = Response(status_code=503, headers={"retry-after": "0"})
        finn.say(TYPING)
        await lost(gateway, 1)
        hooks.scripts[COPIES] = Response()
        finn.say(TypingChanged(typing=False))
        seen = await hooks.wait_for(2)
        assert [one.data["event"]["typing"] for one in seen] == [True, False]
        assert (await gateway.get("/v1/dead-letters"))["data"] == []


async def test_a_destination_that_is_gone_gets_no_live_events_until_it_is_enabled(tmp_path: Path) -> None:
    async with Hooks() as hooks, plain_gateway(tmp_path, settings=copying(hooks, live("typing.*"))) as (gateway, finn):
        hooks.scripts[COPIES] = Response(status_code=410)
        finn.say(TYPING)
        await lost(gateway, 1)
        finn.say(TYPING)
        await lost(gateway, 2)
        assert len(hooks.asked) == 1
        hooks.scripts[COPIES] = Response()
        await gateway.post("/v1/destinations/log/enable", status=200)
        finn.say(TYPING)
        await hooks.wait_for(2)


async def _has_text(hooks: Hooks, text: str) -> bool:
    return any(one.data["event"].get("text") == text for one in hooks.asked)
