"""Keeps a number of tool calls in flight, measures them, and checks that each got exactly one right result."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any
from uuid import UUID

from tests.bench.figures import QUANTILES
from tests.bench.runtime import AgentConnection, FakeRuntime, tool_call
from tests.bench.usage import cpu_seconds, resident_bytes
from tests.bench.webhook import Webhook, result_of

GRACE = 15.0
"""How long results may still take once no more calls are made."""
LATE = 0.1
"""How long a second result is waited for behind the last one."""
_TICK = 0.001
"""Seconds between two looks at which calls of an open loop are due."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run."""

    agents: list[str]
    window: int
    size: int
    """Bytes of arguments."""
    nested: bool
    """Whether they are a list of objects, or one long string."""
    seconds: float
    warmup: float
    pid: int
    """The subject's process."""
    rate: float = 0.0
    """Calls per second of an open loop; 0: a closed loop of `window` calls."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where everything stands at one moment."""

    at: float
    done: int
    subject_cpu: float
    own_cpu: float


def make_arguments(size: int, *, nested: bool = True) -> bytes:
    """Make arguments of about as many bytes."""
    head = b'{"targetPlayer":"Victoria","rank":"7",'
    if not nested:
        return head + b'"note":"%b"}' % (b"x" * max(0, size - len(head) - 10))
    cards: list[bytes] = []
    left = size - len(head) - 11
    while left > 0 or not cards:
        number = len(cards)
        cards.append(_CARDS[number > 0] % number)
        left -= len(cards[-1]) + 1
    return head + b'"hands":[%b]}' % b",".join(cards)


_CARDS = (
    b'{"id":%d,"at":{"x":1.5},"up":true}',
    b'{"id":%d,"suit":"hearts","name":"the seven of hearts","up":false,"at":{"x":12,"y":-3.25},"seen_by":null}',
)


def make_call_id() -> str:
    """Make a random id, as runtimes do: unique indexes are touched everywhere."""
    return str(UUID(bytes=os.urandom(16), version=4))


class Load:
    """A closed loop, in which each result makes the next call, or an open loop at a fixed rate."""

    def __init__(self, runtime: FakeRuntime, webhook: Webhook, order: Order, *, grace: float = GRACE) -> None:
        self._webhook = webhook
        self._order = order
        self._grace = grace
        self._arguments = make_arguments(order.size, nested=order.nested)
        self._connections: Iterator[AgentConnection] = cycle([runtime.agents[agent] for agent in order.agents])
        self._runtime = runtime
        self._sent: dict[str, float] = {}
        self._settled: set[str] = set()
        self._latencies: list[float] = []
        self._doubled = self._different = 0
        self._ending = False
        self._drained = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        """Warm up, measure, drain, check."""
        order, webhook = self._order, self._webhook
        posts, signed = webhook.posts, webhook.signed
        self._runtime.heard = self._hear
        arrivals = asyncio.create_task(self._arrive(order.rate)) if order.rate else None
        for _ in range(0 if order.rate else order.window):
            self._call(time.perf_counter())
        await asyncio.sleep(order.warmup)
        begin = self._mark()
        await asyncio.sleep(order.seconds)
        end = self._mark()
        self._ending = True
        if arrivals is not None:
            arrivals.cancel()
        if not self._sent:
            self._drained.set()
        try:
            async with asyncio.timeout(self._grace):
                await self._drained.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(LATE)
        return {
            **self._figures(begin, end),
            "rss": resident_bytes(order.pid),
            "made": len(self._settled) + len(self._sent),
            "lost": len(self._sent),
            "doubled": self._doubled,
            "different": self._different,
            "posts": webhook.posts - posts,
            "signed": webhook.signed - signed,
        }

    def _figures(self, begin: Mark, end: Mark) -> dict[str, Any]:
        calls, seconds = end.done - begin.done, end.at - begin.at
        latencies = sorted(self._latencies[begin.done : end.done]) or [float("nan")]
        return {
            "calls": calls,
            "rate": calls / seconds,
            "p50": latencies[len(latencies) // 2],
            "p99": latencies[len(latencies) * 99 // 100],
            "quantiles": [latencies[(len(latencies) - 1) * at // 1000] for at in QUANTILES],
            "busy": (end.subject_cpu - begin.subject_cpu) / seconds,
            "peers_busy": (end.own_cpu - begin.own_cpu) / seconds,
        }

    def _mark(self) -> Mark:
        return Mark(time.perf_counter(), len(self._latencies), cpu_seconds(self._order.pid), time.process_time())

    async def _arrive(self, rate: float) -> None:
        """Make calls at a rate; each is timed from the moment at which it was due."""
        begun, made = time.perf_counter(), 0
        while True:
            # The first call, number 0, is due at once.
            due = int((time.perf_counter() - begun) * rate) + 1
            for number in range(made, due):
                self._call(begun + number / rate)
            made = due
            await asyncio.sleep(_TICK)

    def _call(self, at: float) -> None:
        call = make_call_id()
        self._sent[call] = at
        next(self._connections).write(tool_call(call, self._arguments))

    def _hear(self, _connection: AgentConnection, message: dict[str, Any]) -> None:
        if message.get("type") != "tool-result":
            return
        call = message["toolCallId"]
        begun = self._sent.pop(call, None)
        if begun is None:
            self._doubled += call in self._settled
            return
        self._latencies.append(time.perf_counter() - begun)
        self._settled.add(call)
        self._different += message["outcome"] != "success" or message.get("result") != result_of(call)
        if not self._ending:
            if not self._order.rate:
                self._call(time.perf_counter())
        elif not self._sent:
            self._drained.set()
