"""Runs the sessions: ready ones decide, the store gets their steps together, and they act after the commit.

A turn takes the sessions in the order in which they became ready: first those with few signals, so that a call does not
wait for the floods of other sessions, then those with many. It ends after 10 ms or 256 steps of each line, but each
line gets at least one session; the next turn follows the I/O of the loop. Committed steps are acted on in the wake-up
that brings their commits; what it leaves comes before the next decisions of its line. A signal that an effect puts into
a session is decided in the next turn.

An exception of one session concerns only this session.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.clock import Clock
from gateway.guard import FAULTS, Tasks, guard_call, is_fault
from gateway.runtime.session.actor import Actor
from gateway.store.port import Engine, Settled
from gateway.store.step import Committed, Step

MOST_STEPS = 256
FEW = 8
"""Signals up to which a session is in the first line."""
_FEW_SECONDS, _MANY_SECONDS = 0.008, 0.002
"""The share of each line in a turn; one session of it may take longer."""
_TRY_AGAIN = 0.05
"""Seconds until the store is offered steps again if only steps of others fill it."""


@dataclass(eq=False, slots=True)
class _Line:
    """The ready sessions, and those whose effects wait."""

    seconds: float
    """The time of the line in one turn."""
    ready: deque[Actor] = field(default_factory=deque[Actor])
    acting: deque[Actor] = field(default_factory=deque[Actor])


class Turns:
    """The ready sessions of a process, and those whose effects wait."""

    def __init__(self, engine: Engine, clock: Clock, tasks: Tasks) -> None:
        """Prepare; turns run in the context of `tasks`, never in that of a request."""
        self._engine = engine
        self._monotonic = clock.monotonic
        self._context = tasks.context.copy()
        self._run = guard_call("turn", self._take_turn)
        self._settled: Settled = partial(self._context.run, self._wake)
        self._few, self._many = self._lines = _Line(_FEW_SECONDS), _Line(_MANY_SECONDS)
        """The sessions with few signals, and those with many."""
        self._in_store: dict[int, Actor] = {}
        """The sessions whose steps are in the store, by the identity of the step."""
        self._is_scheduled = False
        self._is_full = False
        """Whether the store had no capacity for the last steps, and no step has left it since."""

    def decide_soon(self, session: Actor) -> None:
        """Let a session decide in a later turn."""
        # Its signals arrive until the turn.
        self._few.ready.append(session)
        self._schedule()

    def act_soon(self, session: Actor) -> None:
        """Let a session act in a later turn."""
        self._line_of(session).acting.append(session)
        self._schedule()

    def _line_of(self, session: Actor) -> _Line:
        return self._few if session.inbox.count <= FEW else self._many

    def _schedule(self) -> None:
        has_work = any(line.acting or (line.ready and not self._is_full) for line in self._lines)
        if has_work and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run, context=self._context)

    def _take_turn(self) -> None:
        self._is_scheduled = False
        try:
            for line in self._lines:
                until = self._monotonic() + line.seconds
                self._act(line, until)
                if not line.acting and not self._is_full:
                    self._decide(line, until)
        finally:
            self._schedule()

    def _decide(self, line: _Line, until: float) -> None:
        steps: list[Step] = []
        # Sessions that become ready meanwhile wait for the next turn.
        for _ in range(len(line.ready)):
            session = line.ready.popleft()
            if line is self._few and self._line_of(session) is self._many:
                self._many.ready.append(session)
                continue
            step = self._decide_one(session)
            if step is not None:
                steps.append(step)
                self._in_store[id(step)] = session
            if len(steps) >= MOST_STEPS or self._monotonic() >= until:
                break
        if steps:
            self._submit(steps)

    def _decide_one(self, session: Actor) -> Step | None:
        step = None
        try:
            if session.state == "ready":
                step = session.decide()
            # A step that writes nothing needs no commit.
            if session.state == "acting":
                session.act()
        except BaseException as exc:  # noqa: BLE001 - it concerns this session only
            self._fail(session, exc)
        return step

    def _submit(self, steps: Sequence[Step]) -> None:
        try:
            accepted = self._engine.submit(steps, self._settled)
        except Exception as exc:  # noqa: BLE001 - each session restarts, and finds out whether its step is in the store
            for session in self._out_of_store(steps):
                self._settle(session, exc)
            return
        if accepted == len(steps):
            return
        refused = self._out_of_store(steps[accepted:])
        for session in refused:
            session.take_back()
        self._few.ready.extendleft(reversed(refused))
        self._is_full = True
        if not self._in_store:
            again = guard_call("turn", self._try_again)
            asyncio.get_running_loop().call_later(_TRY_AGAIN, again, context=self._context)

    def _out_of_store(self, steps: Iterable[Step]) -> list[Actor]:
        return [self._in_store.pop(id(step)) for step in steps]

    def _try_again(self) -> None:
        self._is_full = False
        self._schedule()

    def _wake(self, results: Sequence[tuple[Step, Committed | Exception]]) -> None:
        """Let sessions act whose steps are committed."""
        self._is_full = False
        for step, result in results:
            self._settle(self._in_store.pop(id(step)), result)
        try:
            for line in self._lines:
                self._act(line, self._monotonic() + line.seconds)
        finally:
            self._schedule()

    def _settle(self, session: Actor, result: Committed | Exception) -> None:
        try:
            session.settle(result)
        except BaseException as exc:  # noqa: BLE001 - it concerns this session only
            self._fail(session, exc)
        else:
            self._line_of(session).acting.append(session)

    def _act(self, line: _Line, until: float) -> None:
        while line.acting:
            session = line.acting.popleft()
            try:
                if session.state == "acting":
                    session.act()
            except BaseException as exc:  # noqa: BLE001 - it concerns this session only
                self._fail(session, exc)
            if self._monotonic() >= until:
                break

    def _fail(self, session: Actor, exc: BaseException) -> None:
        if not is_fault(exc):
            raise exc
        try:
            session.fail(exc)
        except Exception as again:  # noqa: BLE001 - the other sessions go on
            FAULTS.get().note("turn", again)
