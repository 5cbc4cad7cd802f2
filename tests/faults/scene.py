"""A HUMA agent, a witness and a mortal gateway between them, and what must hold of all three at the end."""

import asyncio
import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

from gateway.simulators.huma import Confirmation, HumaServer, Manners, SimAgent, SimCall
from gateway.simulators.huma_rules import Dialect
from tests.faults.ground import Ground
from tests.faults.judge import Told, Wanted

UPDATED = frozenset({"again", "once", "later"})
"""Tools whose success comes with an update."""


class Scene(Ground):
    """The ground with one HUMA agent, `finn`."""

    runtime = "finn"

    def __init__(
        self,
        folder: Path,
        dialect: Dialect,
        *,
        idempotent_chat: bool = True,
        window: str = "200ms",
        manners: Manners | None = None,
        **more: Any,
    ) -> None:
        super().__init__(folder, **more)
        self.dialect: Dialect = dialect
        self.huma = HumaServer(dialect, manners=manners)
        self.agent: SimAgent = self.huma.agent("finn")
        self.calls: list[SimCall] = []
        self.repeats_messages = idempotent_chat
        self._window = window

    async def start_runtime(self) -> None:
        await self.huma.start()

    async def stop_runtime(self) -> None:
        await self.huma.__aexit__()

    def runtime_url(self) -> str:
        return self.huma.url

    def runtime_settings(self, url: str) -> dict[str, Any]:
        return {
            "adapter": f"huma-{self.dialect}",
            "url": url,
            "api_key": self.huma.api_key,
            "agent_id": "finn",
            "delivery_window": self._window,
        }

    def links(self) -> tuple[int, bool]:
        return self.agent.connections, self.agent.connected

    def wanted(self) -> list[Wanted]:
        return [
            Wanted(
                call.call_id,
                call.tool,
                [Told(call.reading.outcome, json.dumps(frame)) for frame in call.results] if call.reading else (),
                withdrawn=call.cancel_asked,
            )
            for call in self.calls
        ]

    async def call(self, tool: str, **arguments: Any) -> SimCall:
        """Let the agent ask for a tool."""
        call = await self.agent.call(tool, {"n": next(self._numbers), **arguments})
        self.calls.append(call)
        return call

    async def ask(self, tool: str, *, within: float, **arguments: Any) -> SimCall:
        """Let the agent ask and wait; what its lost link has taken with it is asked again, once the link is back."""
        call, links = await self.call(tool, **arguments), self.agent.connections
        async with asyncio.timeout(within):
            while call.reading is None:
                try:
                    await call.result(1)
                except TimeoutError:
                    if self.agent.connected and self.agent.connections > links:
                        links = self.agent.connections
                        await self.ask_again(await self.store.committed(), [call])
        return call

    async def ask_again(self, on_record: set[str], calls: list[SimCall] | None = None) -> None:
        """Let the agent repeat what it was not answered and what is not on record."""
        for call in list(self.calls if calls is None else calls):
            if call.reading is None and call.call_id not in on_record:
                await self.agent.call(call.tool, call.arguments, call.call_id)

    async def say(self, texts: list[str]) -> asyncio.Task[list[Confirmation]]:
        """Let the agent send messages."""
        return asyncio.create_task(self.agent.say(texts))

    async def recorded(self, call: SimCall, state: str) -> dict[str, Any]:
        """Wait until a call is on record in a state; returns its row."""
        return await self.reached(call.call_id, state)

    async def verify(self, *, strictly: bool = True) -> dict[str, dict[str, Any]]:
        """Hold the gateway to all promises about calls; returns its rows by native id.

        `strictly`: each repeat of a result comes behind a repeat of its update, as it does unless one of the two was
        known to be delivered already.
        """
        assert self.agent.violations == [], self.agent.violations
        rows = await super().verify()
        for call in self.calls:
            if call.tool in UPDATED and call.call_id in rows:
                self._check_order(call, strictly=strictly)
                self._check_words(call, rows[call.call_id])
        return rows

    def _check_words(self, call: SimCall, row: dict[str, Any]) -> None:
        """A failure of what may not be repeated is an unknown outcome, and says so, unless the executor failed it."""
        assert call.reading is not None
        assert row["unknown"] == ("unknown" in (call.reading.error or "")), (row, call.reading)
        if call.tool == "once" and call.reading.outcome == "failure":
            assert row["unknown"] is True

    def _check_order(self, call: SimCall, *, strictly: bool) -> None:
        """Updates come before their result, in repeats as well."""
        assert call.reading is not None
        if call.reading.outcome != "success":
            return
        told = ""
        for frame in chain.from_iterable(agent.received for agent in self.huma.agents.values()):
            said = frame.payload.get("content", frame.payload)
            if said.get("toolCallId") == call.call_id:
                told += "r"
            elif said.get("name") == "board" and said["context"].get("board") == call.arguments:
                told += "u"
        assert re.fullmatch("(u+r)+" if strictly else "u(u*r)+", told), told
