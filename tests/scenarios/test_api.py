"""The HTTP API drives real sessions: what is posted reaches the agent, what happens can be read and followed."""

from typing import Any

import pytest

from dragoman.models.stream import sequence_of
from gateway.runtime.tuning import Tuning
from tests.scenarios.environment import GOOD, Scene, ended, until
from tests.scenarios.hooks import Gate, success

CREATED = {
    "agent_id": None,
    "agent": {"name": "Finn", "class_name": "Finn", "personality": "calm", "instructions": "Play.",
              "addons": {"enabled": ["messaging"]}},
}  # fmt: skip
POSTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"kind": "context.updated", "name": "turn", "context": {"turn": "Finn"}, "description": "Your turn."}, ["turn"]),
    ({"kind": "message.posted", "content": "Hi Finn", "author": {"role": "user", "name": "Bob"}}, ["Hi Finn", "Bob"]),
    ({"kind": "turn.steered", "text": "Be quick."}, ["Be quick."]),
    ({"kind": "turn.interrupted", "reason": "The game is over."}, ["Stop", "The game is over."]),
]


@pytest.mark.parametrize(("event", "words"), POSTS, ids=[event["kind"] for event, _ in POSTS])
async def test_what_a_client_posts_reaches_the_agent_in_its_own_words(
    both: Scene, event: dict[str, Any], words: list[str]
) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        answer = await gateway.post(f"/v1/sessions/{session_id}/events", event, status=202)
        [envelope] = answer["data"]
        assert envelope["event"]["kind"] == event["kind"]
        _, frame = await both.agent.wait_for(lambda frame: all(word in str(frame) for word in words))
        if both.dialect == "0.2":
            assert frame["type"] == "context-update"
            assert frame["triggering"] is (event["kind"] != "context.updated")
        else:
            assert frame["type"] == ("new-message" if event["kind"] == "message.posted" else "huma-0.1-event")
        assert envelope in await gateway.events()

        async def delivered() -> bool:
            return (await gateway.metrics())["dragoman_dead_letters"] == 0

        await until(delivered)


async def test_several_events_are_posted_in_one_write_and_keep_their_order(both: Scene) -> None:
    events = [{"kind": "context.updated", "name": f"n{number}", "context": {"n": number}} for number in range(20)]
    async with both.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        answer = await gateway.post(path, {"events": events}, status=202)
        assert [one["event"]["name"] for one in answer["data"]] == [f"n{number}" for number in range(20)]
        await both.agent.wait_for(lambda frame: "n19" in str(frame))
    assert [name for name, _ in both.updates()] == [f"n{number}" for number in range(20)]


@pytest.mark.parametrize(
    ("event", "pointer"),
    [
        ({"kind": "question.answered", "id": "q1", "answer": "yes"}, ""),
        ({"kind": "context.updated", "name": "x" * 129, "context": {}}, "/name"),
        (
            {"kind": "context.updated", "name": "n", "context": {"deep": [{"__proto__": 1}]}},
            "/context/deep/0/__proto__",
        ),
        ({"kind": "session.closed"}, None),
        ({"kind": "tool.finished", "native_call_id": "c", "outcome": "success"}, None),
    ],
    ids=["no such kind there", "name too long", "forbidden key", "ours alone", "outcomes go elsewhere"],
)
async def test_what_the_agent_cannot_be_told_is_refused_and_leaves_no_trace(
    newer: Scene, event: dict[str, Any], pointer: str | None
) -> None:
    async with newer.running() as gateway:
        session_id = await gateway.session()
        before = await gateway.events()
        good: dict[str, Any] = {"kind": "context.updated", "name": "fine", "context": {}}
        path = f"/v1/sessions/{session_id}/events"
        problem = await gateway.post(path, {"events": [good, event]}, status=422)
        assert problem["type"] == "/problems/inexpressible"
        assert problem["detail"]
        if pointer is not None:
            assert problem["pointer"] == f"/events/1{pointer}"
            assert (await gateway.post(path, event, status=422)).get("pointer", "") == pointer
        assert await gateway.events() == before
        await gateway.post(path, good, status=202)
        await newer.agent.wait_for(lambda frame: "fine" in str(frame))
    assert len(newer.agent.received) == 1


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
async def test_only_huma_0_2_forbids_keys_of_a_context(both: Scene, key: str) -> None:
    async with both.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        event = {"kind": "context.updated", "name": "posted", "context": {"users": {key: 1}}}
        if both.agent.dialect == "0.2":
            problem = await gateway.post(path, event, status=422)
            assert problem["pointer"] == f"/context/users/{key}"
        else:
            await gateway.post(path, event, status=202)
            await both.agent.wait_for(lambda frame: frame["content"]["context"]["users"] == {key: 1})
            assert both.agent.violations == []


