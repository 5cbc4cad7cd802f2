"""Traces the attempts of calls at webhook executors."""

from asyncio import Future
from datetime import datetime
from functools import partial

from gateway.clock import Clock
from gateway.executors.port import Answer, HttpExchange
from gateway.guard import guard_call
from gateway.store.call import Call
from gateway.traces.queue import Traces
from gateway.traces.spans import post_span


class AttemptTraces:
    """Writes the span of each attempt after its end."""

    def __init__(self, traces: Traces, clock: Clock) -> None:
        self._traces = traces
        self._clock = clock

    def watch(self, attempt: Future[Answer], call: Call, exchange: HttpExchange) -> None:
        """Write the span of an attempt that has just started when it ends."""
        end = partial(self._end, call, exchange, self._clock.now())
        attempt.add_done_callback(guard_call("traces", end))

    def _end(self, call: Call, exchange: HttpExchange, started_at: datetime, attempt: Future[Answer]) -> None:
        failed = attempt.cancelled() or attempt.exception() is not None
        answer = None if failed else attempt.result()
        span = post_span(call, exchange, answer, started_at, self._clock.now())
        if span is not None:
            self._traces.put(span)
