"""kill -9 of a real gateway at each point of a caller's call, which asks again with the same words.

With a key it runs once, and its outcome is found again. Over MCP without a key the repeat joins the call while it is
open, and runs again once it has finished. Over REST without a key each request is a call of its own. The runtime must
hear nothing of any.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.environment import SETTLED, until
from tests.faults.judge import Told, Wanted, new_nonce
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.http.mcp_clients import Plain

pytestmark = pytest.mark.faults


def told_of(result: dict[str, Any]) -> Told:
    """Read an MCP client's result."""
    said = json.dumps(result["content"], sort_keys=True)
    return Told("failure" if result.get("isError") else "success", said, said)


class CallerScene(Scene):
    """A scene in which somebody asks from outside, and the agent asks nothing."""

    counts_repeats = False

    def __init__(self, folder: Path, *, store: str) -> None:
        super().__init__(folder, "0.2", store=store)
        self.asked: dict[str, tuple[str, str, list[Told]]] = {}
        """By native id: the tool, its arguments, and what the caller was told."""
        self.left: dict[str, tuple[str, str]] = {}
        """Calls whose caller asks for another one instead."""

    def settings(self, *given: Any, **more: Any) -> dict[str, Any]:
        tools = {name: {"description": name, "parameters": {"type": "object"}} for name in ("again", "once")}
        return {**super().settings(*given, **more), "tools": tools}

    async def ask_without_key(self, how: str, tool: str, arguments: dict[str, Any]) -> Told:
        """Ask over MCP or REST as who sends no keys, and say what came."""
        session_id = await self.session_id()
        if how == "MCP":
            token = (await self.http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
            return told_of((await Plain(self.http, f"/mcp/{session_id}", token).call(tool, arguments))["result"])
        body = {"tool": tool, "arguments": arguments}
        answer = await self.http.post(f"/v1/sessions/{session_id}/calls", json=body, params={"wait": "20s"})
        outcome = answer.json()["outcome"]
        said = json.dumps(outcome, sort_keys=True)
        return Told(outcome["outcome"], said, said)

    async def hears(self, tool: str, arguments: dict[str, Any], told: Told) -> None:
        """Take note of what was told of the newest call; nobody waits for one before it."""
        said = json.dumps(arguments, sort_keys=True)
        *before, newest = sorted(await self.rows("/v1/calls"), key=lambda row: row["request_sequence"])
        self.asked[newest["native_call_id"]] = (tool, said, [told])
        self.left = {row["native_call_id"]: (tool, said) for row in before}

    def wanted(self) -> Sequence[Wanted]:  # type: ignore[override]
        heard = [Wanted(name, tool, told, arguments=said) for name, (tool, said, told) in self.asked.items()]
        left = [Wanted(name, tool, arguments=said, withdrawn=True) for name, (tool, said) in self.left.items()]
        return [*heard, *left]

    async def ask_from_outside(self, tool: str, key: str, arguments: dict[str, Any]) -> None:
        """Ask as a caller does: again under the same key until there is an outcome; the gateway may be gone."""
        name = f"caller:local:{key}"
        self.asked.setdefault(name, (tool, json.dumps(arguments, sort_keys=True), []))
        body = {"tool": tool, "arguments": arguments, "key": key}
        answer = await self.http.post(
            f"/v1/sessions/{await self.session_id()}/calls", json=body, params={"wait": "10s"}
        )
        if answer.status_code == 200:
            outcome = answer.json()["outcome"]
            said = json.dumps(outcome, sort_keys=True)
            self.asked[name][2].append(Told(outcome["outcome"], said, said))


POINTS = ("before-accept", "after-accept", "before-request", "after-request", "before-outcome", "after-outcome")


@pytest.mark.parametrize("tool", ["again", "once"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("store", ["postgres"])
@pytest.mark.fault("SIGKILL during a client's call, repeated with its key", simulated="repeated-write-is-written-again")
async def test_a_callers_call_with_a_key_runs_once(tmp_path: Path, store: str, point: str, tool: str) -> None:
    async with CallerScene(tmp_path, store=store) as scene:
        await scene.run(point)
        arguments = {"n": 1, "nonce": new_nonce()}
        told = 2
        with suppress(httpx.TransportError):
            await scene.ask_from_outside(tool, "order 1", arguments)
            told = 3
        # The caller follows the journal, so PostgreSQL may tell it of the commit before the process that dies of it.
        assert told == 2 or (store, point) == ("postgres", "after-outcome")
        await scene.dead()
        await scene.run()
        for _ in range(2):
            await scene.ask_from_outside(tool, "order 1", arguments)

        async def settled() -> bool:
            return {row["state"] for row in await scene.rows("/v1/calls")} <= SETTLED

        await until(settled)
        await scene.verify()
        (call,) = scene.wanted()
        began = point in {"after-accept", "before-request", "after-request", "before-outcome"}
        assert {one.outcome for one in call.told} == {"failure" if tool == "once" and began else "success"}
        assert len(call.told) == told
        ran = 1 + (tool == "again" and point in {"after-request", "before-outcome"})
        assert len(scene.backend.seen) == (0 if tool == "once" and point in {"after-accept", "before-request"} else ran)
        # The runtime was told nothing of it.
        assert not any("tool-result" in str(frame.payload) for frame in scene.agent.received)
        scene.kill()
        await scene.dead()
        await scene.verify_journal()


OVER_MCP = pytest.mark.fault("SIGKILL during a client's call, repeated over MCP without a key")
OVER_REST = pytest.mark.fault("SIGKILL during a client's call, repeated over REST without a key")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", [pytest.param("MCP", marks=OVER_MCP), pytest.param("REST", marks=OVER_REST)])
async def test_a_callers_call_without_a_key(tmp_path: Path, store: str, point: str, how: str) -> None:
    async with CallerScene(tmp_path, store=store) as scene:
        await scene.run(point)
        arguments = {"n": 1, "nonce": new_nonce()}
        first: Told | None = None
        with suppress(httpx.TransportError):
            first = await scene.ask_without_key(how, "again", arguments)
        # The caller follows the journal, so PostgreSQL may tell it of the commit before the process that dies of it.
        assert first is None or (store, point) == ("postgres", "after-outcome")
        await scene.dead()
        await scene.run()
        told = await scene.ask_without_key(how, "again", arguments)

        async def settled() -> bool:
            return {row["state"] for row in await scene.rows("/v1/calls")} <= SETTLED

        await until(settled)
        await scene.hears("again", arguments, told)
        await scene.verify()
        assert told.outcome == "success"
        ran = {one.key for one in scene.backend.seen}
        observed().twice += len(ran) - 1
        # What never was on record is a first call. Over MCP the restarted call may finish before the repeat comes.
        if how == "MCP" and point not in {"before-accept", "after-outcome"}:
            assert len(ran) in {1, 2}
        else:
            assert len(ran) == 1 + (point != "before-accept")
        assert not any("tool-result" in str(frame.payload) for frame in scene.agent.received)
