"""What the simulated agent-server sends has the forms of recorded conversations with a real one, member for member."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gateway.testing.runtimes.openhands_v1.server import AcpConversation, AgentServer, Manners, SimConversation
from gateway.testing.serving import Served
from tests.simulators.raw_openhands_v1 import Frame, RawRest, RawSocket, is_state, socket

CAPTURES = Path(__file__).parents[1] / "vectors" / "openhands_v1" / "captures"
QUICK = Manners(acp_end=timedelta(milliseconds=20), acp_cancel=timedelta(milliseconds=50))
FREE = frozenset({"tools", "usage_to_metrics", "agent", "data", "properties", "mcp_config", "_meta", "tags", "stats"})
"""Members whose content depends on the conversation."""
NOT_PLAYED = {
    # The simulated file editor only creates, and there is no task tracker.
    *("ActionEvent FileEditorAction view", "ActionEvent FileEditorAction str_replace"),
    *("ObservationEvent FileEditorObservation view", "ObservationEvent FileEditorObservation str_replace"),
    *("ActionEvent TaskTrackerAction", "ObservationEvent TaskTrackerObservation"),
}


NOT_RECORDED = {"MessageEvent agent", "durable MessageEvent agent"}
"""What is documented, but in no recording."""


def recorded(name: str) -> Iterator[tuple[str, Frame]]:
    """Yield the frames of a recording that a server sent, with their socket."""
    for line in (CAPTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        entry: Frame = json.loads(line)
        if not entry["sent"]:
            yield entry["channel"], entry["payload"]


def label(frame: Frame) -> str:
    """Name a frame so that those with one name should have one form."""
    event = frame.get("event", frame)
    inner = event.get("action", event.get("observation", {}))
    if event.get("kind") == "ACPToolCallEvent":
        more = ["started" if event["status"] in {"pending", "in_progress"} else "ended"]
    elif event.get("kind") == "MessageEvent":
        more = [event["source"]]
    else:
        more = [event.get("key"), inner.get("kind"), inner.get("command") if "File" in str(inner.get("kind")) else None]
    envelope = f"{frame['type']} " if "type" in frame else ""
    return envelope + " ".join(str(part) for part in (event.get("kind", event.get("kind")), *more) if part)


def shape(value: Any, at: str = "") -> frozenset[str]:
    """Return the form of a JSON value: each of its members with its type; the first item stands for a list."""
    found = {f"{at}: {'number' if isinstance(value, float) else type(value).__name__}".replace(": int", ": number")}
    if at.rpartition(".")[2] in FREE:
        return frozenset(found)
    if isinstance(value, dict):
        members = cast("Frame", value)
        return frozenset(found.union(*(shape(member, f"{at}.{key}") for key, member in members.items())))
    if isinstance(value, list) and value:
        return frozenset(found | shape(cast("list[Any]", value)[0], f"{at}[]"))
    return frozenset(found)


def forms(frames: list[tuple[str, Frame]]) -> dict[str, set[frozenset[str]]]:
    found: dict[str, set[frozenset[str]]] = {}
    for _, frame in frames:
        found.setdefault(label(frame), set()).add(shape(frame))
    return found


def difference(simulated: frozenset[str], known: set[frozenset[str]]) -> list[str]:
    """Return how a form differs from the nearest recorded one; an empty list has items of any form."""
    return min((_between(simulated, one) for one in known), key=len, default=["was never recorded"])


def _between(first: frozenset[str], second: frozenset[str]) -> list[str]:
    emptied = [
        path.removesuffix(": list") + "[]"
        for path in first & second
        if path.endswith(": list")
        and not all(any(one.startswith(path.removesuffix(": list") + "[]") for one in form) for form in (first, second))
    ]
    return sorted(
        f"{'+' if one in first else '-'} {one}" for one in first ^ second if not one.startswith(tuple(emptied))
    )


@asynccontextmanager
async def followed(server: AgentServer, name: str) -> AsyncGenerator[tuple[RawRest, RawSocket, RawSocket]]:
    """Connect to both sockets, as the recordings were made."""
    async with (
        RawRest(server.url, name) as rest,
        socket(server.url, "events", name) as bare,
        socket(server.url, "session", name, "?after_seq=-1") as seen,
    ):
        await seen.until_event(is_state("idle"))
        await bare.until_event(is_state("idle"))
        yield rest, bare, seen


async def played(work: SimConversation, server: AgentServer) -> list[tuple[str, Frame]]:
    """Play the recorded conversations with the built-in agent."""
    async with followed(server, work.conversation_id) as (rest, bare, seen):
        await rest.say("SCENARIO:basic")
        await work.agent_runs("echo hello", "hello")
        await work.agent_edits("/workspace/b.py", "print('b')\n")
        await work.agent_runs("(exit 3)", "err", 3)
        await work.agent_thinks("A pause.")
        await work.agent_says("A thought.", pieces=["A ", "thought."])
        await seen.until_event(is_state("finished"))
        await rest.say("again")
        await work.agent_calls("add", {"a": 2})
        await work.agent_calls("add", {"a": "x"})
        await work.finish("Finished.")
        await rest.page()
        for socket_ in (bare, seen):
            await socket_.until_event(lambda event: event.get("id") == work.events[-1]["id"])
            await socket_.until_event(is_state("finished"))
        page = (await rest.page(limit=100))["items"]
    return [
        *(("events", frame) for frame in [*bare.frames, *page]),
        *(("session", frame) for frame in seen.frames),
    ]


async def _tool(request: Request) -> Response:
    body = await request.json()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "serverInfo": {"name": "t", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "add", "inputSchema": schema, "description": "Add."}]},
        "tools/call": {"content": [{"type": "text", "text": "5"}], "isError": False},
    }
    if "id" not in body:
        return Response(status_code=202)
    return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": results[body["method"]]})


@pytest.fixture
async def tools() -> AsyncIterator[str]:
    app = FastAPI()
    app.add_api_route("/mcp", _tool, methods=["POST"])
    async with Served(app) as served:
        yield f"{served.url}/mcp"


async def test_the_built_in_agent_has_the_recorded_forms(tools: str) -> None:
    known = forms([pair for name in ("basic", "confirm_accept", "mcp", "streaming") for pair in recorded(name)])
    async with AgentServer(manners=QUICK) as server:
        llm = {"model": "openai/gpt-4o", "api_key": "sk-x", "usage_id": "a"}
        own = [{"name": "terminal"}, {"name": "file_editor"}, {"name": "task_tracker"}]
        agent = {"llm": llm, "tools": own, "mcp_config": {"host": {"url": tools}}}
        work = server.add(agent=agent)
        simulated = forms(await played(work, server))
    _compare(simulated, known)


async def test_an_acp_agent_has_the_recorded_forms() -> None:
    known = forms([pair for name in ("acp_supersede", "acp_tools") for pair in recorded(name)])
    async with AgentServer(manners=QUICK) as server:
        work: AcpConversation = server.add_acp()
        async with followed(server, work.conversation_id) as (rest, _, seen):
            await rest.say("slow")
            await work.wait_prompt("slow")
            work.starts_tool("sleep", raw_input={"cmd": "sleep"})
            work.says("working ")
            await rest.say("second")
            await work.wait_prompt("second")
            work.ends_turn()
            await seen.until_event(is_state("finished"))
            await rest.say("tools")
            await work.wait_prompt("tools")
            work.says("Before. ")
            call = work.starts_tool("mcp__host__add", kind="other", raw_input={}, status="pending")
            work.ends_tool(call, "3", raw_input={"a": 1, "b": 2})
            work.uses_tool("Read x", raw_input={"p": "x"})
            work.starts_tool("never closed", raw_input={"cmd": "x"})
            work.ends_tool(work.starts_tool("fails", status="pending"), failed=True)
            work.thinks("thinking about it")
            work.ends_turn()
            await work.ended()
            await seen.until_event(lambda event: event.get("id") == work.events[-1]["id"])
        simulated = forms([("session", frame) for frame in seen.frames])
    _compare(simulated, known)


def _compare(simulated: dict[str, set[frozenset[str]]], known: dict[str, set[frozenset[str]]]) -> None:
    played = {name for name in known if name.removeprefix("durable ") not in NOT_PLAYED}
    assert played - simulated.keys() == set()
    wrong = {
        (name, *found)
        for name, each in simulated.items()
        if name not in NOT_RECORDED
        for form in each
        if (found := difference(form, known.get(name, set())))
    }
    assert wrong == set()


async def test_the_answers_of_rest_have_the_recorded_forms() -> None:
    created: Frame = json.loads((Path(__file__).parent / "openhands_v1_created.json").read_text(encoding="utf-8"))
    async with AgentServer() as server, httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post("/api/conversations", json=created["request"])
        assert answer.status_code == created["status"]
        assert difference(shape(answer.json()), {shape(created["payload"])}) == []


def test_another_member_or_type_is_noticed() -> None:
    known = {shape({"a": 1, "b": [{"c": "x"}]})}
    assert difference(shape({"a": 2, "b": []}), known) == []
    others: list[Any] = [{"a": "1", "b": []}, {"a": 1}, {"a": 1, "b": [{"d": "x"}]}, {"a": 1, "b": [], "c": None}]
    for other in others:
        assert difference(shape(other), known) != []
