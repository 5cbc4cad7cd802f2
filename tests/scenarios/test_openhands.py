"""OpenHands through a whole gateway: mirrored, spoken to, approved and commanded, and nothing of its own executed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.testing.runtimes.openhands.events import is_state
from gateway.testing.runtimes.openhands.progress import Manners
from tests.faults.proxy import Proxy
from tests.scenarios.environment import Running, until
from tests.scenarios.fleet import (
    OPENHANDS_KEY,
    OpenHandsEnvironment,
    answer,
    condition,
    fate,
    message,
    openhands_environment,
    questions,
    send,
)


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path) as made:
        # What is not confirmed in time counts as unknown, and a busy machine takes its time.
        made.options(ack_timeout="10s")
        yield made
        assert made.agent.violations == []
        assert made.server.violations == []
        assert made.hooks.asked == []


async def ready(environment: OpenHandsEnvironment, gateway: Running) -> None:
    """Wait until the agent waits for its user, and the gateway knows."""
    await environment.agent.wait_event(
        lambda event: event.get("extras", {}).get("agent_state") == "awaiting_user_input"
    )
    await gateway.wait_events("session.moved", state="awaiting_input")


def sent_states(environment: OpenHandsEnvironment) -> list[str]:
    """All states that clients have asked for."""
    wanted = [one.payload for one in environment.agent.received if one.payload["action"] == "change_agent_state"]
    return [one["args"]["agent_state"] for one in wanted]


def native_ids(journal: list[dict[str, Any]]) -> list[str]:
    return [one["origin"]["native_id"] for one in journal if one["origin"] and one["origin"]["native_id"]]


# Mirroring -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH14", "OH15")
async def test_attaching_to_a_history_puts_it_on_record_and_does_nothing_about_it(
    environment: OpenHandsEnvironment,
) -> None:
    environment.configure({"routes": [{"match": {"event": "approval.asked"}, "to": "cards"},
                                {"match": {"tool": "*"}, "to": "cards"}]})  # fmt: skip
    work = environment.agent
    work.begin()
    await work.warm_up("Tidy up.")
    await work.agent_runs("ls", "a.txt")
    gated = asyncio.create_task(work.agent_runs("rm a.txt", "", gated=True))
    await condition(lambda: work.waits)
    await work.accept({"action": "change_agent_state", "args": {"agent_state": "user_confirmed"}})
    await gated
    await work.finish("Tidy.")
    async with environment.running() as gateway:
        await gateway.wait_events("session.moved", state="finished")
        journal = await gateway.events()
        kinds = [one["event"]["kind"] for one in journal]
        assert kinds.count("tool.requested") == 3
        assert all(one["event"]["runs_in"] == "runtime" for one in journal if one["event"]["kind"] == "tool.requested")
        assert (await gateway.get("/v1/interactions"))["data"] == []
        assert (await gateway.get("/v1/calls"))["data"] == []
        ids = native_ids(journal)
        assert len(ids) == len(set(ids))


@pytest.mark.requirement("OH24", "OH36")
async def test_actions_and_what_came_of_them_are_mirrored_with_their_causes(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await environment.agent.agent_runs("ls", "a.txt")
        await environment.agent.agent_edits("/workspace/a", "one")
        # The editor tells its failures in the content of an ordinary observation.
        await environment.agent.agent_edits("/workspace/a", "two")
        finished = await gateway.wait_events("tool.finished", 3)
        requested = await gateway.events(kind="tool.requested")
    assert [one["event"]["tool"] for one in requested] == ["run", "edit", "edit"]
    assert [one["caused_by"] for one in finished] == [one["sequence"] for one in requested]
    assert [one["event"]["tool"] for one in finished] == ["run", "edit", "edit"]
    assert [one["event"]["outcome"] for one in finished] == ["success", "success", "failure"]


@pytest.mark.requirement("OH48")
async def test_the_states_of_a_delegate_end_nothing(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await send(gateway, message("Ask the browser."))
        await environment.agent.wait_event(lambda event: event.get("action") == "recall")
        await environment.agent.delegate("BrowsingAgent", "look", {"found": 1})
        await gateway.wait_events("thread.received")
        assert (await gateway.get(f"/v1/sessions/{await gateway.session()}"))["state"] != "finished"
        await environment.agent.agent_says("It found one.")
        posted = await gateway.wait_events("message.posted", 3)
    assert posted[-1]["event"]["content"] == [{"type": "text", "text": "It found one."}]


@pytest.mark.requirement("OH46")
async def test_a_stop_ends_an_action_twice_and_both_are_on_record(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        action = await environment.agent.agent_starts("sleep 60")
        [asked] = await gateway.wait_events("tool.requested")
        await send(gateway, {"kind": "turn.interrupted", "reason": "enough"})
        await gateway.wait_events("session.moved", state="stopped")
        assert sent_states(environment) == ["stopped"]
        await environment.agent.agent_ends(action, "slept", 0)
        first, second = await gateway.wait_events("tool.finished", 2)
        assert (first["event"]["outcome"], second["event"]["outcome"]) == ("canceled", "success")
        assert first["caused_by"] == second["caused_by"] == asked["sequence"]


# Speaking ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH41")
async def test_the_echo_of_a_message_confirms_it_and_other_clients_are_heard(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        [sent] = await send(gateway, message("Tidy up."))
        settled = await fate(gateway, sent["sequence"])
        echo = await environment.agent.wait_event(lambda event: event.get("action") == "message")
        assert (settled["state"], settled["native_id"]) == ("delivered", str(echo["id"]))
        await environment.agent.accept({"action": "message", "args": {"content": "Tidy up."}})
        await environment.agent.accept({"action": "message", "args": {"content": "And hurry."}})
        posted = await gateway.wait_events("message.posted", 3)
    # What somebody else says, in the same words even, is an event of its own.
    assert [one["event"]["content"][0]["text"] for one in posted] == ["Tidy up.", "Tidy up.", "And hurry."]
    assert [one["origin"] is None for one in posted] == [True, False, False]
    assert len([one for one in environment.agent.events if one.get("action") == "message"]) == 3


async def test_what_the_server_drops_without_a_word_is_called_unknown_and_listed(
    environment: OpenHandsEnvironment,
) -> None:
    environment.options(ack_timeout="3s")
    async with environment.running() as gateway:
        await ready(environment, gateway)
        # The server does not know this action, and tells nobody so.
        native: dict[str, Any] = {"action": "no_such_thing", "args": {}}
        [sent] = await send(gateway, {"kind": "opaque", "channel": "oh_user_action", "payload": native})
        settled = await fate(gateway, sent["sequence"])
        assert settled["state"] == "unknown"
        [letter] = (await gateway.get("/v1/dead-letters"))["data"]
        assert (letter["type"], letter["sequence"]) == ("delivery", sent["sequence"])
        [still] = await send(gateway, message("Still there?"))
        assert (await fate(gateway, still["sequence"]))["state"] == "delivered"
    assert len(environment.agent.violations) == 1
    environment.agent.violations.clear()


@pytest.mark.requirement("OH58")
async def test_frames_beyond_the_usual_limit_get_through(environment: OpenHandsEnvironment) -> None:
    # A message is in its event twice.
    big = "x" * (5 * 1024 * 1024 // 2)
    environment.configure({"limits": {"frame": "32MiB"}})
    async with environment.running() as gateway:
        await ready(environment, gateway)
        connections = environment.agent.connections
        await environment.agent.agent_says(big)
        [posted] = await gateway.wait_events("message.posted")
        assert len(posted["event"]["content"][0]["text"]) == len(big)
        assert environment.agent.connections == connections


async def test_a_message_that_comes_back_six_times_as_large_is_confirmed(environment: OpenHandsEnvironment) -> None:
    # It comes back twice in one event, each letter of two bytes written as six.
    text = "\u00e9" * (1_900 * 1024)
    # Four megabytes there and twenty-three back take their time on a busy machine.
    environment.options(ack_timeout="60s")
    environment.configure({"limits": {"frame": "32MiB"}})
    async with environment.running() as gateway:
        await ready(environment, gateway)
        [sent] = await send(gateway, message(text))
        assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
        assert environment.agent.connections == 1


async def test_an_event_larger_than_the_inbox_does_not_keep_the_next_ones_out(
    environment: OpenHandsEnvironment,
) -> None:
    environment.configure({"limits": {"frame": "16MiB"}})
    async with environment.running() as gateway:
        await ready(environment, gateway)
        await environment.agent.agent_says("x" * (5 * 1024 * 1024), waits=False)
        for number in range(30):
            await environment.agent.agent_says(f"small {number}", waits=False)
        posted = await gateway.wait_events("message.posted", 31)
        await gateway.wait_link("up")
        small = [one["event"]["content"][0]["text"] for one in posted[1:]]
        assert small == [f"small {number}" for number in range(30)]


@pytest.mark.requirement("OH15", "OH17")
async def test_a_late_first_state_of_a_conversation_begun_elsewhere_is_kept_and_changes_nothing(
    tmp_path: Path,
) -> None:
    # The server's own late state would come at a time that the test does not know, perhaps within the replay.
    async with openhands_environment(tmp_path, manners=Manners(stale_state=None)) as environment:
        work = environment.agent
        work.begin()
        await work.warm_up()
        async with environment.running() as gateway:
            await gateway.wait_events("session.moved", state="awaiting_input")
            loading = next(event for event in work.events if is_state(event, "loading"))
            await work.emit({**loading, "source": "agent"})
            [kept] = await gateway.wait_events("opaque", channel="session.moved")
            assert (kept["event"]["payload"]["native_state"], kept["origin"]["native_sequence"]) == ("loading", 0)
            [row] = (await gateway.get("/v1/sessions"))["data"]
            moved = await gateway.events(kind="session.moved")
            assert row["state"] == moved[-1]["event"]["state"] == "awaiting_input"
            await work.fail("no tokens left")
            await gateway.wait_events("session.moved", state="error")
            [row] = (await gateway.get("/v1/sessions"))["data"]
            assert row["state"] == "error"
        assert (work.violations, environment.server.violations) == ([], [])


# Approvals -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH44")
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_an_approval_is_given_through_the_api(environment: OpenHandsEnvironment, decision: str) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [asked] = await questions(gateway)
        assert (asked["event"]["tool"], asked["event"]["arguments"]["command"]) == ("run", "rm a")
        await answer(gateway, asked, {"decision": decision})
        seen = await gated
        assert seen["observation"] == ("run" if decision == "allow" else "user_rejected")
        [finished] = await gateway.wait_events("tool.finished")
        first, again = await gateway.events(kind="tool.requested")
        assert again["event"]["supersedes"] == first["event"]["native_call_id"]
        assert finished["caused_by"] == again["sequence"]
        assert [one["state"] for one in (await gateway.get("/v1/interactions"))["data"]] == ["answered"]
    assert sent_states(environment) == ["user_confirmed" if decision == "allow" else "user_rejected"]


async def test_an_approval_is_given_by_route(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path) as environment:
        environment.configure({"routes": [{"match": {"event": "approval.asked"}, "to": "cards"}]})
        environment.hooks.scripts["approval.asked"] = {"decision": "allow"}
        async with environment.running() as gateway:
            await ready(environment, gateway)
            for command in ("rm a", "rm b"):
                seen = await environment.agent.agent_runs(command, "", gated=True)
                assert seen["observation"] == "run"
            await questions(gateway, 2, state="answered")
        assert [one.data["event"]["arguments"]["command"] for one in environment.hooks.asked] == ["rm a", "rm b"]
        assert sent_states(environment) == ["user_confirmed"] * 2
        assert environment.agent.violations == []


@pytest.mark.requirement("OH44")
async def test_attaching_while_an_edit_waits_asks_about_the_edit_and_not_about_what_was_allowed_before(
    tmp_path: Path,
) -> None:
    async with openhands_environment(tmp_path) as environment:
        environment.configure({"routes": [{"match": {"event": "approval.asked"}, "to": "cards"}]})
        environment.hooks.scripts["approval.asked"] = {"decision": "allow"}
        work = environment.agent
        work.begin()
        await work.warm_up("Tidy up.")
        first = asyncio.create_task(work.agent_runs("rm a", "", gated=True))
        await condition(lambda: work.waits)
        await work.accept({"action": "change_agent_state", "args": {"agent_state": "user_confirmed"}})
        await first
        edit = asyncio.create_task(work.agent_edits("/a", "1", gated=True))
        await work.wait_event(lambda event: event.get("observation") == "edit")
        async with environment.running() as gateway:
            assert (await edit)["observation"] == "edit"
            [asked] = await questions(gateway, state="answered")
            assert (asked["event"]["tool"], asked["event"]["arguments"]["path"]) == ("edit", "/a")
            assert [one["event"]["tool"] for one in await gateway.events(kind="approval.asked")] == ["edit"]
        assert [one.data["event"]["tool"] for one in environment.hooks.asked] == ["edit"]
        assert sent_states(environment) == ["user_confirmed"] * 2


async def test_an_approval_that_another_client_gives_is_moot(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [asked] = await questions(gateway)
        await environment.agent.accept({"action": "change_agent_state", "args": {"agent_state": "user_confirmed"}})
        await gated
        await questions(gateway, state="moot")
        await answer(gateway, asked, {"decision": "deny"}, status=409)
        given = await gateway.events(kind="approval.given")
        assert [one["event"]["decision"] for one in given] == ["allow"]
    assert sent_states(environment) == ["user_confirmed"]


@asynccontextmanager
async def cuttable(environment: OpenHandsEnvironment) -> AsyncGenerator[Proxy]:
    """Put a wire that can be cut between the gateway and the server, which goes on working."""
    server = urlsplit(environment.server.url)
    async with Proxy((str(server.hostname), int(server.port or 0))) as wire:
        environment.configure({"runtimes": {"work": {"url": wire.url}}})
        yield wire


async def test_a_decision_that_waited_for_a_link_is_not_given_to_a_later_question(
    environment: OpenHandsEnvironment,
) -> None:
    async with cuttable(environment) as wire, environment.running() as gateway:
        await ready(environment, gateway)
        first = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [asked] = await questions(gateway)
        wire.refuse()
        await gateway.wait_events("link.changed", state="down")
        await answer(gateway, asked, {"decision": "allow"})
        await environment.agent.accept({"action": "change_agent_state", "args": {"agent_state": "user_rejected"}})
        assert (await first)["observation"] == "user_rejected"
        second = asyncio.create_task(environment.agent.agent_runs("rm b", "", gated=True))
        await condition(lambda: environment.agent.waits)
        wire.heal()
        [later] = await questions(gateway, state="waiting")
        assert later["event"]["arguments"]["command"] == "rm b"
        await answer(gateway, later, {"decision": "deny"})
        assert (await second)["observation"] == "user_rejected"
    assert sent_states(environment) == ["user_rejected", "user_rejected"]


async def test_a_decision_that_waited_for_a_link_is_given_while_it_is_waited_for(
    environment: OpenHandsEnvironment,
) -> None:
    async with cuttable(environment) as wire, environment.running() as gateway:
        await ready(environment, gateway)
        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [asked] = await questions(gateway)
        wire.refuse()
        await gateway.wait_events("link.changed", state="down")
        await answer(gateway, asked, {"decision": "allow"})
        wire.heal()
        assert (await gated)["observation"] == "run"
    assert sent_states(environment) == ["user_confirmed"]


async def test_an_approval_that_nobody_gives_is_denied(environment: OpenHandsEnvironment) -> None:
    environment.configure({"limits": {"interaction_timeout": "100ms"}})
    async with environment.running() as gateway:
        await ready(environment, gateway)
        seen = await environment.agent.agent_runs("rm a", "", gated=True)
        assert seen["observation"] == "user_rejected"
        await questions(gateway, state="expired")
    assert sent_states(environment) == ["user_rejected"]


async def test_an_approval_survives_a_restart_and_is_asked_once(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        [before] = await questions(gateway)
    async with environment.running() as gateway:
        [asked] = await questions(gateway)
        assert asked["interaction_id"] == before["interaction_id"]
        await answer(gateway, asked, {"decision": "allow"})
        assert (await gated)["observation"] == "run"
        assert len(await gateway.events(kind="approval.asked")) == 1
    assert sent_states(environment) == ["user_confirmed"]


# Orders --------------------------------------------------------------------------------------------------


ORDERS: list[tuple[str, dict[str, Any]]] = [
    ("run", {"command": "ls"}),
    ("run_ipython", {"code": "1 + 1"}),
    ("edit", {"path": "/workspace/n", "command": "create", "file_text": "new"}),
    ("read", {"path": "/workspace/n"}),
    ("browse", {"url": "http://x"}),
    ("browse_interactive", {"browser_actions": "noop()"}),
]


@pytest.mark.requirement("OH53")
async def test_ordered_actions_are_carried_out_and_tied_to_what_came_of_them(environment: OpenHandsEnvironment) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        for number, (action, arguments) in enumerate(ORDERS, 1):
            [sent] = await send(gateway, {"kind": "action.ordered", "action": action, "arguments": arguments})
            assert (await fate(gateway, sent["sequence"]))["state"] == "delivered"
            finished = (await gateway.wait_events("tool.finished", number))[-1]
            assert finished["caused_by"] == sent["sequence"], action
    carried_out = [(name, {key: args[key] for key in given}) for (name, args), (_, given) in
                   zip(environment.agent.workspace.executed, ORDERS, strict=True)]  # fmt: skip
    assert carried_out == ORDERS


@pytest.mark.requirement("OH55", "OH56")
async def test_orders_that_would_harm_or_be_dropped_are_refused_with_the_reason(
    environment: OpenHandsEnvironment,
) -> None:
    async with environment.running() as gateway:
        await ready(environment, gateway)
        for action, arguments, word in (
            ("write", {"path": "/a", "content": "x"}, "edit"),
            ("run", {"command": "ls", "strange": 1}, "strange"),
            ("run", {}, "command"),
            ("format_disk", {}, "format_disk"),
        ):
            order = {"kind": "action.ordered", "action": action, "arguments": arguments}
            [problem] = await send(gateway, order, status=422)
            assert word in problem["detail"], problem
        assert environment.agent.received == []


# Making conversations ------------------------------------------------------------------------------------


async def test_a_conversation_is_created_or_its_missing_settings_are_told(tmp_path: Path) -> None:
    async with openhands_environment(tmp_path) as environment:
        environment.options(conversation_id=None, conversation={"initial_user_msg": "Begin."})
        environment.server.has_settings = False
        async with environment.running(linked=False) as gateway:
            problem = await gateway.post("/v1/sessions", {"runtime": "work"}, status=502)
            assert "settings" in problem["detail"].lower(), problem
            assert OPENHANDS_KEY not in str(problem)
            environment.server.has_settings = True
            made = await gateway.post("/v1/sessions", {"runtime": "work", "labels": {"table": "7"}}, status=201)
            assert made["labels"] == {"table": "7"}
            work = environment.server.conversation(made["native_id"])
            await work.wait_connections()
            await gateway.wait_events("message.posted")
            await work.agent_says("Begun.")
            posted = await gateway.wait_events("message.posted", 2)
            assert [one["event"]["content"][0]["text"] for one in posted] == ["Begin.", "Begun."]


@pytest.mark.parametrize("fault", ["wrong key", "no settings", "stopped"])
async def test_a_refusal_is_told_and_survived(tmp_path: Path, fault: str) -> None:
    async with openhands_environment(tmp_path) as environment:
        if fault == "wrong key":
            environment.server.session_api_key = "another-key"
        elif fault == "no settings":
            environment.server.has_settings = False
        async with environment.running(linked=fault == "stopped") as gateway:
            if fault == "stopped":
                await environment.agent.disconnect()
            else:
                link = await gateway.wait_link("refused")
                assert ("key" if fault == "wrong key" else "ettings") in link["reason"]
                assert OPENHANDS_KEY not in str(link)
                environment.server.session_api_key, environment.server.has_settings = OPENHANDS_KEY, True
            await gateway.wait_link("up")
            await environment.agent.wait_connections(2 if fault == "stopped" else 1)
            await until(lambda: _delivers(gateway))


async def _delivers(gateway: Running) -> bool:
    [sent] = await send(gateway, message("Are you there?"))
    return (await fate(gateway, sent["sequence"]))["state"] == "delivered"
