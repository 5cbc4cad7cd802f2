"""The Prometheus metrics of the gateway, in a registry of their own.

Each method records one occurrence. Label values are configured names; all others are counted as `_other`, so a peer
cannot create series.
"""

import collections
from collections.abc import Callable, Collection, Mapping
from math import nan
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics, generate_latest

from gateway.events import OutcomeKind
from gateway.runtime.counters import Activity, Buckets, Counter, ExternalCounter
from gateway.runtime.log_queue import DROPPED
from gateway.runtime.views import ConditionKind
from gateway.settings.model import UNDECLARED as OTHER
from gateway.store.rows import Holder

AttemptResult = Literal["answered", "accepted", "refused", "never_sent", "not_processed", "uncertain", "canceled"]
"""The result of one attempt at an executor; all but the last are answers of `gateway.executors.port`."""
FrameDirection = Literal["from_runtime", "to_runtime"]
BreakerState = Literal["closed", "half_open", "open"]
ForwardResult = Literal["answered", "unreachable", "unsure", "nobody"]
"""answered: by the owner; unreachable: not sent; unsure: sent without an answer; nobody: without an owner."""
ApprovalResult = Literal["allowed", "edited", "denied", "expired", "canceled", "refused", "moot"]
"""How a held call leaves that state; refused: by the present routes, moot: the runtime got its outcome elsewhere."""
LossHow = Literal["dropped", "narrowed", "defaulted", "invented"]

