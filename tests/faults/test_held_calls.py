"""Calls that wait for a person while gateways die: each leaves once, with an approval, and as it was allowed.

What the executor read is compared with `approval.given`, whose binding is computed anew.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from gateway.store.sqlite.backup import back_up, restore
from gateway.testing.runtimes.huma.calls import SimCall
from tests.faults.environment import until
from tests.faults.instance import Instance
from tests.faults.judge import Wanted
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.faults.stores import SqliteFile
from tests.pace import PATIENCE
from tests.simulation.approvals import binding_of

pytestmark = pytest.mark.faults

TOOL = "pay"
KILLS = 6
"""How often a replica is killed while people answer."""
QUESTION = pytest.mark.fault(
    "SIGKILL around the question about a held call", simulated="held-call-is-queued-at-a-start"
)
ANSWER = pytest.mark.fault(
    "SIGKILL around the answer that allows a held call, repeated after the restart",
    simulated="stale-binding-is-accepted",
)
LEAVING = pytest.mark.fault(
    "SIGKILL while an allowed call, with changed arguments, leaves",
    simulated="changed-arguments-are-forgotten-at-a-start",
)
CHANGED = pytest.mark.parametrize("changes", [False, True], ids=["as it is", "changed"])
on_postgres = pytest.mark.parametrize("store", ["postgres"])
"""For the faults of which the simulation proves the SQLite half."""


class HeldScene(Scene):
    """A scene in which a person is asked about each call of one tool."""

    repeatable = frozenset({"again", TOOL})

    def __init__(self, folder: Path, **more: Any) -> None:
        super().__init__(folder, "0.2", **more)
        self.given: list[dict[str, Any]] = []
        """The approvals on record, those of a journal that was replaced by a backup included."""
        self.changed: dict[str, dict[str, Any]] = {}
        """What a person has made of the arguments of a call."""

    def settings(self, instance: Instance, **engine: Any) -> dict[str, Any]:
        settings = super().settings(instance, **engine)
        gated = {"match": {"tool": TOOL}, "to": "again", "approve": True}
        return {**settings, "routes": [gated, *settings["routes"]]}

    def wanted(self) -> list[Wanted]:
        return [
            replace(one, arguments=json.dumps(self.changed[one.native_call_id], sort_keys=True))
            if one.native_call_id in self.changed
            else one
            for one in super().wanted()
        ]

    async def held(self) -> tuple[SimCall, dict[str, Any]]:
        """Let the agent call; return its call and the question about it."""
        call = await self.call(TOOL)
        await self.reached(call.call_id, "held")
        return call, await self.question()

    async def question(self) -> dict[str, Any]:
        """Return the only question that waits."""
        (asked,) = await self.waiting()
        return asked

    async def waiting(self, of: Instance | None = None) -> list[dict[str, Any]]:
        return await self.rows("/v1/interactions", of=of, state="waiting")

    async def allow(
        self, asked: Mapping[str, Any], *, changes: bool = False, of: Instance | None = None
    ) -> httpx.Response | None:
        """Allow a call; None if the gateway dies before it responds."""
        body: dict[str, Any] = {"decision": "allow", "binding": asked["binding"]}
        if changes:
            body["arguments"] = {**asked["event"]["arguments"], "n": 1_000}
            self.changed[asked["event"]["native_call_id"]] = body["arguments"]
        try:
            return await (of or self.gateway).http.post(f"/v1/interactions/{asked['interaction_id']}/answer", json=body)
        except httpx.TransportError:
            return None

    async def keep_approvals(self) -> None:
        """Read the approvals that the journal has."""
        events = await self.rows(f"/v1/sessions/{await self.session_id()}/events")
        found = [one["event"] for one in events if one["event"]["kind"] == "approval.given"]
        self.given += [one for one in found if one not in self.given]

    async def as_allowed(self, *calls: SimCall, strictly: bool = True) -> None:
        """Hold what the executor read against the approvals, then everything against everything; each call ran once."""
        await self.settled()
        await self.keep_approvals()
        sent = [one for one in self.backend.seen if one.kind == "tool.requested" and one.tool == TOOL]
        observed().held(sum(not any(_allows(given, one.content) for given in self.given) for one in sent))
        assert observed().unapproved == 0, (sent, self.given)
        assert {one.content["native_call_id"] for one in sent} == {call.call_id for call in calls}
        assert all(bool(one.content.get("edited")) == (one.content["native_call_id"] in self.changed) for one in sent)
        assert await self.waiting() == []
        await self.verify(strictly=strictly)


def _allows(given: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether an approval is one of what an executor has read."""
    arguments, call = content["arguments"], content["call_id"]
    bound = binding_of(content["session_id"], call, content["tool"], arguments, given["rule_sha"])
    return (given["call_id"], given["decision"], given["arguments"], given["binding"]) == (
        call, "allow", arguments, bound
    )  # fmt: skip


