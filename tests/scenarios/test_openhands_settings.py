"""Tools of OpenHands conversations whose agents start again: lost if a creation named them, kept by the settings."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import mcp.client.streamable_http  # noqa: F401 # pyright: ignore[reportUnusedImport] - loaded before a test waits for it
import pytest

import gateway.http.mcp.server  # noqa: F401 # pyright: ignore[reportUnusedImport] - the same
from gateway.cli.doctor_gateway import check_links
from gateway.runtime.system_clock import SystemClock
from gateway.serve import read_configuration
from gateway.store.sqlite import SqliteEngine
from gateway.testing.runtimes.openhands.progress import Manners
from gateway.testing.runtimes.openhands.server import SimConversation
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, GOOD, QUICK, Running, until
from tests.scenarios.fleet import OPENHANDS_KEY, WORK, OpenHandsEnvironment, condition, openhands_environment
from tests.scenarios.hooks import success
from tests.scenarios.test_canary import files
from tests.scenarios.test_openhands import ready
from tests.scenarios.test_openhands_tools import TICKET, create, said, tools

MANNERS = Manners(loading=timedelta(0), stale_state=None, mcp_patience=timedelta(seconds=20))
LATE = 1.0
THEIRS: dict[str, Any] = {"url": "http://127.0.0.1:9/theirs", "api_key": "their-key-canary-7Q", "timeout": 5}


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path, manners=MANNERS) as made:
        made.tuning = replace(QUICK, tools_late=LATE, gauges=0.1)
        made.options(ack_timeout="10s", look_again="50ms")
        made.hooks.scripts["ask"] = success({"cards": 2})
        yield made
        assert made.server.violations == []
        assert [one.violations for one in made.server.conversations.values() if one.violations] == []


def creating(environment: OpenHandsEnvironment, **options: Any) -> None:
    environment.options(conversation_id=None, conversation={}, **options)


async def begin_again(gateway: Running, environment: OpenHandsEnvironment, conversation: SimConversation) -> None:
    """Stop a conversation, as an operator or an eviction does, and let somebody else start its agent again."""

    async def started() -> bool:
        return all(session["state"] != "starting" for session in (await gateway.get("/v1/sessions"))["data"])

    # A second start is only told from the first one if the gateway has seen that one end.
    await until(started)
    before, links = len(conversation.events) - 1, conversation.connections
    await conversation.stop()
    assert await environment.server.begin_again(conversation.conversation_id)
    await conversation.wait_event(
        lambda event: event.get("extras", {}).get("agent_state") == "awaiting_user_input", after=before + 1
    )
    # The gateway finds out when it looks again, and then replays what it has missed.
    await conversation.wait_connections(links + 1, within=PATIENCE)
    await gateway.wait_link("up")


async def lacking(gateway: Running, *, session_id: str) -> str | None:
    """Read why a session lacks its tools."""
    for runtime in (await gateway.get("/v1/runtimes"))["data"]:
        for link in runtime["links"]:
            if link["session_id"] == session_id:
                assert link["lacks_tools"] == (link["lacks_tools_reason"] is not None)
                return link["lacks_tools_reason"]
    return None


async def wait_lacking(gateway: Running, session_id: str) -> str:
    return await until(lambda: lacking(gateway, session_id=session_id), within=PATIENCE)


async def wait_metric(gateway: Running, count: int) -> None:
    async def look() -> bool | None:
        series = await gateway.metrics()
        return series.get('dragoman_sessions_without_tools{runtime="work"}') == count or None

    await until(look, within=PATIENCE)


def stored(environment: OpenHandsEnvironment) -> list[dict[str, Any]]:
    config: dict[str, list[dict[str, Any]]] = environment.server.settings.stored["mcp_config"] or {}
    return list(config.get("shttp_servers", []))


async def registered(environment: OpenHandsEnvironment) -> dict[str, Any]:
    """Wait until the settings name the gateway, and return that entry."""

    async def look() -> dict[str, Any] | None:
        return next((one for one in stored(environment) if "/mcp/s/work" in one["url"]), None)

    return await until(look, within=PATIENCE)


async def list_tools(url: str, token: str, **headers: str) -> str:
    """Ask for the tools as a plain MCP client; returns the answer."""
    given = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream", **headers}
    async with httpx.AsyncClient(timeout=PATIENCE, verify=False, trust_env=False) as http:  # noqa: S501
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        return (await http.post(url, json=body, headers=given)).text


# Without the option ------------------------------------------------------------------------------------------


async def test_a_conversation_that_is_started_again_lacks_its_tools_and_everybody_is_told(
    environment: OpenHandsEnvironment,
) -> None:
    creating(environment)
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        await gateway.wait_link("up")
        assert "ask" in tools(conversation)
        await wait_metric(gateway, 0)
        (told,) = conversation.mcp.servers
        # A listing before the new start is no proof that the new agent has tools.
        assert "ask" in await list_tools(told.url, str(told.api_key))
        await begin_again(gateway, environment, conversation)
        reason = await wait_lacking(gateway, session_id)
        assert "was restarted at" in reason
        assert "tools: settings" in reason
        assert not conversation.mcp.has("ask")
        await wait_metric(gateway, 1)
        env = {"DRAGOMAN_URL": gateway.url, "DRAGOMAN_KEY": API_KEY}
        found = await asyncio.to_thread(lambda: [one.text for one in check_links(env) if one.state == "warning"])
        assert found == [f"work/{conversation.conversation_id} has no tools: {reason}"]
    # Also for the next gateway, which has seen no start.
    async with environment.running(linked=False) as gateway:
        assert await wait_lacking(gateway, session_id) == reason
        # A listing proves the opposite, e.g. where a person has entered the address by hand.
        assert "ask" in await list_tools(told.url, str(told.api_key))
        assert await lacking(gateway, session_id=session_id) is None
        await wait_metric(gateway, 0)


# With it -----------------------------------------------------------------------------------------------------


async def test_the_settings_keep_the_tools_of_created_conversations_over_a_new_start(
    environment: OpenHandsEnvironment,
) -> None:
    creating(environment, tools="settings")
    environment.server.settings.stored["mcp_config"] = {"shttp_servers": [THEIRS], "sse_servers": []}
    environment.server.settings.stored["confirmation_mode"] = True
    before = dict(environment.server.settings.stored)
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        assert "ask" in tools(conversation)
        # All of the settings stay, the keys that the server hides and other MCP servers as well.
        after = environment.server.settings.stored
        assert {**after, "mcp_config": None} == {**before, "mcp_config": None}
        assert [one["url"] for one in stored(environment)] == [THEIRS["url"], f"{gateway.url}/mcp/s/work"]
        assert stored(environment)[0] == THEIRS
        await begin_again(gateway, environment, conversation)
        assert conversation.mcp.has("ask")
        seen = said(await conversation.agent_calls("ask", GOOD))
        assert (seen["isError"], seen["structuredContent"]) == (False, {"cards": 2})
        assert environment.hooks.of("ask")[-1].data["session_id"] == session_id
        await wait_metric(gateway, 0)
        assert await lacking(gateway, session_id=session_id) is None
    async with environment.running(linked=False) as gateway:
        # Another link, and another gateway, find the settings as they should be.
        await gateway.wait_link("up")
        assert said(await conversation.agent_calls("ask", GOOD))["isError"] is False
        assert environment.server.settings.writes == 1
        assert (await gateway.events(session_id))[0]["losses"] == []


async def test_an_attached_conversation_gets_the_tools_at_its_next_start(environment: OpenHandsEnvironment) -> None:
    environment.options(tools="settings")
    work = environment.agent
    async with environment.running() as gateway:
        await registered(environment)
        # Written before the join, which has begun the agent.
        await ready(environment, gateway)
        assert "ask" in tools(work)
        session_id = await gateway.session()
        seen = said(await work.agent_calls("ask", GOOD))
        assert (seen["isError"], seen["structuredContent"]) == (False, {"cards": 2})
        asked = environment.hooks.of("ask")[-1].data
        assert (asked["session_id"], asked["native_session_id"]) == (session_id, WORK)
        # Its own action and the call over MCP are one.
        await gateway.wait_events("call.linked")
        await begin_again(gateway, environment, work)
        assert said(await work.agent_calls("ask", {**GOOD, "rank": "8"}))["isError"] is False


async def test_a_conversation_of_somebody_else_is_told_why_it_cannot_call(environment: OpenHandsEnvironment) -> None:
    environment.options(tools="settings")
    async with environment.running() as gateway:
        await registered(environment)
        other = environment.server.conversation("5ca1ab1e")
        await environment.server.begin_again("5ca1ab1e")
        seen = said(await other.agent_calls("ask", GOOD))
        assert seen["isError"] is True
        assert "'5ca1ab1e' is no open session of runtime 'work'" in seen["content"][0]["text"]
        assert environment.hooks.of("ask") == []
        assert len((await gateway.get("/v1/sessions"))["data"]) == 1
        await gateway.post("/v1/sessions", {"runtime": "work", "native_id": "5ca1ab1e"}, status=201)
        assert said(await other.agent_calls("ask", GOOD))["isError"] is False


async def test_a_listing_without_a_name_proves_nothing_of_an_agent_that_has_started(
    environment: OpenHandsEnvironment,
) -> None:
    environment.options(tools="settings")
    work = environment.agent
    async with environment.running() as gateway:
        mine = await registered(environment)
        await ready(environment, gateway)
        session_id = await gateway.session()
        # Somebody removes our server from the settings, so the next agent has no tools.
        environment.server.settings.stored["mcp_config"] = None
        await begin_again(gateway, environment, work)
        reason = await wait_lacking(gateway, session_id)
        assert "has not listed the tools" in reason
        assert "ask" in await list_tools(mine["url"], mine["api_key"])
        assert await lacking(gateway, session_id=session_id) == reason
        await list_tools(mine["url"], mine["api_key"], **{"X-OpenHands-ServerConversation-ID": WORK})
        assert await lacking(gateway, session_id=session_id) is None


class LateNotes(SqliteEngine):
    """A store that takes its time to write the first note of an agent that has started."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SystemClock())
        self.gate = asyncio.Event()
        self.is_waiting = False

    async def set_note(self, name: str, value: str | None) -> None:
        if name.startswith("tools-start:") and value is not None and not value.endswith(" ") and not self.is_waiting:
            self.is_waiting = True
            await self.gate.wait()
        await super().set_note(name, value)