async def test_the_same_write_with_one_idempotency_key_happens_once(both: Scene) -> None:
    event = {"kind": "message.posted", "content": "once"}
    async with both.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        key = {"idempotency-key": "k1"}
        first = await gateway.post(path, event, status=202, **key)
        assert await gateway.post(path, event, status=202, **key) == first
        problem = await gateway.post(path, {**event, "content": "other"}, status=422, **key)
        assert problem["type"] == "/problems/idempotency-conflict"
        assert len(await gateway.events(kind="message.posted")) == 1
        await gateway.post(path, {**event, "content": "the next"}, status=202)
        await both.agent.wait_for(lambda frame: "the next" in str(frame))
    assert len(both.agent.received) == 2


async def test_a_session_is_attached_once_and_its_labels_choose_the_route(both: Scene) -> None:
    both.configure(
        {
            "executors": {"gold": {"type": "static", "result": "for gold"}},
            "routes": [
                {"match": {"tool": "ask", "label": {"tier": "gold*"}}, "to": "gold"},
                {"match": {"tool": "*"}, "to": "cards"},
            ],
        }
    )
    vip = both.huma.agent("vip")
    async with both.running() as gateway:
        form = {"runtime": "finn", "native_id": "vip", "labels": {"tier": "golden"}}
        made = await gateway.post("/v1/sessions", form, status=201)
        assert (made["native_id"], made["labels"], made["state"]) == ("vip", {"tier": "golden"}, "idle")
        again = await gateway.post("/v1/sessions", form, status=200)
        assert again["session_id"] == made["session_id"]
        await vip.wait_connected()
        assert (await ended(await vip.call("ask", GOOD))).result == "for gold"
        assert (await ended(await both.agent.call("ask", GOOD))).result == GOOD
        listed = (await gateway.get("/v1/sessions", limit=1))["data"]
        assert len(listed) == 1
        assert (await gateway.get(f"/v1/sessions/{made['session_id']}"))["labels"] == {"tier": "golden"}
    assert len(both.hooks.asked) == 1


async def test_an_agent_is_created_with_the_tools_in_the_form_of_huma(both: Scene) -> None:
    both.configure({"runtimes": {"finn": {**CREATED, "labels": {"game": "fish"}}}})
    async with both.running(linked=False) as gateway:
        made = await gateway.post("/v1/sessions", {"runtime": "finn", "labels": {"table": "1"}}, status=201)
        assert made["labels"] == {"game": "fish", "table": "1"}
        agent = both.huma.agent(made["native_id"])
        await agent.wait_connected()
        tools = {tool["name"]: tool for tool in agent.metadata["tools"]}
        assert agent.metadata["className"] == "Finn"
        assert agent.metadata["addons"] == {"enabled": ["messaging"]}
        parameters = {one["name"]: one for one in tools["ask"]["parameters"]}
        assert parameters["player"]["type"] == "string"
        assert parameters["player"]["required"] is True
        # The form has no word for an enum, so the description says it.
        assert '"7"' in parameters["rank"]["description"]
        assert (await ended(await agent.call("ask", GOOD))).outcome == "success"
        assert agent.violations == []


async def test_a_runtime_without_an_agent_to_create_says_so(newer: Scene) -> None:
    async with newer.running() as gateway:
        problem = await gateway.post("/v1/sessions", {"runtime": "finn"}, status=400)
        assert problem["pointer"] == "/native_id"
        problem = await gateway.post("/v1/sessions", {"runtime": "fin", "native_id": "x"}, status=404)
        assert "finn" in problem["detail"]


