"""Circuit breakers: decide whether an executor may be called now, and whether its calls wait or fail meanwhile.

| an attempt ended with | counts as |
|---|---|
| any outcome, also a failure; a reply; 202; 3xx, 4xx (408, 409, 425 and 429 too); an unreadable 2xx | responsive |
| no connection: the request was certainly not sent | unreachable |
| a connection lost; no answer in time; 5xx, also 503 with Retry-After | failing |
| a cancel; too little time left for a fair attempt; a fault inside the gateway | nothing |

"Responsive" closes the breaker. "Unreachable" opens it at once; the executor's calls wait for up to
`reconnect_within` and then fail. "Failing" opens it after `failures` consecutive failures, and calls fail.

While the breaker is open, one call at a time probes the executor: with back-off while calls wait, then once every
`open_for`. One success resets the count of failures, so an executor with some working instances counts as
responsive. An attempt that started before the breaker changed its state counts only if it brought an answer.
`Breaker` is a pure state machine; `Breakers` holds one for each executor of this process.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Literal

import structlog

from gateway.clock import Clock
from gateway.events.frozen import frozen
from gateway.executors.port import (
    Accepted,
    Answer,
    Answered,
    NeverSent,
    NotProcessed,
    Replied,
    Uncertain,
    refusal_of,
)
from gateway.runtime.metrics import Metrics

log = structlog.get_logger(__name__)

State = Literal["closed", "half_open", "open"]
Sign = Literal["responsive", "unreachable", "failing", "nothing"]

_NO_TIME = timedelta(0)
_RESERVED = timedelta(seconds=1)
"""The time that a probe has from getting its slot to its start; its step is written to disk in between."""
_OPEN_JITTER = 0.25
"""Largest extension of `open_for`, as a fraction, so that many gateways do not probe at once."""
_LONGEST_REASON = 200


@frozen
class Rule:
    """The settings of a breaker: when it opens and how it probes."""

    failures: int | None
    """Consecutive attempts without an answer that open it; None: no number does."""
    open_for: timedelta
    """The time between probes while calls fail."""
    reconnect_within: timedelta
    """The time that calls wait for an executor after it was first unreachable."""
    pause: Callable[[timedelta, float], timedelta]
    """Returns the wait before the next probe while calls wait; takes the time so far and a jitter from 0 to 1."""


class Breaker:
    """The breaker of one executor; its methods take the current time."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state: State = "closed"
        self.failures = 0
        self.since: datetime | None = None
        """The end of the first consecutive failure, or the time at which the executor was first unreachable."""
        self.unreachable = False
        """Whether the last request could not even be sent."""
        self.reason = ""
        """The reason of the last failure."""
        self.failed_at: datetime | None = None
        self.refuses = False
        """Whether the last response shows a wrong setup; `reason` has the fix."""
        self.epoch = 0
        """Grows with each change of state, to distinguish attempts that started in different states."""
        self._wait_until: datetime | None = None
        self._due_at: datetime | None = None
        self._reserved_until: datetime | None = None
        self._probe: int | None = None

    def wait(self, now: datetime) -> timedelta | None:
        """Return the time until an attempt may start: any attempt while closed, one probe at its time while open.

        None while the probe runs, because its end decides.
        """
        if self.state == "closed":
            return _NO_TIME
        if self._probe is not None:
            return None
        return max([_NO_TIME, *(at - now for at in (self._due_at, self._reserved_until) if at is not None)])

    def patience(self, now: datetime) -> timedelta:
        """Return the time for which calls wait for the executor; none if they fail."""
        return _NO_TIME if self._wait_until is None else max(_NO_TIME, self._wait_until - now)

    def holds_calls(self, now: datetime) -> bool:
        """Whether calls wait for the executor instead of failing."""
        return self.state == "closed" or bool(self.patience(now))

    def reserve(self, now: datetime) -> None:
        """Reserve the probe for the attempt that was just admitted; expires if that attempt does not start."""
        if self.state != "closed":
            self._reserved_until = now + _RESERVED
            self._move("half_open")

    def start_attempt(self) -> int:
        """Register the start of an attempt; return the epoch to pass to `end_attempt`."""
        if self.state == "half_open":
            self._probe = self.epoch
        return self.epoch

    def end_attempt(self, epoch: int, sign: Sign, *, reason: str, now: datetime, jitter: float) -> bool:
        """Register the end of an attempt; return whether the breaker changed its state."""
        is_current = epoch == self.epoch
        if sign == "responsive":
            self.failures = 0
            return self.state != "closed" and self._close()
        if self._probe == epoch and is_current:
            self._probe = self._reserved_until = None
        if sign == "nothing" or not is_current or self.state == "open":
            return False
        self.reason, self.unreachable, self.failed_at = reason, sign == "unreachable", now
        if self.unreachable:
            if self.state == "closed":
                self.since, self._wait_until = now, now + self.rule.reconnect_within
            return self._open(now, jitter)
        reached = self.state == "half_open" and self.holds_calls(now)
        if reached:
            # The executor is reachable again, so this failure counts as the first one.
            self._close()
        self.failures += 1
        if self.failures == 1 or self.since is None:
            self.since = now
        if self.state == "closed" and (self.rule.failures is None or self.failures < self.rule.failures):
            return reached
        return self._open(now, jitter)

    def _open(self, now: datetime, jitter: float) -> bool:
        if self.patience(now) and self.since is not None:
            self._due_at = now + self.rule.pause(now - self.since, jitter)
        else:
            self._due_at = now + self.rule.open_for * (1 + _OPEN_JITTER * jitter)
        self._move("open")
        return True

    def _close(self) -> bool:
        self._due_at = self._reserved_until = self._probe = self._wait_until = self.since = None
        self.unreachable = False
        self._move("closed")
        return True

    def _move(self, state: State) -> None:
        self.state = state
        self.epoch += 1