async def test_a_start_that_is_written_late_does_not_hide_the_next_one(environment: OpenHandsEnvironment) -> None:
    environment.options(tools="settings")
    environment.engine = engine = LateNotes(environment.folder / "dragoman.db")
    work = environment.agent
    async with environment.running() as gateway:
        await registered(environment)
        await ready(environment, gateway)
        session_id = await gateway.session()
        await condition(lambda: engine.is_waiting or None)
        environment.server.settings.stored["mcp_config"] = None
        await begin_again(gateway, environment, work)
        await gateway.wait_events("session.moved", 2, state="starting")
        engine.gate.set()
        reason = await wait_lacking(gateway, session_id)
    environment.engine = None
    async with environment.running() as gateway:
        assert await wait_lacking(gateway, session_id) == reason


async def test_the_shared_address_wants_its_own_token(environment: OpenHandsEnvironment) -> None:
    environment.options(tools="settings")
    environment.configure({"runtimes": {"plain": {**environment.settings["runtimes"]["work"], "tools": "create",
                                                  "conversation_id": "other"}}})  # fmt: skip
    async with environment.running() as gateway:
        mine = await registered(environment)
        token = (await gateway.get(f"/v1/sessions/{await gateway.session('work')}/mcp"))["token"]
        named = {"X-OpenHands-ServerConversation-ID": WORK}
        for headers in ({}, named, {"X-OpenHands-ServerConversation-ID": "~" * 300}):
            assert "ask" in await list_tools(mine["url"], mine["api_key"], **headers)
        for url, given in (
            (mine["url"], token),
            (mine["url"], mine["api_key"][:-1]),
            (mine["url"], API_KEY),
            (mine["url"].replace("/work", "/plain"), mine["api_key"]),
            (mine["url"].replace("/work", "/nobody"), mine["api_key"]),
            (mine["url"].replace("/mcp/s/work", f"/mcp/{await gateway.session('work')}"), mine["api_key"]),
        ):
            assert "unauthorized" in await list_tools(url, given, **named), url


