"""The examples of the OpenAPI document are recorded from a gateway at work; `RECORD=1 pytest FILE` writes them anew."""

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import httpx
import orjson

from adapters.huma import HUMA_0_2
from gateway.errors import EngineUnavailable
from gateway.http import routes
from tests.http.conftest import DOCUMENT, plain_client, serving
from tests.http.environment import Environment, Rooms, environment_of

FOLDER = Path(routes.__file__).parent / "examples"
TOOLS = {"ask_for_cards": {"description": "Ask a player for cards.", "parameters": {"type": "object"}}}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ULID = re.compile(r"\b01[0-9A-HJKMNP-TV-Z]{24}\b")
_GENERATION = re.compile(r"\b([0-9]+)\.[0-9a-f]{12}\b")
_TOKEN = re.compile(r"dtt_[\w-]{20,}")
_START = datetime(2026, 11, 20, 12, tzinfo=UTC)
_OPERATIONS: dict[str, tuple[str, str, str]] = {
    operation["operationId"]: (method.upper(), path, operation["tags"][0])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}


class Story:
    """Requests to a gateway at work, and its responses, by operation."""

    def __init__(self) -> None:
        self.recorded: dict[str, dict[str, Any]] = {}
        self.began = datetime.now(UTC) - timedelta(seconds=5)

    async def ask(
        self, http: httpx.AsyncClient, operation: str, body: Any = None, *, example: str = "", **names: str
    ) -> Any:
        """Send a request and record it; `names` fill the path, the others are the query."""
        method, path, _ = _OPERATIONS[operation]
        query = {name: value for name, value in names.items() if f"{{{name}}}" not in path}
        response = await http.request(method, path.format_map(names), params=query, json=body)
        content: Any = response.json() if "json" in response.headers.get("content-type", "") else response.text
        assert response.status_code in {200, 201, 202, 204, 503}, content
        if example:
            self.record(operation, "requests", example, body)
        if "redrive" in operation and "state" in content:
            # The attempt may have begun already.
            content |= {"state": "queued", "attempt": 0, "started_at": None}
        if content != "":
            self.record(operation, "responses", str(response.status_code), content)
        return content

    async def follow(self, http: httpx.AsyncClient, operation: str, events: int, **names: str) -> None:
        """Record the first events of a stream."""
        lines: list[str] = []
        _, path, _ = _OPERATIONS[operation]
        async with http.stream(
            "GET", path.format_map(names) + "?after=0" * (operation != "streamInteractions")
        ) as stream:
            async for line in stream.aiter_lines():
                lines.append(line)
                events -= not line
                if not events:
                    break
        self.record(operation, "responses", "200", "\n".join([*lines, ""]))

    def record(self, operation: str, kind: str, name: str, value: Any) -> None:
        self.recorded.setdefault(operation, {}).setdefault(kind, {}).setdefault(name, value)

    def files(self) -> dict[str, dict[str, Any]]:
        """Write what was recorded, by the name of a file, with ids and times that are always the same."""
        written: dict[str, dict[str, Any]] = {}
        for operation in _OPERATIONS:
            if operation in self.recorded:
                written.setdefault(_OPERATIONS[operation][2], {})[operation] = self.recorded[operation]
        return orjson.loads(_steady(orjson.dumps(written).decode(), self.began))


def _steady(text: str, began: datetime) -> str:
    """Replace what differs from run to run: ids, tokens, and times since the story began."""
    known: dict[str, str] = {}

    def moment(found: re.Match[str]) -> str:
        # Whole minutes: a deadline is later than a start, and nothing else is measured.
        minutes = (datetime.fromisoformat(found[0]) - began) // timedelta(minutes=1)
        return found[0] if minutes < 0 else (_START + timedelta(minutes=minutes)).isoformat()

    def uuid(found: re.Match[str]) -> str:
        return known.setdefault(found[0], str(uuid5(NAMESPACE_URL, f"dragoman {len(known)}")))

    def ulid(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"01JD4QWXK2M3N4P5Q6R7S8{len(known):04d}")

    for pattern, replace in ((_MOMENT, moment), (_UUID, uuid), (_ULID, ulid)):
        text = pattern.sub(replace, text)
    text = _GENERATION.sub(r"\1.5f0c2a9d7e41", text)
    return _TOKEN.sub("dtt_dGhpcyBpcyBub3QgYSB0b2tlbiBvZiBhbnlib2R5LCBzbw", text)


