"""The simulated OpenHands server behaves as 0.62 was measured to, seen by a client that knows nothing of it."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from gateway.testing.runtimes.openhands.server import Manners, OpenHandsServer
from tests.simulators.raw_openhands import RawOpenHands, is_state, joined, kinds

READY = Manners(loading=timedelta(0), stale_state=None)
"""An agent that listens as soon as its client has joined, for what is not about its beginning."""


async def test_a_new_conversation_warms_up_before_the_connection_stands() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        await client.until(is_state("awaiting_user_input"))
        assert kinds(client.events) == ["loading", "loading", "system", "awaiting_user_input"]
        assert client.numbers == [0, 0, 1, 3], "the environment's own order has an id and is never sent"
        assert [event["source"] for event in client.events if "source" in event][:2] == ["environment", "agent"]
        channels = [channel for channel, _ in client.lines]
        assert channels.index("connect") > channels.index("oh_event")


async def test_a_message_is_echoed_with_a_new_id_and_wakes_the_agent() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        await client.order("message", {"content": "hi", "image_urls": []})
        await client.until(lambda event: event.get("observation") == "recall")
        assert kinds(client.events)[4:] == ["message", "recall", "running", "recall"]
        echo = client.events[-4]
        assert (echo["source"], echo["message"], echo["args"]["wait_for_response"]) == ("user", "hi", False)
        await work.agent_says("hello")
        await client.until(is_state("awaiting_user_input"))
        await client.order("message", {"content": "again"})
        await client.until(lambda event: event.get("message") == "again")
        await work.agent_says("hello again")
        assert work.violations == []
        stored = [event["id"] for event in work.events]
        assert stored == list(range(len(stored)))
        await client.until(lambda event: event.get("message") == "hello again")
        assert any(n not in client.numbers for n in range(5, max(client.numbers))), "a null observation leaves a gap"


async def test_two_threads_of_the_server_swap_what_they_send() -> None:
    async with OpenHandsServer(manners=replace(READY, reorders=True)) as server, joined(server.url, "c1") as client:
        await client.order("message", {"content": "hi"})
        await client.until(is_state("running"))
        assert client.numbers[-2:] == [7, 6]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "text",
        [],
        {"action": "nope", "args": {}},
        {"action": "pause", "args": {}},
        {"action": "run", "args": None},
        {"action": "run", "args": {}},
        {"action": "run", "args": {"command": "ls", "strange": 1}},
        {"action": "run", "args": {"command": 7}},
        {"action": "run", "args": {"command": "ls"}, "id": 4},
        {"action": "run", "args": {"command": "ls"}, "source": "nobody"},
        {"observation": "run", "content": "", "extras": {}},
    ],
)
async def test_what_the_server_does_not_take_is_never_acknowledged(payload: object) -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        with pytest.raises(Exception, match=r"^$"):
            await client.send(payload, within=0.2)
        await client.order("message", {"content": "still here"}, channel="oh_action")
        await client.until(lambda event: event.get("message") == "still here")
        assert len(server.conversation("c1").violations) == 1


@pytest.mark.parametrize(("answer", "ends"), [("user_confirmed", "running"), ("user_rejected", "awaiting_user_input")])
async def test_a_gated_command_comes_again_after_the_answer(answer: str, ends: str) -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        command = {"command": "rm a", "thought": "Risky."}
        running = asyncio.create_task(work.agent_acts("run", command, gated=True))
        first = await client.until(lambda event: event.get("action") == "run")
        assert first["args"]["confirmation_state"] == "awaiting_confirmation"
        await client.order("change_agent_state", {"agent_state": answer})
        last = await running
        await client.until(lambda event: event.get("id") == last["id"] + 1)
        seen = "run" if answer == "user_confirmed" else "user_rejected"
        gate = ["awaiting_user_confirmation", "run", "change_agent_state", "run", answer, seen, ends]
        assert kinds(client.events)[-7:] == gate
        again = [event for event in client.events if event.get("action") == "run"][1]
        assert (again["id"], again["args"]["thought"]) == (last["cause"], "")
        assert first["args"]["thought"] == "Risky."
        assert again["tool_call_metadata"]["tool_call_id"] == first["tool_call_metadata"]["tool_call_id"]
        assert again["args"]["confirmation_state"] == ("confirmed" if answer == "user_confirmed" else "rejected")
        assert not work.waits
        assert work.violations == []


async def test_an_answer_that_nothing_waits_for_is_a_breach() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        await client.order("change_agent_state", {"agent_state": "user_confirmed"})
        assert ["nothing waits" in line for line in server.conversation("c1").violations] == [True]


async def test_a_gated_edit_is_carried_out_before_the_answer_and_again_after_it() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        editing = asyncio.create_task(work.agent_edits("/a.txt", "a\n", gated=True))
        seen = await client.until(lambda event: event.get("observation") == "edit")
        assert "created" in seen["content"]
        await client.order("change_agent_state", {"agent_state": "user_confirmed"})
        assert (await editing)["content"].startswith("ERROR:\n")


async def test_a_stop_ends_a_command_which_then_ends_a_second_time() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        action = await work.agent_starts("sleep 9")
        await client.order("change_agent_state", {"agent_state": "stopped"})
        await client.until(is_state("stopped"))
        await work.agent_ends(action, "late")
        await client.until(lambda event: event.get("observation") == "run")
        ends = [event for event in client.events if event.get("cause") == action["id"]]
        assert [event["observation"] for event in ends] == ["error", "run"]
        assert ends[0]["extras"]["error_id"].endswith("NOT_EXECUTED_STOPPED")


async def test_orders_of_a_client_are_carried_out_and_observed_as_its_own() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        work.workspace.outputs["ls"] = ("a.txt\n", 0)
        await client.order("run", {"command": "ls"})
        seen = await client.until(lambda event: event.get("observation") == "run")
        echo = await client.until(lambda event: event.get("action") == "run")
        assert (seen["cause"], seen["source"], seen["content"], seen["success"]) == (
            echo["id"],
            "user",
            "a.txt\n",
            True,
        )
        await client.order("edit", {"path": "/a", "command": "create", "file_text": "one\n"})
        await client.order("edit", {"path": "/a", "command": "str_replace", "old_str": "one", "new_str": "two"})
        await client.order("read", {"path": "/a"})
        assert (await client.until(lambda event: event.get("observation") == "read"))["content"] == "two\n"
        await client.order("read", {"path": "/b"})
        assert "not found" in (await client.until(lambda event: event.get("observation") == "error"))["content"]
        await client.order("browse", {"url": "http://a"})
        await client.until(lambda event: event.get("observation") == "browse")
        assert work.violations == []
        assert [name for name, _ in work.workspace.executed] == ["run", "edit", "edit", "read", "read", "browse"]


async def test_a_clients_write_poisons_the_conversation() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        await client.order("write", {"path": "/a", "content": "x"})
        with pytest.raises(RuntimeError, match="poisoned"):
            await work.agent_says("hello")
        await client.until(is_state("error"))
        assert len(work.violations) == 1


async def test_a_replay_withholds_states_but_the_last_and_what_is_never_sent() -> None:
    async with OpenHandsServer(manners=READY) as server:
        async with joined(server.url, "c1") as client:
            await client.order("message", {"content": "hi"})
            await server.conversation("c1").agent_runs("ls", "a")
            await server.conversation("c1").finish("done")
        async with joined(server.url, "c1", 3) as again:
            assert kinds(again.events) == ["message", "recall", "run", "run", "finish", "finished"]
            assert again.events[1]["source"] == "environment", "the recall observation, as it was stored"
            assert again.lines[-1][0] == "connect"
            last = again.numbers[-1]
        async with joined(server.url, "c1", last) as current:
            assert current.events == []
        for nothing in ("", "undefined", "-1", "1.5"):
            async with joined(server.url, "c1", nothing) as whole:
                assert whole.numbers[0] == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("latest_event_id=-1", "No conversation_id in query params"),
        ("conversation_id=c1&session_api_key=wrong", "invalid_session_api_key"),
    ],
)
async def test_some_clients_are_refused_with_a_reason(query: str, message: str) -> None:
    async with OpenHandsServer(session_api_key="right", manners=READY) as server:
        client = RawOpenHands()
        with pytest.raises(Exception, match=r"[Cc]onnect|namespaces"):
            await client.connect(server.url, query)
        assert ("connect_error", {"message": message}) in client.lines
        assert server.refused == [message]
        await client.close()


@pytest.mark.parametrize(
    "query",
    [
        "conversation_id=c1",
        "conversation_id=c1&session_api_key=",
        "conversation_id=../x&session_api_key=right",
        "conversation_id=c1&session_api_key=right&providers_set=github,nobody",
    ],
)
async def test_others_are_told_nothing_at_all(query: str) -> None:
    async with OpenHandsServer(session_api_key="right", manners=READY) as server:
        client = RawOpenHands()
        with pytest.raises(Exception, match=r"[Cc]onnect|namespaces"):
            await client.connect(server.url, query, within=1.0)
        assert [line for line in client.lines if line[0] != "disconnect"] == []
        assert len(server.refused + server.violations) == 1
        await client.close()


async def test_known_providers_and_empty_ones_are_welcome() -> None:
    async with OpenHandsServer(manners=READY) as server:
        for more in ("&providers_set=", "&providers_set=github,gitlab"):
            async with joined(server.url, "c1", more=more):
                pass
        assert server.conversation("c1").connections == 2


async def test_missing_settings_are_told_after_the_replay() -> None:
    async with OpenHandsServer(manners=READY) as server:
        async with joined(server.url, "c1"):
            pass
        server.has_settings = False
        client = RawOpenHands()
        with pytest.raises(Exception, match=r"[Cc]onnect|namespaces"):
            await client.connect(server.url, "conversation_id=c1")
        assert client.lines[0][0] == "oh_event"
        assert client.lines[-1][1]["data"] == {"msg_id": "CONFIGURATION$SETTINGS_NOT_FOUND"}
        await client.close()
        async with httpx.AsyncClient(base_url=server.url) as http:
            answer = await http.post("/api/conversations", json={})
            assert (answer.status_code, answer.json()["msg_id"]) == (400, "CONFIGURATION$SETTINGS_NOT_FOUND")


async def test_rest_creates_conversations_and_pages_through_all_their_events() -> None:
    key = {"X-Session-API-Key": "k"}
    async with (
        OpenHandsServer(session_api_key="k", manners=READY) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        http.headers.update(key)
        assert (await http.post("/api/conversations", json={"strange": 1})).status_code == 422
        made = (await http.post("/api/conversations", json={"initial_user_msg": "go"})).json()
        page = f"/api/conversations/{made['conversation_id']}/events"
        first = (await http.get(page, params={"limit": 2})).json()
        rest = (await http.get(page, params={"start_id": 2})).json()
        assert ([event["id"] for event in first["events"]], first["has_more"]) == ([0, 1], True)
        assert kinds(rest["events"]) == ["message", "change_agent_state", "running"]
        assert rest["events"][-1]["source"] == "environment"
        assert (await http.get(page, params={"limit": 101})).status_code == 400
        assert (await http.get("/api/conversations/unknown")).json() is None
        assert (await http.get("/api/conversations/unknown", headers={"X-Session-API-Key": ""})).status_code == 401
        assert (await http.post(page, json={"action": "nope"})).status_code == 500
        assert (await http.get("/alive", headers={"X-Session-API-Key": ""})).status_code == 200


async def test_a_lost_connection_keeps_the_conversation_and_a_restart_begins_the_agent_anew() -> None:
    async with OpenHandsServer(manners=READY) as server:
        work = server.conversation("c1")
        async with joined(server.url, "c1") as client:
            assert await work.drop() == 1
            await client.until_left()
        await work.wait_disconnected()
        await work.agent_runs("ls", "a")
        async with joined(server.url, "c1", 3) as client:
            assert kinds(client.events) == ["run", "run", "running"]
            await server.stop()
            await client.until_left()
        await server.start()
        async with joined(server.url, "c1", 6) as client:
            await client.until(is_state("awaiting_user_input"))
            # It was up to date, so the replay has no state for it; what begins again is told as it happens.
            assert kinds(client.events) == ["loading", "awaiting_user_input"]
        await server.stop()
        await server.start()
        async with joined(server.url, "c1", 3) as client:
            await client.until(lambda event: is_state("awaiting_user_input")(event) and event["id"] > 10)
            shown = ["run", "run", "awaiting_user_input", "loading", "awaiting_user_input"]
            assert [kind for kind in kinds(client.events) if kind != "change_agent_state"] == shown


async def test_a_stop_by_rest_sends_the_clients_away_before_they_can_see_it() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        async with httpx.AsyncClient(base_url=server.url) as http:
            await http.post("/api/conversations/c1/stop")
        await client.until_left()
        assert not any(is_state("stopped")(event) for event in client.events)
        assert is_state("stopped")(server.conversation("c1").events[-1])


async def test_a_delegates_states_come_between_and_its_observation_has_no_cause() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        seen = await work.delegate("BrowsingAgent", "look", {"found": "nothing"})
        await client.until(lambda event: event.get("observation") == "delegate")
        assert "cause" not in seen
        assert kinds(client.events)[-5:] == ["delegate", "message", "running", "finished", "delegate"]


async def test_things_that_are_no_events_are_sent_and_never_shown_again() -> None:
    async with OpenHandsServer(manners=READY) as server:
        async with joined(server.url, "c1") as client:
            work = server.conversation("c1")
            await work.title("Fishing")
            titled = await client.until(lambda event: "conversation_title" in event)
            assert "id" not in titled
            await work.fail("AgentStuckInLoopError: stuck")
            assert (await client.until(lambda event: event.get("type") == "error"))["id"] == "STATUS$ERROR"
        async with joined(server.url, "c1") as again:
            assert not any("status_update" in event for event in again.events)


async def test_actions_have_the_keys_of_the_recorded_ones() -> None:
    async with OpenHandsServer(manners=READY) as server:
        work = server.conversation("c1")
        await work.agent_runs("echo hello", "hello\n")
        await work.agent_edits("/b.py", "print('b')\n")
        await work.finish("done")
    recorded = {
        "run": "command is_input thought blocking is_static cwd hidden confirmation_state security_risk",
        "edit": "path command file_text old_str new_str insert_line content start end thought security_risk"
        " impl_source",
        "finish": "final_thought outputs thought",
    }
    for name, keys in recorded.items():
        action = next(event for event in work.events if event.get("action") == name)
        assert list(action["args"]) == keys.split()
        assert set(action) - {"timeout"} == {
            *("id", "timestamp", "source", "message", "action", "tool_call_metadata", "llm_metrics", "args")
        }


async def test_what_is_said_while_the_agent_loads_is_acknowledged_and_never_worked_on() -> None:
    async with OpenHandsServer(manners=Manners(loading=None)) as server, joined(server.url, "c1") as client:
        work = server.conversation("c1")
        assert await status_of(server, "c1") == "STARTING"
        await client.order("message", {"content": "too early"})
        await client.order("run", {"command": "ls"})
        await client.until(lambda event: event.get("action") == "run")
        work.end_loading()
        await client.until(is_state("awaiting_user_input"))
        assert await status_of(server, "c1") == "RUNNING"
        assert work.state == "awaiting_user_input"
        assert [one["action"] for one in work.unheard] == ["message", "run"]
        assert work.workspace.executed == []
        await client.order("message", {"content": "now"})
        await client.until(is_state("running"))
        assert len(work.unheard) == 2


async def test_a_fourth_conversation_ends_the_oldest() -> None:
    async with OpenHandsServer(manners=READY) as server, joined(server.url, "c1") as oldest:
        async with joined(server.url, "c2"), joined(server.url, "c3"), joined(server.url, "c4"):
            await oldest.until_left()
            evicted = [event for event in oldest.events if event.get("id") == "AGENT_ERROR$TOO_MANY_CONVERSATIONS"]
            assert [event["type"] for event in evicted] == ["error"]
            assert server.evicted == ["c1"]
            assert await status_of(server, "c1") == "STOPPED"
            assert await status_of(server, "c4") == "RUNNING"
        # Those that nobody listens to go on, and coming back takes the place of the next.
        async with joined(server.url, "c1", 3):
            assert server.evicted == ["c1", "c2"]


async def test_a_server_may_be_told_to_keep_more_conversations() -> None:
    async with OpenHandsServer(max_concurrent_conversations=4) as server:
        for name in ("c1", "c2", "c3", "c4"):
            async with joined(server.url, name):
                pass
        assert server.evicted == []


async def test_a_stopped_conversation_is_stopped_until_somebody_joins_it() -> None:
    async with OpenHandsServer(manners=READY) as server, httpx.AsyncClient() as rest:
        async with joined(server.url, "c1") as client:
            answer = await rest.post(f"{server.url}/api/conversations/c1/stop")
            assert answer.json()["conversation_status"] == "RUNNING"
            await client.until_left()
            assert not any(is_state("stopped")(event) for event in client.events)
        assert await status_of(server, "c1") == "STOPPED"
        again = await rest.post(f"{server.url}/api/conversations/c1/stop")
        assert again.json()["conversation_status"] == "STOPPED"
        async with joined(server.url, "c1") as client:
            assert await status_of(server, "c1") == "RUNNING"


async def test_a_first_state_gone_by_may_be_told_once_more_to_who_joins_late() -> None:
    async with OpenHandsServer(manners=Manners(stale_state=timedelta(milliseconds=1))) as server:
        async with joined(server.url, "c1") as first:
            await first.until(is_state("awaiting_user_input"))
        async with joined(server.url, "c1") as late:
            stale = await late.until(lambda event: is_state("loading")(event) and event["source"] == "agent")
            assert stale["id"] == 0
            assert kinds(late.events)[-2:] == ["awaiting_user_input", "loading"]


async def status_of(server: OpenHandsServer, conversation_id: str) -> str:
    async with httpx.AsyncClient() as rest:
        return (await rest.get(f"{server.url}/api/conversations/{conversation_id}")).json()["status"]