async def test_servers_of_config_toml_are_not_multiplied(environment: OpenHandsEnvironment) -> None:
    environment.options(tools="settings")
    environment.server.settings.config_toml = {"shttp_servers": [THEIRS], "stdio_servers": []}
    async with environment.running():
        await registered(environment)
    environment.options(mcp_url="http://localhost:1")
    async with environment.running():
        await until(lambda: _names(environment, "http://localhost:1/mcp/s/work"), within=PATIENCE)
    assert [one["url"] for one in stored(environment)] == [THEIRS["url"], "http://localhost:1/mcp/s/work"]
    assert environment.server.settings.writes == 2


async def _names(environment: OpenHandsEnvironment, url: str) -> bool | None:
    return any(one["url"] == url for one in stored(environment)) or None


@pytest.mark.parametrize("fault", ["read-only", "masked", "no settings", "broken"])
async def test_settings_that_cannot_be_written_stay_and_the_reason_is_told(tmp_path: Path, fault: str) -> None:
    manners = replace(MANNERS, stores_settings=fault != "read-only")
    async with openhands_environment(tmp_path, manners=manners) as environment:
        environment.tuning = replace(QUICK, tools_late=LATE, gauges=0.1)
        environment.options(ack_timeout="10s", look_again="50ms")
        creating(environment, tools="settings")
        settings, reason = environment.server.settings, "HTTP 500"
        if fault == "masked":
            settings.stored["mcp_config"] = {"shttp_servers": [{**THEIRS, "api_key": "**********"}]}
            reason = "masks keys"
        elif fault == "broken":
            settings.stored["mcp_config"] = {"shttp_servers": []}
            settings.config_toml = {}
            settings.show = lambda: {"mcp_config": [1]}
            reason = "mcp_config is not an object"
        elif fault == "no settings":
            environment.server.has_settings = False
            reason = "HTTP 404"
        before = dict(settings.stored)
        async with environment.running(linked=False) as gateway:
            if fault == "no settings":
                problem = await gateway.post("/v1/sessions", {"runtime": "work"}, status=502)
                assert "settings" in problem["detail"]
                assert settings.writes == 0
                return
            # A creation is told the tools as without the option.
            session_id, conversation = await create(environment, gateway)
            assert "ask" in tools(conversation)
            await gateway.wait_link("up")
            await begin_again(gateway, environment, conversation)
            told = await wait_lacking(gateway, session_id)
            assert reason in told
            assert THEIRS["api_key"] not in told
            await wait_metric(gateway, 1)
        assert (settings.stored, settings.writes) == (before, 0)


