"""Sends of a link that does not wait, and of adapters that break the rules of the port."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.adapter.port import Frame, Receipt
from gateway.errors import LinkLost
from gateway.events import SessionMoved, ToolCanceled, ToolRequested
from gateway.runtime.tuning import Tuning
from tests.pace import PATIENCE
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway

SENDER = "dragoman-outbox"
"""The name of the tasks that wait for a link."""


@dataclass
class WilfulRuntime(PlainRuntime):
    """A runtime whose link answers the next send in one of several ways, and every other one with a receipt."""

    way: str = ""
    senders: list[str] = field(default_factory=list[str])
    """The names of the tasks in which events left."""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        task = asyncio.current_task()
        self.senders.append("" if task is None else task.get_name())
        way, self.way = self.way, ""
        match way:
            case "awaitable":
                return self._late(frames)
            case "none":
                return cast("Any", None)
            case "unsent":
                raise LinkLost("not connected", unsent=True)
            case "lost":
                raise LinkLost("gone")
            case "raises":
                raise KeyError("not a word of the port")
            case "exits":
                raise SystemExit(3)
            case "cancels":
                raise asyncio.CancelledError
            case _:
                return super().send_all(frames)

    @property
    def results(self) -> list[str]:
        return [one["native_call_id"] for one in self.heard if one["kind"] == "tool.finished"]

    async def _late(self, frames: Sequence[Frame]) -> Receipt:
        await self.released.wait()
        return await super().send_all(frames)

    @property
    def texts(self) -> list[str]:
        return [one["content"][0]["text"] for one in self.heard if one["kind"] == "message.posted"]


def message(text: str) -> dict[str, Any]:
    return {"kind": "message.posted", "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize(
    ("way", "first"),
    [
        ("receipt", "delivered"),
        ("none", "unknown"),
        ("unsent", "delivered"),
        ("lost", "unknown"),
        ("raises", "unknown"),
        ("exits", "unknown"),
        ("cancels", "unknown"),
    ],
)
async def test_whatever_a_send_returns_or_raises_at_once_holds_up_no_later_one(
    tmp_path: Path, way: str, first: str
) -> None:
    runtime = WilfulRuntime(way=way)
    async with plain_gateway(tmp_path, runtime=runtime, tuning=Tuning(link_first=0.02)) as (running, _):
        path = f"/v1/sessions/{await running.session()}/events"
        for text in ("first", "second"):
            await running.post(path, message(text), status=202)
        expected = ["first", "second"] if first == "delivered" else ["second"]
        await runtime.change.until(lambda: runtime.texts == expected or None, PATIENCE, what=str)
    if way == "receipt":
        assert SENDER not in runtime.senders


async def test_no_event_leaves_while_an_earlier_send_waits(tmp_path: Path) -> None:
    runtime = WilfulRuntime(way="awaitable")
    async with plain_gateway(tmp_path, runtime=runtime) as (running, _):
        path = f"/v1/sessions/{await running.session()}/events"
        for text in ("first", "second", "third"):
            await running.post(path, message(text), status=202)
        assert len(runtime.senders) == 1
        runtime.released.set()
        await runtime.change.until(lambda: runtime.texts == ["first", "second", "third"] or None, PATIENCE, what=str)


async def test_a_session_goes_on_deciding_while_its_link_is_congested(tmp_path: Path) -> None:
    """The agent cancels a call meanwhile, and calls again."""
    runtime = WilfulRuntime(way="awaitable")
    static = {
        "executors": {"cards": {"type": "static", "result": 7}},
        "routes": [{"match": {"tool": "*"}, "to": "cards"}],
    }
    async with plain_gateway(tmp_path, runtime=runtime, settings=static) as (running, _):
        runtime.say(ToolRequested(native_call_id="a", tool="ask", arguments={}), "1")
        await running.wait_events("tool.finished", native_call_id="a")
        runtime.say(ToolCanceled(native_call_id="a"), "2")
        runtime.say(ToolRequested(native_call_id="b", tool="ask", arguments={}), "3")
        await running.wait_events("tool.canceled", native_call_id="a")
        await running.wait_events("tool.finished", native_call_id="b")
        assert (len(runtime.senders), runtime.results) == (1, [])
        runtime.released.set()
        await runtime.change.until(lambda: runtime.results == ["a", "b"] or None, PATIENCE, what=str)


INTERRUPT = {"kind": "turn.interrupted"}


def interrupts(runtime: PlainRuntime) -> int:
    return sum(one["kind"] == "turn.interrupted" for one in runtime.heard)


async def test_an_interrupt_of_a_running_turn_leaves_beside_a_send_that_waits(tmp_path: Path) -> None:
    runtime = WilfulRuntime(way="awaitable")
    async with plain_gateway(tmp_path, runtime=runtime) as (running, _):
        path = f"/v1/sessions/{await running.session()}/events"
        runtime.say(SessionMoved(state="running"))
        await running.wait_events("session.moved", state="running")
        for text in ("first", "second"):
            await running.post(path, message(text), status=202)
        await running.post(path, INTERRUPT, status=202)
        await runtime.change.until(lambda: interrupts(runtime) == 1 or None, PATIENCE, what=str)
        assert runtime.texts == []
        runtime.released.set()
        await runtime.change.until(lambda: runtime.texts == ["first", "second"] or None, PATIENCE, what=str)
    assert interrupts(runtime) == 1


@pytest.mark.parametrize("way", ["awaitable", "lost", "raises"])
async def test_a_second_interrupt_waits_for_the_first_and_its_failure_ends_the_link(tmp_path: Path, way: str) -> None:
    runtime = WilfulRuntime(way="awaitable")
    async with plain_gateway(tmp_path, runtime=runtime, tuning=Tuning(link_first=0.02)) as (running, _):
        path = f"/v1/sessions/{await running.session()}/events"
        runtime.say(SessionMoved(state="running"))
        await running.wait_events("session.moved", state="running")
        await running.post(path, message("first"), status=202)
        await runtime.change.until(lambda: len(runtime.senders) == 1 or None, PATIENCE, what=str)
        runtime.way = way
        for _ in range(2):
            await running.post(path, INTERRUPT, status=202)
        runtime.released.set()
        await runtime.change.until(lambda: interrupts(runtime) == 2 or None, PATIENCE, what=str)


@pytest.mark.parametrize("first", ["its response", "its turn"])
async def test_an_interrupt_waits_for_the_message_that_begins_its_turn(tmp_path: Path, first: str) -> None:
    """It would stop nothing before; the runtime may report the turn before it answers the message."""
    runtime = WilfulRuntime(way="awaitable")
    async with plain_gateway(tmp_path, runtime=runtime) as (running, _):
        path = f"/v1/sessions/{await running.session()}/events"
        await running.post(path, message("first"), status=202)
        await running.post(path, INTERRUPT, status=202)
        assert len(runtime.senders) == 1
        if first == "its turn":
            runtime.say(SessionMoved(state="running"))
            await runtime.change.until(lambda: interrupts(runtime) == 1 or None, PATIENCE, what=str)
        runtime.released.set()
        await runtime.change.until(lambda: len(runtime.heard) == 2 or None, PATIENCE, what=str)
        kinds = ["message.posted", "turn.interrupted"]
        assert [one["kind"] for one in runtime.heard] == (kinds if first == "its response" else kinds[::-1])
