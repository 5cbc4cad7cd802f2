"""The app server of V1: its sandboxes' addresses and keys, creations in two ways, paused and lost sandboxes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from adapters.openhands.v1.connector import open_connector
from adapters.openhands.v1.options import OpenHandsV1Options
from adapters.openhands.v1.tuning import V1Tuning
from gateway.adapter.port import Frame, Order, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.collector import Collector, enter, within
from tests.adapters.openhands.raw_agent_server import CONVERSATION, KEY, RawAgentServer, RestAnswer
from tests.adapters.openhands.raw_app_server import APP_KEY, PLAIN, SANDBOX, RawApp
from tests.adapters.openhands.v1_links import SHORT

READY = {"id": "task1", "status": "READY", "app_conversation_id": PLAIN}
OTHER = "00000000-0000-4000-8000-000000000000"
LLM = {"model": "openai/gpt-4o"}


@asynccontextmanager
async def app(
    *, tuning: V1Tuning = SHORT, more: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[RawApp, Any]]:
    """Start both servers and connect to the app server; `more` are further options of it."""
    server = RawApp(RawAgentServer("1.34.0"))
    async with server.serve():
        given: dict[str, Any] = {
            "adapter": "openhands-v1",
            "app": {"url": server.url, "api_key": APP_KEY, "start_timeout": "20s", **(more or {})},
            **(options or {"conversation_id": CONVERSATION}),
        }
        async with open_connector(OpenHandsV1Options.model_validate(given), tuning) as connector:
            yield server, connector


@pytest.mark.requirement("OV73", "OV79", "OV87", "OV88", "OV93")
async def test_a_conversation_of_an_app_is_reached_at_the_agent_server_of_its_sandbox() -> None:
    async with app() as (server, connector):
        async with connector.connect(CONVERSATION, Collector()) as link:
            message = Frame("POST events", {"role": "user", "content": [{"type": "text", "text": "Hi"}], "run": False})
            assert (await link.send_all([message])).state == "delivered"
        assert server.agent_server.bodies("POST events") == [message.payload]
        assert server.agent_server.first_frames == [{"type": "auth", "session_api_key": KEY}]
        # The app server's own copy of the events and its way to send are not used.
        assert {path for _, path, _, _ in server.requests} == {"/app-conversations", "/sandboxes"}


@pytest.mark.requirement("OV90", "OV93")
async def test_a_paused_sandbox_is_resumed_once_and_its_key_read_again() -> None:
    async with app() as (server, connector):
        server.statuses += ["PAUSED", "PAUSED", "STARTING"]
        await enter(connector.connect(CONVERSATION, Collector()))
        assert server.posts() == [("/sandboxes/sandbox-1/resume", {})]
        # A later link asks again, because address and key may have changed.
        count = len(server.requests)
        server.agent_server.key = "another-key"
        with pytest.raises(LinkRefused, match="UNAUTHORIZED"):
            await enter(connector.connect(CONVERSATION, Collector()))
        assert len(server.requests) > count


@pytest.mark.requirement("OV93")
async def test_a_paused_sandbox_stays_paused_if_the_option_says_so() -> None:
    async with app(more={"resume": False}) as (server, connector):
        server.status = "PAUSED"
        with pytest.raises(LinkRefused, match="PAUSED") as refusal:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert not refusal.value.terminal
        assert server.posts() == []


@pytest.mark.requirement("OV81")
async def test_a_sleeping_sandbox_is_tried_at_its_last_address() -> None:
    async with app() as (server, connector):
        await enter(connector.connect(CONVERSATION, Collector()))
        server.status = "STARTING"
        await enter(connector.connect(CONVERSATION, Collector()))
        assert len(server.agent_server.opened) == 2


@pytest.mark.requirement("OV79")
@pytest.mark.parametrize("shown", ["MISSING", None])
async def test_a_sandbox_that_is_gone_is_refused_for_good(shown: str | None) -> None:
    async with app() as (server, connector):
        server.statuses.append(shown)
        with pytest.raises(LinkRefused, match="NO_SANDBOX") as refusal:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert refusal.value.terminal


async def test_a_conversation_that_the_app_lacks_is_refused_for_good() -> None:
    async with app() as (server, connector):
        server.is_listed = False
        with pytest.raises(LinkRefused, match="NO_CONVERSATION") as refusal:
            await enter(connector.connect(OTHER, Collector()))
        assert refusal.value.terminal
        # A paused sandbox may have it.
        server.other["status"] = "PAUSED"
        with pytest.raises(LinkRefused, match="NO_CONVERSATION") as refusal:
            await enter(connector.connect(OTHER, Collector()))
        assert not refusal.value.terminal


@pytest.mark.requirement("OV81", "OV85")
async def test_a_new_process_finds_a_conversation_that_the_app_does_not_list_in_its_sandbox() -> None:
    async with app() as (server, connector):
        server.is_listed = False
        # The server of another sandbox does not answer, and the right one is shown as starting while it idles.
        gone = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:9"}]
        server.other |= {"status": "RUNNING", "exposed_urls": gone}
        server.statuses += ["STARTING", "STARTING", "RUNNING"]
        await enter(connector.connect(CONVERSATION, Collector()))
        assert len([path for _, path, _, _ in server.requests if path == "/sandboxes/search"]) == 3
        # From then on its sandbox is known.
        await enter(connector.connect(CONVERSATION, Collector()))
        assert len([path for _, path, _, _ in server.requests if path == "/sandboxes/search"]) == 3


@pytest.mark.requirement("OV85")
async def test_a_sandbox_that_cannot_be_asked_leaves_open_whether_it_has_the_conversation() -> None:
    async with app(more={"start_timeout": "300ms"}) as (server, connector):
        server.is_listed = False
        server.status = "STARTING"
        with pytest.raises(LinkLost, match="or in a sandbox that cannot be asked"):
            await enter(connector.connect(CONVERSATION, Collector()))


@pytest.mark.requirement("OV76")
async def test_a_sandbox_that_never_runs_ends_the_wait() -> None:
    async with app(more={"start_timeout": "300ms"}) as (server, connector):
        server.status = "STARTING"
        with pytest.raises(LinkLost, match="did not start within"):
            await enter(connector.connect(CONVERSATION, Collector()))


@pytest.mark.requirement("OV75", "OV76", "OV77", "OV83")
async def test_a_conversation_with_the_user_s_model_is_created_in_a_sandbox_that_exists() -> None:
    order = Order(tools=(Tool("ask", "Ask.", {}),), name="Table", instructions="Deal.")
    async with app(more={"model": "user"}, labels={}) as (server, connector):
        server.statuses += ["STARTING", "ERROR"]
        server.tasks += [{"id": "task1", "status": "WORKING"}, {"id": "task1", "status": "PREPARING_REPOSITORY"}, READY]
        created = await within(connector.create(order))
        assert created.native_id == CONVERSATION
        assert sorted(loss.path for loss in created.losses) == ["/instructions", "/name", "/tools/ask"]
        assert server.posts() == [("/sandboxes", {}), ("/app-conversations", {"sandbox_id": SANDBOX})]
        # Not listed yet, the conversation is found by what this process has created.
        server.is_listed = False
        await enter(connector.connect(CONVERSATION, Collector()))


@pytest.mark.requirement("OV76")
async def test_a_start_task_that_fails_is_a_refusal() -> None:
    async with app(more={"model": "user"}, labels={}) as (server, connector):
        server.tasks.append({"id": "task1", "status": "ERROR", "detail": ""})
        with pytest.raises(LinkRefused, match="START_FAILED"):
            await within(connector.create(Order()))


@pytest.mark.requirement("OV77")
async def test_a_creation_without_an_answer_is_repeated_in_its_sandbox() -> None:
    async with app(more={"model": "user"}, labels={}) as (server, connector):
        server.answers["/app-conversations"].append(RestAnswer(502))
        server.tasks.append(READY)
        assert (await within(connector.create(Order()))).native_id == CONVERSATION
        assert [path for path, _ in server.posts()] == ["/sandboxes", "/app-conversations", "/app-conversations"]


@pytest.mark.requirement("OV85")
async def test_a_conversation_with_a_model_of_ours_is_created_at_the_agent_server() -> None:
    async with app(conversation={"agent": {"kind": "openhands", "llm": LLM}}) as (server, connector):
        server.agent_server.answers["conversations"].append(RestAnswer(201, {"id": CONVERSATION}))
        assert (await within(connector.create(Order()))).native_id == CONVERSATION
        assert server.posts() == [("/sandboxes", {})]
        server.is_listed = False
        await enter(connector.connect(CONVERSATION, Collector()))


@pytest.mark.requirement("OV91")
async def test_a_sandbox_whose_conversation_could_not_be_created_gets_the_next_one() -> None:
    async with app(conversation={"agent": {"kind": "openhands", "llm": LLM}}) as (server, connector):
        server.agent_server.answers["conversations"] += [RestAnswer(500), RestAnswer(201, {"id": CONVERSATION})]
        with pytest.raises(LinkLost):
            await within(connector.create(Order()))
        assert (await within(connector.create(Order()))).native_id == CONVERSATION
        assert server.posts() == [("/sandboxes", {})]
        # This one is in use now.
        server.agent_server.answers["conversations"].append(RestAnswer(201, {"id": CONVERSATION}))
        await within(connector.create(Order()))
        assert server.posts() == [("/sandboxes", {}), ("/sandboxes", {})]


@pytest.mark.requirement("OV80")
async def test_the_host_option_replaces_localhost() -> None:
    async with app(more={"host": "127.0.0.1"}) as (server, connector):
        server.host = "localhost"
        await enter(connector.connect(CONVERSATION, Collector()))
    async with app(more={"host": "no-such-host.invalid"}) as (server, connector):
        with pytest.raises(LinkLost, match=r"no-such-host\.invalid"):
            await enter(connector.connect(CONVERSATION, Collector()))


@pytest.mark.requirement("OV74")
async def test_one_request_asks_for_all_conversations_that_wait() -> None:
    async with app(tuning=replace(SHORT, poll=0.2)) as (server, connector):
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(enter(connector.connect(CONVERSATION, Collector())))
        # One for the first link, one for the nineteen that waited meanwhile, of each kind.
        assert len(server.requests) <= 6


@pytest.mark.requirement("OV73")
@pytest.mark.parametrize("code", [401, 403, 404, 409, 422, 429, 500, 502])
async def test_no_error_of_an_app_server_quotes_a_key(code: int) -> None:
    async with app() as (server, connector):
        server.answers["/app-conversations"].append(RestAnswer(code, {"detail": f"{KEY} {APP_KEY}"}))
        with pytest.raises((LinkLost, LinkRefused)) as failure:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert KEY not in str(failure.value)
        assert APP_KEY not in str(failure.value)
        assert str(code) in str(failure.value)