async def test_settings_that_name_no_tools_for_a_session_are_not_why_it_lacks_them(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path, manners=replace(MANNERS, stores_settings=False)) as environment:
        environment.tuning = replace(QUICK, tools_late=LATE, gauges=0.1)
        environment.options(ack_timeout="10s", look_again="50ms")
        creating(environment, tools="settings")
        async with environment.running(linked=False) as gateway:
            # The settings refuse the tools, so the creation names them.
            session_id, conversation = await create(environment, gateway)
            await gateway.wait_link("up")
            await begin_again(gateway, environment, conversation)
            assert "HTTP 500" in await wait_lacking(gateway, session_id)
        # No route leads from this runtime to a tool any more, so nothing belongs into the settings.
        environment.configure({"routes": [{"match": {"tool": "other"}, "to": "cards"}]})
        async with environment.running(linked=False) as gateway:
            assert "a runtime that restarts an agent forgets the tools" in await wait_lacking(gateway, session_id)


async def test_a_rotated_token_is_written_into_the_settings_and_the_old_one_is_refused(
    environment: OpenHandsEnvironment,
) -> None:
    environment.options(tools="settings")
    async with environment.running() as gateway:
        old = await registered(environment)
        path = f"/v1/sessions/{await gateway.session()}/mcp/rotate?of=ticket"
        await gateway.post(path, status=409)
        await gateway.post(f"{path}&force=true", status=200)
        new = await registered(environment)
        assert (new["url"], new["api_key"] != old["api_key"]) == (old["url"], True)
        assert "unauthorized" in await list_tools(old["url"], old["api_key"])
        assert "ask" in await list_tools(new["url"], new["api_key"])
        assert len(stored(environment)) == 1


async def test_no_key_of_the_settings_is_in_any_log_answer_or_file(
    environment: OpenHandsEnvironment, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    creating(environment, tools="settings")
    environment.configure({"logging": {"level": "debug"}})
    environment.server.settings.stored["mcp_config"] = {"shttp_servers": [THEIRS]}
    async with environment.running(linked=False) as gateway:
        session_id, conversation = await create(environment, gateway)
        said(await conversation.agent_calls("ask", GOOD))
        shown = [str(await gateway.events(session_id)), str(await gateway.get("/v1/runtimes"))]
    written = capfd.readouterr()
    secret = stored(environment)[-1]["api_key"]
    assert TICKET.fullmatch(secret)
    for text in (written.out, written.err, *shown, *(content for _, content in files(tmp_path))):
        for canary in (secret, THEIRS["api_key"], OPENHANDS_KEY):
            assert canary not in text


# Confirmation mode -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"conversation_id": None, "conversation": {}}, {"tools": "settings"}])
async def test_check_says_that_confirmation_mode_leaves_out_the_backends_tools(
    environment: OpenHandsEnvironment, options: dict[str, Any]
) -> None:
    def warned() -> bool:
        found = read_configuration(environment.config).problems
        return any("confirmation mode does not cover the tools" in one.message for one in found)

    environment.configure({"public_url": "http://127.0.0.1:1"})
    environment.options(**options)
    assert warned()
    # Whether the mode is on, the server alone knows; without tools nothing runs unasked.
    environment.configure({"tools": None})
    assert not warned()
