"""All numbers the gateway publishes, in one registry of its own, with label values only from the YAML.

Every method is one happening. Children of labelled metrics are found in plain dicts, and whatever the
configuration does not name is counted as `other`, so a peer cannot make the number of series grow.
"""

from collections.abc import Collection
from math import nan
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from gateway.envelope import OutcomeKind

OTHER = "other"

AttemptResult = Literal["answered", "accepted", "never_sent", "not_processed", "uncertain", "canceled"]
"""How one attempt at an executor ended; the first five are the answers of `gateway.ports.executor`."""
FrameDirection = Literal["from_runtime", "to_runtime"]
LossHow = Literal["dropped", "narrowed", "defaulted", "invented"]

_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The gateway's metrics; cheap enough for the hot path."""

    def __init__(
        self,
        *,
        version: str,
        runtimes: Collection[str] = (),
        tools: Collection[str] = (),
        executors: Collection[str] = (),
        adapters: Collection[str] = (),
    ) -> None:
        """Make every metric; the names are those of the YAML, `adapters` those its runtimes use."""
        # The time a series was made doubles the size of a page and answers no question of ours.
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=True)
        self._make()
        self._calls_by: dict[tuple[str, str, str], Counter] = {}
        self._attempts_by: dict[tuple[str, str], Counter] = {}
        self._losses_by: dict[tuple[str, str], Counter] = {}
        self._frames_by: dict[tuple[str, str], Counter] = {}
        self._rejected_by: dict[str, Counter] = {}
        self._reconnects_by: dict[str, Counter] = {}
        self._runtimes: frozenset[str] = frozenset()
        self._build_info.labels(version=version).set(1)
        # Not a number until somebody has looked: an alert on too little must not fire before that.
        self._disk_free.set(nan)
        self.learn(runtimes=runtimes, tools=tools, executors=executors, adapters=adapters)

    def _make(self) -> None:
        here = self.registry
        self._calls = Counter(
            "dragoman_calls", "Tool calls that have their outcome.", ("runtime", "tool", "outcome"), registry=here
        )
        self._call_seconds = Histogram(
            "dragoman_call_seconds", "From a call's arrival to its outcome.", registry=here, buckets=_CALL_SECONDS
        )
        self._attempts = Counter(
            "dragoman_executor_attempts", "Requests to executors, by how they ended.", ("executor", "result"),
            registry=here,
        )  # fmt: skip
        self._outbox_oldest = Gauge(
            "dragoman_outbox_oldest_seconds", "Age of the oldest event still to be delivered.", ("runtime",),
            registry=here,
        )  # fmt: skip
        self._dead_letters = Gauge("dragoman_dead_letters", "What will not be tried again by itself.", registry=here)
        self._unknown = Counter(
            "dragoman_unknown_outcomes", "Calls of which nobody knows whether they were done.", registry=here
        )
        self._late = Counter("dragoman_late_outcomes", "Outcomes that came after the call had ended.", registry=here)
        self._link_up = Gauge(
            "dragoman_link_up", "1 while every link of the runtime is up.", ("runtime",), registry=here
        )
        self._commit_seconds = Histogram(
            "dragoman_journal_commit_seconds", "From handing a step in to its being on disk.", registry=here,
            buckets=_COMMIT_SECONDS,
        )  # fmt: skip
        self._queue_bytes = Gauge("dragoman_queue_bytes", "Frames that wait to be decided about.", registry=here)
        self._losses = Counter(
            "dragoman_losses", "Parts that a translation could not carry.", ("adapter", "how"), registry=here
        )
        self._repeats = Counter(
            "dragoman_repeats", "Frames sent again after a crash or the loss of a link.", registry=here
        )
        self._disk_free = Gauge("dragoman_disk_free_bytes", "Room left where the store is.", registry=here)
        self._build_info = Gauge(
            "dragoman_build_info", "Always 1; the label tells the release.", ("version",), registry=here
        )
        self._sessions = Gauge("dragoman_sessions", "Open sessions.", ("runtime",), registry=here)
        self._frames = Counter("dragoman_frames", "Native messages.", ("runtime", "direction"), registry=here)
        self._rejected = Counter(
            "dragoman_frames_rejected", "Native messages that could not be read.", ("runtime",), registry=here
        )
        self._reconnects = Counter(
            "dragoman_links_reconnects", "Links that came back after a loss.", ("runtime",), registry=here
        )

    def learn(
        self,
        *,
        runtimes: Collection[str],
        tools: Collection[str],
        executors: Collection[str],
        adapters: Collection[str],
    ) -> None:
        """Take the names of a new configuration; gauges of runtimes that are gone disappear, counters stay."""
        gone = self._runtimes.difference(runtimes)
        self._runtimes = frozenset(runtimes)
        self._adapters = frozenset(adapters)
        self._tools = frozenset(tools)
        self._executors = frozenset(executors)
        for gauge in (self._link_up, self._outbox_oldest, self._sessions):
            for runtime in gone:
                gauge.remove_by_labels({"runtime": runtime})

    def call_settled(self, runtime: str, tool: str, *, outcome: OutcomeKind, seconds: float) -> None:
        key = (self._runtime(runtime), tool if tool in self._tools else OTHER, outcome)
        child = self._calls_by.get(key)
        if child is None:
            child = self._calls_by[key] = self._calls.labels(*key)
        child.inc()
        self._call_seconds.observe(seconds)

    def attempt(self, executor: str, result: AttemptResult) -> None:
        key = (executor if executor in self._executors else OTHER, result)
        child = self._attempts_by.get(key)
        if child is None:
            child = self._attempts_by[key] = self._attempts.labels(*key)
        child.inc()

    def unknown_outcome(self) -> None:
        self._unknown.inc()

    def late_outcome(self) -> None:
        self._late.inc()

    def repeated(self) -> None:
        """Count a frame that is sent a second time."""
        self._repeats.inc()

    def commit(self, seconds: float) -> None:
        self._commit_seconds.observe(seconds)

    def frame(self, runtime: str, direction: FrameDirection) -> None:
        key = (self._runtime(runtime), direction)
        child = self._frames_by.get(key)
        if child is None:
            child = self._frames_by[key] = self._frames.labels(*key)
        child.inc()

    def frame_rejected(self, runtime: str) -> None:
        key = self._runtime(runtime)
        child = self._rejected_by.get(key)
        if child is None:
            child = self._rejected_by[key] = self._rejected.labels(key)
        child.inc()

    def loss(self, adapter: str, how: LossHow) -> None:
        key = (adapter if adapter in self._adapters else OTHER, how)
        child = self._losses_by.get(key)
        if child is None:
            child = self._losses_by[key] = self._losses.labels(*key)
        child.inc()

    def link(self, runtime: str, *, up: bool | None) -> None:
        """Say whether every link of a runtime is up; None when it has none, so that nothing alerts.

        Said once before the first attempt, an alert also sees a link that never comes up.
        """
        if up is None:
            self._link_up.remove_by_labels({"runtime": self._runtime(runtime)})
        else:
            self._link_up.labels(self._runtime(runtime)).set(up)

    def reconnected(self, runtime: str) -> None:
        key = self._runtime(runtime)
        child = self._reconnects_by.get(key)
        if child is None:
            child = self._reconnects_by[key] = self._reconnects.labels(key)
        child.inc()

    def sessions(self, runtime: str, count: int) -> None:
        self._sessions.labels(self._runtime(runtime)).set(count)

    def outbox_oldest(self, runtime: str, seconds: float) -> None:
        """Say how long the oldest undelivered event has waited; 0 when none waits."""
        self._outbox_oldest.labels(self._runtime(runtime)).set(seconds)

    def dead_letters(self, count: int) -> None:
        self._dead_letters.set(count)

    def queue_bytes(self, delta: int) -> None:
        """Add what was put into an inbox, or take off what was read out of it."""
        self._queue_bytes.inc(delta)

    def disk_free(self, count: int) -> None:
        self._disk_free.set(count)

    def render(self) -> bytes:
        """Write the page in the Prometheus text format."""
        return generate_latest(self.registry)

    def _runtime(self, name: str) -> str:
        return name if name in self._runtimes else OTHER
