"""A runtime repeats what it said long ago, in one breath with something new: what is new is as if it stood alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.events import ApprovalAsked, Author, MessagePosted, QuestionAsked, SessionMoved, Text, ToolRequested
from gateway.runtime.tuning import Tuning
from tests.engines import postgres_server
from tests.scenarios.environment import Running
from tests.scenarios.hooks import SECRET, Gate, Hooks, success
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.test_interactions import waiting

LONG = 300
"""More native ids than a session keeps in memory."""


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    match request.param:
        case "memory":
            yield {"type": "memory"}
        case "sqlite":
            yield {"type": "sqlite", "path": str(tmp_path / "old.db")}
        case _:
            schema = postgres_server.new_schema()
            yield {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}
            await postgres_server.drop_schema(schema)


def _spoken(text: str) -> MessagePosted:
    return MessagePosted(author=Author(role="agent"), content=(Text(text=text),))


async def _talk(running: Running, runtime: PlainRuntime) -> None:
    """Say so much that `old` and `turn` are on record and no longer in memory."""
    runtime.say(_spoken("long ago"), "old")
    runtime.say(SessionMoved(state="idle"), "turn")
    for number in range(LONG):
        runtime.say(_spoken(f"word {number}"), f"n-{number}")
    await running.wait_events("message.posted", LONG + 1)


async def test_a_question_beside_an_old_repeat_keeps_its_event_and_its_name(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    # Each step leaves a snapshot, as one in five hundred does.
    often = Tuning(snapshot_every=1)
    async with Hooks() as hooks:
        asked = {"people": {"type": "webhook", "url": f"{hooks.url}/tools/people", "secret": SECRET}}
        routes = [{"match": {"event": "approval.asked"}, "to": "people"}]
        settings = {"engine": engine, "executors": asked, "routes": routes}
        async with plain_gateway(tmp_path, settings=settings, tuning=often) as (running, runtime):
            await _talk(running, runtime)
            runtime.say(_spoken("long ago"), "old")
            runtime.say(ApprovalAsked(id="q", native_call_id="q", tool="run", scopes=("once",)), "q-1")
            runtime.say(_spoken("behind it"), "behind")
            [row] = await waiting(running, 1)
            await _is_about(running, row, "approval.asked")
            [request] = await hooks.wait_for(1, name="approval.asked")
            assert request.data["interaction_id"] == row["interaction_id"]
            if engine["type"] == "memory":
                await _answer(running, runtime, row)
        if engine["type"] != "memory":
            async with plain_gateway(tmp_path, settings=settings, tuning=often) as (running, runtime):
                assert await waiting(running, 1) == [row]
                await _answer(running, runtime, row)


async def _is_about(running: Running, row: dict[str, Any], kind: str) -> None:
    [question] = await running.events(kind=kind)
    assert (row["sequence"], row["event"]) == (question["sequence"], question["event"])
    texts = [one["event"]["content"][0]["text"] for one in await running.events(kind="message.posted")]
    assert texts == ["long ago", *[f"word {number}" for number in range(LONG)], "behind it"]


async def _answer(running: Running, runtime: PlainRuntime, row: dict[str, Any]) -> None:
    path = f"/v1/interactions/{row['interaction_id']}/answer"
    await running.post(path, {"decision": "allow"}, status=200)
    assert (await runtime.hears("approval.given"))["id"] == "q"
    [given] = await running.wait_events("approval.given")
    assert given["caused_by"] == row["sequence"]


async def test_a_call_beside_an_old_repeat_is_told_once_and_points_at_its_request(
    tmp_path: Path, engine: dict[str, Any]
) -> None:
    async with plain_gateway(tmp_path, settings={"engine": engine}) as (running, runtime):
        await _talk(running, runtime)
        runtime.say(_spoken("long ago"), "old")
        runtime.say(ToolRequested(native_call_id="c", tool="nobody", arguments={}, runs_in="host"), "c-1")
        told = await runtime.hears("tool.finished")
        [asked], [ended] = [await running.wait_events(kind) for kind in ("tool.requested", "tool.finished")]
        assert (told["native_call_id"], ended["caused_by"]) == ("c", asked["sequence"])
        row = await running.call_of("c")
        assert (row["request_sequence"], row["outcome_sequence"]) == (asked["sequence"], ended["sequence"])
        runtime.say(QuestionAsked(id="q", text="More?"), "q-1")
        await waiting(running, 1)
        assert [one["kind"] for one in runtime.heard] == ["tool.finished"]


async def test_nothing_is_decided_on_an_old_repeat(tmp_path: Path, engine: dict[str, Any]) -> None:
    gate = Gate()
    async with Hooks({"work": gate.answering(success())}) as hooks:
        executors = {"work": {"type": "webhook", "url": f"{hooks.url}/tools/work", "secret": SECRET}}
        routes = [{"match": {"tool": "*"}, "to": "work"}]
        settings = {"engine": engine, "executors": executors, "routes": routes}
        async with plain_gateway(tmp_path, settings=settings) as (running, runtime):
            await _talk(running, runtime)
            runtime.say(SessionMoved(state="running"), "runs")
            runtime.say(ToolRequested(native_call_id="c", tool="work", arguments={}, runs_in="host"), "c-1")
            await running.wait_call("c", "dispatched")
            # The turn that ended was another one.
            runtime.say(SessionMoved(state="idle"), "turn")
            runtime.say(QuestionAsked(id="q", text="More?"), "q-1")
            await waiting(running, 1)
            assert (await running.call_of("c"))["state"] == "dispatched"
            assert await running.events(kind="tool.finished") == []
            gate.open()
            await running.wait_call("c", "succeeded")


@pytest.mark.slow
async def test_whoever_answers_beside_an_old_repeat_is_told_what_is_decided_without_it(tmp_path: Path) -> None:
    schema = postgres_server.new_schema()
    settings = {"engine": {"type": "postgres", "dsn": postgres_server.dsn(), "schema": schema}}
    async with plain_gateway(tmp_path, settings=settings) as (running, runtime):
        await _talk(running, runtime)
        runtime.say(SessionMoved(state="running"), "runs")
        runtime.say(QuestionAsked(id="q", text="Which?"), "q-1")
        [row] = await waiting(running, 1)
        operator = await asyncpg.connect(postgres_server.dsn())
        try:
            async with operator.transaction():
                await operator.execute(f'SELECT 1 FROM "{schema}".sessions FOR UPDATE')  # noqa: S608
                # While this cannot be written, what follows gathers in one step.
                runtime.say(_spoken("meanwhile"), "meanwhile")
                await postgres_server.waited_for(operator)
                runtime.say(SessionMoved(state="idle"), "turn")
                path = f"/v1/interactions/{row['interaction_id']}/answer"
                answering = asyncio.create_task(running.http.post(path, json={"answer": "the blue one"}))
                # Nothing outside shows that a request waits for its session's turn.
                await asyncio.sleep(0.3)
            told = await answering
            assert told.status_code == 200, told.text
            assert (await runtime.hears("question.answered"))["answer"] == "the blue one"
        finally:
            await operator.close()
    await postgres_server.drop_schema(schema)
