"""A caller's request at an instance that does not carry its session: either of the two dies, or the caller hangs up.

The caller asks again with the same words, with a key or without; a repeat without one counts as the same call once the
gateway knows that nobody waits for it any more.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.environment import SETTLED, until
from tests.faults.instance import Instance
from tests.faults.judge import Told, new_nonce
from tests.faults.observed import observed
from tests.faults.test_callers import CallerScene, told_of
from tests.http.mcp_clients import Plain
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.parametrize("key", ["order 1", None])]

LEASE = 4.0
NOTICED = 2 * LEASE
"""Seconds within which the lease of an instance that was killed has ended."""


class CallerPair(CallerScene):
    """A scene with a second instance, of which either may be asked."""

    lease = LEASE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, store="postgres")
        self.arguments: dict[str, Any] = {"n": 1, "nonce": new_nonce()}

    async def ask_over_mcp(self, of: Instance, key: str | None, *, within: float = 30) -> Told:
        """Ask one instance over MCP; it may take seconds."""
        session_id = await self.session_id()
        token = (await of.http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        meta: dict[str, Any] = {} if key is None else {"dragoman/key": key}
        async with asyncio.timeout(within):
            answer = await Plain(of.http, f"/mcp/{session_id}", token).call("again", self.arguments, **meta)
        return told_of(answer["result"])

    async def held(self) -> None:
        """Wait until the executor is asked."""
        await self.backend.wait(lambda _: True)

    async def finish(self, told: Told, key: str | None) -> None:
        """Hold everybody's records together: it ran once."""

        async def settled() -> bool:
            return {row["state"] for row in await self.rows("/v1/calls")} <= SETTLED

        await until(settled, within=PATIENCE)
        await self.hears("again", self.arguments, told)
        await self.verify()
        assert told.outcome == "success"
        ran = {one.key for one in self.backend.seen}
        observed().twice += len(ran) - 1
        # A repeat without a key that arrives after the outcome runs again.
        assert len(ran) == 1 or (key is None and len(ran) == 2)


@asynccontextmanager
async def pair(folder: Path, *, die_at: str | None = None) -> AsyncGenerator[tuple[CallerPair, Instance, Instance]]:
    """Start two instances; the first one has the session and dies at a point, if at one; the executor holds back."""
    async with CallerPair(folder) as scene:
        scene.gateway.configure(scene.settings(scene.gateway))
        await scene.run(die_at)
        owner, other = scene.gateway, await scene.another("other")
        other.fork()
        await until(other.ready, within=PATIENCE)
        scene.backend.close("tools")
        yield scene, owner, other
        for instance in (owner, other):
            if instance.alive:
                await instance.stop()


@pytest.mark.fault("SIGKILL of the owner while another replica holds a client's request", on="replicas")
async def test_a_held_request_outlives_the_owner_of_its_session(tmp_path: Path, key: str | None) -> None:
    async with pair(tmp_path) as (scene, owner, other):
        asking = asyncio.create_task(scene.ask_over_mcp(other, key))
        await scene.held()
        owner.signal(signal.SIGKILL)
        scene.gateway = other
        scene.backend.open()
        await scene.finish(await asking, key)


@pytest.mark.parametrize("point", ["before-accept", "after-accept"])
@pytest.mark.fault("SIGKILL of the owner while it opens a forwarded call", on="replicas")
async def test_a_call_whose_opening_was_not_answered_is_found_or_opened(
    tmp_path: Path, key: str | None, point: str
) -> None:
    async with pair(tmp_path, die_at=point) as (scene, owner, other):
        asking = asyncio.create_task(scene.ask_over_mcp(other, key))
        await owner.died()
        scene.gateway = other
        scene.backend.open()
        await scene.finish(await asking, key)


@pytest.mark.fault("SIGKILL of the replica that holds a client's request", on="replicas")
async def test_a_caller_whose_instance_died_asks_the_other_one(tmp_path: Path, key: str | None) -> None:
    async with pair(tmp_path) as (scene, owner, other):
        asking = asyncio.create_task(scene.ask_over_mcp(other, key))
        await scene.held()
        other.signal(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await asking
        if key is None:
            # Until its lease has ended, nobody can tell that the request is held no more.
            await asyncio.sleep(NOTICED)
        asking = asyncio.create_task(scene.ask_over_mcp(owner, key))
        scene.backend.open()
        await scene.finish(await asking, key)


@pytest.mark.fault("Client disconnects and repeats the call at another replica", on="replicas")
async def test_a_caller_that_hung_up_asks_the_other_instance(tmp_path: Path, key: str | None) -> None:
    async with pair(tmp_path) as (scene, owner, other):
        asking = asyncio.create_task(scene.ask_over_mcp(other, key))
        await scene.held()
        asking.cancel()
        await asyncio.wait({asking})
        # That it hung up is seen at once where nothing is slow.
        await asyncio.sleep(1)
        asking = asyncio.create_task(scene.ask_over_mcp(owner, key))
        scene.backend.open()
        await scene.finish(await asking, key)