async def _play_cards(story: Story, environment: Environment, http: httpx.AsyncClient) -> None:
    """Open a session, talk, call tools, and look after what did not get through."""
    created = await story.ask(http, "openSession", {"runtime": "finn"}, example="create")
    session = await environment.attach(created["native_id"])
    body = {"runtime": "finn", "native_id": created["native_id"], "labels": {"table": "12"}}
    await story.ask(http, "openSession", body, example="attach")
    await story.ask(http, "listSessions")
    await story.ask(http, "getSession", session_id=session)
    await story.ask(http, "listEvents", session_id=session, limit="2")
    await story.follow(http, "streamEvents", 2, session_id=session)
    await story.follow(http, "streamAllEvents", 2)
    await story.ask(http, "listRuntimes")
    await story.ask(http, "listCapabilities")
    await story.ask(http, "getToolAccess", session_id=session)
    await story.ask(http, "rotateToolAccess", session_id=session)
    asked = {"tool": "ask_for_cards", "arguments": {"from": "ada", "rank": "7"}, "key": "order-4711"}
    call = (await http.post(f"/v1/sessions/{session}/calls", json=asked)).json()["call_id"]
    await environment.call("caller:backend:order-4711", "accepted")
    await story.ask(http, "callTool", asked, example="with a key", session_id=session)
    await story.ask(http, "progressCall", {"percent": 40, "note": "asking Victoria"}, example="percent", call_id=call)
    updates = [{"name": "table", "context": {"turn": "Ada"}}]
    outcome = {"outcome": "success", "result": {"cards": ["7H", "7S"]}, "updates": updates}
    await story.ask(http, "settleCall", outcome, example="success", call_id=call)
    story.record("settleCall", "requests", "failure", {"outcome": "failure", "error": "It is not your turn."})
    await story.ask(http, "callTool", asked, session_id=session)
    await story.ask(http, "listCalls")
    await story.ask(http, "getContext", session_id=session)
    await story.ask(http, "getCall", call_id=call)
    await story.ask(http, "getMetrics")
    other = (await story.ask(http, "callTool", {**asked, "key": "order-4712"}, session_id=session))["call_id"]
    await environment.call("caller:backend:order-4712", "accepted")
    await story.ask(http, "cancelCall", {"reason": "the game is over"}, example="reason", call_id=other)
    with environment.backend.held():
        await story.ask(http, "redriveCall", {"new_key": False, "deliver": False}, example="again", call_id=call)
    # Of a session of its own, where nothing else is recorded meanwhile.
    session = await environment.attach("agent-8")
    message = {"kind": "message.posted", "content": "Do you have any sevens?"}
    await story.ask(http, "postEvents", message, example="message", session_id=session)
    context = {"kind": "context.updated", "name": "table", "context": {"turn": "Victoria"}}
    several = {"events": [context, {"kind": "message.posted", "content": [{"type": "text", "text": "Your turn."}]}]}
    await story.ask(http, "postEvents", several, example="several", session_id=session)


