"""Each operation of the document succeeds on a real gateway, and answers as described, no member more or less."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
import jsonschema_rs
import orjson
import pytest

from gateway.errors import EngineUnavailable
from gateway.events import Outcome
from gateway.executors.port import Answered
from tests.http.conftest import DOCUMENT
from tests.http.environment import Environment

OPERATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    operation["operationId"]: (method.upper(), path, operation["responses"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
STREAMED = {"streamEvents": "Envelope", "streamAllEvents": "Envelope", "streamInteractions": "Interaction"}
"""What the `data` of an event is, where the document knows only that it is a text."""


def _closed(schema: Any) -> Any:
    """Allow no member that is not described: answers may gain some, but not without a word."""
    match schema:
        case {"properties": _}:
            return {"additionalProperties": False, **{name: _closed(inner) for name, inner in schema.items()}}
        case dict():
            return {name: _closed(inner) for name, inner in cast("dict[str, Any]", schema).items()}
        case list():
            return [_closed(inner) for inner in cast("list[Any]", schema)]
        case _:
            return schema


COMPONENTS = _closed(DOCUMENT["components"])


class Attempt:
    """One operation on a gateway with an open session, each answer held to the document."""

    def __init__(self, operation: str, environment: Environment, http: httpx.AsyncClient, session_id: str) -> None:
        self.environment, self.session_id = environment, session_id
        self.statuses: set[str] = set()
        self._http, self._streamed = http, STREAMED.get(operation)
        self._method, self._path, self._responses = OPERATIONS[operation]

    async def ask(self, body: Any = None, *, wait: int = 0, **names: Any) -> None:
        """Send the request; `names` fill the path."""
        path = self._path.format(**{"session_id": self.session_id, **names})
        if wait:
            path += f"?wait={wait}"
        # A stream shows what is on record from the beginning.
        headers = {"last-event-id": "0"} if self._streamed else None
        async with self._http.stream(self._method, path, json=body, headers=headers) as answer:
            status, kind = str(answer.status_code), answer.headers.get("content-type", "").partition(";")[0]
            described = self._responses[status].get("content", {})
            assert list(described) == [kind][: len(kind)]
            self.statuses.add(status)
            schema = described.get(kind, {}).get("schema", {})
            if self._streamed:
                line = await anext(line async for line in answer.aiter_lines() if line.startswith("data: "))
                shown = orjson.loads(line[6:])
                # An envelope of a stream over sessions, which `test_all_events.py` tests.
                shown.pop("session", None)
                schema = {"$ref": f"#/components/schemas/{self._streamed}"}
            else:
                raw = await answer.aread()
                shown = orjson.loads(raw) if kind == "application/json" else raw.decode()
        jsonschema_rs.validator_for({**_closed(schema), "components": COMPONENTS}).validate(shown)


Way = Callable[[Attempt], Awaitable[None]]


async def _ask(one: Attempt) -> None:
    await one.ask()


async def _open_session(one: Attempt) -> None:
    await one.ask({"runtime": "finn", "labels": {"table": "12"}})
    await one.ask({"runtime": "finn", "native_id": "agent-7"})


async def _post_events(one: Attempt) -> None:
    await one.ask({"kind": "message.posted", "content": "Your turn."})


async def _redeliver(one: Attempt) -> None:
    _, sequence, _ = (await one.environment.lose_copy(one.session_id)).split(":", 2)
    await one.ask({"target": "destination:log"}, sequence=sequence)


async def _call(one: Attempt) -> None:
    await one.ask(call_id=await one.environment.ask())


async def _call_tool(one: Attempt) -> None:
    await one.environment.reload(
        {"tools": {"ask_for_cards": {"description": "Ask.", "parameters": {"type": "object"}}}}
    )
    await one.ask({"tool": "ask_for_cards"})
    one.environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=7))
    await one.ask({"tool": "ask_for_cards", "key": "order-1"}, wait=5)


async def _settle(one: Attempt) -> None:
    await one.ask({"outcome": "success", "result": 7}, call_id=await one.environment.ask())


async def _progress(one: Attempt) -> None:
    await one.ask({"percent": 40}, call_id=await one.environment.ask())


async def _redrive(one: Attempt) -> None:
    await one.ask(call_id=await one.environment.lose_call())


async def _letters(one: Attempt) -> None:
    await one.environment.lose_call()
    await one.environment.lose_copy(one.session_id)
    await one.ask()


async def _letter(one: Attempt) -> None:
    await one.ask(letter=await one.environment.lose_copy(one.session_id))
    await one.ask(letter=await one.environment.lose_call())


async def _interactions(one: Attempt) -> None:
    await one.environment.ask_person()
    await one.ask()


async def _interaction(one: Attempt) -> None:
    await one.ask(interaction_id=await one.environment.ask_person())


async def _activity(one: Attempt) -> None:
    await one.environment.lose_call()
    await one.ask()


async def _answer(one: Attempt) -> None:
    await one.ask({"decision": "allow"}, interaction_id=await one.environment.ask_person())


async def _enable(one: Attempt) -> None:
    await one.ask(name="log")


async def _problem(one: Attempt) -> None:
    await one.ask(name="not-found")


async def _readiness(one: Attempt) -> None:
    await one.ask()
    one.environment.fail("health", EngineUnavailable("disk full"))
    await one.ask()


WAYS: dict[str, Way] = {
    "openSession": _open_session,
    "listSessions": _ask,
    "getSession": _ask,
    "getContext": _ask,
    "closeSession": _ask,
    "postEvents": _post_events,
    "getToolAccess": _ask,
    "rotateToolAccess": _ask,
    "listEvents": _ask,
    "streamEvents": _ask,
    "streamAllEvents": _ask,
    "redeliverEvent": _redeliver,
    "callTool": _call_tool,
    "listCalls": _call,
    "getCall": _call,
    "settleCall": _settle,
    "progressCall": _progress,
    "cancelCall": _call,
    "redriveCall": _redrive,
    "listInteractions": _interactions,
    "streamInteractions": _interactions,
    "getInteraction": _interaction,
    "answerInteraction": _answer,
    "listApprovals": _ask,
    "listDeadLetters": _letters,
    "getDeadLetter": _letter,
    "redriveDeadLetter": _letter,
    "redriveDeadLetters": _letters,
    "dismissDeadLetter": _letter,
    "dismissDeadLetters": _letters,
    "enableDestination": _enable,
    "rotateLinks": _ask,
    "reloadConfiguration": _ask,
    "listInstances": _ask,
    "getActivity": _activity,
    "listRuntimes": _ask,
    "listCapabilities": _ask,
    "getHealth": _ask,
    "getReadiness": _readiness,
    "getMetrics": _ask,
    "getVersion": _ask,
    "getOpenapi": _ask,
    "listProblems": _ask,
    "getProblem": _problem,
}
"""How each operation is brought to succeed."""


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_each_operation_succeeds_as_the_document_says(
    operation: str, environment: Environment, wire: httpx.AsyncClient, session_id: str
) -> None:
    attempt = Attempt(operation, environment, wire, session_id)
    await WAYS[operation](attempt)
    _, _, responses = OPERATIONS[operation]
    successes = {
        status
        for status, response in responses.items()
        if "application/problem+json" not in response.get("content", {})
    }
    assert attempt.statuses == successes
