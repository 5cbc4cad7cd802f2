"""The simulated agent-server is as unkind as the real one, seen by a client that knows nothing of it."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest

from gateway.testing.runtimes.openhands_v1.events import Frame, file_call, terminal_call, terminal_seen
from gateway.testing.runtimes.openhands_v1.server import AgentServer, Manners
from tests.pace import PATIENCE
from tests.simulators.raw_openhands_v1 import QUICK, RawRest, is_state, is_status, kinds, socket, world

KEY = "right"
ASK = {"kind": "AlwaysConfirm"}
EMPTY: list[Frame] = []


async def test_a_conversation_is_told_in_the_order_of_the_real_server() -> None:
    async with world() as (_, work, rest, seen):
        assert (await rest.say("hello")).json() == {"success": True}
        await work.agent_runs("ls", "a.txt")
        await work.finish("Done.")
        await seen.until_event(is_state("finished"))
        assert kinds(seen.stored) == [
            *("SystemPrompt", "user says", "running", "Action", "Observation", "Action", "Observation", "finished")
        ]
        numbers = [frame["seq"] for frame in seen.frames if frame["type"] == "durable"]
        assert numbers == list(range(len(work.events)))
        assert seen.stored == work.events == (await rest.page(limit=100))["items"]
        assert (await rest.http.get(f"{rest.path}/agent_final_response")).json() == {"response": "Done."}


async def test_a_text_answer_also_ends_in_finished_and_the_next_message_begins_with_idle() -> None:
    async with world() as (_, work, rest, seen):
        await rest.say("hello")
        await work.agent_says("Hi.")
        await seen.until_event(is_state("finished"))
        await rest.say("again")
        await work.agent_says("Hi again.")
        turn = ["user says", "running", "agent says", "finished"]
        assert kinds(work.events) == ["SystemPrompt", *turn, "idle", *turn]


# OV4, OV6
async def test_rest_wants_the_key_and_errors_have_a_detail() -> None:
    async with AgentServer(session_api_key=KEY) as server:
        name = server.add().conversation_id
        for key, path, status in (
            (None, f"/api/conversations/{name}", 401),
            ("wrong", f"/api/conversations/{name}", 401),
            (KEY, f"/api/conversations/{uuid4()}", 404),
            (KEY, "/api/conversations/nothing", 422),
            (KEY, f"/api/conversations/{name.replace('-', '')}", 200),
            (None, "/server_info", 200),
            (None, "/alive", 200),
        ):
            async with RawRest(server.url, name, key=key) as rest:
                answer = await rest.http.get(path)
                assert answer.status_code == status
                assert status == 200 or "detail" in answer.json()
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as http:
            assert (await http.get(f"{server.url}/api/conversations/count")).json() == {"detail": "Unauthorized"}


# OV6, OV16
async def test_an_invalid_creation_is_quoted_without_its_keys() -> None:
    async with AgentServer() as server, httpx.AsyncClient(base_url=server.url) as http:
        llm = {"model": "m", "api_key": "sk-canary"}
        config = {"dragoman": {"url": "http://h/mcp", "headers": {"Authorization": "Bearer canary"}, "typo": 1}}
        body = {"agent": {"llm": llm, "mcp_config": config}, "workspace": {}, "note": "quoted"}
        answer = await http.post("/api/conversations", json=body)
        assert answer.status_code == 422
        assert "canary" not in answer.text
        assert answer.json()["detail"][0]["input"]["note"] == "quoted"
        wrapped = {"mcpServers": {"dragoman": {"url": "http://h/mcp"}}}
        for agent in ({"llm": llm, "mcp_config": wrapped}, {}, None):
            assert (await http.post("/api/conversations", json={**body, "agent": agent})).status_code == 422
        assert (await http.post("/api/conversations", content="{")).status_code == 422


# OV17, OV45
async def test_a_known_id_is_returned_as_it_is_and_secrets_are_masked() -> None:
    async with AgentServer() as server, httpx.AsyncClient(base_url=server.url) as http:
        name = str(uuid4())
        agent = {
            "llm": {"model": "first", "api_key": "sk-canary"},
            "mcp_config": {"host": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer canary"}}},
        }
        body = {"conversation_id": name, "agent": agent, "workspace": {"working_dir": "/w"}}
        made = await http.post("/api/conversations", json=body)
        assert (made.status_code, made.json()["execution_status"]) == (201, "idle")
        assert made.json()["agent"]["mcp_config"]["host"]["headers"] == {"Authorization": "**********"}
        other = {**body, "agent": {"llm": {"model": "second"}}, "initial_message": {"content": EMPTY}}
        again = await http.post("/api/conversations", json=other)
        assert (again.status_code, again.json()["agent"]["llm"]["model"]) == (200, "first")
        assert "canary" not in made.text + again.text
        work = server.conversations[name]
        assert (work.events, len(server.conversations)) == ([], 1)


# OV18
async def test_tools_appear_with_the_first_message_and_an_unknown_one_fails_it() -> None:
    async with AgentServer(manners=QUICK) as server:
        work = server.add()
        assert work.events == []
        async with RawRest(server.url, work.conversation_id) as rest:
            await rest.say("hello")
        titles = [tool["title"] for tool in work.events[0]["tools"]]
        assert titles == ["terminal", "file_editor", "task_tracker", "finish", "think"]
        broken = server.add(agent={"llm": {"model": "m"}, "tools": [{"name": "juggler"}]})
        async with RawRest(server.url, broken.conversation_id) as rest:
            answer = await rest.say("hello")
            assert (answer.status_code, broken.events) == (500, [])
            assert answer.json()["error_id"]


# OV28
async def test_what_a_message_is_and_what_not() -> None:
    async with world() as (server, work, rest, _):
        for body, status in (
            ({"role": "user", "content": "a text"}, 422),
            ({"role": "assistant", "content": EMPTY}, 500),
            ({"role": "user", "content": [{"type": "video"}]}, 422),
            ({"role": "user", "content": [{"type": "text", "text": "kept"}], "id": "ignored"}, 200),
        ):
            assert (await rest.post("events", body)).status_code == status
        assert [each.payload for each in work.received] == [("message", "kept")]
        assert kinds(work.events) == ["SystemPrompt", "user says"]
        assert len(server.violations) == 2


# OV34
async def test_an_accept_before_the_full_state_is_lost_with_a_200() -> None:
    async with world(confirmation_policy=ASK) as (_, work, rest, seen):
        await rest.say("go")
        acting = asyncio.create_task(work.agent_runs("rm a", ""))
        await seen.until_event(is_status("waiting_for_confirmation"))
        assert (await rest.answer(True)).status_code == 200
        await seen.until_event(is_state("waiting_for_confirmation"))
        assert (work.status, work.executed) == ("waiting_for_confirmation", [])
        assert work.violations == ["an accept before the full_state, which is lost"]
        assert (await rest.answer(True)).status_code == 200
        assert (await asyncio.wait_for(acting, PATIENCE))["kind"] == "ObservationEvent"
        assert [tool for tool, _ in work.executed] == ["terminal"]


# OV33
async def test_all_actions_of_a_response_wait_together_and_a_lone_finish_never() -> None:
    body: Any = {"confirmation_policy": {"kind": "ConfirmRisky"}, "security_analyzer": {"kind": "LLMSecurityAnalyzer"}}
    async with world(**body) as (_, work, rest, seen):
        await rest.say("go")
        await work.agent_runs("ls", "")
        acting = asyncio.create_task(work.agent_acts(terminal_call("ls"), terminal_call("rm a", risk="HIGH")))
        await seen.until_event(is_state("waiting_for_confirmation"))
        assert [action["security_risk"] for action in work.held] == ["LOW", "HIGH"]
        assert [action["thought"] for action in work.held] == [[], []]
        assert kinds(work.events)[-4:] == ["Action", "Action", "SecurityAnalysis", "waiting_for_confirmation"]
        await rest.answer(True)
        assert len(await asyncio.wait_for(acting, PATIENCE)) == 2
        await work.finish("done")
        assert work.status == "finished"


# OV35
@pytest.mark.parametrize("how", ["message", "socket", "run", "unheld"])
async def test_everything_that_runs_is_an_accept(how: str) -> None:
    async with world(confirmation_policy=ASK) as (_, work, rest, seen):
        await rest.say("go")
        acting = asyncio.create_task(work.agent_runs("rm a", ""))
        await seen.until_event(is_state("waiting_for_confirmation"))
        match how:
            case "message":
                await rest.say("no, do something else")
            case "socket":
                await seen.send({"role": "user", "content": [{"type": "text", "text": "no"}]})
            case "run":
                await rest.post("run")
            case _:
                await rest.say("for later", run=False)
                assert (work.status, work.executed, work.violations) == ("waiting_for_confirmation", [], [])
                await rest.answer(True)
        await asyncio.wait_for(acting, PATIENCE)
        assert len(work.executed) == 1
        assert len(work.violations) == (how != "unheld")


# OV36, OV37
async def test_a_reject_is_never_lost_and_leaves_the_agent_idle() -> None:
    async with world(confirmation_policy=ASK) as (_, work, rest, seen):
        await rest.say("go")
        acting = asyncio.create_task(work.agent_acts(terminal_call("rm a"), file_call("/b", "b")))
        await seen.until_event(is_status("waiting_for_confirmation"))
        await rest.answer(False, "not now")
        rejected = await asyncio.wait_for(acting, PATIENCE)
        assert [event["rejection_reason"] for event in rejected] == ["not now", "not now"]
        assert (await rest.post("run")).status_code == 409
        await work.ended()
        assert kinds(work.events)[-3:] == ["idle", "UserRejectObservation", "UserRejectObservation"]
        assert (work.status, work.runs, work.executed) == ("idle", False, [])
        assert (await rest.answer(False)).status_code == 200
        assert (await rest.post("run")).status_code == 200
        await work.agent_says("what else?")


# OV32
async def test_pause_and_interrupt_do_nothing_while_an_approval_is_pending() -> None:
    async with world(confirmation_policy=ASK) as (_, work, rest, seen):
        await rest.say("go")
        acting = asyncio.create_task(work.agent_runs("rm a", ""))
        await seen.until_event(is_state("waiting_for_confirmation"))
        before = len(work.events)
        for path in ("pause", "interrupt"):
            assert (await rest.post(path)).status_code == 200
        assert (work.status, len(work.events)) == ("waiting_for_confirmation", before)
        await rest.answer(False)
        await asyncio.wait_for(acting, PATIENCE)


# OV13, OV24, OV30
async def test_what_waits_for_a_running_tool_and_what_not() -> None:
    async with world() as (server, work, rest, seen):
        await rest.say("go")
        action = await work.agent_starts("sleep 60")
        name = work.conversation_id
        async with (
            socket(server.url, "session", name, "?after_seq=-1") as later,
            socket(server.url, "events", name) as bare,
        ):
            waiting = [
                asyncio.create_task(request)
                for request in (rest.say("meanwhile"), rest.post("pause"), rest.http.get(rest.path), rest.answer(False))
            ]
            assert (await rest.page())["items"][-1]["id"] == action["id"]
            assert (await rest.http.get(f"{rest.path}/events/count")).json() == len(work.events)
            assert (await rest.post("run")).status_code == 409
            # All of these must still wait after a moment.
            await asyncio.sleep(0.3)
            assert not any(task.done() for task in waiting)
            assert (later.frames, bare.frames) == ([], [])
            work.agent_ends(action, "slept")
            async with asyncio.timeout(PATIENCE):
                assert [(await task).status_code for task in waiting] == [200] * 4
            await later.until_event(is_state("paused"))
            await bare.until_event(is_state("paused"))
        assert later.frames[0]["type"] == "sync"
        told = kinds(work.events)
        assert told.index("Observation") < min(told.index("user says", 2), told.index("paused"))
        await seen.until_event(lambda event: event.get("kind") == "PauseEvent")


# OV31, OV40
async def test_an_interrupt_is_immediate_and_ends_each_open_action_once() -> None:
    async with world() as (_, work, rest, seen):
        await rest.say("go")
        action = await work.agent_starts("sleep 60")
        assert (await rest.post("interrupt")).status_code == 200
        assert kinds(work.events)[-3:] == ["AgentError", "paused", "Interrupt"]
        assert work.events[-3].get("action_id") is None
        states = [event for event in seen.events if is_state("paused")(event)]
        await rest.say("and now")
        await work.agent_says("I am here.")
        work.agent_ends(action, "slept")
        await seen.until_event(is_state("finished"))
        assert len(states) <= 2
        assert len([event for event in seen.events if is_state("paused")(event)]) == 2
        assert "Observation" not in kinds(work.events)
        count = len(work.events)
        assert (await rest.post("interrupt")).status_code == 200
        assert len(work.events) == count


# OV34
@pytest.mark.parametrize("early", [True, False])
async def test_a_message_right_after_an_error_is_stored_and_never_run(early: bool) -> None:
    async with world() as (_, work, rest, seen):
        await rest.say("go")
        failing = asyncio.create_task(work.fail())
        await seen.until_event(is_status("error"))
        if not early:
            await seen.until_event(is_state("error"))
        await rest.say("again")
        await failing
        if early:
            await work.ended()
            assert kinds(work.events)[-3:] == ["error", "ConversationError", "user says"]
            assert (work.status, work.runs) == ("error", False)
            await rest.post("run")
        await work.agent_says("I am back.")


async def test_a_message_at_the_end_of_a_finished_run_does_run() -> None:
    async with world() as (_, work, rest, _seen):
        await rest.say("go")
        await work.agent_says("done")
        assert work.runs
        await rest.say("again")
        await work.wait_status("running")
        await work.agent_says("done again")


# OV42
async def test_a_stuck_agent_has_no_event_but_its_status() -> None:
    async with world() as (_, work, rest, _seen):
        await rest.say("go")
        await work.fail("stuck")
        assert kinds(work.events)[-1] == "stuck"
        await rest.post("run")


# OV25
async def test_429_means_that_the_message_is_saved() -> None:
    async with world() as (server, work, rest, seen):
        server.refuse_runs(2)
        assert (await rest.say("saved")).status_code == 429
        assert kinds(work.events) == ["SystemPrompt", "user says"]
        assert (await rest.post("run")).status_code == 429
        assert (await rest.post("run")).status_code == 200
        await seen.until_event(is_status("running"))
        await work.agent_says("ok")


async def test_only_so_many_conversations_run_at_once() -> None:
    async with AgentServer(manners=Manners(runs=1)) as server:
        first, second = server.add(), server.add()
        async with RawRest(server.url, first.conversation_id) as rest:
            assert (await rest.say("go")).status_code == 200
        async with RawRest(server.url, second.conversation_id) as rest:
            assert (await rest.say("go")).status_code == 429
            await first.agent_says("done")
            await first.ended()
            assert (await rest.post("run")).status_code == 200


# OV10
async def test_the_result_of_a_fast_tool_is_stored_late_with_its_older_time() -> None:
    agent = {"llm": {"model": "m"}, "tools": [{"name": "terminal"}], "tool_concurrency_limit": 4}

    async def run(call: Any) -> Frame:
        if call.arguments["command"] == "slow":
            # As long as the times must differ.
            await asyncio.sleep(0.05)
        return terminal_seen(call.arguments["command"], "", 0, "")

    async with world(agent=agent) as (_, work, rest, _seen):
        await rest.say("go")
        slow, fast = await work.agent_acts(terminal_call("slow"), terminal_call("fast"), work=run)
        assert work.events.index(slow) < work.events.index(fast)
        assert slow["timestamp"] > fast["timestamp"]
        since = (await rest.page(timestamp__gte=slow["timestamp"]))["items"]
        assert fast not in since
        assert slow in since


# OV21
async def test_an_unknown_page_is_the_first_and_the_last_page_has_no_cursor() -> None:
    async with world() as (_, work, rest, _seen):
        for number in range(4):
            await work.agent_runs(f"echo {number}", "")
        page = await rest.page(limit=5)
        found = page["items"]
        while page["next_page_id"] is not None:
            page = await rest.page(limit=5, page_id=page["next_page_id"])
            found += page["items"]
        assert found == work.events
        last = await rest.page(page_id=work.events[-1]["id"])
        assert last == {"items": [work.events[-1]], "next_page_id": None}
        assert (await rest.page(limit=5, page_id=str(uuid4())))["items"] == work.events[:5]
        newest = await rest.page(sort_order="TIMESTAMP_DESC", limit=1)
        assert newest["items"] == [work.events[-1]]
        assert (await rest.page(body="(simulated) echo"))["items"] == []
        assert len(work.violations) == 1
        assert (await rest.http.get(f"{rest.path}/events/search", params={"limit": 101})).status_code == 422


# OV37, OV40
async def test_a_restart_keeps_what_waits_and_tells_the_first_open_tool_only() -> None:
    async with AgentServer(manners=QUICK) as server:
        waiting, working = server.add(confirmation_policy=ASK), server.add()
        asking = asyncio.create_task(waiting.agent_runs("rm a", ""))
        await waiting.wait_status("waiting_for_confirmation")

        async def never(_call: Any) -> Frame:
            await asyncio.Event().wait()
            raise AssertionError

        acting = asyncio.create_task(working.agent_acts(terminal_call("a"), terminal_call("b"), work=never))
        await working.wait_event(lambda event: event.get("tool_call_id") == "call_1_1")
        async with socket(server.url, "session", working.conversation_id) as seen:
            await server.stop()
            assert (await seen.until_closed())[0] == 1006
        await server.start()
        with pytest.raises(RuntimeError, match="crashed"):
            await asyncio.wait_for(acting, PATIENCE)
        assert kinds(working.events)[-3:] == ["Action", "error", "AgentError"]
        assert "restart" in working.events[-1]["error"]
        async with RawRest(server.url, waiting.conversation_id) as rest:
            assert await rest.status() == "waiting_for_confirmation"
            await rest.answer(True)
            await asyncio.wait_for(asking, PATIENCE)
            assert len(waiting.executed) == 1


async def test_answers_can_be_lost_and_requests_can_fail() -> None:
    async with world() as (server, work, rest, _seen):
        server.lose_answers()
        with pytest.raises(httpx.TransportError):
            await rest.say("arrived")
        assert kinds(work.events)[:2] == ["SystemPrompt", "user says"]
        server.stumble("/events", 500)
        assert [(await rest.say(text)).status_code for text in ("lost", "kept")] == [500, 200]
        assert [each.payload[1] for each in work.received] == ["arrived", "kept"]
