"""A steady load for a long time, with links that break now and then: what was lost, doubled, different or repeated."""

import asyncio
import time
from collections import OrderedDict, deque
from itertools import cycle
from typing import Any

import orjson

from tests.bench.load import make_arguments, make_call_id
from tests.bench.runtime import AgentConnection, FakeRuntime, tool_call
from tests.bench.webhook import result_of

_TICK = 0.01
_QUIET = 0.3
"""Seconds without new calls before a link breaks: what is still in the wire then would be nobody's fault."""
_REMEMBERED = 500_000
_OVERDUE = 60.0
_DRAIN = 60.0
_SHOWN = 20


class Steady:
    """Calls at a rate, over all agents that are connected."""

    def __init__(self, runtime: FakeRuntime, *, agents: list[str], rate: float, size: int) -> None:
        self._runtime = runtime
        self._agents = cycle(agents)
        self._count = len(agents)
        self._rate = rate
        self._arguments = make_arguments(size)
        self._open: dict[str, float] = {}
        self._settled: OrderedDict[str, tuple[int, AgentConnection]] = OrderedDict()
        self._quiet: set[str] = set()
        self._latencies: deque[float] = deque(maxlen=100_000)
        self._made = self._answered = self._doubled = self._different = self._repeated = self._unknown = self._drops = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._runtime.heard = self._hear
        self._task = asyncio.create_task(self._run())

    async def drop(self, agent: str) -> None:
        """Break an agent's link while calls of it are at work, but none is in the wire."""
        self._quiet.add(agent)
        await asyncio.sleep(_QUIET)
        connection = self._runtime.agents.get(agent)
        if connection is not None:
            self._drops += 1
            connection.drop()
        self._quiet.discard(agent)

    def look(self) -> dict[str, Any]:
        """Count everything so far; latencies are those since the last look."""
        now = time.perf_counter()
        latencies = sorted(self._latencies) or [0.0]
        self._latencies.clear()
        return {
            "made": self._made,
            "answered": self._answered,
            "open": len(self._open),
            "overdue": sum(now - since > _OVERDUE for since in self._open.values()),
            "doubled": self._doubled,
            "different": self._different,
            "repeated": self._repeated,
            "unknown": self._unknown,
            "drops": self._drops,
            "p50_ms": latencies[len(latencies) // 2] * 1000,
            "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        }

    async def stop(self) -> dict[str, Any]:
        """Make no more calls and wait for the last results; what is open then is lost."""
        if self._task is not None:
            self._task.cancel()
        begun = time.perf_counter()
        # Results come from another process and set no event for each of them.
        while self._open and time.perf_counter() - begun < _DRAIN:  # noqa: ASYNC110
            await asyncio.sleep(_TICK)
        await asyncio.sleep(_QUIET)
        return {**self.look(), "lost": len(self._open), "lost_calls": list(self._open)[:_SHOWN]}

    async def _run(self) -> None:
        begun, due = time.perf_counter(), 0
        while True:
            await asyncio.sleep(_TICK)
            # While nobody is connected the calls that were due are left out, not made up for.
            before, due = due, int((time.perf_counter() - begun) * self._rate)
            for _ in range(due - before):
                self._call()

    def _call(self) -> None:
        for _ in range(self._count):
            agent = next(self._agents)
            connection = self._runtime.agents.get(agent)
            if connection is not None and agent not in self._quiet:
                call = make_call_id()
                self._made += 1
                self._open[call] = time.perf_counter()
                connection.write(tool_call(call, self._arguments))
                return

    def _hear(self, connection: AgentConnection, message: dict[str, Any]) -> None:
        if message.get("type") != "tool-result":
            return
        call = message["toolCallId"]
        digest = hash(orjson.dumps(message))
        begun = self._open.pop(call, None)
        if begun is not None:
            self._answered += 1
            self._latencies.append(time.perf_counter() - begun)
            self._settled[call] = (digest, connection)
            if len(self._settled) > _REMEMBERED:
                self._settled.popitem(last=False)
            self._different += message["outcome"] != "success" or message.get("result") != result_of(call)
            return
        known = self._settled.get(call)
        if known is None:
            self._unknown += 1
        elif known[0] != digest:
            self._different += 1
        elif known[1] is connection:
            self._doubled += 1
        else:
            # Said again over a new link, in the same words: what the protocol asks for.
            self._repeated += 1