@QUESTION
@on_postgres
async def test_a_call_that_was_not_held_yet_leaves_no_trace(tmp_path: Path, store: str) -> None:
    async with HeldScene(tmp_path, store=store) as scene:
        await scene.run("before-hold")
        lost = await scene.call(TOOL)
        await scene.dead()
        await scene.run()
        assert await scene.row_of(lost.call_id) is None
        call, asked = await scene.held()
        assert await scene.allow(asked) is not None
        await call.result()
        await scene.as_allowed(call)


@QUESTION
@on_postgres
async def test_a_question_on_record_is_still_asked_by_the_next_process(tmp_path: Path, store: str) -> None:
    async with HeldScene(tmp_path, store=store) as scene:
        await scene.run("after-hold")
        call = await scene.call(TOOL)
        await scene.dead()
        await scene.run()
        asked = await scene.question()
        assert scene.backend.seen == []
        scene.kill()
        await scene.dead()
        await scene.run()
        assert await scene.question() == asked
        assert await scene.allow(asked) is not None
        await call.result()
        await scene.as_allowed(call)


@ANSWER
@on_postgres
@CHANGED
@pytest.mark.parametrize("point", ["before-allow", "after-allow"])
async def test_an_answer_counts_once(tmp_path: Path, store: str, point: str, changes: bool) -> None:
    async with HeldScene(tmp_path, store=store) as scene:
        await scene.run(point)
        call, asked = await scene.held()
        assert await scene.allow(asked, changes=changes) is None
        await scene.dead()
        await scene.run()
        again = await scene.allow(asked, changes=changes)
        assert again is not None
        assert again.status_code == (200 if point == "before-allow" else 409)
        await call.result()
        await scene.as_allowed(call)
        assert len(scene.backend.seen) == 1


@LEAVING
@on_postgres
@CHANGED
@pytest.mark.parametrize("point", ["before-claim", "after-claim", "before-request", "after-request", "before-outcome"])
async def test_an_allowed_call_leaves_as_it_was_allowed(tmp_path: Path, store: str, point: str, changes: bool) -> None:
    async with HeldScene(tmp_path, store=store) as scene:
        await scene.run(point)
        call, asked = await scene.held()
        await scene.allow(asked, changes=changes)
        await scene.dead()
        await scene.run()
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await scene.as_allowed(call)
        assert len(scene.backend.seen) == (2 if point in {"after-request", "before-outcome"} else 1)


@pytest.mark.fault("SIGKILL of the owner around an answer at another replica", on="replicas")
@CHANGED
@pytest.mark.parametrize("point", ["before-allow", "after-allow"])
async def test_an_answer_at_another_replica_outlives_the_owner(tmp_path: Path, point: str, changes: bool) -> None:
    async with HeldScene(tmp_path, store="postgres") as scene:
        await scene.run(point)
        other = await scene.another("other")
        other.fork()
        await until(other.ready, within=PATIENCE)
        call, asked = await scene.held()
        answered = asyncio.create_task(scene.allow(asked, changes=changes, of=other))
        await scene.gateway.died()
        # The new owner may have got it meanwhile.
        first = await answered
        scene.gateway = other
        if await scene.waiting():
            second = await scene.allow(asked, changes=changes)
            assert second is not None
            assert second.status_code in {200, 409}
        assert first is None or first.status_code in {200, 409, 503}
        await call.result()
        await scene.as_allowed(call)
        assert len(scene.backend.seen) == 1


@pytest.mark.fault("Restored from a backup between question and answer")
async def test_a_restored_question_is_asked_again(tmp_path: Path) -> None:
    async with HeldScene(tmp_path) as scene:
        assert isinstance(scene.store, SqliteFile)
        await scene.run()
        call, asked = await scene.held()
        back_up(scene.store.path, tmp_path / "backup.db")
        scene.kill()
        await scene.dead()
        restore(scene.store.path, tmp_path / "backup.db")
        await scene.run()
        late = await scene.allow(asked)
        assert late is not None
        assert late.status_code == 409
        again = await scene.question()
        assert again["interaction_id"] != asked["interaction_id"]
        assert again["event"]["warning"].startswith("restored from a backup of ")
        assert again["event"]["warning"].endswith("UTC; it may have run since")
        assert "it may have run since." in (await scene.http.get("/ui/inbox")).text
        assert scene.backend.seen == []
        assert await scene.allow(again) is not None
        await call.result()
        await scene.as_allowed(call)