async def _look_after(story: Story, environment: Environment, http: httpx.AsyncClient) -> None:
    """Ask people, and look after what did not get through."""
    session = await environment.attach()
    interaction = await environment.ask_person()
    await story.follow(http, "streamInteractions", 1)
    await story.ask(http, "listInteractions")
    await story.ask(http, "getInteraction", interaction_id=interaction)
    allow = {"decision": "allow", "scope": "once"}
    await story.ask(http, "answerInteraction", allow, example="approval", interaction_id=interaction)
    held = {"decision": "allow", "binding": "9b4b702e6d640a3c80d9d29c32a2294ee996b4f679d167ccf6e8499dd541e00e"}
    story.record("answerInteraction", "requests", "held call", held)
    await story.ask(http, "listApprovals")
    story.record("answerInteraction", "requests", "question", {"answer": "the blue one"})
    story.record("answerInteraction", "requests", "secret", {"value": "correct horse battery staple"})
    call = await environment.lose_call()
    copy = await environment.lose_copy(session)
    await story.ask(http, "getActivity")
    await story.ask(http, "listDeadLetters")
    await story.ask(http, "getDeadLetter", letter=copy)
    sequence = copy.split(":")[1]
    body = {"executor": "cards", "since": "2026-11-20T12:00:00Z", "limit": 100, "dry_run": True}
    await story.ask(http, "redriveDeadLetters", body, example="one executor")
    await story.ask(http, "dismissDeadLetters", {"target": "destination:log", "dry_run": True}, example="look first")
    with environment.backend.held():
        await story.ask(http, "redriveDeadLetter", {"new_key": False, "deliver": False}, example="again", letter=call)
    await story.ask(http, "dismissDeadLetter", letter=copy)
    copy = {"target": "destination:log"}
    await story.ask(http, "redeliverEvent", copy, example="copy", session_id=session, sequence=sequence)
    story.record("redeliverEvent", "requests", "runtime", {"target": "runtime"})
    await story.ask(http, "enableDestination", name="log")
    await story.ask(http, "rotateLinks")
    environment.configuration["executors"] = {"cards": {"type": "webhook", "url": "http://other.invalid"}}
    await story.ask(http, "reloadConfiguration")
    await story.ask(http, "listInstances")
    await story.ask(http, "getHealth")
    await story.ask(http, "getReadiness")
    environment.fail("health", EngineUnavailable("disk full"))
    await story.ask(http, "getReadiness")
    environment.fail("health", None)
    await story.ask(http, "getVersion")
    await story.ask(http, "getOpenapi")
    await story.ask(http, "listProblems")
    await story.ask(http, "getProblem", name="not-found")


def _shorten(recorded: dict[str, dict[str, Any]]) -> None:
    """Keep the beginning of what is long."""
    metrics = recorded["getMetrics"]["responses"]
    metrics["200"] = "".join(
        line for line in metrics["200"].splitlines(keepends=True) if "dragoman_calls_total" in line
    )
    activity = recorded["getActivity"]["responses"]["200"]
    # The story may run in two minutes.
    counts = {name: sum(one[name] for one in activity["minutes"]) for name in ("calls", "failed", "unknown")}
    activity["minutes"] = [{"at": activity["instance_since"], **counts}]
    activity |= {"p50": 0.25, "p95": 0.25}
    recorded["getOpenapi"]["responses"]["200"] = {"openapi": "3.1.0"}
    del recorded["listProblems"]["responses"]["200"]["data"][1:]


async def test_the_examples_are_what_a_gateway_answers() -> None:
    story = Story()
    huma = Rooms(name=HUMA_0_2.name, protocol=HUMA_0_2.protocol, capabilities=HUMA_0_2.capabilities)
    for runtime, play in ((huma, _play_cards), (Rooms(), _look_after)):
        async with (
            environment_of({"tools": TOOLS}, runtime=runtime) as environment,
            serving(environment.gateway) as (_, url),
            plain_client(url) as http,
        ):
            await play(story, environment, http)
    _shorten(story.recorded)
    files = story.files()
    if os.environ.get("RECORD"):
        for name, examples in files.items():
            (FOLDER / f"{name}.json").write_bytes(
                orjson.dumps(examples, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            )
    stored = {one.stem: orjson.loads(one.read_bytes()) for one in FOLDER.iterdir()}
    assert files == stored, "write the examples anew: RECORD=1 .venv/bin/pytest tests/http/test_examples.py"
