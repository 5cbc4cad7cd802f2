"""A HUMA agent, a backend and a mortal gateway between them, and what must hold of all three at the end."""

import asyncio
import json
import sqlite3
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg

from gateway.testing.runtimes.huma.rules import Dialect, ResultFrame, read_frame
from gateway.testing.runtimes.huma.server import Confirmation, HumaServer, Manners, SimAgent, SimCall
from tests.faults.environment import FaultEnvironment
from tests.faults.judge import Span, Told, Wanted, new_nonce, outages

UPDATED = frozenset({"again", "once", "later"})
"""Tools whose success comes with an update."""


class Scene(FaultEnvironment):
    """The environment with one HUMA agent, `finn`."""

    runtime = "finn"

    def __init__(
        self,
        folder: Path,
        dialect: Dialect,
        *,
        idempotent_chat: bool = True,
        window: str = "200ms",
        asks_again: bool = False,
        manners: Manners | None = None,
        **more: Any,
    ) -> None:
        super().__init__(folder, **more)
        self.dialect: Dialect = dialect
        self.huma = HumaServer(dialect, manners=manners)
        self.agent: SimAgent = self.huma.agent("finn")
        self.calls: list[SimCall] = []
        self.repeats_messages = idempotent_chat
        self.asks_again = asks_again
        """Whether the agent asks again for what is not on record, which no HUMA agent does."""
        self._window = window

    def log_refusals(self) -> None:
        """Log each refused write, at `debug` if an earlier line stands for it."""
        self.gateway.configure({**self.settings(self.gateway), "logging": {"level": "debug", "format": "json"}})

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
                [self._told(frame) for frame in call.results],
                arguments=json.dumps(call.arguments, sort_keys=True),
                written=Span(call.started, call.written),
                wire=self._agent_of(call).agent_id,
                withdrawn=call.cancel_asked,
            )
            for call in self.calls
        ]

    def _told(self, frame: Any) -> Told:
        reading = read_frame(frame, self.dialect)
        assert isinstance(reading, ResultFrame)
        return Told(reading.outcome, json.dumps(frame), json.dumps([reading.result, reading.error]))

    def _agent_of(self, call: SimCall) -> SimAgent:
        return next(agent for agent in self.huma.agents.values() if agent.calls.get(call.call_id) is call)

    def outages(self) -> dict[str, list[Span]]:
        faults = [fault for instance in self.instances for fault in instance.faults]
        if "runtime" in self.wires:
            faults += self.wires["runtime"].faults
        return {
            agent.agent_id: outages(
                [*faults, *(Span(at, at) for at in agent.dropped)],
                [Span(link.began, inf if link.ended is None else link.ended) for link in agent.links.values()],
            )
            for agent in self.huma.agents.values()
        }

    async def dead(self) -> None:
        await super().dead()
        # Nobody was there to see when one died by itself; its link went with it.
        last = max(link.ended or 0.0 for link in self.agent.links.values())
        self.gateway.faults.append(Span(last, last))

    async def call(self, tool: str, **arguments: Any) -> SimCall:
        """Let the agent ask for a tool."""
        call = await self.agent.call(tool, {"n": next(self._numbers), "nonce": new_nonce(), **arguments})
        self.calls.append(call)
        return call

    async def ask(self, tool: str, *, within: float, **arguments: Any) -> SimCall:
        """Let the agent ask once and wait, but not for what its wire has lost; whether it may have, the judge says.

        Only where `asks_again` is set, it asks again for what is not on record.
        """
        call, end = await self.call(tool, **arguments), monotonic() + within
        links = self.agent.connections
        while call.reading is None and monotonic() < end:
            with suppress(TimeoutError):
                # It looks again whether the call is on record.
                await call.result(1)
                break
            if not (self.agent.connected and self.agent.connections > links) or await self._on_record(call):
                continue
            if not self.asks_again:
                break
            links = self.agent.connections
            await self.agent.call(call.tool, call.arguments, call.call_id)
        return call

    async def _on_record(self, call: SimCall) -> bool:
        try:
            return await self.store.has(call.call_id)
        except (OSError, sqlite3.Error, asyncpg.PostgresError, TimeoutError):
            # Nobody can tell while the store is away.
            return True

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
        for one in await self.rows("/v1/sessions"):
            boards = await self._boards(one["session_id"])
            agent = self.huma.agents[one["native_id"]]
            heard = _hear(agent, boards)
            for call in self.calls:
                if call.tool in UPDATED and call.call_id in rows and self._agent_of(call) is agent:
                    self._check_order(call, boards, heard, strictly=strictly)
                    self._check_words(call, rows[call.call_id])
        return rows

    async def _boards(self, session_id: str) -> dict[str, int]:
        """Find under which sequence each state of a session is on record."""
        events = await self.rows(f"/v1/sessions/{session_id}/events")
        told = [one for one in events if one["event"]["kind"] == "context.updated"]
        return {_report_of(one["event"]["context"]): one["sequence"] for one in told}

    def _check_words(self, call: SimCall, row: dict[str, Any]) -> None:
        """A failure of what may not be repeated is an unknown outcome, and says so, unless the executor failed it."""
        assert call.reading is not None
        assert row["unknown"] == ("unknown" in (call.reading.error or "")), (row, call.reading)
        if call.tool == "once" and call.reading.outcome == "failure":
            assert row["unknown"] is True

    def _check_order(self, call: SimCall, boards: dict[str, int], heard: "_Heard", *, strictly: bool) -> None:
        """The state that comes with a result, or a newer one, is told before it."""
        assert call.reading is not None
        if call.reading.outcome != "success":
            return
        own = boards[_report_of({"board": call.arguments})]
        ends = heard.results[call.call_id]
        assert ends, f"{call.call_id}: the agent read a result that it did not receive"
        between = pairwise([0, *ends]) if strictly else [(0, ends[0])]
        told = [heard.states[start:end] for start, end in between]
        is_ordered = all(max(states, default=0) >= own for states in told)
        assert is_ordered, f"{call.call_id}: {own} was recorded, before its results the agent received {told}"


@dataclass(frozen=True, slots=True)
class _Heard:
    """The states that an agent received, and the results among them."""

    states: list[int]
    """Their sequences; 0 for a state that is not on record."""
    results: dict[str, list[int]]
    """By call: how many states came before each result."""


def _hear(agent: SimAgent, boards: dict[str, int]) -> _Heard:
    heard = _Heard([], defaultdict(list))
    for frame in agent.received:
        said = frame.payload.get("content", frame.payload)
        if (call_id := said.get("toolCallId")) is not None:
            heard.results[call_id].append(len(heard.states))
        elif "context" in said:
            heard.states.append(boards.get(_report_of(said["context"]), 0))
    return heard


def _report_of(context: dict[str, Any]) -> str:
    return json.dumps(context.get("board"), sort_keys=True)
