"""The bounded queue of spans and the thread that exports them, so that a collector never delays the gateway."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Thread
from time import monotonic
from typing import Any

import orjson
import structlog

from gateway.events.frozen import replace
from gateway.events.weight import weight
from gateway.traces.spans import Span

log = structlog.get_logger(__name__)

CAPACITY = 8_192
WAITING_BYTES = 32 * 1024 * 1024
"""The weight of the spans in the queue and in the export from which the next one is dropped."""
_LONGEST = 16 * 1024
"""Characters of one attribute."""
_BATCH = 512
_LINGER = 0.5
"""Seconds that a batch waits for more spans."""
_AT_END = 3.0
"""Seconds that a stopping gateway waits for the collector."""
_LOG_AGAIN = 60.0


class Traces:
    """Exports spans in a thread; a span that finds the queue full is dropped and counted."""

    def __init__(
        self,
        export: Callable[[Sequence[Span]], bool],
        shutdown: Callable[[], None],
        *,
        content: bool,
        mask: Callable[[str], str] = str,
        capacity: int = CAPACITY,
        dropped: Counter[str] | None = None,
    ) -> None:
        """Start the thread.

        `export` sends a batch within seconds and returns whether the collector has taken it; `shutdown` ends its
        retries. With `content`, spans contain the arguments and results of calls. `mask` hides secrets in texts.
        Spans that are not exported are counted in `dropped`, by reason.
        """
        self.content = content
        self._dropped: Counter[str] = Counter() if dropped is None else dropped
        self._mask = mask
        self._export = export
        self._shutdown = shutdown
        self._spans: Queue[Span | None] = Queue(capacity)
        # Each is changed by one thread only: the one that puts spans, and the one that exports them.
        self._put_bytes = self._exported_bytes = 0
        self._over = False
        self._logged_at = -_LOG_AGAIN
        self._thread = Thread(target=self._run, name="dragoman-traces", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Queue a span without waiting; its values are cut and masked first, so that none keeps a large argument."""
        try:
            if self._spans.full() or self._put_bytes - self._exported_bytes >= WAITING_BYTES:
                raise Full
            values = {name: self._plain(value) for name, value in span.attributes.items() if value is not None}
            cut = replace(span, name=self._mask(span.name)[:_LONGEST], attributes=values)
            self._spans.put_nowait(cut)
            self._put_bytes += _size(cut)
        except Full:
            self._dropped["queue_full"] += 1

    def _plain(self, value: Any) -> str | int | bool | float:
        if isinstance(value, bool | int | float):
            return value
        text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
        return self._mask(text)[:_LONGEST]

    def close(self) -> None:
        """Export the waiting spans; after three seconds, count them as dropped."""
        self._over = True
        with suppress(Full):
            # Wakes the thread; with a full queue it is awake.
            self._spans.put_nowait(None)
        self._thread.join(_AT_END)
        self._shutdown()
        self._dropped["stopped"] += sum(span is not None for span in self._take(self._spans.qsize(), 0))

    def _run(self) -> None:
        while not (self._over and self._spans.empty()):
            batch = [self._spans.get(), *self._take(_BATCH - 1, 0 if self._over else _LINGER)]
            if spans := [span for span in batch if span is not None]:
                self._send(spans)
                self._exported_bytes += sum(map(_size, spans))

    def _take(self, most: int, seconds: float) -> list[Span | None]:
        """Take the spans that are in the queue or arrive in time."""
        taken: list[Span | None] = []
        until = monotonic() + seconds
        with suppress(Empty):
            while len(taken) < most:
                wait = 0 if self._over else until - monotonic()
                taken.append(self._spans.get(block=wait > 0, timeout=max(wait, 0)))
        return taken

    def _send(self, spans: Sequence[Span]) -> None:
        reason = "the collector is unreachable, too slow or refuses them"
        try:
            if self._export(spans):
                return
        # The thread outlives any failure of the library.
        except Exception as exc:  # noqa: BLE001
            reason = f"they cannot be exported ({type(exc).__name__})"
        self._dropped["export_failed"] += len(spans)
        if monotonic() - self._logged_at >= _LOG_AGAIN:
            self._logged_at = monotonic()
            log.warning("spans dropped", count=len(spans), reason=reason)


def _size(span: Span) -> int:
    return weight((span.name, span.attributes))
