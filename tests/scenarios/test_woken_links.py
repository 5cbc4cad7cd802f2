"""Work that waits for a link ends the link's back-off, at most once a second, in every protocol."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.runtime.tuning import Tuning
from tests.scenarios.environment import GOOD, Running, Scene, ended
from tests.scenarios.fleet import (
    OPENHANDS_KEY,
    WORK,
    answer,
    condition,
    fate,
    herm_environment,
    message,
    openhands_environment,
    questions,
    send,
)
from tests.scenarios.hooks import Gate, success

LONG = 120.0
SOON = 20.0
"""Far below the shortest back-off of these tests, 60 s; an idle machine takes about a second."""

STATE = {"kind": "context.updated", "name": "turn", "context": {"turn": "Finn"}, "description": "Your turn."}


@pytest.fixture
def tuning() -> Tuning:
    """Wait so long between two attempts that only work makes the next one."""
    return Tuning(link_first=LONG, link_longest=LONG, link_refused=LONG)


async def is_up_soon(gateway: Running) -> None:
    await gateway.wait_link("up", within=SOON)


@pytest.mark.parametrize("event", [message("Hello?"), STATE], ids=["message", "context"])
async def test_a_posted_event_reconnects_huma_at_once(both: Scene, event: dict[str, Any]) -> None:
    async with both.running() as gateway:
        await both.huma.stop()
        await gateway.wait_link("down")
        await both.huma.start()
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", event, status=202)
        await is_up_soon(gateway)


async def test_an_outcome_reconnects_huma_at_once(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("two sevens"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for(name="ask")
        await both.huma.stop()
        await gateway.wait_link("down")
        await both.huma.start()
        gate.open()
        assert (await ended(call, SOON)).result == "two sevens"


async def test_a_message_reconnects_huma_after_a_terminal_refusal(both: Scene) -> None:
    both.huma.refuse("finn", "AGENT_NOT_FOUND")
    async with both.running(linked=False) as gateway:
        await gateway.wait_link("refused")
        both.huma.refuse("finn", None)
        await gateway.post(f"/v1/sessions/{await gateway.session()}/events", message("Hello?"), status=202)
        await is_up_soon(gateway)


async def test_a_stream_of_messages_reconnects_at_most_once_a_second(newer: Scene) -> None:
    newer.huma.refuse("finn", "BUSY")
    async with newer.running(linked=False) as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        await gateway.wait_link("refused")
        began, before = time.monotonic(), len(newer.huma.refused)
        while len(newer.huma.refused) < before + 3:
            await gateway.post(path, STATE, status=202)
            await asyncio.sleep(0.02)
        assert time.monotonic() - began >= 2.0
        newer.huma.refuse("finn", None)
        await gateway.post(path, STATE, status=202)
        await is_up_soon(gateway)


async def test_a_message_and_a_redelivery_reconnect_herm(tmp_path: Path) -> None:
    async with herm_environment(tmp_path) as herm:
        herm.tuning = Tuning(link_first=LONG, link_longest=LONG, link_refused=LONG)
        async with herm.running() as gateway:
            [sent] = await send(gateway, message("First."))
            await condition(lambda: herm.agent.received or None)
            for work in (_posting(message("Second.")), _redelivering(sent["sequence"])):
                await herm.server.stop()
                await gateway.wait_link("down")
                await herm.server.start()
                await work(gateway)
                await is_up_soon(gateway)


async def test_an_answer_reconnects_herm(tmp_path: Path) -> None:
    async with herm_environment(tmp_path) as herm:
        herm.tuning = Tuning(link_first=LONG, link_longest=LONG, link_refused=LONG)
        async with herm.running() as gateway:
            asked = herm.agent.clarify("Which rank?")
            [question] = await questions(gateway)
            await herm.server.stop()
            await gateway.wait_link("down")
            await herm.server.start()
            await answer(gateway, question, {"answer": "7"})
            assert await asyncio.wait_for(asked.answered(), SOON)


@pytest.mark.parametrize("how", ["message", "redelivery"])
async def test_work_wakes_an_openhands_link_that_is_asleep(tmp_path: Path, how: str) -> None:
    async with openhands_environment(tmp_path) as openhands:
        openhands.options(ack_timeout="10s", look_again="1h", evicted_wait="1h")
        async with openhands.running() as gateway:
            await gateway.wait_events("session.moved", state="awaiting_input")
            [sent] = await send(gateway, message("First."))
            assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
            async with httpx.AsyncClient(headers={"X-Session-API-Key": OPENHANDS_KEY}) as rest:
                await rest.post(f"{openhands.server.url}/api/conversations/{WORK}/stop")
            await gateway.wait_link("asleep")
            work = _posting(message("Second.")) if how == "message" else _redelivering(sent["sequence"])
            await work(gateway)
            await is_up_soon(gateway)


async def test_an_expired_question_shortens_one_wait_of_a_link_whose_server_is_away(tmp_path: Path) -> None:
    tried: list[float] = []

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.append(time.monotonic())
        writer.close()

    async with openhands_environment(tmp_path) as openhands:
        openhands.tuning = Tuning(link_first=LONG, link_longest=LONG, link_refused=LONG)
        openhands.configure({"limits": {"interaction_timeout": "2s"}})
        async with openhands.running() as gateway:
            await gateway.wait_events("session.moved", state="awaiting_input")
            gated = asyncio.create_task(openhands.agent.agent_runs("rm a", "", gated=True))
            await questions(gateway)
            gated.cancel()
            port = httpx.URL(openhands.server.url).port
            await openhands.server.stop()
            await gateway.wait_link("down")
            async with await asyncio.start_server(refuse, "127.0.0.1", port):
                # The link asks by REST whether it is needed, and gets no answer.
                await condition(lambda: tried or None)
                # Without a back-off, the next attempts come after one second each.
                await asyncio.sleep(5)
    assert tried[-1] - tried[0] < 1


def _posting(event: dict[str, Any]) -> Callable[[Running], Awaitable[object]]:
    return lambda gateway: send(gateway, event)


def _redelivering(sequence: int) -> Callable[[Running], Awaitable[object]]:
    async def redeliver(gateway: Running) -> None:
        path = f"/v1/sessions/{await gateway.session()}/events/{sequence}/redeliver"
        await gateway.post(path, {"target": "runtime"}, status=202)

    return redeliver
