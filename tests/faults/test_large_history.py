"""A history of large events, or of very many, on record: what reads it stays within 512 MiB."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.events import (
    ApprovalAsked,
    CallId,
    ContextUpdated,
    Envelope,
    InteractionId,
    MessagePosted,
    SessionId,
    Text,
    ToolFinished,
    ToolRequested,
)
from gateway.store.port import Engine
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, SendChange, Step
from gateway.testing.conformance.engine_words import call, new, settled
from tests.faults.environment import Instance, until
from tests.faults.memory_limit import limited
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

MEMORY = 512 * 1024 * 1024
LARGE = "x" * 3_900_000
COPIES = "destination:log"
CALL = CallId("call-of-a-large-history")
MANY, A_STEP = 100_000, 1_000
OF_EACH = 20
"""Approvals, and sends of each kind."""


class LargeScene(Scene):
    """A gateway whose retention removes nothing, and whose destination cannot be reached."""

    def settings(self, instance: Instance, **engine: Any) -> dict[str, Any]:
        made = super().settings(instance, **engine)
        made["retention"] = {"max_bytes": "64GiB", "open_age": "1000d", "open_events": 1_000_000}
        made["destinations"]["log"]["url"] = "http://127.0.0.1:9/events"
        return made


async def fill(engine: Engine, session_id: SessionId, count: int) -> None:
    """Record a call, approvals, waiting and dead sends, and messages: large events, `count` in all."""

    async def write(event: Any, **more: Any) -> None:
        direction = "to_runtime" if more.get("sends") else "from_runtime"
        await engine.commit(Step(session_id, (_of(session_id, event, direction),), **more))

    row = await engine.session(session_id)
    assert row is not None
    opened = call(CALL, session_id=session_id, tool="again", native_call_id="native-large", executor="again")
    asked = ToolRequested(native_call_id="native-large", tool="again", arguments={"text": LARGE}, call_id=CALL)
    await write(asked, calls=(opened,))
    for number in range(OF_EACH):
        approval = ApprovalAsked(id=f"a-{number}", tool="shell", arguments={"command": LARGE})
        change = InteractionChange(InteractionId(f"i-{number}"), "waiting", "approval", row.last_sequence + 2 + number)
        await write(approval, interactions=(change,))
    answer = ToolFinished(
        native_call_id="native-large", tool="again", outcome="success", result={"text": LARGE}, call_id=CALL
    )
    outcome = _of(session_id, answer, "to_runtime")
    await engine.commit(Step(session_id, (outcome,), calls=(settled(CALL),)))
    for number in range(OF_EACH):
        state = ContextUpdated(name=f"world-{number}", context={"text": LARGE})
        await write(state, sends=(Enqueue(0, RUNTIME), Enqueue(0, COPIES), Enqueue(0, "destination:gone")))
    row = await engine.session(session_id)
    assert row is not None
    dead = [SendChange(row.last_sequence - number, "destination:gone", "dead", attempt=1) for number in range(OF_EACH)]
    await engine.commit(Step(session_id, send_changes=tuple(dead)))
    for _ in range(count - 2 * OF_EACH - 2):
        await write(MessagePosted(content=(Text(text=LARGE),)))


def _of(session_id: SessionId, event: Any, direction: str) -> Envelope:
    return new(event, session_id=session_id, direction=direction)


async def pages(http: httpx.AsyncClient, path: str, most: int = 8) -> Sequence[dict[str, Any]]:
    """Read pages of a list."""
    found: list[dict[str, Any]] = []
    after: Any = None
    for _ in range(most):
        answer = await http.get(path, params={"limit": 500, **({} if after is None else {"after": after})})
        assert answer.status_code == 200, answer.text[:500]
        found += answer.json()["data"]
        after = answer.json()["next"]
        if after is None:
            break
    return found


async def follow(http: httpx.AsyncClient, path: str, events: int) -> int:
    """Follow a stream until it has sent some large events."""
    size = 0
    async with http.stream("GET", path) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_bytes():
            size += len(piece)
            if size > events * len(LARGE):
                break
    return size


async def read_everything(http: httpx.AsyncClient, session_id: str, last: int) -> None:
    """Open each list and page, some at the same time, and follow."""
    session = f"/v1/sessions/{session_id}"
    for path in (f"{session}/events", "/v1/interactions", "/v1/dead-letters", "/v1/calls", "/v1/sessions"):
        assert await pages(http, path)
    assert len((await http.get(f"{session}/events?excerpts=true&limit=200")).json()["data"]) > 100
    story = (await http.get(f"/v1/calls/{CALL}")).json()
    assert len(story["outcome"]["result"]["text"]) == len(LARGE)
    assert [one["event"]["kind"] for one in story["events"]][:1] == ["tool.requested"]
    shown = (
        *("/ui", "/ui/sessions", f"/ui/sessions/{session_id}", f"/ui/sessions/{session_id}?before=60"),
        *(f"/ui/sessions/{session_id}?kind=tool.*", f"/ui/sessions/{session_id}/events/{last}"),
        *(f"/ui/calls/{CALL}", "/ui/inbox", "/ui/dead-letters", "/ui/calls"),
    )
    for path in (*shown, *shown):
        answer = await http.get(path)
        assert (answer.status_code, path) == (200, path)
        # An excerpt of each event, and never all of one.
        assert len(answer.text) < 8 * 1024 * 1024
    answers = await asyncio.gather(*(http.get(f"/ui/sessions/{session_id}") for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    for path in (f"{session}/events/stream?after=0", "/v1/events/stream?after=0"):
        sizes = await asyncio.gather(*(follow(http, path, 10) for _ in range(5)))
        assert min(sizes) >= 10 * len(LARGE)


async def is_up(scene: Scene, *, after: int) -> bool:
    """Whether the gateway has made another link and is ready."""
    assert scene.gateway.alive, scene.log()
    return scene.links() > (after, True) and await scene.gateway.ready()


async def is_told(scene: Scene) -> bool:
    """Whether only the copies are left, which cannot be delivered."""
    return await scene.store.pending() <= OF_EACH


@pytest.mark.timing
@pytest.mark.parametrize(("store", "events"), [("sqlite", 500), ("postgres", 150)])
@pytest.mark.fault("Hundreds of events of 3.9 MB on record, with 512 MiB in all", on="both")
async def test_a_history_of_large_events_is_read_and_followed_in_little_memory(
    tmp_path: Path, store: str, events: int
) -> None:
    async with LargeScene(tmp_path, "0.2", store=store) as scene:
        await scene.serve()
        session_id = SessionId(await scene.session_id())
        await scene.stop()
        async with scene.store.engine() as engine:
            await fill(engine, session_id, events)
            row = await engine.session(session_id)
            assert row is not None
        scene.gateway.http.timeout = httpx.Timeout(PATIENCE)
        for _ in range(2):
            process = await scene.gateway.serve()
            with limited(process.pid, MEMORY):
                await until(partial(is_up, scene, after=scene.links()[0]), within=3 * PATIENCE)
                await read_everything(scene.http, session_id, row.last_sequence)
                await until(partial(is_told, scene))
            await scene.stop()


async def fill_long(engine: Engine, session_id: SessionId, count: int) -> None:
    """Record `count` messages of one byte, a thousand in a step."""
    for _ in range(count // A_STEP):
        events = [_of(session_id, MessagePosted(content=(Text(text="x"),)), "from_runtime") for _ in range(A_STEP)]
        await engine.commit(Step(session_id, tuple(events)))


async def count_events(http: httpx.AsyncClient, path: str, last: str) -> int:
    """Follow a stream until the event with this id; count the events."""
    seen = 0
    async with http.stream("GET", path) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            seen += line.startswith("data:")
            if line.startswith("data:") and json.loads(line[5:]).get("event_id") == last:
                return seen
    raise AssertionError(f"{path} ended after {seen} events")


@pytest.mark.timing
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.fault("A hundred thousand events of one byte on record, with 512 MiB in all", on="both")
async def test_a_history_of_very_many_events_is_read_and_followed_in_little_memory(tmp_path: Path, store: str) -> None:
    async with LargeScene(tmp_path, "0.2", store=store) as scene:
        await scene.serve()
        session_id = SessionId(await scene.session_id())
        await scene.stop()
        async with scene.store.engine() as engine:
            await fill_long(engine, session_id, MANY)
            row = await engine.session(session_id)
            assert row is not None
            (last,) = await engine.read(session_id, after=row.last_sequence - 1)
        scene.gateway.http.timeout = httpx.Timeout(PATIENCE)
        session = f"/v1/sessions/{session_id}"
        for _ in range(2):
            process = await scene.gateway.serve()
            with limited(process.pid, MEMORY):
                await until(partial(is_up, scene, after=scene.links()[0]), within=3 * PATIENCE)
                assert len(await pages(scene.http, f"{session}/events", 20)) == 20 * 500
                shown = ("/ui", "/ui/sessions", f"/ui/sessions/{session_id}", f"/ui/sessions/{session_id}?before=60000")
                for path in (*shown, f"/ui/sessions/{session_id}/events/{row.last_sequence}"):
                    assert (await scene.http.get(path)).status_code == 200
                streams = (f"{session}/events/stream?after=0", "/v1/events/stream?after=0")
                counts = [count_events(scene.http, path, last.event_id) for path in streams]
                assert min(await asyncio.gather(*counts)) >= MANY
                call = await scene.ask("again", within=PATIENCE)
                assert call.reading is not None
                assert call.reading.outcome == "success"
            await scene.stop()