def read(answer: Answer) -> tuple[Sign, str]:
    """Classify an answer by the table above; return the reason of a failure as well."""
    match answer:
        case Answered() | Replied() | Accepted():
            return "responsive", ""
        case NotProcessed(reason=reason, by_choice=True) | Uncertain(reason=reason, by_choice=True):
            return "responsive", reason
        case NeverSent(reason):
            return "unreachable", reason
        case NotProcessed(reason=reason) | Uncertain(reason=reason):
            return "failing", reason


class Breakers:
    """The breakers of all executors, with their logs and metrics."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        jitter: Callable[[], float],
        *,
        rules: Mapping[str, Rule],
        specs: Mapping[str, object],
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._specs: Mapping[str, object] = {}
        self._breakers: dict[str, Breaker] = {}
        self.moved: set[str] = set()
        """The executors whose breaker is not closed; usually empty, which makes the check of each call cheap."""
        self.configure(rules, specs)

    def configure(self, rules: Mapping[str, Rule], specs: Mapping[str, object]) -> None:
        """Apply a configuration; an executor with a changed spec gets a new breaker, the others keep theirs."""
        before, self._specs = self._specs, specs
        for name in [name for name in self._breakers if name not in rules]:
            del self._breakers[name]
            self.moved.discard(name)
            self._metrics.breaker(name, None)
        for name, rule in rules.items():
            if name not in self._breakers or before.get(name) != specs.get(name):
                self._breakers[name] = Breaker(rule)
                self._show(name)

    def _show(self, name: str) -> None:
        state = self._breakers[name].state
        if state == "closed":
            self.moved.discard(name)
        else:
            self.moved.add(name)
        self._metrics.breaker(name, state)

    def of(self, name: str) -> Breaker | None:
        """Return the breaker of an executor; None if it is not configured."""
        return self._breakers.get(name)

    def wait(self, name: str) -> float | None:
        """Return the seconds until an attempt at this executor may start; None until its running probe has ended."""
        wait = self._breakers[name].wait(self._clock.now()) if name in self.moved else _NO_TIME
        return None if wait is None else wait.total_seconds()

    def patience(self, name: str) -> float:
        """Return the seconds for which calls wait for this executor; 0 if the breaker is closed, or if they fail."""
        return self._breakers[name].patience(self._clock.now()).total_seconds() if name in self.moved else 0.0

    def reserve(self, name: str) -> None:
        """Reserve the probe for an admitted attempt, if the breaker is not closed."""
        if name in self.moved:
            self._breakers[name].reserve(self._clock.now())
            self._show(name)

    def refusal(self, name: str) -> str | None:
        """Return the text for an agent whose call must not wait; None if it may wait or start now."""
        if name not in self.moved:
            return None
        breaker = self._breakers[name]
        if breaker.holds_calls(self._clock.now()):
            return None
        problem = "unreachable" if breaker.unreachable else "failing"
        since = f" since {breaker.since:%H:%M:%S} UTC" if breaker.since is not None else ""
        return f"{name!r} has been {problem}{since} ({breaker.reason})"

    def start_attempt(self, name: str) -> int:
        """Register the start of an attempt; return the epoch to pass to `end_attempt`."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return 0
        return breaker.start_attempt() if name in self.moved else breaker.epoch

    def end_attempt(self, name: str, epoch: int, answer: Answer | None) -> bool:
        """Register the end of an attempt; return whether the breaker changed its state.

        `answer` is None if the attempt says nothing about the executor.
        """
        breaker = self._breakers.get(name)
        if breaker is None:
            return False
        before = breaker.state
        if answer is not None and (refusal := refusal_of(answer)) is not None:
            breaker.refuses, breaker.reason, breaker.failed_at = True, refusal, self._clock.now()
        elif isinstance(answer, Answered | Replied | Accepted):
            breaker.refuses = False
        if before == "closed" and isinstance(answer, Answered):
            breaker.failures = 0
            return False
        sign, reason = ("nothing", "") if answer is None else read(answer)
        reason = reason[:_LONGEST_REASON]
        now = self._clock.now()
        if not breaker.end_attempt(epoch, sign, reason=reason, now=now, jitter=self._jitter()):
            return False
        self._show(name)
        self._log(name, breaker, before, sign)
        return True

    def _log(self, name: str, breaker: Breaker, before: State, sign: Sign) -> None:
        rule, facts = breaker.rule, {"executor": name, "reason": breaker.reason}
        if breaker.state == "closed":
            if sign == "responsive":
                log.info("breaker closed: the executor answers again", executor=name)
        elif before != "closed":
            log.debug("breaker stays open: the probe failed", **facts)
        elif sign == "unreachable":
            patience = rule.reconnect_within.total_seconds()
            log.warning("breaker opened: executor unreachable, its calls wait", **facts, reconnect_within=patience)
        else:
            open_for = rule.open_for.total_seconds()
            log.warning("breaker opened: executor failing", **facts, failures=breaker.failures, open_for=open_for)
