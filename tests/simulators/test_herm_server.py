"""The simulated Herm server holds its clients to the documents, seen by httpx and httpx-sse alone."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse

from gateway.testing.runtimes.herm.server import HermServer, Interrupted, Manners, SimSession

BOUND = 60.0
EVENTS = "/v1/sessions/s1/events"
HELLO: dict[str, Any] = {"type": "user.message", "content": [{"type": "text", "text": "hello"}]}


class Listener:
    """Streams a session and keeps what comes."""

    def __init__(self) -> None:
        self.events: list[ServerSentEvent] = []
        self.ended = asyncio.Event()
        self.broken: str | None = None
        self._more = asyncio.Event()

    async def listen(self, http: httpx.AsyncClient, headers: dict[str, str]) -> None:
        try:
            async with aconnect_sse(http, "GET", f"{EVENTS}/stream", headers=headers) as source:
                async for event in source.aiter_sse():
                    self.events.append(event)
                    self._more.set()
        except httpx.RemoteProtocolError as exc:
            self.broken = str(exc)
        self.ended.set()

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [json.loads(event.data)["payload"] for event in self.events if event.data]

    async def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(BOUND):
            while not (found := [payload for payload in self.payloads if fits(payload)]):
                self._more.clear()
                await self._more.wait()
        return found[0]


@asynccontextmanager
async def served(manners: Manners | None = None) -> AsyncGenerator[tuple[HermServer, SimSession, httpx.AsyncClient]]:
    async with HermServer(api_key="k", manners=manners) as server:
        headers = {"Authorization": "Bearer k"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=BOUND) as http:
            yield server, server.session("s1"), http


@asynccontextmanager
async def listening(session: SimSession, http: httpx.AsyncClient, **headers: str) -> AsyncGenerator[Listener]:
    listener = Listener()
    before = session.streams_opened
    task = asyncio.create_task(listener.listen(http, {key.replace("_", "-"): value for key, value in headers.items()}))
    await session.wait_streams(before + 1)
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def result_for(call_id: str, text: str = "ok", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "user.custom_tool_result", "tool_use_id": call_id, "content": content, **more}


def open_ids(payload: dict[str, Any]) -> list[str] | None:
    return payload.get("stop_reason", {}).get("event_ids")


async def test_a_turn_with_a_custom_tool_runs_as_the_documents_show() -> None:
    async with served() as (_, session, http), listening(session, http) as listener:
        answer = await http.post(EVENTS, json={"events": [HELLO]})
        assert (answer.status_code, answer.json()["data"][0]["type"]) == (202, "user.message")
        call = session.call("check", {"order": 1})
        paused = await listener.until(lambda payload: open_ids(payload) is not None)
        assert open_ids(paused) == [call.asked_id]
        assert (await http.post(EVENTS, json={"events": [result_for(call.asked_id)]})).status_code == 202
        assert (await call.answered())["content"][0]["text"] == "ok"
        session.says("It ships tomorrow.")
        session.end_turn(title="Orders")
        await listener.until(lambda payload: payload["type"] == "session.title_updated")
        assert [payload["type"] for payload in listener.payloads] == [
            *("user.message", "session.status_running", "agent.custom_tool_use", "session.status_idle"),
            *("user.custom_tool_result", "session.status_running"),
            *(["agent.message"] * 4),
            *("session.status_idle", "session.title_updated"),
        ]
        assert session.violations == []


async def test_only_durable_events_are_listed_and_have_an_id_on_the_stream() -> None:
    async with served() as (_, session, http), listening(session, http) as listener:
        session.thinks("hm")
        session.says("Hello")
        session.end_turn(title="Hi")
        await listener.until(lambda payload: payload["type"] == "session.title_updated")
        listed = (await http.get(EVENTS)).json()["data"]
        assert not any(event["payload"].get("delta") or "title" in event["payload"] for event in listed)
        envelopes = [json.loads(event.data) for event in listener.events]
        assert [each["sequence"] for each in envelopes] == list(range(1, len(envelopes) + 1))
        # The client keeps the last id it saw: after a delta it is still that of the durable event before.
        sent = {event.id for event in listener.events if event.id}
        assert sent == {event["id"] for event in listed}


async def test_a_list_comes_in_pages_that_follow_a_cursor() -> None:
    async with served() as (_, session, http):
        for number in range(7):
            session.emit({"type": "agent.message", "content": [], "delta": False, "number": number})
        seen: list[int] = []
        query: dict[str, str] = {"limit": "3"}
        while True:
            page = (await http.get(EVENTS, params=query)).json()
            seen += [event["payload"]["number"] for event in page["data"]]
            if page["nextCursor"] is None:
                break
            query["cursor"] = page["nextCursor"]
        assert seen == list(range(7))
        later = (await http.get(EVENTS, params={"after": "5"})).json()["data"]
        assert [event["sequence"] for event in later] == [6, 7]
        first = (await http.get(EVENTS, params={"order": "desc", "limit": "1"})).json()["data"]
        assert first[0]["sequence"] == 7
        for bad in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"cursor": "evt_other"}):
            assert (await http.get(EVENTS, params=bad)).status_code == 400


async def test_a_stream_is_live_only_unless_the_server_replays() -> None:
    for replays in (False, True):
        async with served(Manners(replays=replays)) as (_, session, http):
            session.says("one")
            session.says("two")
            first = session.events[1]["id"]
            async with listening(session, http, last_event_id=first) as listener:
                session.says("three")
                await listener.until(lambda payload: payload["content"][0]["text"] == "three")
                wholes = [payload["content"][0]["text"] for payload in listener.payloads if not payload["delta"]]
                assert wholes == (["two", "three"] if replays else ["three"])


async def test_silence_is_filled_with_keepalives() -> None:
    async with served(Manners(keepalive=0.01)) as (_, session, http):
        async with http.stream("GET", f"{EVENTS}/stream") as answer:
            lines = answer.aiter_lines()
            async with asyncio.timeout(BOUND):
                assert await anext(lines) == ": open"
                assert [await anext(lines) for _ in range(2)] == ["", ": keepalive"]
        await session.wait_no_stream()


async def test_several_calls_wait_together_and_may_be_answered_one_by_one_in_any_order() -> None:
    async with served() as (_, session, http), listening(session, http) as listener:
        one, two = session.call_all([("a", {}), ("b", {})])
        await http.post(EVENTS, json=result_for(two.asked_id))
        await listener.until(lambda payload: open_ids(payload) == [one.asked_id])
        assert [asked.asked_id for asked in session.open] == [one.asked_id]
        await http.post(EVENTS, json=[result_for(one.asked_id)])
        waits = [open_ids(payload) for payload in listener.payloads if open_ids(payload)]
        assert waits == [[one.asked_id, two.asked_id], [one.asked_id]]
        await listener.until(lambda payload: payload == {"type": "session.status_running"})
        assert session.open == []


async def test_a_message_is_rejected_while_a_turn_runs_or_waits() -> None:
    async with served() as (_, session, http):
        assert (await http.post(EVENTS, json=HELLO)).status_code == 202
        busy = await http.post(EVENTS, json=HELLO)
        assert (busy.status_code, busy.json()["error"]) == (409, "turn_in_progress")
        assert busy.headers["x-should-retry"] == "false"
        call = session.call("a", {})
        assert (await http.post(EVENTS, json=HELLO)).status_code == 409
        assert (await http.post(EVENTS, json={"events": [{"type": "user.interrupt"}, HELLO]})).status_code == 202
        with pytest.raises(Interrupted):
            await call.answered()
        late = await http.post(EVENTS, json=result_for(call.asked_id))
        assert (late.status_code, late.json()["error"]) == (409, "already_settled")
        assert session.violations == []
        assert len(session.refused) == 3


async def test_the_first_answer_wins_and_the_same_one_again_does_nothing() -> None:
    async with served() as (_, session, http):
        call = session.call("a", {})
        for body in (result_for(call.asked_id), result_for(call.asked_id, is_error=False)):
            assert (await http.post(EVENTS, json=body)).status_code == 202
        assert len(call.answers) == 2
        other = await http.post(EVENTS, json=result_for(call.asked_id, "another"))
        assert other.status_code == 409
        assert len(session.violations) == 1


async def test_an_answer_must_be_of_the_kind_that_was_asked_for() -> None:
    async with served() as (_, session, http):
        call = session.call("a", {})
        wrong = {"type": "user.tool_confirmation", "tool_use_id": call.asked_id, "result": "allow"}
        assert (await http.post(EVENTS, json=wrong)).status_code == 400
        assert (await http.post(EVENTS, json=result_for("nothing"))).status_code == 404
        twice = {"events": [result_for(call.asked_id), result_for(call.asked_id)]}
        assert (await http.post(EVENTS, json=twice)).status_code == 400
        assert call.answers == []
        assert len(session.violations) == 3


async def test_approvals_questions_and_secrets_are_asked_and_answered() -> None:
    async with served() as (_, session, http), listening(session, http) as listener:
        use = asyncio.create_task(session.agent_uses("terminal", {"command": "pwd"}, "/w", gated=True))
        asked = await listener.until(lambda payload: payload["type"] == "agent.tool_use")
        assert asked["requires_action"] is True
        confirm = {"type": "user.tool_confirmation", "tool_use_id": asked["id"], "result": "allow", "scope": "once"}
        await http.post(EVENTS, json=confirm)
        assert (await use)["status"] == "completed"
        question = session.clarify("Where?", ["Here", "There"])
        await http.post(EVENTS, json={"type": "user.clarify_result", "request_id": question.asked_id, "answer": ""})
        assert (await question.answered())["answer"] == ""
        sudo, secret = session.ask_sudo(), session.ask_secret("Key?", "API_KEY")
        answers = [
            {"type": "user.sudo_result", "request_id": sudo.asked_id, "password": "canary-1"},
            {"type": "user.secret_result", "request_id": secret.asked_id, "value": "canary-2"},
        ]
        said = await http.post(EVENTS, json={"events": answers})
        assert ((await sudo.answered())["password"], (await secret.answered())["value"]) == ("canary-1", "canary-2")
        session.end_turn()
        await listener.until(lambda payload: payload.get("stop_reason") == {"type": "end_turn"})
        shown = said.text + json.dumps(session.events) + "".join(event.data for event in listener.events)
        assert "canary" not in shown
        assert session.violations == []


async def test_a_denied_tool_fails_and_a_runtimes_own_tool_asks_nobody() -> None:
    async with served() as (_, session, http):
        use = asyncio.create_task(session.agent_uses("mcp_x", {}, "no", gated=True, mcp=True))
        await asyncio.sleep(0)
        asked = session.open[0]
        await http.post(
            EVENTS, json={"type": "user.tool_confirmation", "tool_use_id": asked.asked_id, "result": "deny"}
        )
        assert ((await use)["type"], (await use)["is_error"]) == ("agent.mcp_tool_result", True)
        assert (await session.agent_uses("terminal", {}, "x"))["status"] == "completed"
        assert session.open == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "text",
        {"events": []},
        {"events": [HELLO, HELLO]},
        {"type": "user.message", "content": []},
        {"type": "user.message", "content": "text"},
        {"type": "user.message", "content": [{"type": "image", "url": "x"}]},
        {"type": "user.message", "content": [{"type": "text", "text": "x" * 20_001}]},
        {"type": "user.message", "content": [{"type": "text", "text": "x"}] * 101},
        {"type": "user.steer"},
        {"type": "user.interrupt", "message": 7},
        {"type": "user.clarify_result", "request_id": "c", "answer": None},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "maybe"},
        {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "allow", "scope": "ever"},
        {"type": "user.custom_tool_result", "tool_use_id": "", "content": [{"type": "text", "text": ""}]},
        {
            "type": "user.custom_tool_result",
            "tool_use_id": "t",
            "content": [{"type": "text", "text": ""}],
            "is_error": 1,
        },
        {"type": "agent.message", "content": [{"type": "text", "text": "x"}], "delta": False},
    ],
)
async def test_what_the_documents_do_not_allow_is_refused_with_nothing_carried_out(body: object) -> None:
    async with served() as (_, session, http):
        answer = await http.post(EVENTS, json=body)
        assert (answer.status_code, answer.json()["error"]) == (400, "validation_error")
        assert len(session.violations) == 1
        assert session.events == []


async def test_a_body_that_is_no_json_or_deep_is_refused() -> None:
    async with served() as (_, session, http):
        deep = '{"type": "user.steer", "message": "x", "more": ' + "[" * 100 + "]" * 100 + "}"
        for content in ("{", deep, '{"type": "user.steer", "message": "x", "more": NaN}'):
            assert (await http.post(EVENTS, content=content)).status_code == 400
        assert len(session.violations) == 3


async def test_the_limits_themselves_are_allowed() -> None:
    async with served() as (_, session, http):
        blocks = [{"type": "text", "text": "x" * 20_000}] * 100
        assert (await http.post(EVENTS, json={"type": "user.message", "content": blocks})).status_code == 202
        assert (await http.post(EVENTS, json={"type": "user.steer", "message": ""})).status_code == 202
        assert session.violations == []


async def test_nobody_comes_in_without_the_key_or_to_what_is_not_there() -> None:
    async with served() as (server, session, http):
        assert (await http.get(EVENTS, headers={"Authorization": "Bearer x"})).json()["error"] == "unauthorized"
        assert (await http.get(EVENTS, headers={"Authorization": "k"})).status_code == 401
        assert (await http.get("/v1/sessions/unknown/events")).status_code == 404
        await http.post("/v1/sessions/s1/archive")
        assert (await http.post(EVENTS, json=HELLO)).status_code == 410
        server.session("s2")
        assert (await http.delete("/v1/sessions/s2")).status_code == 204
        assert (await http.get("/v1/sessions/s2")).status_code == 404
        assert session.gone == "archived"


async def test_sessions_are_created_with_an_agent() -> None:
    async with served() as (server, _, http):
        made = await http.post("/v1/agents/agent/sessions", json={"title": "Fish", "metadata": {"a": 1}})
        assert (made.status_code, made.json()["agentId"], made.json()["title"]) == (201, "agent", "Fish")
        assert made.json()["id"] in server.sessions
        assert (await http.get(f"/v1/sessions/{made.json()['id']}")).json()["status"] == "idle"
        assert (await http.post("/v1/agents/other/sessions", json={})).status_code == 404
        assert (await http.post("/v1/agents/agent/sessions", json={"strange": 1})).status_code == 400
        assert len(server.violations) == 1


async def test_streams_can_be_cut_or_ended() -> None:
    async with served() as (_, session, http):
        async with listening(session, http) as listener:
            assert session.drop_streams() == 1
            await listener.ended.wait()
            assert listener.broken is not None
        async with listening(session, http) as listener:
            assert session.close_streams() == 1
            await listener.ended.wait()
            assert listener.broken is None


async def test_the_server_can_stumble_and_lose_an_answer() -> None:
    async with served() as (server, session, http):
        server.stumble("POST", 429, code="rate_limited", retry_after="1")
        slow = await http.post(EVENTS, json=HELLO)
        assert (slow.status_code, slow.headers["retry-after"], session.received) == (429, "1", [])
        server.stumble("LIST", 500)
        assert [(await http.get(EVENTS)).status_code for _ in range(2)] == [500, 200]
        server.stumble("STREAM", 503)
        assert (await http.get(f"{EVENTS}/stream")).status_code == 503
        server.lose_answers()
        with pytest.raises(httpx.TransportError):
            await http.post(EVENTS, json=HELLO)
        assert len(session.received) == 1


async def test_a_server_without_echoes_shows_only_its_own_side() -> None:
    async with served(Manners(echoes=False)) as (_, session, http):
        await http.post(EVENTS, json=HELLO)
        assert [event["type"] for event in session.events] == ["session.status_running"]


# Unkind, as real servers are


async def test_a_post_is_answered_after_the_events_of_its_turn() -> None:
    async with served(Manners(answers_late=True)) as (_, session, http), listening(session, http) as listener:
        posting = asyncio.create_task(http.post(EVENTS, json={"events": [HELLO]}))
        await session.wait_for(lambda payload: payload["type"] == "user.message")
        session.says("Hello.")
        assert not posting.done()
        session.end_turn()
        assert (await posting).status_code == 202
        # What the turn said was written to the stream before the answer.
        await listener.until(lambda payload: payload["type"] == "session.status_idle")


async def test_answers_wait_until_they_are_released() -> None:
    async with served() as (server, session, http), listening(session, http) as listener:
        server.hold_answers()
        posting = asyncio.create_task(http.post(EVENTS, json={"events": [HELLO]}))
        await listener.until(lambda payload: payload["type"] == "session.status_running")
        session.fail("no tokens left")
        ended = await listener.until(lambda payload: payload["type"] == "session.status_idle")
        assert ended["stop_reason"] == {"type": "error", "message": "no tokens left"}
        assert not posting.done()
        server.release_answers()
        assert (await posting).status_code == 202


async def test_events_are_held_back_from_streams_and_listed_all_the_same() -> None:
    async with served() as (_, session, http), listening(session, http) as listener:
        session.hold_events()
        session.says("Hello.")
        session.end_turn()
        listed = (await http.get(EVENTS)).json()["data"]
        assert [event["type"] for event in listed] == [
            "session.status_running", "agent.message", "session.status_idle",
        ]  # fmt: skip
        assert listener.payloads == []
        assert session.release_events() == len(listed) + 3
        await listener.until(lambda payload: payload["type"] == "session.status_idle")
        streamed = [json.loads(event.data)["sequence"] for event in listener.events]
        assert streamed == sorted(streamed)
