"""A store that one release has written and is killed over, for another release to go on with."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import Response

from gateway.testing.runtimes.herm.server import HermServer, SimSession
from tests.scenarios.environment import Running, Scene, ended, scene, until
from tests.scenarios.fleet import ADA, HERM_KEY, herm_options
from tests.scenarios.hooks import SECRET, Gate, success
from tests.scenarios.releases import Release
from tests.scenarios.replica_processes import Fleet, Serving, fleet

APPROVAL = "toolu_rm"

NEWS = {"kind": "context.updated", "name": "news", "context": {"n": 1}, "description": "Something happened."}
WAITED = {"kind": "context.updated", "name": "waited", "context": {"n": 2}, "description": "Nobody was there."}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "done": ("free", {"n": 1}),
    "failed": ("broken", {}),
    "accepted": ("later", {}),
    "held": ("held", {}),
}


@dataclass(frozen=True)
class Written:
    """What the release that wrote a store knows, and what the next one cannot see in it."""

    session_id: str
    closed_id: str
    herm_id: str
    callback: str
    """The path that takes the outcome of the accepted call."""
    held_key: str
    """The idempotency key of the call that was with the backend."""
    posted: str
    """The event that a request with an idempotency key has put on record."""


@dataclass
class Upgrade:
    """One agent of HUMA 0.2.0 and one of Herm, a backend, and gateways of any release in between."""

    scene: Scene
    herm: HermServer
    fleet: Fleet

    @property
    def ada(self) -> SimSession:
        return self.herm.session(ADA)


@asynccontextmanager
async def upgrade(folder: Path, engine: Mapping[str, Any] | None = None) -> AsyncGenerator[Upgrade]:
    """Set up agents and a backend that nobody has met, around a store or an empty one."""
    await asyncio.to_thread(folder.mkdir)
    async with scene(folder, "0.2") as made, HermServer(api_key=HERM_KEY) as herm:
        herm.session(ADA)
        copies = {"url": f"{made.hooks.url}/copies/log", "secret": SECRET, "attempts": 1}
        later = {"url": f"{made.hooks.url}/copies/later", "secret": SECRET, "backoff": {"initial": "4s"}}
        made.configure(
            {
                "runtimes": {"ada": herm_options(herm)},
                "tools": {name: {"description": "Takes anything."} for name in ("broken", "later", "held")},
                "executors": {"cards": {"attempts": 2, "breaker": "off", "timeout": "60s"}},
                "destinations": {"log": copies, "later": later},
                "routes": [
                    {"match": {"event": "context.updated"}, "copy_to": "log"},
                    {"match": {"event": "tool.finished"}, "copy_to": "later"},
                    {"match": {"tool": "*"}, "to": "cards"},
                ],
            }
        )
        async with fleet(made, lease="4s", engine=engine) as processes:
            yield Upgrade(made, herm, processes)
        assert made.hooks.unsigned == 0


async def write(here: Upgrade, release: Release) -> Written:
    """Let a release put everything into an empty store that one can hold, and kill it."""
    hooks, agent, gate = here.scene.hooks, here.scene.agent, Gate()
    hooks.scripts |= {
        "broken": Response(status_code=500),
        "later": Response(status_code=202),
        "held": gate.answering(success("too late")),
        "/copies/log": Response(status_code=500),
        "/copies/later": Response(status_code=503),
    }
    one = await here.fleet.serve("writes", release=release.with_snapshots_after(5))
    await agent.wait_connected()
    await here.ada.wait_streams()
    session_id, herm_id = await one.session("finn"), await one.session("ada")
    path = f"/v1/sessions/{session_id}/events"
    opened = await one.post("/v1/sessions", {"runtime": "finn", "native_id": "gone"}, status=201)
    answer = await one.http.delete(f"/v1/sessions/{opened['session_id']}")
    assert answer.status_code == 204, answer.text
    assert (await ended(await agent.call(*CALLS["done"], "done"))).outcome == "success"
    assert (await ended(await agent.call(*CALLS["failed"], "failed"))).outcome == "failure"
    await agent.call(*CALLS["accepted"], "accepted")
    [accepted] = await hooks.wait_for(name="later")
    await one.wait_call("accepted", "accepted")
    await agent.call(*CALLS["held"], "held")
    [held] = await hooks.wait_for(name="held")
    here.ada.ask_approval("terminal", {"command": "rm"}, use_id=APPROVAL)
    await waiting(one)
    posted = await _post_once(one, session_id)
    await agent.wait_for(lambda frame: frame.get("name") == "news")
    await _dead(one, 2)
    # What nobody is there to hear.
    await here.scene.huma.stop()
    await until(lambda: _is_down(one))
    await one.post(path, WAITED, status=202)
    await _dead(one, 3)
    one.signal(signal.SIGKILL)
    await one.ended()
    callback = httpx.URL(accepted.data["callback_url"]).raw_path.decode()
    return Written(session_id, opened["session_id"], herm_id, callback, held.key, posted)


async def go_on(here: Upgrade, written: Written, release: Release) -> None:
    """Let a release that did not write it go on with everything in the store."""
    hooks, agent = here.scene.hooks, here.scene.agent
    # These agents know what they have asked for; nobody is there yet to hear them ask.
    asked = {native_id: await agent.call(tool, arguments, native_id) for native_id, (tool, arguments) in CALLS.items()}
    approval = here.ada.ask_approval("terminal", {"command": "rm"}, use_id=APPROVAL)
    hooks.scripts["held"] = success("in time")
    one = await here.fleet.serve("goes-on", release=release)
    await one.wait_carries(written.session_id)
    await one.wait_carries(written.herm_id)
    # What was with the backend is asked again, under the same key; what waited is told.
    assert (await ended(asked["held"])).result == "in time"
    assert {one.key for one in hooks.of("held")} == {written.held_key}
    await agent.wait_for(lambda frame: frame.get("name") == "waited")
    taken = await one.post(written.callback, success("called back"), status=200)
    assert taken is not None
    assert (await ended(asked["accepted"])).result == "called back"
    [question] = await waiting(one)
    assert question["event"]["id"] == APPROVAL
    await one.post(f"/v1/interactions/{question['interaction_id']}/answer", {"decision": "allow"}, status=200)
    assert (await approval.answered(10))["result"] == "allow"
    # Copies: of two calls that ended before, and of two that have ended now.
    copied = await hooks.wait_for(4, name="tool.finished")
    assert {copy.data["event"]["native_call_id"] for copy in copied} == CALLS.keys()
    letters = await _dead(one, 3)
    assert {letter["type"] for letter in letters} == {"call", "delivery"}
    for letter in letters:
        await one.post(f"/v1/dead-letters/{letter['id']}/redrive", status=202)
    assert (await hooks.wait_for(name="broken"))[0].data["native_call_id"] == "failed"
    copied = await hooks.wait_for(2, name="context.updated")
    assert {copy.data["event"]["name"] for copy in copied} == {"news", "waited"}
    await _dead(one, 0)
    assert await _post_once(one, written.session_id) == written.posted
    assert (await ended(await agent.call("free", {"n": 2}))).outcome == "success"
    await _is_whole(one, written)
    one.signal(signal.SIGTERM)
    assert await one.ended() == 0
    assert "Traceback" not in one.log.read_text()


async def _is_whole(one: Serving, written: Written) -> None:
    """Nothing is lost, doubled, or unreadable."""
    for session_id in (written.session_id, written.closed_id, written.herm_id):
        events = await one.events(session_id)
        assert [row["sequence"] for row in events] == [*range(1, len(events) + 1)]
        assert "opaque" not in {row["event"]["kind"] for row in events}
    told = [row["event"]["name"] for row in await one.events(written.session_id, "context.updated")]
    # An agent that nobody has met is given the context anew.
    assert [name for name in told if name != "hydration"] == ["news", "waited"]
    rows = (await one.get("/v1/calls", limit=100))["data"]
    states = {row["native_call_id"]: row["state"] for row in reversed(rows) if row["redrive_of"] is None}
    wanted = {"done": "succeeded", "failed": "failed", "accepted": "succeeded", "held": "succeeded"}
    assert wanted.items() <= states.items()
    assert (await one.get(f"/v1/sessions/{written.closed_id}"))["state"] == "closed"


async def _post_once(one: Running, session_id: str) -> str:
    key = {"idempotency-key": "news-1"}
    [posted] = (await one.post(f"/v1/sessions/{session_id}/events", NEWS, status=202, **key))["data"]
    return posted["event_id"]


async def _is_down(one: Running) -> bool:
    link = await one.link()
    return link is None or link["state"] != "up"


async def waiting(one: Running) -> list[dict[str, Any]]:
    """Wait for the questions that wait."""

    async def look() -> list[dict[str, Any]]:
        return (await one.get("/v1/interactions", state="waiting"))["data"]

    return await until(look)


async def _dead(one: Running, count: int) -> list[dict[str, Any]]:
    async def look() -> tuple[list[dict[str, Any]]] | None:
        found = (await one.get("/v1/dead-letters"))["data"]
        # An empty list by itself would be nothing found.
        return (found,) if len(found) == count else None

    return (await until(look))[0]