async def test_an_autostarted_agent_is_created_once_and_kept_across_restarts(both: Scene) -> None:
    both.configure({"runtimes": {"finn": {**CREATED, "autostart": True}}})
    async with both.running() as gateway:
        session_id = await gateway.session()
        native_id = (await gateway.get(f"/v1/sessions/{session_id}"))["native_id"]
    agents = set(both.huma.agents)
    async with both.running() as gateway:
        assert await gateway.session() == session_id
        await both.huma.agent(native_id).wait_connections(2)
    assert set(both.huma.agents) == agents == {"finn", native_id}


async def test_a_stream_resumes_behind_the_last_event_a_follower_has_seen(both: Scene) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        async with gateway.stream(session_id) as follower:
            one = await both.agent.call("ask", GOOD)
            seen = await follower.until("tool.finished")
            assert [item["event"] for item in seen] == ["session.moved", "tool.requested", "tool.finished"]
            assert seen[1]["data"]["event"]["native_call_id"] == one.call_id
        last = sequence_of(seen[-1]["id"])
        assert last == seen[-1]["data"]["sequence"]
        missed = [await both.agent.call("ask", GOOD) for _ in range(3)]
        for call in missed:
            await ended(call)
        async with gateway.stream(session_id, last=last) as follower:
            found = [await follower.next() for _ in range(6)]
            await both.agent.call("free", {})
            found += await follower.until("tool.finished")
        assert [sequence_of(item["id"]) for item in found] == list(range(last + 1, last + 9))
        async with gateway.stream(session_id, after=0) as follower:
            whole = [await follower.next() for _ in range(last + 8)]
        assert [item["data"] for item in whole] == await gateway.events()


@pytest.mark.requirement("N78", "N80")
async def test_followers_see_typing_live_and_nobody_keeps_it(both: Scene) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        async with gateway.stream(session_id) as follower:
            common = {"type": "messaging", "toolCallId": "burst", "extra_args": {"room": 1}}
            await both.agent.emit("event", {**common, "event": "typing_start"})
            await both.agent.emit("event", {**common, "event": "typing_end", "reason": "canceled"})
            started, stopped = await follower.next(), await follower.next()
        assert "id" not in started
        assert started["event"] == stopped["event"] == "typing.changed"
        assert started["data"]["live"] is True
        assert started["data"]["event"]["typing"] is True
        assert stopped["data"]["event"]["typing"] is False
        assert stopped["data"]["event"]["reason"] == "canceled"
        assert await gateway.events(kind="typing.changed") == []


async def test_the_history_of_a_call_tells_all_about_it_and_nothing_else(both: Scene) -> None:
    async with both.running() as gateway:
        calls = [await both.agent.call("free", {"n": number}) for number in range(3)]
        for call in calls:
            await ended(call)
        row = await gateway.wait_call(calls[1].call_id, "succeeded")

        async def told() -> dict[str, Any] | None:
            history = await gateway.get(f"/v1/calls/{row['call_id']}")
            return history if history["deliveries"][0]["state"] == "delivered" else None

        history = await until(told)
        assert [one["event"]["kind"] for one in history["events"]] == ["tool.requested", "tool.finished"]
        request, finished = history["events"]
        assert request["event"]["arguments"] == {"n": 1}
        assert finished["caused_by"] == request["sequence"] == history["request_sequence"]
        assert finished["sequence"] == history["outcome_sequence"] == history["deliveries"][0]["sequence"]
        assert history["deliveries"][0]["target"] == "runtime"
        listed = await gateway.get("/v1/calls", tool="free", state="succeeded", limit=2)
        assert [one["native_call_id"] for one in listed["data"]] == [calls[2].call_id, calls[1].call_id]
        rest = await gateway.get("/v1/calls", tool="free", state="succeeded", limit=2, after=listed["next"])
        assert [one["native_call_id"] for one in rest["data"]] == [calls[0].call_id]


