"""HUMA's options `extensions` and `history` over real sockets: what a server that knows only its document receives."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.scenarios.environment import GOOD, Scene, ended, scene
from tests.scenarios.hooks import Gate, success

DOCUMENTED = (
    {"name", "context", "description"},
    {"type", "toolCallId", "status", "success", "result", "error"},
    {"id", "content", "images", "participant", "createdAt", "type"},
)


@pytest.fixture
async def older(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(tmp_path, "0.1") as made:
        yield made
        made.is_clean()


async def play(made: Scene) -> list[Any]:
    """Post a message and two contexts, finish a call and cancel one; returns what the agent has received."""
    gate = Gate()
    made.hooks.scripts["free"] = gate.answering(success("too late"))
    async with made.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        await gateway.post(path, {"kind": "message.posted", "content": "hello"}, status=202)
        for wakes in (False, True):
            event = {"kind": "context.updated", "name": f"wakes-{wakes}", "context": {"n": 1}, "wakes_agent": wakes}
            await gateway.post(path, event, status=202)
        await made.agent.wait_for(lambda frame: "wakes-True" in str(frame))
        await ended(await made.agent.call("ask", GOOD))
        call = await made.agent.call("free", {})
        await made.hooks.wait_for(name="free")
        await made.agent.cancel(call, "no longer")
        assert (await ended(call)).outcome == "canceled"
        gate.open()
    return [received.payload for received in made.agent.received]


def contexts(frames: list[Any], dialect: Dialect) -> dict[str, Any]:
    """Find the contexts by the names of their updates."""
    contents = frames if dialect == "0.2" else [frame["content"] for frame in frames]
    return {content["name"]: content["context"] for content in contents if "context" in content}


async def test_without_extensions_a_0_1_server_receives_documented_fields_only(older: Scene) -> None:
    older.configure({"runtimes": {"finn": {"extensions": False}}})
    frames = await play(older)
    assert len(frames) >= 5
    for frame in frames:
        assert set(frame) == {"type", "content"}
        assert any(set(frame["content"]) <= fields for fields in DOCUMENTED), frame


async def test_by_default_a_0_1_server_receives_the_fields_of_public_clients_and_no_history(older: Scene) -> None:
    frames = await play(older)
    assert sum("skipCancelPendingMessage" in frame["content"] for frame in frames) == 1
    assert sum("skipImmediateProcessing" in frame["content"] for frame in frames) == 1
    assert contexts(frames, "0.1") == {"wakes-False": {"n": 1}, "wakes-True": {"n": 1}}


@pytest.mark.parametrize(("history", "key"), [("chat", "chat"), ("off", None)])
async def test_the_history_has_the_key_that_the_yaml_names(both: Scene, history: str, key: str | None) -> None:
    both.configure({"runtimes": {"finn": {"history": history}}})
    found = contexts(await play(both), both.dialect)
    for name in ("wakes-False", "wakes-True"):
        assert set(found[name]) - {"n"} == ({key} if key else set())
        if key:
            assert "hello" in found[name][key]
