"""The sample backend verifies, repeats its answers, and plays by the rules of the game."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from standardwebhooks import Webhook

from gateway.testing.backend import Backend
from gateway.testing.cards import Game, Refusal
from gateway.testing.serving import Served

SECRET = "whsec_" + base64.b64encode(b"a secret of the tests").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret").decode()
BOUND = 60.0


class Caller:
    """Signs and posts webhooks as the gateway does."""

    def __init__(self, backend: Backend, http: httpx.AsyncClient) -> None:
        self.backend = backend
        self.http = http

    async def post(
        self, path: str, kind: str, content: dict[str, Any], *, key: str, secret: str = SECRET, age: int = 0
    ) -> httpx.Response:
        body = json.dumps({"type": kind, "timestamp": "2026-11-20T12:00:00Z", "data": content})
        at = datetime.now(UTC) - timedelta(seconds=age)
        signed = {
            "webhook-id": key,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(secret).sign(key, at, body),
        }
        return await self.http.post(path, content=body, headers=signed)

    async def call(self, tool: str, arguments: dict[str, Any], *, key: str = "c1", **more: Any) -> httpx.Response:
        content = {"call_id": key, "session_id": "s1", "tool": tool, "arguments": arguments}
        return await self.post("/tools", "tool.requested", content | more, key=key)


@pytest.fixture
async def caller() -> AsyncGenerator[Caller]:
    backend = Backend(SECRET)
    async with Served(backend.app) as served, httpx.AsyncClient(base_url=served.url, timeout=BOUND) as http:
        yield Caller(backend, http)


@pytest.mark.parametrize("path", ["/tools", "/messages", "/policy", "/events"])
@pytest.mark.parametrize(
    ("secret", "age"), [(OTHER, 0), (SECRET, 400), (SECRET, -400)], ids=["another secret", "too old", "too new"]
)
async def test_a_bad_signature_is_refused_with_a_problem(caller: Caller, path: str, secret: str, age: int) -> None:
    answer = await caller.post(path, "tool.requested", {}, key="c1", secret=secret, age=age)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 401
    assert caller.backend.records.executions.total() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"webhook-id": "c1", "webhook-timestamp": "soon", "webhook-signature": "v1,AAAA"},
        {"webhook-id": "c1", "webhook-timestamp": "NOW", "webhook-signature": "garbage"},
        {"webhook-id": "c1", "webhook-timestamp": "NOW", "webhook-signature": "v1,?"},
    ],
)
async def test_garbage_in_the_signature_headers_is_refused(caller: Caller, headers: dict[str, str]) -> None:
    now = str(int(datetime.now(UTC).timestamp()))
    answer = await caller.http.post(
        "/tools", content=b"\xff{", headers={name: value.replace("NOW", now) for name, value in headers.items()}
    )
    assert answer.status_code == 401


async def test_a_changed_body_is_refused(caller: Caller) -> None:
    at = datetime.now(UTC)
    signature = Webhook(SECRET).sign("c1", at, '{"rank": "7"}')
    stamp = {"webhook-id": "c1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
    assert (await caller.http.post("/tools", content='{"rank": "K"}', headers=stamp)).status_code == 401


async def test_a_body_over_the_limit_is_refused(caller: Caller) -> None:
    assert (await caller.http.post("/tools", content=b"x" * (2 * 1024**2 + 1))).status_code == 413


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [
        ("/tools", "tool.requested", {}),
        ("/tools", "message.posted", {"session_id": "s", "event": {}}),
        ("/messages", "tool.requested", {"session_id": "s", "call_id": "c"}),
    ],
)
async def test_a_signed_request_for_another_page_is_refused(
    caller: Caller, path: str, kind: str, content: dict[str, Any]
) -> None:
    assert (await caller.post(path, kind, content, key="c1")).status_code == 400


async def test_a_move_is_answered_with_fresh_state_and_its_result(caller: Caller) -> None:
    answer = (await caller.call("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})).json()
    assert answer["outcome"] == "success"
    assert "Victoria gave you 2" in answer["result"]
    assert "book of 7s" in answer["result"]
    (update,) = answer["updates"]
    assert update["context"]["yourHand"] == ["3", "K"]
    assert update["context"]["players"][0] == {"name": "Finn", "cards": 2, "books": ["7"]}


async def test_a_repeat_gets_the_same_answer_and_is_not_executed_again(caller: Caller) -> None:
    arguments = {"targetPlayer": "Victoria", "rank": "7"}
    first = await caller.call("ask_for_cards", arguments)
    again = await caller.call("ask_for_cards", arguments)
    assert first.content == again.content
    assert (caller.backend.records.requests["c1"], caller.backend.records.executions["c1"]) == (2, 1)


async def test_a_repeat_during_the_work_waits_for_the_same_answer(caller: Caller) -> None:
    first = asyncio.create_task(caller.call("slow_thing", {"seconds": 60}))
    again = asyncio.create_task(caller.call("slow_thing", {"seconds": 60}))
    requests = caller.backend.records.requests
    await caller.backend.changed.until(lambda: requests["c1"] == 2 or None, BOUND, what=lambda: "two requests")
    cancel = {"call_id": "c1", "session_id": "s1", "tool": "slow_thing", "reason": "enough"}
    assert (await caller.post("/tools", "tool.canceled", cancel, key="c1.cancel")).status_code == 204
    assert (await first).json()["outcome"] == "canceled"
    assert (await again).content == (await first).content
    assert caller.backend.records.executions["c1"] == 1
    assert caller.backend.records.canceled == ["c1"]


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("ask_for_cards", {"targetPlayer": "Nobody", "rank": "7"}, "You can ask: Victoria, Alice"),
        ("ask_for_cards", {"targetPlayer": "Alice", "rank": "A"}, "ranks you have: 3, 7, K"),
        ("ask_for_cards", {"rank": 7}, "Unknown tool or arguments"),
        ("send_message", {"message": "x" * 501}, "at most 500"),
        ("juggle", {}, "juggle"),
    ],
)
async def test_a_move_that_is_not_allowed_fails_with_a_text_that_helps(
    caller: Caller, tool: str, arguments: dict[str, Any], text: str
) -> None:
    answer = await caller.call(tool, arguments)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "failure")
    assert text in answer.json()["error"]


async def test_the_flaky_tool_wants_a_second_attempt_and_then_answers(caller: Caller) -> None:
    busy = await caller.call("flaky", {})
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert caller.backend.records.executions["c1"] == 0
    assert (await caller.call("flaky", {})).json()["outcome"] == "success"


async def test_an_accepted_call_reports_progress_and_then_its_outcome_once(caller: Caller) -> None:
    arrived: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
    listener = FastAPI()

    async def take(request: Request) -> None:
        arrived.put_nowait((request.url.path, await request.json()))

    listener.add_api_route("/{rest:path}", take, methods=["POST"])
    async with Served(listener) as served:
        urls = {"callback_url": f"{served.url}/outcome", "progress_url": f"{served.url}/progress"}
        assert (await caller.call("deal_later", {}, **urls)).status_code == 202
        assert (await caller.call("deal_later", {}, **urls)).status_code == 202
        async with asyncio.timeout(BOUND):
            assert await arrived.get() == ("/progress", {"percent": 50})
            path, outcome = await arrived.get()
        assert (path, outcome["outcome"]) == ("/outcome", "success")
        assert arrived.empty()


async def test_a_message_is_confirmed_with_the_chat_it_is_now_part_of(caller: Caller) -> None:
    event = {"kind": "message.posted", "content": [{"type": "text", "text": "Got any 7s?"}]}
    content = {"session_id": "s1", "event": event}
    answer = (await caller.post("/messages", "message.posted", content, key="e1")).json()
    assert answer["delivered"] is True
    assert answer["context"]["conversationHistory"].endswith("Finn: Got any 7s?")
    again = (await caller.post("/messages", "message.posted", content, key="e1")).json()
    assert again == answer


async def test_a_message_that_cannot_be_delivered_is_confirmed_as_failed(caller: Caller) -> None:
    event = {"kind": "message.posted", "content": [{"type": "text", "text": "x" * 501}]}
    answer = await caller.post("/messages", "message.posted", {"session_id": "s1", "event": event}, key="e1")
    assert answer.json()["delivered"] is False
    assert "at most 500" in answer.json()["error"]


@pytest.mark.parametrize(("command", "decision"), [("rm a.txt", "allow"), ("rm -rf /", "deny")])
async def test_permission_is_given_or_refused_once(caller: Caller, command: str, decision: str) -> None:
    event = {"kind": "approval.asked", "tool": "run", "arguments": {"command": command}}
    for _ in range(2):
        answer = await caller.post("/policy", "approval.asked", {"session_id": "s1", "event": event}, key="e1")
        assert (answer.status_code, answer.json()) == (200, {"decision": decision})
    assert caller.backend.records.judged == [event]


async def test_event_copies_are_kept_once(caller: Caller) -> None:
    for _ in range(2):
        copy = await caller.post("/events", "tool.finished", {"sequence": 3}, key="e1")
        assert copy.status_code == 204
    assert list(caller.backend.records.events) == [{"type": "tool.finished", "data": {"sequence": 3}}]
    assert (await caller.http.get("/")).json()["events"] == 1


def test_go_fish_lets_everybody_draw_until_the_deck_is_empty() -> None:
    game = Game()
    for _ in range(6):
        game.ask("Victoria", "3")
    assert game.deck == []
    with pytest.raises(Refusal, match="You can only ask for ranks you have"):
        game.ask("Victoria", "8")