@pytest.mark.fault("SIGKILL and a reload that denies, or asks otherwise, between question and answer")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_new_routes_decide_about_what_was_asked_before(tmp_path: Path, store: str) -> None:
    async with HeldScene(tmp_path, store=store) as scene:
        await scene.run()
        call, asked = await scene.held()
        scene.kill()
        await scene.dead()
        settings = scene.settings(scene.gateway)
        settings["routes"][0]["to"] = "once"
        scene.gateway.configure(settings)
        await scene.run("after-hold")
        # The other route asks anew, and the process dies with the new question.
        assert await scene.allow(asked) is None
        await scene.dead()
        await scene.run()
        again = await scene.question()
        assert again["binding"] != asked["binding"]
        assert scene.backend.seen == []
        stale = await scene.allow({**again, "binding": asked["binding"]})
        assert stale is not None
        assert stale.status_code == 409
        assert await scene.allow(again) is not None
        await call.result()
        await scene.as_allowed(call)


class NightScene(HeldScene):
    """A scene with two replicas, of which any may die, and people who answer at either."""

    counts_repeats = False
    reasons = rf"{HeldScene.reasons}|a person denied it"

    async def answer(self, replicas: Sequence[Instance], chance: Random) -> None:
        """Answer whatever waits, at any replica, until canceled."""
        while True:
            at = chance.choice(replicas)
            try:
                response = await at.http.get("/v1/interactions", params={"state": "waiting"})
                waiting: list[dict[str, Any]] = response.json()["data"] if response.status_code == 200 else []
                for asked in waiting:
                    answer = await at.http.post(
                        f"/v1/interactions/{asked['interaction_id']}/answer", json=_any_answer(asked, chance)
                    )
                    assert answer.status_code in {200, 409, 503}, answer.text
            except httpx.TransportError:
                pass  # The replica has just died.
            # People read before they answer.
            await asyncio.sleep(chance.uniform(0.02, 0.2))

    async def judge_answers(self) -> Counter[str]:
        """Hold each request and each outcome against the approvals; return the calls by what became of them."""
        await self.settled()
        await self.keep_approvals()
        rows = {row["call_id"]: row for row in await self.rows("/v1/calls")}
        given = {one["call_id"]: one for one in self.given}
        assert len(given) == len(self.given), "a call was answered twice"
        assert given.keys() == rows.keys()
        wanted = {call.call_id: call.arguments for call in self.calls}
        for call_id, answer in given.items():
            native = rows[call_id]["native_call_id"]
            if answer["decision"] == "allow" and answer["arguments"] != wanted[native]:
                self.changed[native] = answer["arguments"]
        sent = [one.content for one in self.backend.seen if one.kind == "tool.requested"]
        observed().held(sum(not _allows(given[one["call_id"]], one) for one in sent))
        assert observed().unapproved == 0, (sent, self.given)
        await self.verify(strictly=False)
        return Counter(
            "changed" if rows[call_id]["native_call_id"] in self.changed else answer["decision"]
            for call_id, answer in given.items()
        )


def _any_answer(asked: Mapping[str, Any], chance: Random) -> dict[str, Any]:
    decision = chance.choice(["allow", "change", "deny"])
    if decision == "deny":
        return {"decision": "deny", "reason": "Not today."}
    changes = (
        {"arguments": {**asked["event"]["arguments"], "n": chance.randrange(10**6)}} if decision == "change" else {}
    )
    return {"decision": "allow", "binding": asked["binding"], **changes}


@pytest.mark.fault("SIGKILL of either replica, again and again, while two people answer", on="replicas")
async def test_two_people_answer_while_replicas_die(tmp_path: Path) -> None:
    chance = Random(43)
    async with NightScene(tmp_path, store="postgres") as scene:
        await scene.run()
        other = await scene.another("other")
        other.fork()
        await until(other.ready, within=PATIENCE)
        replicas = [scene.gateway, other]
        async with asyncio.TaskGroup() as group:
            people = [group.create_task(scene.answer(replicas, chance)) for _ in range(2)]
            for _ in range(KILLS):
                await scene.agent.wait_connected(PATIENCE)
                for _ in range(4):
                    await scene.call(TOOL)
                if chance.random() < 0.5:
                    scene.backend.close("tools")
                # The kill falls before, between or after the questions, the answers, the requests and the outcomes.
                await asyncio.sleep(chance.uniform(0, 0.6))
                dying = chance.choice(replicas)
                dying.signal(SIGKILL)
                await dying.died()
                scene.backend.open()
                dying.fork()
                await until(dying.ready, within=PATIENCE)
            await scene.settled()
            for person in people:
                person.cancel()
        ends = await scene.judge_answers()
        assert ends.keys() == {"allow", "changed", "deny"}
