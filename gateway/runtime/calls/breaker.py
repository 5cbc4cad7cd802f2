"""Whether an executor is there at all: after failures in a row it is left alone for a while, then tried with one call.

An agent that asks meanwhile is answered at once, in words, instead of waiting for a deadline. Nobody waits for
a breaker that is not closed: calls that queue when it opens, and calls between two attempts, end as well.
`Breaker` is a pure state machine; `Breakers` holds one for each executor of this process.

| an attempt ended with | counts as |
|---|---|
| any outcome, also a failure; a reply; 202; 3xx, 4xx (408, 409, 425 and 429 too); an unreadable body | there |
| no connection; a connection lost; no answer in time; 5xx, also 503 with Retry-After | missing |
| a cancel; too little time left for a fair attempt; a fault inside the gateway | nothing |

Failures count in a row: an executor of which some instances work is there. What began before the breaker moved
says nothing about what it is now, unless it is an answer: that closes it.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Literal

import structlog

from gateway.clock import Clock
from gateway.events.frozen import frozen
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, NotProcessed, Replied, Uncertain
from gateway.runtime.metrics import Metrics

log = structlog.get_logger(__name__)

State = Literal["closed", "half_open", "open"]
Sign = Literal["there", "missing", "nothing"]

_RESERVED = timedelta(seconds=1)
"""How long a trial may take from getting its slot to leaving; its step has to reach the disk in between."""
_SPREAD = 0.25
_LONGEST_REASON = 200


@frozen
class Rule:
    """When a breaker opens, and for how long."""

    failures: int
    open_for: timedelta


class Breaker:
    """One executor's; every method is told the time."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.state: State = "closed"
        self.failures = 0
        self.since: datetime | None = None
        """When the first of the failures in a row ended."""
        self.reason = ""
        self.epoch = 0
        """Grows whenever the state changes, so that attempts of different states are told apart."""
        self._due_at: datetime | None = None
        self._reserved_until: datetime | None = None
        self._trial: int | None = None

    def admits(self, now: datetime) -> bool:
        """Whether an attempt may begin: any while closed; while open one, once it is time."""
        if self.state == "closed":
            return True
        if self._trial is not None or (self._reserved_until is not None and now < self._reserved_until):
            return False
        return self._due_at is None or now >= self._due_at

    def reserve(self, now: datetime) -> None:
        """Keep the one trial for whoever was just admitted; it is free again where that attempt never begins."""
        if self.state != "closed":
            self._reserved_until = now + _RESERVED
            self._move("half_open")

    def began(self) -> int:
        """An attempt begins; returns what its end is told with."""
        if self.state == "half_open":
            self._trial = self.epoch
        return self.epoch

    def ended(self, epoch: int, sign: Sign, *, reason: str, now: datetime, jitter: float) -> bool:
        """An attempt has ended; says whether that has moved the breaker."""
        mine = epoch == self.epoch
        if sign == "there":
            self.failures = 0
            return self.state != "closed" and self._close()
        if self._trial == epoch and mine:
            self._trial = self._reserved_until = None
        if sign == "nothing" or not mine or self.state == "open":
            return False
        self.failures += 1
        self.reason = reason
        if self.failures == 1 or self.since is None:
            self.since = now
        if self.state == "closed" and self.failures < self.rule.failures:
            return False
        # A little longer for some, so that many gateways do not try in the same moment.
        self._due_at = now + self.rule.open_for * (1 + _SPREAD * jitter)
        self._move("open")
        return True

    def _close(self) -> bool:
        self._due_at = self._reserved_until = self._trial = self.since = None
        self._move("closed")
        return True

    def _move(self, state: State) -> None:
        self.state = state
        self.epoch += 1


def read(answer: Answer) -> tuple[Sign, str]:
    """Say what an answer tells about the executor being there (the table above)."""
    match answer:
        case Answered() | Replied() | Accepted():
            return "there", ""
        case NotProcessed(reason=reason, by_choice=True) | Uncertain(reason=reason, by_choice=True):
            return "there", reason
        case NeverSent(reason) | NotProcessed(reason=reason) | Uncertain(reason=reason):
            return "missing", reason


class Breakers:
    """The breakers of all executors that have one; known to logs and metrics."""

    def __init__(
        self,
        clock: Clock,
        metrics: Metrics,
        jitter: Callable[[], float],
        *,
        rules: Mapping[str, Rule | None],
        specs: Mapping[str, object],
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._specs: Mapping[str, object] = {}
        self._breakers: dict[str, Breaker] = {}
        self.moved: set[str] = set()
        """The executors whose breaker is not closed: every call looks, and nearly always there is none."""
        self.configure(rules, specs)

    def configure(self, rules: Mapping[str, Rule | None], specs: Mapping[str, object]) -> None:
        """Take over a configuration; an executor whose spec has changed begins anew, the others stay as they are."""
        before, self._specs = self._specs, specs
        for name in [name for name in self._breakers if rules.get(name) is None]:
            del self._breakers[name]
            self.moved.discard(name)
            self._metrics.breaker(name, None)
        for name, rule in rules.items():
            if rule is not None and (name not in self._breakers or before.get(name) != specs.get(name)):
                self._breakers[name] = Breaker(rule)
                self._show(name)

    def _show(self, name: str) -> None:
        state = self._breakers[name].state
        if state == "closed":
            self.moved.discard(name)
        else:
            self.moved.add(name)
        self._metrics.breaker(name, state)

    def admits(self, name: str) -> bool:
        """Whether an attempt at this executor may begin now."""
        return name not in self.moved or self._breakers[name].admits(self._clock.now())

    def reserve(self, name: str) -> None:
        """An attempt was admitted; where the breaker is not closed, it is the trial."""
        if name in self.moved:
            self._breakers[name].reserve(self._clock.now())
            self._show(name)

    def reason(self, name: str) -> str | None:
        """Say what to tell an agent instead of asking; None while the breaker is closed."""
        if name not in self.moved:
            return None
        breaker = self._breakers[name]
        since = f" since {breaker.since:%H:%M:%S} UTC" if breaker.since is not None else ""
        return f"executor {name!r} is not answering{since} ({breaker.reason})"

    def began(self, name: str) -> int:
        """An attempt begins; returns what its end is told with."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return 0
        return breaker.began() if name in self.moved else breaker.epoch

    def ended(self, name: str, epoch: int, answer: Answer | None) -> bool:
        """An attempt has ended, with nothing to tell where None; says whether the breaker is now open by it."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return False
        before = breaker.state
        if before == "closed" and isinstance(answer, Answered):
            breaker.failures = 0
            return False
        sign, reason = ("nothing", "") if answer is None else read(answer)
        reason = reason[:_LONGEST_REASON]
        if not breaker.ended(epoch, sign, reason=reason, now=self._clock.now(), jitter=self._jitter()):
            return False
        self._show(name)
        if breaker.state == "closed":
            log.info("breaker closed: the executor answers again", executor=name)
        elif before == "closed":
            log.warning(
                "breaker opened: the executor is not answering",
                executor=name,
                failures=breaker.failures,
                reason=reason,
                open_for=breaker.rule.open_for.total_seconds(),
            )
        else:
            log.info("breaker stays open: the trial failed", executor=name, reason=reason)
        return breaker.state == "open"
