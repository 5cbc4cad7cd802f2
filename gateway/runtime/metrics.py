"""All numbers the gateway publishes, in one registry of its own, with label values only from the YAML.

Every method is one happening. Names that the configuration lacks are counted under the label `_other`, so a peer
cannot make the number of series grow.
"""

from collections.abc import Callable, Collection
from math import nan
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics, generate_latest

from gateway.events import OutcomeKind
from gateway.guard import FAULTS
from gateway.runtime.counters import Buckets, Counter, ExternalCounter
from gateway.runtime.log_queue import DROPPED
from gateway.settings.model import UNDECLARED as OTHER

AttemptResult = Literal["answered", "accepted", "refused", "never_sent", "not_processed", "uncertain", "canceled"]
"""How one attempt at an executor ended; all but the last are answers of `gateway.executors.port`."""
FrameDirection = Literal["from_runtime", "to_runtime"]
BreakerState = Literal["closed", "half_open", "open"]
ForwardResult = Literal["answered", "unreachable", "unsure", "nobody"]
"""answered: by the owner; unreachable: surely not sent; unsure: sent, without an answer; nobody: no owner lives."""
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
        destinations: Collection[str] = (),
    ) -> None:
        """Make every metric; the names are those of the YAML, `adapters` those its runtimes use."""
        # The time a series was made doubles the size of a page and answers no question of ours.
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=True)
        # Memory, CPU and open files, by the names that every client library of Prometheus gives them.
        ProcessCollector(registry=self.registry)
        self._make()
        self._make_shares()
        self._runtimes: frozenset[str] = frozenset()
        self._build_info.labels(version=version).set(1)
        # Not a number until somebody has looked: an alert on too little must not fire before that.
        self._disk_free.set(nan)
        self.learn(runtimes=runtimes, tools=tools, executors=executors, adapters=adapters, destinations=destinations)

    def _make(self) -> None:
        here = self.registry
        self._calls = Counter(
            "dragoman_calls", "Tool calls that have their outcome.", ("runtime", "tool", "outcome"), registry=here
        )
        self._call_seconds = Buckets(
            "dragoman_call_seconds", "From a call's arrival to its outcome.", _CALL_SECONDS, registry=here
        )
        self._attempts = Counter(
            "dragoman_executor_attempts", "Requests to executors, by how they ended.", ("executor", "result"),
            registry=here,
        )  # fmt: skip
        self._secrets_in_results = Counter(
            "dragoman_secrets_in_results", "Outcomes that told a secret which was sent to their executor, passed on.",
            ("executor",), registry=here,
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
            "dragoman_link_up", "1 while every link of the runtime is up or asleep.", ("runtime",), registry=here
        )
        self._links_asleep = Gauge(
            "dragoman_links_asleep", "Sessions that the runtime has ended and nobody has anything to say to.",
            ("runtime",), registry=here,
        )  # fmt: skip
        self._without_tools = Gauge(
            "dragoman_sessions_without_tools",
            "Sessions whose agents were started and have not listed the backend's tools in time.",
            ("runtime",), registry=here,
        )  # fmt: skip
        self.commit: Callable[[float], None] = Buckets(
            "dragoman_journal_commit_seconds", "From handing a step in to its being on disk.", _COMMIT_SECONDS,
            registry=here,
        ).observe  # fmt: skip
        """Note the seconds that a commit has taken."""
        self._tell_links: Callable[[], None] = lambda: None
        self._queued = Gauge("dragoman_queue_bytes", "Frames that wait to be decided about.", registry=here)
        self._losses = Counter(
            "dragoman_losses", "Parts that a translation could not carry.", ("adapter", "how"), registry=here
        )
        self._repeats = Counter(
            "dragoman_repeats", "Frames sent again after a crash or the loss of a link.", registry=here
        )
        self._copies_lost = Counter(
            "dragoman_copies_lost", "Copies that retention removed undelivered, together with their events.",
            ("destination",), registry=here,
        )  # fmt: skip
        self._disk_free = Gauge("dragoman_disk_free_bytes", "Room left where the store is.", registry=here)
        self._tasks = Gauge("dragoman_tasks", "Tasks of the event loop, those that wait included.", registry=here)
        self._build_info = Gauge(
            "dragoman_build_info", "Always 1; the label tells the release.", ("version",), registry=here
        )
        self._breaker_state = Gauge(
            "dragoman_breaker_state", "0 closed, 1 half open: one call is let through, 2 open: nothing is asked.",
            ("executor",), registry=here,
        )  # fmt: skip
        self._sessions = Gauge("dragoman_sessions", "Open sessions.", ("runtime",), registry=here)
        self._frames = Counter("dragoman_frames", "Native messages.", ("runtime", "direction"), registry=here)
        self._rejected = Counter(
            "dragoman_frames_rejected", "Native messages that could not be read.", ("runtime",), registry=here
        )
        self._reconnects = Counter(
            "dragoman_links_reconnects", "Links that came back after a loss.", ("runtime",), registry=here
        )
        ExternalCounter(
            "dragoman_faults", "What failed and nobody foresaw, by the part it happened in; each is in the log.",
            "part", FAULTS.total, registry=here,
        )  # fmt: skip
        ExternalCounter(
            "dragoman_log_lines_dropped", "Log lines dropped because the reader of the log is too slow.",
            "level", DROPPED, registry=here,
        )  # fmt: skip

    def _make_shares(self) -> None:
        """Make what tells of several instances on one store."""
        here = self.registry
        self._lease = Gauge(
            "dragoman_lease_seconds_left", "How long this instance may carry sessions without another beat.",
            registry=here,
        )  # fmt: skip
        self._lease.set(nan)
        self._owned = Gauge("dragoman_sessions_owned", "Sessions that this instance carries.", registry=here)
        self._taken_up = Counter("dragoman_adoptions", "Sessions that nobody carried, taken up here.", registry=here)
        self._takeovers = Counter(
            "dragoman_takeovers", "Of those, the ones that had been carried before.", registry=here
        )
        self._leases_lost = Counter(
            "dragoman_leases_lost", "Leases that ended before they were given up.", registry=here
        )
        self._fenced = Counter("dragoman_fenced", "Sessions let go because they had changed hands.", registry=here)
        self._forwards = Counter(
            "dragoman_forwards", "Requests for sessions of other instances, by how they ended.", ("result",),
            known=[(result,) for result in get_args(ForwardResult)], registry=here,
        )  # fmt: skip

    def learn(
        self,
        *,
        runtimes: Collection[str],
        tools: Collection[str],
        executors: Collection[str],
        adapters: Collection[str],
        destinations: Collection[str] = (),
    ) -> None:
        """Take the names of a new configuration; gauges of runtimes that are gone disappear, counters stay."""
        gone = self._runtimes.difference(runtimes)
        self._runtimes = frozenset(runtimes)
        self._adapters = frozenset(adapters)
        self._tools = frozenset(tools)
        self._executors = frozenset(executors)
        self._destinations = frozenset(destinations)
        for gauge in (self._link_up, self._links_asleep, self._outbox_oldest, self._sessions, self._without_tools):
            for runtime in gone:
                gauge.remove_by_labels({"runtime": runtime})

    def watch_links(self, tell: Callable[[], None]) -> None:
        """Have this tell how all sessions and links stand when the page is asked for."""
        self._tell_links = tell

    def watch_lease(self, remaining_seconds: Callable[[], float], owned: Callable[[], int]) -> None:
        """Read these when the page is asked for."""
        self._lease.set_function(remaining_seconds)
        self._owned.set_function(owned)

    def lease_lost(self) -> None:
        self._leases_lost.add()

    def fenced(self) -> None:
        """Count a session that turned out to be owned elsewhere."""
        self._fenced.add()

    def taken_up(self, *, takeover: bool) -> None:
        self._taken_up.add()
        if takeover:
            self._takeovers.add()

    def forwarded(self, result: ForwardResult) -> None:
        self._forwards.add(result)

    def call_settled(self, runtime: str, tool: str, *, outcome: OutcomeKind, seconds: float) -> None:
        known = runtime if runtime in self._runtimes else OTHER
        self._calls.add(known, tool if tool in self._tools else OTHER, outcome)
        self._call_seconds.observe(seconds)

    def attempt(self, executor: str, result: AttemptResult) -> None:
        self._attempts.add(executor if executor in self._executors else OTHER, result)

    def secret_in_result(self, executor: str) -> None:
        self._secrets_in_results.add(executor if executor in self._executors else OTHER)

    def unknown_outcome(self) -> None:
        self._unknown.add()

    def late_outcome(self) -> None:
        self._late.add()

    def repeated(self) -> None:
        """Count a frame that is sent a second time."""
        self._repeats.add()

    def frame(self, runtime: str, direction: FrameDirection) -> None:
        self._frames.add(runtime if runtime in self._runtimes else OTHER, direction)

    def frame_rejected(self, runtime: str) -> None:
        self._rejected.add(self._runtime(runtime))

    def loss(self, adapter: str, how: LossHow) -> None:
        self._losses.add(adapter if adapter in self._adapters else OTHER, how)

    def link(self, runtime: str, *, up: bool | None, asleep: int = 0) -> None:
        """Say whether every link of a runtime is up, and how many sleep; None when it has none, so that nothing alerts.

        Said once before the first attempt, an alert also sees a link that never comes up.
        """
        if up is None:
            self._link_up.remove_by_labels({"runtime": self._runtime(runtime)})
            self._links_asleep.remove_by_labels({"runtime": self._runtime(runtime)})
        else:
            self._links_asleep.labels(self._runtime(runtime)).set(asleep)
            self._link_up.labels(self._runtime(runtime)).set(up)

    def breaker(self, executor: str, state: BreakerState | None) -> None:
        """Say how an executor's breaker stands; None when it has none any more."""
        if state is None:
            self._breaker_state.remove_by_labels({"executor": executor})
        else:
            self._breaker_state.labels(executor).set(("closed", "half_open", "open").index(state))

    def reconnected(self, runtime: str) -> None:
        self._reconnects.add(self._runtime(runtime))

    def sessions(self, runtime: str, count: int) -> None:
        self._sessions.labels(self._runtime(runtime)).set(count)

    def sessions_without_tools(self, runtime: str, count: int) -> None:
        self._without_tools.labels(self._runtime(runtime)).set(count)

    def outbox_oldest(self, runtime: str, seconds: float) -> None:
        """Say how long the oldest undelivered event has waited; 0 when none waits."""
        self._outbox_oldest.labels(self._runtime(runtime)).set(seconds)

    def dead_letters(self, count: int) -> None:
        self._dead_letters.set(count)

    def copies_lost(self, destination: str, count: int) -> None:
        """Count copies that were given up with their events."""
        self._copies_lost.add(destination if destination in self._destinations else OTHER, by=count)

    def watch_queues(self, size: Callable[[], float]) -> None:
        """Read this when the page is asked for: how much waits in all inboxes."""
        self._queued.set_function(size)

    def tasks(self, count: int) -> None:
        self._tasks.set(count)

    def disk_free(self, count: int) -> None:
        self._disk_free.set(count)

    def render(self) -> bytes:
        """Write the page in the Prometheus text format."""
        self._tell_links()
        return generate_latest(self.registry)

    def _runtime(self, name: str) -> str:
        return name if name in self._runtimes else OTHER