async def test_an_operators_cancel_leaves_the_executor_a_grace_in_which_it_may_still_answer(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("just in time"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        row = await gateway.wait_call(call.call_id, "dispatched")
        await gateway.post(f"/v1/calls/{row['call_id']}/cancel", {"reason": "enough"}, status=202)
        [told] = await both.hooks.wait_for(name="tool.canceled")
        assert told.data["reason"] == "enough"
        gate.open()
        reading = await ended(call)
        assert (reading.outcome, reading.result) == ("success", "just in time")
        problem = await gateway.post(f"/v1/calls/{row['call_id']}/cancel", {}, status=409)
        assert problem["type"] == "/problems/conflict"


async def test_an_operators_cancel_ends_a_call_when_the_grace_is_over(both: Scene) -> None:
    both.configure({"limits": {"cancel_grace": "100ms"}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("too late"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        row = await gateway.wait_call(call.call_id, "dispatched")
        await gateway.post(f"/v1/calls/{row['call_id']}/cancel", {"reason": "enough"}, status=202)
        assert (await ended(call)).outcome == "canceled"
        assert (await gateway.call_of(call.call_id))["state"] == "canceled"
        gate.open()
    assert len(call.results) == 1


async def test_a_redrive_is_a_call_of_its_own_with_the_same_key_and_stays_out_of_the_agents_sight(
    both: Scene,
) -> None:
    both.hooks.scripts["ask"] = {"outcome": "failure", "error": "not yet"}
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await ended(call)
        row = await gateway.wait_call(call.call_id, "failed")
        both.hooks.scripts["ask"] = success("now it works")
        path = f"/v1/calls/{row['call_id']}/redrive"
        again = await gateway.post(path, status=202)
        assert (again["redrive_of"], again["idempotency_key"]) == (row["call_id"], row["call_id"])
        fresh = await gateway.post(path, {"new_key": True, "deliver": False}, status=202)
        assert fresh["idempotency_key"] == fresh["call_id"]

        async def both_done() -> list[dict[str, Any]] | None:
            rows = [await gateway.get(f"/v1/calls/{one['call_id']}") for one in (again, fresh)]
            return rows if all(one["state"] == "succeeded" for one in rows) else None

        await until(both_done)
        first, *rest = [one.key for one in both.hooks.of("ask")]
        assert first == row["call_id"]
        # The two are under way at the same time, so either may arrive first.
        assert sorted(rest) == sorted([row["call_id"], fresh["call_id"]])
        await ended(await both.agent.call("free", {}))
    assert len(call.results) == 1


@pytest.mark.parametrize("refused", ["a list in place of an object", "what the schema does not allow"])
async def test_a_redrive_does_not_ask_for_what_was_refused_before_anybody_was_asked(both: Scene, refused: str) -> None:
    arguments: Any = ["x"] if refused.startswith("a list") else {**GOOD, "rank": 7}
    async with both.running() as gateway:
        call = await both.agent.call("ask", arguments)
        assert (await ended(call)).outcome == "failure"
        row = await gateway.wait_call(call.call_id, "failed")
        told = await gateway.post(f"/v1/calls/{row['call_id']}/redrive", status=409)
        assert "it would be refused before any executor is asked: " in told["detail"]
        assert len((await gateway.get("/v1/calls"))["data"]) == 1
    assert not both.hooks.asked


async def test_capabilities_and_runtimes_say_what_each_link_can_do_and_how_it_is(both: Scene) -> None:
    async with both.running() as gateway:
        [runtime] = (await gateway.get("/v1/runtimes"))["data"]
        assert (runtime["name"], runtime["adapter"]) == ("finn", f"huma-{both.dialect}")
        [link] = runtime["links"]
        assert (link["native_id"], link["state"], link["reason"]) == ("finn", "up", None)
        [shown] = (await gateway.get("/v1/capabilities"))["data"]
        can = shown["capabilities"]
        assert can["limits"].get("confirmation_seconds") == {"0.1": None, "0.2": 30}[both.dialect]
        assert "context.updated" in can["accepts"]


async def test_closing_a_session_ends_its_calls_and_its_link(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("late"))
    async with both.running() as gateway:
        session_id = await gateway.session()
        call = await both.agent.call("ask", GOOD)
        await gateway.wait_call(call.call_id, "dispatched")
        async with gateway.stream(session_id) as follower:
            assert (await gateway.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
            assert (await follower.until("session.closed"))[-1]["data"]["event"]["reason"]
        gate.open()
        await both.agent.wait_disconnected()
        assert (await gateway.get(f"/v1/sessions/{session_id}"))["state"] == "closed"
        assert (await gateway.call_of(call.call_id))["state"] == "canceled"
        await both.hooks.wait_for(name="tool.canceled")
        event = {"kind": "message.posted", "content": "still there?"}
        await gateway.post(f"/v1/sessions/{session_id}/events", event, status=409)
        assert (await gateway.get("/v1/runtimes"))["data"][0]["links"] == []
    assert call.results == []


async def test_an_erased_session_has_a_history_without_contents(both: Scene) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        call = await both.agent.call("free", {"secret": "erase-me"})
        await ended(call)
        row = await gateway.wait_call(call.call_id, "succeeded")
        answer = await gateway.http.delete(f"/v1/sessions/{session_id}", params={"erase": "true"})
        assert answer.status_code == 204
        answer = await gateway.http.get(f"/v1/sessions/{session_id}/events")
        assert "erase-me" not in answer.text
        answer = await gateway.http.get(f"/v1/calls/{row['call_id']}")
        assert answer.status_code == 200
        assert "erase-me" not in answer.text
        async with gateway.stream(session_id, after=0) as follower:
            first = await follower.next()
        assert "erase-me" not in str(first)
    assert "erase-me" not in (both.folder / "dragoman.db").read_bytes().decode("latin-1")


async def test_a_closed_session_is_opened_again_by_attaching_to_it(both: Scene) -> None:
    async with both.running() as gateway:
        session_id = await gateway.session()
        await ended(await both.agent.call("ask", GOOD))
        assert (await gateway.http.delete(f"/v1/sessions/{session_id}")).status_code == 204
        await both.agent.wait_disconnected()
        again = await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "finn"}, status=200)
        assert (again["session_id"], again["state"]) == (session_id, "idle")
        await both.agent.wait_connections(2)
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"
        await gateway.post(f"/v1/sessions/{session_id}/events", {"kind": "message.posted", "content": "hi"}, status=202)
        await both.agent.wait_for(lambda frame: "hi" in str(frame))
        kinds = [one["event"]["kind"] for one in await gateway.events(session_id)]
    assert kinds.count("session.opened") == 2


async def test_history_that_retention_removed_is_a_gap_for_followers_and_gone_for_readers(newer: Scene) -> None:
    # The sweep of a minute comes at once.
    newer.tuning = Tuning(sweep=0.05)
    newer.configure({"retention": {"open_events": 100}})
    events: list[dict[str, Any]] = [
        {"kind": "context.updated", "name": f"n{number}", "context": {}} for number in range(100)
    ]
    async with newer.running() as gateway:
        session_id = await gateway.session()
        path = f"/v1/sessions/{session_id}/events"
        await gateway.post(path, {"events": events}, status=202)
        posted = (await gateway.post(path, {"events": events}, status=202))["data"]
        removed: int = posted[-1]["sequence"] - len(events)

        async def gone() -> dict[str, Any] | None:
            answer = await gateway.http.get(path, params={"after": 0})
            # Several sweeps may take part: those between the posts, and those before all is delivered.
            return answer.json() if answer.status_code == 410 and answer.json()["first_sequence"] > removed else None

        problem = await until(gone)
        first = problem["first_sequence"]
        assert problem["type"] == "/problems/gone"
        assert (await gateway.get(path, after=first - 1))["data"][0]["sequence"] == first
        async with gateway.stream(session_id, after=0) as follower:
            gap, following = await follower.next(), await follower.next()
        assert (gap["event"], gap["data"]) == ("gap", {"first_sequence": first})
        assert sequence_of(following["id"]) == first
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


async def test_how_many_members_a_body_may_have_is_an_option_that_a_reload_changes(newer: Scene) -> None:
    event = {"kind": "context.updated", "name": "n", "context": {f"k{number}": 1 for number in range(1_500)}}
    newer.configure({"limits": {"members": 1_000}})
    async with newer.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        refused = await gateway.http.post(path, json=event)
        assert (refused.status_code, "limits.members" in refused.text) == (400, True)
        newer.configure({"limits": {"members": 2_000}})
        await gateway.post("/v1/reload", status=200)
        await gateway.post(path, event, status=202)
