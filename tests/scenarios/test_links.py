"""Links that break: nothing is lost or said twice otherwise, the order holds, and a refusal is told and survived."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.runtime.tuning import Tuning
from gateway.testing.runtimes.huma.rules import Dialect
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, QUICK, Scene, ended, scene
from tests.scenarios.fleet import condition
from tests.scenarios.hooks import Asked, Gate, Said, success, update


@pytest.fixture
def tuning() -> Tuning:
    """The waits between connections are made short; everything else is as in production."""
    return QUICK


STATE = {"kind": "context.updated", "name": "turn", "context": {"turn": "Finn"}, "description": "Your turn."}


@pytest.mark.requirement("A27")
@pytest.mark.parametrize("how", ["drop", "disconnect", "stop"])
async def test_an_outcome_waits_for_the_link_and_follows_the_hydration(both: Scene, how: str) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("kept", updates=[update("dealt", deck=1)]))
    async with both.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        [state] = (await gateway.post(path, STATE, status=202))["data"]
        first = await both.agent.wait_for(lambda frame: "Your turn." in str(frame))
        # Were it not known to be delivered, it would be told again in place of the hydration.
        await delivered(both, state["sequence"])
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for(name="ask")
        both.huma.refuse("finn", "BUSY")
        if how == "drop":
            assert await both.agent.drop() == 1
        elif how == "disconnect":
            await both.agent.disconnect()
        else:
            await both.huma.stop()
        await gateway.wait_events("link.changed", state="down")
        gate.open()
        await gateway.wait_call(call.call_id, "succeeded")
        both.huma.refuse("finn", None)
        if how == "stop":
            await both.huma.start()
        assert (await ended(call)).result == "kept"
        await gateway.wait_link("up")
        await ended(await both.agent.call("free", {}))
    after = [frame for number, frame in both.agent.received if number > first.number]
    names = [place[0] for place in both.updates()]
    if both.dialect == "0.2":
        assert names[-2:] == ["hydration", "dealt"]
        [hydration] = [frame for frame in after if frame.get("name") == "hydration"]
        assert hydration["triggering"] is False
        assert hydration["context"] == {"deck": 1}
    else:
        assert "hydration" not in names
    assert len(call.results) == 1
    assert len(both.hooks.of("ask")) == 1


async def test_what_had_just_left_when_the_link_broke_is_said_again_byte_for_byte(both: Scene) -> None:
    both.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await call.result()
        await both.agent.drop()
        first, second = await call.wait_results(2)
        assert first == second
        assert (await gateway.metrics())["dragoman_repeats_total"] == 1
    assert len(both.hooks.asked) == 1


async def test_calls_that_are_open_when_the_gateway_stops_are_answered_by_the_next_one(both: Scene) -> None:
    both.hooks.scripts["ask"] = lambda _asked: success("later")
    async with both.running() as gateway:
        await both.huma.stop()
        await gateway.wait_link("down")
    async with both.running(linked=False) as gateway:
        await both.huma.start()
        await gateway.wait_link("up")
        assert (await ended(await both.agent.call("ask", GOOD))).result == "later"


@pytest.mark.parametrize("code", ["MISSING_AGENT_ID", "UNAUTHORIZED", "AGENT_NOT_FOUND", "AGENT_EXPIRED", "BUSY"])
async def test_a_refused_link_is_told_with_its_code_and_comes_back_when_it_may(both: Scene, code: str) -> None:
    both.huma.refuse("finn", code)
    async with both.running(linked=False) as gateway:
        link = await gateway.wait_link("refused")
        assert code in link["reason"]
        [changed] = await gateway.wait_events("link.changed", state="refused")
        assert code in changed["event"]["reason"]
        async with asyncio.timeout(PATIENCE):
            # The simulated server has no event for a refusal.
            while len(both.huma.refused) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await gateway.http.get("/readyz")).status_code == 200
        assert (await gateway.metrics())['dragoman_link_up{runtime="finn"}'] == 0
        # The same refusal again is no news.
        assert len(await gateway.events(kind="link.changed")) == 1
        path = f"/v1/sessions/{await gateway.session()}/events"
        await gateway.post(path, STATE, status=202)
        both.huma.refuse("finn", None)
        await gateway.wait_link("up")
        await gateway.wait_events("link.changed", state="up")
        await both.agent.wait_for(lambda frame: "Your turn." in str(frame) or "hydration" in str(frame))
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"


async def test_a_wrong_key_is_told_without_the_key(tmp_path: Path, dialect: Dialect) -> None:
    async with scene(tmp_path, dialect) as made:
        made.configure({"runtimes": {"finn": {"api_key": "ak_wrong-canary"}}})
        async with made.running(linked=False) as gateway:
            link = await gateway.wait_link("refused")
            assert "UNAUTHORIZED" in link["reason"]
            [changed] = await gateway.wait_events("link.changed", state="refused")
            assert "canary" not in str(changed) + str(link)


@pytest.mark.requirement("A33")
async def test_an_invalid_event_soon_after_a_send_is_the_refusal_of_that_send(newer: Scene) -> None:
    newer.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        await ended(call)
        row = await gateway.wait_call(call.call_id, "succeeded")
        await newer.agent.emit("error", {"type": "error", "message": "bad frame", "code": "INVALID_EVENT"})
        [settled] = await gateway.wait_events("delivery.settled", state="refused")
        assert settled["event"]["sequence"] == row["outcome_sequence"]
        assert "INVALID_EVENT" in settled["event"]["reason"]
        [fault] = await gateway.events(kind="fault.reported")
        assert fault["event"]["message"] == "bad frame"
        [letter] = (await gateway.get("/v1/dead-letters"))["data"]
        assert (letter["type"], letter["state"], letter["sequence"]) == ("delivery", "refused", row["outcome_sequence"])
        history = await gateway.get(f"/v1/calls/{row['call_id']}")
        assert history["deliveries"][0]["state"] == "refused"
        assert history["events"][-1]["event"]["kind"] == "delivery.settled"
        path = f"/v1/sessions/{letter['session_id']}/events/{letter['sequence']}/redeliver"
        await gateway.post(path, {"target": "runtime"}, status=202)
        first, second = await call.wait_results(2)
        assert first == second


@pytest.mark.slow
@pytest.mark.requirement("L66")
@pytest.mark.parametrize("broken", [False, True], ids=["link holds", "link breaks"])
async def test_hundreds_of_updates_and_results_arrive_in_the_order_decided(both: Scene, broken: bool) -> None:
    calls = 300
    gate = Gate()

    async def answer(asked: Asked) -> Said:
        number = asked.data["arguments"]["number"]
        await gate.wait()
        return success(number, updates=[update(f"u{number}", number=number)])

    both.hooks.scripts["free"] = answer
    both.configure({"executors": {"cards": {"concurrency": 400, "timeout": "60s"}},
                    "limits": {"session_concurrency": 400}})  # fmt: skip
    async with both.running() as gateway:
        asked = [await both.agent.call("free", {"number": number}) for number in range(calls)]
        await both.hooks.wait_for(calls, within=PATIENCE)
        if broken:
            await both.agent.drop()
        gate.open()
        for call in asked:
            assert (await ended(call, within=PATIENCE)).outcome == "success"
        recorded = [
            one["event"]["result"] if one["event"]["kind"] == "tool.finished" else one["event"]["name"]
            for one in await gateway.events()
            if one["direction"] == "to_runtime" and one["event"]["kind"] in {"tool.finished", "context.updated"}
            and one["event"].get("name") != "hydration"
        ]  # fmt: skip
    assert len(recorded) == 2 * calls
    assert [what for what in said_to(both) if what != "hydration"] == recorded
    assert all(len(call.results) == 1 for call in asked)


async def delivered(scene: Scene, sequence: int) -> None:
    """Wait until the silence after a send was believed; only its row says so."""
    with closing(sqlite3.connect(scene.folder / "dragoman.db")) as store:
        fate = "SELECT 1 FROM outbound WHERE seq = ? AND target = 'runtime' AND state = 'delivered'"
        await condition(lambda: store.execute(fate, (sequence,)).fetchone())


def said_to(scene: Scene) -> list[Any]:
    """What the agent was told, in order: names of updates and values of results, repeats left out."""
    found: dict[Any, None] = {}
    for _, frame in scene.agent.received:
        content = frame if scene.dialect == "0.2" else frame["content"]
        found[content["result"] if "result" in content else content.get("name")] = None
    return list(found)
