"""The feed of one session: a log of its recent news for followers, and the outcomes of its calls for waiting requests.

A follower that falls behind the log reads the journal instead, so every follower gets all recorded events.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from gateway.events import CallId, Envelope, Live, SessionId, ToolFinished
from gateway.events.weight import weight
from gateway.runtime.feeds.all_sessions import AllSessionsFeed
from gateway.runtime.feeds.log import TAIL, NewsLog
from gateway.runtime.views import News
from gateway.runtime.wakeup import Wakeup


class OutcomeWatch(Wakeup):
    """Wakes the requests that wait for the outcome of one call; other events do not wake them."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome: ToolFinished | None = None


class Feed(NewsLog[News]):
    """Keeps the recent events of one session in memory and wakes its followers."""

    def __init__(
        self,
        last_sequence: int,
        *,
        tail: int = TAIL,
        session_id: SessionId | None = None,
        all_sessions: AllSessionsFeed | None = None,
    ) -> None:
        """Start without followers; a session that runs here also tells the feed of all sessions."""
        super().__init__(News, tail=tail)
        self.last_sequence = last_sequence
        self._session_id = session_id
        self._all_sessions = all_sessions
        self._watches: dict[str, dict[OutcomeWatch, None]] = {}
        """Watches by call."""
        self._others: Callable[[Live | None], None] | None = None
        self._others_until = 0.0

    def extend(self, envelopes: Sequence[Envelope]) -> None:
        """Show newly recorded events."""
        if not envelopes:
            return
        self.last_sequence = envelopes[-1].sequence
        if self._watches:
            self._set_outcomes(envelopes)
        if self._followers:
            for envelope in envelopes:
                self.show(envelope, weight(envelope.event))
        self._notify(None)

    @contextmanager
    def watching(self, call_id: CallId) -> Generator[OutcomeWatch]:
        """Watch for the outcome of an open call; also wakes when the feed ends or skips events."""
        watch = OutcomeWatch()
        watches = self._watches.setdefault(call_id, {})
        watches[watch] = None
        try:
            yield watch
        finally:
            watches.pop(watch, None)
            if not watches:
                self._watches.pop(call_id, None)

    def _set_outcomes(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            event = envelope.event
            if isinstance(event, ToolFinished) and event.call_id is not None:
                for watch in self._watches.get(event.call_id, ()):
                    watch.outcome = event
                    watch.wake()

    def _wake_watches(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    def tell(self, live: Live) -> None:
        """Show a live event."""
        if self._followers:
            self.show(live, weight(live.event))
        self._notify(live)

    def notify_others(self, tell: Callable[[Live | None], None], *, seconds: float) -> None:
        """Call `tell` for each change in the next seconds: with a live event, or None after recorded ones."""
        self._others = tell
        self._others_until = asyncio.get_running_loop().time() + seconds

    def _notify(self, live: Live | None) -> None:
        everyone, session_id = self._all_sessions, self._session_id
        if everyone is not None and session_id is not None and everyone.is_wanted and everyone.tell(session_id, live):
            return
        if self._others is None:
            return
        if asyncio.get_running_loop().time() > self._others_until:
            self._others = None
        else:
            self._others(live)

    def skip_to(self, sequence: int) -> None:
        """Make all followers read the journal, since events before this sequence were removed."""
        self.last_sequence = max(self.last_sequence, sequence)
        self._wake_watches()
        self.skip()

    def is_closed(self) -> bool:
        """Whether the last item kept records the end of the session."""
        last = self.last.items[-1] if self.last is not None else None
        return isinstance(last, Envelope) and last.event.kind == "session.closed"

    def close(self) -> None:
        """End all followers."""
        super().close()
        self._wake_watches()
