"""Herm through a whole gateway: its tools, its questions and its turns, and nothing lost when requests fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gateway.testing.runtimes.herm.server import HermServer, Manners
from tests.scenarios.environment import GOOD, Running
from tests.scenarios.fleet import (
    HERM_KEY,
    HermEnvironment,
    answer,
    condition,
    delivery,
    fate,
    herm_environment,
    message,
    questions,
    send,
)
from tests.scenarios.hooks import Gate, success, update


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[HermEnvironment]:
    async with herm_environment(tmp_path) as made:
        yield made
        assert made.agent.violations == []
        assert made.server.violations == []
        assert made.hooks.unsigned == 0


def texts(posted: dict[str, Any]) -> list[str]:
    return [block["text"] for block in posted["content"]]


def posted(environment: HermEnvironment, kind: str) -> list[dict[str, Any]]:
    return [one.payload for one in environment.agent.received if one.payload["type"] == kind]


# Tools ---------------------------------------------------------------------------------------------------


@pytest.mark.requirement("H54", "H56", "H57", "H58", "H59")
async def test_updates_of_an_outcome_are_the_first_text_of_its_result(environment: HermEnvironment) -> None:
    environment.hooks.scripts["ask"] = success(
        "two sevens", updates=[update("dealt", deck=40), update("turn", of="Finn")]
    )
    async with environment.running() as gateway:
        said = await environment.agent.call("ask", GOOD).answered()
        assert "is_error" not in said or said["is_error"] is False
        first, last = texts(said)
        assert last == "two sevens"
        assert first.index("dealt happened") < first.index("turn happened")
        assert '"deck":40' in first
        # All is answered, so the same turn goes on.
        assert environment.agent.events[-1]["payload"] == {"type": "session.status_running"}
        [row] = (await gateway.get("/v1/calls"))["data"]
        assert (await delivery(gateway, row["call_id"]))["state"] == "delivered"
    [asked] = environment.hooks.asked
    assert (asked.data["runtime"], asked.data["protocol"], asked.data["native_session_id"]) == (
        "ada", "herm/2", "session_ada",
    )  # fmt: skip


@pytest.mark.requirement("H-o", "H-p")
async def test_calls_of_one_pause_are_answered_each_when_it_is_ready(environment: HermEnvironment) -> None:
    gates = {"ask": Gate(), "free": Gate()}
    for tool, gate in gates.items():
        environment.hooks.scripts[tool] = gate.answering(success(tool))
    async with environment.running():
        first, second = environment.agent.call_all([("ask", GOOD), ("free", {})])
        await environment.hooks.wait_for(2)
        gates["free"].open()
        assert texts(await second.answered()) == ["free"]
        assert first.answers == []
        # The pause lasts, and now waits for the other alone.
        assert environment.agent.events[-1]["payload"]["stop_reason"]["event_ids"] == [first.asked_id]
        gates["ask"].open()
        assert texts(await first.answered()) == ["ask"]
    assert [one["tool_use_id"] for one in posted(environment, "user.custom_tool_result")] == [
        second.asked_id, first.asked_id,
    ]  # fmt: skip


async def test_new_work_waits_while_a_call_is_held(environment: HermEnvironment) -> None:
    environment.configure({"routes": [{"match": {"tool": "ask"}, "to": "cards", "approve": True}]})
    async with environment.running() as gateway:
        call = environment.agent.call("ask", GOOD)
        (question,) = await questions(gateway)
        assert await blocking(gateway) == []
        await send(gateway, message("Still there?"))
        assert await blocking(gateway) == [question["interaction_id"]]
        denied = {"decision": "deny"}
        await gateway.gateway.interactions.answer(question["interaction_id"], denied, by="lead")
        assert "a person denied it" in str(await call.answered())
        assert posted(environment, "user.message") == []
        environment.agent.end_turn()
        assert "Still there?" in str(await condition(lambda: posted(environment, "user.message")))
        assert await blocking(gateway) == []


async def blocking(gateway: Running) -> list[str]:
    """Return the approvals that messages to the agent wait for."""
    (runtime,) = (await gateway.get("/v1/runtimes"))["data"]
    return [question for link in runtime["links"] for question in link["waits_for"]]


async def test_an_interrupt_ends_open_calls_and_posts_nothing_for_them(environment: HermEnvironment) -> None:
    gate = Gate()
    environment.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with environment.running() as gateway:
        call = environment.agent.call("ask", GOOD)
        await environment.hooks.wait_for(1)
        await send(gateway, {"kind": "turn.interrupted", "reason": "enough"})
        row = await gateway.wait_call(call.asked_id, "canceled")
        assert (await gateway.get(f"/v1/calls/{row['call_id']}"))["deliveries"] == []
        await environment.hooks.wait_for(1, name="tool.canceled")
        gate.open()
        assert (await environment.agent.wait_for(lambda one: one["type"] == "user.interrupt")).payload[
            "message"
        ] == "enough"
    assert posted(environment, "user.custom_tool_result") == []


# Questions to people -------------------------------------------------------------------------------------


@pytest.mark.requirement("H-x", "H-w")
async def test_approvals_are_told_in_the_order_of_asking_however_they_are_answered(
    environment: HermEnvironment,
) -> None:
    async with environment.running() as gateway:
        first = environment.agent.ask_approval("terminal", {"command": "ls"})
        second = environment.agent.ask_approval("fetch", {"url": "http://x"}, mcp=True)
        one, other = await questions(gateway, 2)
        assert [one["event"]["id"], other["event"]["id"]] == [first.asked_id, second.asked_id]
        denial = {"decision": "deny", "scope": "session", "reason": "not there"}
        losses = (await answer(gateway, other, denial))["losses"]
        assert [(loss["how"], loss["path"]) for loss in losses] == [("dropped", "/reason")]
        assert posted(environment, "user.tool_confirmation") == []
        await answer(gateway, one, {"decision": "allow"})
        assert (await second.answered())["result"] == "deny"
        assert (await answer(gateway, one, {"decision": "deny"}, status=409))["type"].endswith("conflict")
    told = posted(environment, "user.tool_confirmation")
    assert [(one["tool_use_id"], one["result"], one.get("scope")) for one in told] == [
        (first.asked_id, "allow", None), (second.asked_id, "deny", "session"),
    ]  # fmt: skip


async def test_an_approval_is_given_by_the_executor_it_is_routed_to(environment: HermEnvironment) -> None:
    environment.configure({"routes": [{"match": {"event": "approval.asked", "tool": "term*"}, "to": "cards"},
                                {"match": {"tool": "*"}, "to": "cards"}]})  # fmt: skip
    environment.hooks.scripts["approval.asked"] = {"decision": "allow", "scope": "session", "reason": "Herm takes none"}
    async with environment.running() as gateway:
        result = await environment.agent.agent_uses("terminal", {"command": "ls"}, "a.txt", gated=True)
        assert result["status"] == "completed"
        [told] = posted(environment, "user.tool_confirmation")
        assert (told["result"], told["scope"]) == ("allow", "session")
        [asked] = environment.hooks.asked
        [recorded] = await gateway.events(kind="approval.asked")
        assert asked.key == recorded["event_id"]
        assert asked.data["event"]["arguments"] == {"command": "ls"}
        # Nobody has routed this one.
        environment.agent.ask_approval("write_file", {"path": "a"})
        [waiting] = await questions(gateway)
        assert waiting["event"]["tool"] == "write_file"
        # Its end is a runtime's own: nothing of it was ever ours to execute.
        assert (await gateway.get("/v1/calls"))["data"] == []


async def test_a_reload_that_adds_a_route_sends_approvals_that_wait_already(environment: HermEnvironment) -> None:
    environment.hooks.scripts["approval.asked"] = {"decision": "allow"}
    async with environment.running() as gateway:
        environment.agent.ask_approval("write_file", {"path": "a"})
        await questions(gateway)
        assert environment.hooks.asked == []
        environment.configure({"routes": [{"match": {"event": "approval.asked"}, "to": "cards"}]})
        await gateway.post("/v1/reload", status=200)
        [answered] = await questions(gateway, state="answered")
        assert (answered["event"]["tool"], answered["answered_by"]) == ("write_file", "executor")
        [asked] = environment.hooks.asked
        assert asked.data["event"]["arguments"] == {"path": "a"}


@pytest.mark.requirement("H51", "H32", "H-r")
async def test_questions_with_and_without_choices_are_answered_through_the_api(environment: HermEnvironment) -> None:
    async with environment.running() as gateway:
        for choices, text in ((["Victoria", "Alice"], "Alice"), (None, "anything at all"), (None, "")):
            asked = environment.agent.clarify("Whom?", choices)
            [waiting] = await questions(gateway)
            assert waiting["event"]["choices"] == (choices or [])
            await answer(gateway, waiting, {"answer": text})
            assert (await asked.answered())["answer"] == text
        states = [one["state"] for one in (await gateway.get("/v1/interactions"))["data"]]
        assert states == ["answered"] * 3


async def test_what_nobody_answers_in_time_is_denied_and_skipped(environment: HermEnvironment) -> None:
    environment.configure({"limits": {"interaction_timeout": "100ms"}})
    async with environment.running() as gateway:
        approval = environment.agent.ask_approval("terminal", {"command": "rm"})
        question, sudo = environment.agent.clarify("Whom?"), environment.agent.ask_sudo()
        secret = environment.agent.ask_secret("Token?", "TOKEN")
        assert (await approval.answered())["result"] == "deny"
        assert (await question.answered())["answer"] == ""
        assert (await sudo.answered())["password"] == ""
        assert (await secret.answered())["value"] == ""
        assert len(await questions(gateway, 4, state="expired")) == 4


@pytest.mark.requirement("H-s")
async def test_passwords_and_secrets_are_supplied_by_people_or_by_id(environment: HermEnvironment) -> None:
    async with environment.running() as gateway:
        sudo = environment.agent.ask_sudo()
        [waiting] = await questions(gateway)
        assert waiting["event"]["purpose"] == "sudo"
        await answer(gateway, waiting, {"value": "pw-canary"})
        assert (await sudo.answered())["password"] == "pw-canary"
        secret = environment.agent.ask_secret("Token?", "TOKEN")
        [waiting] = await questions(gateway)
        await send(
            gateway, {"kind": "secret.supplied", "id": secret.asked_id, "purpose": "secret", "value": "s-canary"}
        )
        assert (await secret.answered())["value"] == "s-canary"
        await questions(gateway, 2, state="answered")
        assert "canary" not in json.dumps(await gateway.events())


# Words and turns -----------------------------------------------------------------------------------------


@pytest.mark.requirement("H40", "H41", "H42", "H-k", "H-n", "H37", "H38", "H-gg")
async def test_pieces_are_live_wholes_are_recorded_and_a_title_comes_after_the_turn(
    environment: HermEnvironment,
) -> None:
    async with environment.running() as gateway, gateway.stream(await gateway.session()) as stream:
        environment.agent.thinks("Who has sevens?")
        environment.agent.says("Have you any sevens?")
        seen = await stream.until("message.posted")
        pieces = [one["data"] for one in seen if one["event"] == "message.streamed"]
        assert "".join(one["event"]["text"] for one in pieces) == "Have you any sevens?"
        assert all(one["live"] and "id" not in one for one in pieces)
        assert seen[-1]["data"]["event"]["complete"] is True
        environment.agent.says("I was about to", whole=False)
        environment.agent.end_turn(title="Fishing")
        seen = await stream.until("session.titled")
        assert "id" not in seen[-1]
        assert seen[-1]["data"]["event"]["title"] == "Fishing"
        [cut] = [one["data"] for one in seen if one["event"] == "message.posted"]
        assert cut["event"]["complete"] is False
        assert cut["event"]["content"] == [{"type": "text", "text": "I was about to"}]
        kinds = {one["event"]["kind"] for one in await gateway.events()}
        assert kinds.isdisjoint({"message.streamed", "session.titled"})


@pytest.mark.requirement("H20", "H21", "H-e")
async def test_messages_wait_for_the_turn_and_only_so_many_do(environment: HermEnvironment) -> None:
    # A turn that is told late must not be taken for none.
    environment.options(turn_timeout="30s")
    async with environment.running() as gateway:
        environment.agent.begin_turn()
        await gateway.wait_events("session.moved", state="running")
        for number in range(16):
            await send(gateway, message(f"message {number}"))
        [problem] = await send(gateway, message("one too many"), status=503)
        assert problem["type"].endswith("overloaded")
        assert "16" in problem["detail"]
        await send(gateway, {"kind": "turn.steered", "text": "hurry"})
        hint: dict[str, Any] = {"kind": "context.updated", "name": "turn", "context": {}, "description": "It is late."}
        await send(gateway, {**hint, "wakes_agent": True})
        await environment.agent.wait_for(lambda one: one["type"] == "user.steer" and "It is late." in one["message"])
        assert posted(environment, "user.message") == []
        for number in range(16):
            environment.agent.end_turn()
            await environment.agent.wait_for(
                lambda one, text=f"message {number}": one["type"] == "user.message" and texts(one) == [text]
            )
            assert environment.agent.turn
        environment.agent.end_turn()
        await send(gateway, message("afterwards"))
        await environment.agent.wait_for(lambda one: one["type"] == "user.message" and texts(one) == ["afterwards"])
    # The server never had to refuse one.
    assert environment.agent.refused == []


async def test_more_messages_than_may_wait_are_refused_in_one_request_and_without_a_link(
    environment: HermEnvironment,
) -> None:
    async with environment.running() as gateway:
        environment.agent.begin_turn()
        await gateway.wait_events("session.moved", state="running")
        [problem] = await send(gateway, *[message(f"m{number}") for number in range(17)], status=503)
        assert problem["type"].endswith("overloaded")
        assert await gateway.events(kind="message.posted") == []
        await environment.server.stop()
        await gateway.wait_link("down")
        for number in range(16):
            await send(gateway, message(f"message {number}"))
        await send(gateway, message("one too many"), status=503)
        await environment.server.start()


@pytest.mark.requirement("H-d")
async def test_a_message_that_meets_a_running_turn_is_kept_until_it_ends(environment: HermEnvironment) -> None:
    environment.options(turn_timeout="30s")
    async with environment.running() as gateway:
        environment.server.stumble("POST", 409, code="turn_in_progress")
        [sent] = await send(gateway, message("hello"))
        environment.agent.begin_turn()
        await gateway.wait_events("session.moved", state="running")
        assert posted(environment, "user.message") == []
        environment.agent.end_turn()
        await environment.agent.wait_for(lambda one: one["type"] == "user.message")
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
    assert len(posted(environment, "user.message")) == 1


async def test_a_message_does_not_wait_for_a_turn_that_ended_before_its_post_was_answered(
    environment: HermEnvironment,
) -> None:
    # Whoever waits for that turn waits longer than this test.
    environment.options(turn_timeout="60s")
    async with environment.running() as gateway:
        environment.server.hold_answers()
        [sent] = await send(gateway, message("first"))
        await environment.agent.wait_for(lambda one: one["type"] == "user.message" and texts(one) == ["first"])
        environment.agent.end_turn()
        await gateway.wait_events("session.moved", state="idle")
        environment.server.release_answers()
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        await send(gateway, message("second"))
        await environment.agent.wait_for(lambda one: one["type"] == "user.message" and texts(one) == ["second"])


class Hesitant(HermServer):
    """A server whose refusals are on their way until the test lets them through."""

    def __init__(self) -> None:
        super().__init__(api_key=HERM_KEY)
        self.refusing, self.through = asyncio.Event(), asyncio.Event()

    async def _post(self, session_id: str, request: Request) -> Response:
        answer = await super()._post(session_id, request)
        if answer.status_code == 409:
            self.refusing.set()
            await self.through.wait()
        return answer


async def test_a_message_refused_for_a_turn_that_ended_meanwhile_is_offered_again_at_once(tmp_path: Path) -> None:
    server = Hesitant()
    async with herm_environment(tmp_path, server=server) as environment:
        environment.options(turn_timeout="60s")
        async with environment.running() as gateway:
            server.stumble("POST", 409, code="turn_in_progress")
            await send(gateway, message("hello"))
            await server.refusing.wait()
            environment.agent.begin_turn()
            environment.agent.end_turn()
            await gateway.wait_events("session.moved", state="idle")
            server.through.set()
            await environment.agent.wait_for(lambda one: one["type"] == "user.message")


# Requests that fail --------------------------------------------------------------------------------------


@pytest.mark.requirement("H-t")
@pytest.mark.parametrize("status", [404, 409, 410])
async def test_an_answer_that_comes_too_late_is_moot_and_no_dead_letter(
    environment: HermEnvironment, status: int
) -> None:
    async with environment.running() as gateway:
        environment.server.stumble("POST", status, code="gone")
        call = environment.agent.call("ask", GOOD)
        row = await gateway.wait_call(call.asked_id, "succeeded")
        settled = await delivery(gateway, row["call_id"])
        assert settled["state"] == "moot"
        assert str(status) in settled["reason"]
        environment.server.stumble("POST", status, code="gone")
        approval = environment.agent.ask_approval("terminal", {})
        [waiting] = await questions(gateway)
        await answer(gateway, waiting, {"decision": "allow"})
        await questions(gateway, state="moot")
        assert (await gateway.get("/v1/dead-letters"))["data"] == []
        assert (call.answers, approval.answers) == ([], [])
        # The link has borne it.
        assert len(await gateway.events(kind="link.changed")) == 1
        assert texts(await environment.agent.call("free", {}).answered())


FAILURES = [
    *[("POST", status) for status in (401, 429, 500)],
    *[("LIST", status) for status in (401, 429, 500)],
    *[("STREAM", status) for status in (401, 429, 500)],
    ("lost answer", 0),
]


def fail_next(environment: HermEnvironment, method: str, status: int) -> None:
    if method == "lost answer":
        environment.server.lose_answers()
        return
    after = "1" if status == 429 else None
    environment.server.stumble(method, status, code="as_ordered", retry_after=after)
    if method != "POST":
        environment.agent.drop_streams()


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize(("method", "status"), FAILURES, ids=str)
async def test_a_result_survives_each_failure_and_is_said_in_one_way(
    environment: HermEnvironment, method: str, status: int
) -> None:
    gate = Gate()
    environment.hooks.scripts["ask"] = gate.answering(success("kept", updates=[update("dealt", deck=1)]))
    async with environment.running() as gateway:
        call = environment.agent.call("ask", GOOD)
        await environment.hooks.wait_for(1)
        fail_next(environment, method, status)
        gate.open()
        said = await call.answered(10)
        row = await gateway.wait_call(call.asked_id, "succeeded")
        assert (await delivery(gateway, row["call_id"]))["state"] == "delivered"
        assert all(again == said for again in call.answers)
        await gateway.wait_link("up")
        assert texts(await environment.agent.call("free", {"n": 1}).answered()) == ['{"n":1}']
    assert len(environment.hooks.of("ask")) == 1


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize(("method", "status"), FAILURES, ids=str)
async def test_a_message_is_said_once_or_its_fate_is_called_unknown(
    environment: HermEnvironment, method: str, status: int
) -> None:
    async with environment.running() as gateway:
        fail_next(environment, method, status)
        [sent] = await send(gateway, message("hello"))
        settled = await fate(gateway, sent["sequence"])
        said = posted(environment, "user.message")
        if (method, status) == ("POST", 500):
            # It may have acted before it failed.
            assert (settled["state"], said) == ("unknown", [])
            [letter] = (await gateway.get("/v1/dead-letters"))["data"]
            assert letter["sequence"] == sent["sequence"]
        else:
            assert (settled["state"], len(said)) == ("delivered", 1)
        await gateway.wait_link("up")
        if environment.agent.turn:
            environment.agent.end_turn()
        await send(gateway, message("again"))
        await environment.agent.wait_for(lambda one: one["type"] == "user.message" and texts(one) == ["again"])


async def test_a_lost_answer_without_an_echo_leaves_a_message_unknown_and_unrepeated(tmp_path: Path) -> None:
    async with (
        herm_environment(tmp_path, manners=Manners(echoes=False)) as environment,
        environment.running() as gateway,
    ):
        environment.server.lose_answers()
        [sent] = await send(gateway, message("hello"))
        assert (await fate(gateway, sent["sequence"]))["state"] == "unknown"
        assert len(posted(environment, "user.message")) == 1


class Slow(HermServer):
    """A server that answers its first post only when the test says so."""

    def __init__(self) -> None:
        super().__init__(api_key=HERM_KEY, manners=Manners(echoes=False))
        self.posted, self.answers = asyncio.Event(), asyncio.Event()

    async def _post(self, session_id: str, request: Request) -> Response:
        answer = await super()._post(session_id, request)
        if not self.posted.is_set():
            self.posted.set()
            await self.answers.wait()
        return answer


async def test_a_message_whose_stream_breaks_before_its_answer_is_unknown_and_unrepeated(tmp_path: Path) -> None:
    server = Slow()
    async with herm_environment(tmp_path, server=server) as environment, environment.running() as gateway:
        streams = environment.agent.streams_opened
        [sent] = await send(gateway, message("hello"))
        await server.posted.wait()
        environment.agent.drop_streams()
        await environment.agent.wait_streams(streams + 1)
        server.answers.set()
        environment.agent.end_turn()
        await fate(gateway, sent["sequence"], "unknown")
        await send(gateway, message("bye"))
        await condition(lambda: len(posted(environment, "user.message")) == 2)
        assert [texts(one) for one in posted(environment, "user.message")] == [["hello"], ["bye"]]


class Forgetful(HermServer):
    """A server that cannot list its events until the test says so."""

    failing: int | None = None

    async def _list(self, session_id: str, request: Request) -> Response:
        if self.failing is not None:
            return JSONResponse({"error": "server_error", "message": "as the test wants it"}, self.failing)
        return await super()._list(session_id, request)


@pytest.mark.parametrize("status", [401, 404, 429, 500])
async def test_nothing_is_acted_on_before_the_whole_history_is_read(tmp_path: Path, status: int) -> None:
    server = Forgetful(api_key=HERM_KEY)
    async with herm_environment(tmp_path, server=server) as environment:
        environment.configure({"runtimes": {"ada": {"list_limit": 2}}})
        settled = environment.agent.call("ask", GOOD)
        environment.agent.accept([{"type": "user.custom_tool_result", "tool_use_id": settled.asked_id,
                             "content": [{"type": "text", "text": "another client's"}]}])  # fmt: skip
        open_call = environment.agent.call("ask", {**GOOD, "rank": "9"})
        approval = environment.agent.ask_approval("terminal", {"command": "ls"})
        server.failing = status
        async with environment.running(linked=False) as gateway:
            await condition(lambda: environment.agent.streams_opened >= 3)
            assert environment.hooks.asked == []
            assert (await gateway.get("/v1/interactions"))["data"] == []
            server.failing = None
            await gateway.wait_link("up")
            assert '"9"' in texts(await open_call.answered())[0]
            [waiting] = await questions(gateway)
            assert waiting["event"]["id"] == approval.asked_id
        assert len(environment.hooks.asked) == 1
        assert [texts(one) for one in settled.answers] == [["another client's"]]
        assert environment.agent.violations == server.violations == []
        assert environment.hooks.unsigned == 0


async def test_what_happened_while_no_gateway_ran_is_history_and_what_is_open_is_answered(
    environment: HermEnvironment,
) -> None:
    async with environment.running() as gateway:
        first = environment.agent.call("free", {"n": 1})
        await first.answered()
    missed = environment.agent.call("free", {"n": 2})
    environment.agent.clarify("Which?")
    async with environment.running() as gateway:
        assert texts(await missed.answered()) == ['{"n":2}']
        [waiting] = await questions(gateway)
        await answer(gateway, waiting, {"answer": "that"})
        ids = [one["origin"]["native_id"] for one in await gateway.events() if one["origin"]]
        assert len(ids) == len(set(ids))
    assert [one.data["arguments"]["n"] for one in environment.hooks.of("free")] == [1, 2]