_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_ANSWER_SECONDS = (5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
_COMMIT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The metrics of one gateway; cheap enough for the hot path."""

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
        """Create all metrics; the names are the configured ones, `adapters` those of the configured runtimes."""
        # The creation time of each series would double the size of a page.
        disable_created_metrics()
        self.registry = CollectorRegistry(auto_describe=True)
        # Memory, CPU and open files, under the standard names of Prometheus client libraries.
        ProcessCollector(registry=self.registry)
        self.faults: collections.Counter[str] = collections.Counter()
        """Unexpected exceptions, by part."""
        self.spans_dropped: collections.Counter[str] = collections.Counter()
        """Spans that were not exported, by reason."""
        self._create()
        self._create_for_cluster()
        self.activity = Activity()
        self._runtimes: frozenset[str] = frozenset()
        self._build_info.labels(version=version).set(1)
        # NaN until the first measurement, so that an alert on low disk space does not fire.
        self._disk_free.set(nan)
        self.learn(runtimes=runtimes, tools=tools, executors=executors, adapters=adapters, destinations=destinations)

    def _create(self) -> None:
        here = self.registry
        self._calls = Counter(
            "dragoman_calls", "Tool calls that have their outcome.", ("runtime", "tool", "outcome"), registry=here
        )
        self._call_seconds = Buckets(
            "dragoman_call_seconds", "Seconds from a call's arrival to its outcome.", _CALL_SECONDS, registry=here
        )
        self._attempts = Counter(
            "dragoman_executor_attempts", "Requests to executors, by result.", ("executor", "result"),
            registry=here,
        )  # fmt: skip
        self._secrets_in_results = Counter(
            "dragoman_secrets_in_results", "Outcomes, delivered unchanged, with a secret sent to their executor.",
            ("executor",), registry=here,
        )  # fmt: skip
        self._outbox_oldest = Gauge(
            "dragoman_outbox_oldest_seconds", "Age of the oldest undelivered event.", ("runtime",),
            registry=here,
        )  # fmt: skip
        self._dead_letters = Gauge(
            "dragoman_dead_letters", "Failed calls and deliveries that wait for an operator.", registry=here
        )
        self._conditions = Gauge(
            "dragoman_conditions", "Conditions that need an operator; `GET /v1/activity` lists them.", ("condition",),
            registry=here,
        )  # fmt: skip
        self._interactions = Gauge(
            "dragoman_interactions_waiting", "Requests for human input that wait for an answer.", registry=here
        )
        self._held = Gauge("dragoman_held_calls", "Calls of this instance that wait for a person.", registry=here)
        self._approvals = Counter(
            "dragoman_approvals", "Held calls that were allowed, denied or ended, by the place of their rule.",
            ("rule", "result"), registry=here,
        )  # fmt: skip
        self._approval_seconds = Buckets(
            "dragoman_approval_seconds", "Seconds from holding a call to a person's answer.", _ANSWER_SECONDS,
            registry=here,
        )  # fmt: skip
        self._unknown = Counter("dragoman_unknown_outcomes", "Calls with an unknown outcome.", registry=here)
        self._late = Counter(
            "dragoman_late_outcomes", "Outcomes that arrived after their call had ended.", registry=here
        )
        self._link_up = Gauge(
            "dragoman_link_up", "1 while every link of the runtime is up or asleep.", ("runtime",), registry=here
        )
        self._links_asleep = Gauge(
            "dragoman_links_asleep", "Sessions that the runtime has stopped and no event waits for.",
            ("runtime",), registry=here,
        )  # fmt: skip
        self._without_tools = Gauge(
            "dragoman_sessions_without_tools",
            "Sessions whose agents have started and not listed the backend's tools in time.",
            ("runtime",), registry=here,
        )  # fmt: skip
        self.commit: Callable[[float], None] = Buckets(
            "dragoman_journal_commit_seconds", "Seconds to commit a step to disk.", _COMMIT_SECONDS,
            registry=here,
        ).observe  # fmt: skip
        """Record the seconds of a commit."""
        self._update_links: Callable[[], None] = lambda: None
        self._queued = Gauge("dragoman_queue_bytes", "Bytes of frames that wait in inboxes.", registry=here)
        self._losses = Counter(
            "dragoman_losses", "Parts that a translation could not express.", ("adapter", "how"), registry=here
        )
        self._repeats = Counter(
            "dragoman_repeats", "Events sent again, after a crash or a lost link or on request.", registry=here
        )
        self._copies_lost = Counter(
            "dragoman_copies_lost", "Undelivered copies that retention removed.",
            ("destination",), registry=here,
        )  # fmt: skip
        self._live_copies_lost = Counter(
            "dragoman_live_copies_lost", "Live events that a destination did not get.",
            ("destination",), registry=here,
        )  # fmt: skip
        self._held_back = Gauge(
            "dragoman_events_held_back_seconds",
            "Seconds for which events of the stream over all sessions wait for an earlier transaction.",
            ("pid", "database"), registry=here,
        )  # fmt: skip
        self._disk_free = Gauge("dragoman_disk_free_bytes", "Free bytes on the disk of the store.", registry=here)
        self._tasks = Gauge("dragoman_tasks", "Tasks of the event loop, including waiting ones.", registry=here)
        self._build_info = Gauge(
            "dragoman_build_info", "Always 1; the label is the release.", ("version",), registry=here
        )
        self._breaker_state = Gauge(
            "dragoman_breaker_state", "0 closed, 1 half open: one call is allowed, 2 open: no calls are sent.",
            ("executor",), registry=here,
        )  # fmt: skip
        self._sessions = Gauge("dragoman_sessions", "Open sessions.", ("runtime",), registry=here)
        self._frames = Counter("dragoman_frames", "Native messages.", ("runtime", "direction"), registry=here)
        self._rejected = Counter(
            "dragoman_frames_rejected", "Native messages that could not be decoded.", ("runtime",), registry=here
        )
        self._reconnects = Counter(
            "dragoman_links_reconnects", "Reconnections of lost links.", ("runtime",), registry=here
        )
        ExternalCounter(
            "dragoman_faults", "Unexpected exceptions, by part of the gateway; each is logged.",
            "part", self.faults, registry=here,
        )  # fmt: skip
        ExternalCounter(
            "dragoman_log_lines_dropped", "Log lines dropped because the reader of the log is too slow.",
            "level", DROPPED, registry=here,
        )  # fmt: skip
        ExternalCounter(
            "dragoman_spans_dropped", "Spans that were not exported to the collector, by reason.",
            "reason", self.spans_dropped, registry=here,
        )  # fmt: skip

    def _create_for_cluster(self) -> None:
        """Create the metrics of several instances on one store."""
        here = self.registry
        self._lease = Gauge(
            "dragoman_lease_seconds_left", "Seconds until the lease expires without another heartbeat.",
            registry=here,
        )  # fmt: skip
        self._lease.set(nan)
        self._owned = Gauge("dragoman_sessions_owned", "Sessions that this instance owns.", registry=here)
        self._taken_up = Counter(
            "dragoman_adoptions", "Sessions without an owner that this instance acquired.", registry=here
        )
        self._takeovers = Counter("dragoman_takeovers", "Acquired sessions that had an owner before.", registry=here)
        self._leases_lost = Counter(
            "dragoman_leases_lost", "Leases that expired before they were released.", registry=here
        )
        self._fenced = Counter(
            "dragoman_fenced", "Sessions released because another instance owns them.", registry=here
        )
        self._forwards = Counter(
            "dragoman_forwards", "Requests forwarded to other instances, by result.", ("result",),
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
        """Set the names of a new configuration; gauges of removed runtimes disappear, counters stay."""
        removed = self._runtimes.difference(runtimes)
        self._runtimes = frozenset(runtimes)
        self._adapters = frozenset(adapters)
        self._tools = frozenset(tools)
        self._executors = frozenset(executors)
        self._destinations = frozenset(destinations)
        for executor in executors:
            for result in get_args(AttemptResult):
                # An alert must see the first attempt as an increase.
                self._attempts.add(executor, result, by=0)
        for gauge in (self._link_up, self._links_asleep, self._outbox_oldest, self._sessions, self._without_tools):
            for runtime in removed:
                gauge.remove_by_labels({"runtime": runtime})

    def watch_links(self, update: Callable[[], None]) -> None:
        """Call a function on each scrape, which updates the gauges of sessions and links."""
        self._update_links = update

    def watch_lease(self, remaining_seconds: Callable[[], float], owned: Callable[[], int]) -> None:
        """Read these on each scrape."""
        self._lease.set_function(remaining_seconds)
        self._owned.set_function(owned)

    def lease_lost(self) -> None:
        self._leases_lost.add()

    def fenced(self) -> None:
        """Count a session that another instance has taken over."""
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
        """Count an event that is sent again."""
        self._repeats.add()

    def frame(self, runtime: str, direction: FrameDirection) -> None:
        self._frames.add(runtime if runtime in self._runtimes else OTHER, direction)

    def frame_rejected(self, runtime: str) -> None:
        self._rejected.add(self._runtime(runtime))

    def loss(self, adapter: str, how: LossHow) -> None:
        self._losses.add(adapter if adapter in self._adapters else OTHER, how)

    def link(self, runtime: str, *, up: bool | None, asleep: int = 0) -> None:
        """Set whether all links of a runtime are up, and how many sleep; None if it has none, so that no alert fires.

        It is set before the first attempt to connect, so that an alert detects a link that never comes up.
        """
        if up is None:
            self._link_up.remove_by_labels({"runtime": self._runtime(runtime)})
            self._links_asleep.remove_by_labels({"runtime": self._runtime(runtime)})
        else:
            self._links_asleep.labels(self._runtime(runtime)).set(asleep)
            self._link_up.labels(self._runtime(runtime)).set(up)

    def breaker(self, executor: str, state: BreakerState | None) -> None:
        """Set the state of an executor's breaker; None if it no longer has one."""
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
        """Set the age of the oldest undelivered event in seconds; 0 if there is none."""
        self._outbox_oldest.labels(self._runtime(runtime)).set(seconds)

    def dead_letters(self, count: int) -> None:
        self._dead_letters.set(count)

    def conditions(self, counts: Mapping[ConditionKind, int]) -> None:
        for kind in get_args(ConditionKind):
            self._conditions.labels(kind).set(counts.get(kind, 0))

    def interactions_waiting(self, count: int) -> None:
        self._interactions.set(count)

    def held_calls(self, count: int) -> None:
        self._held.set(count)

    def approval(self, rule: str, result: ApprovalResult, seconds: float) -> None:
        """Count a call that is held no more; the seconds count if a person has answered."""
        self._approvals.add(rule, result)
        if result in {"allowed", "edited", "denied"}:
            self._approval_seconds.observe(seconds)

    def copies_lost(self, destination: str, count: int) -> None:
        """Count copies that retention removed undelivered."""
        self._copies_lost.add(destination if destination in self._destinations else OTHER, by=count)

    def live_copies_lost(self, destination: str, count: int) -> None:
        self._live_copies_lost.add(destination if destination in self._destinations else OTHER, by=count)

    def watch_queues(self, size: Callable[[], float]) -> None:
        """Read the bytes of all inboxes on each scrape."""
        self._queued.set_function(size)

    def tasks(self, count: int) -> None:
        self._tasks.set(count)

    def held_back(self, holder: Holder | None, seconds: float) -> None:
        """Record how long events wait for a transaction; None if they do not."""
        self._held_back.clear()
        if holder is not None:
            self._held_back.labels(pid=holder.pid, database=holder.database).set(seconds)

    def disk_free(self, count: int) -> None:
        self._disk_free.set(count)

    def render(self) -> bytes:
        """Return the page in the Prometheus text format."""
        self._update_links()
        return generate_latest(self.registry)

    def _runtime(self, name: str) -> str:
        return name if name in self._runtimes else OTHER
