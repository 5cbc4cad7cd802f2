"""The lease part of the engine model: live instances, owners and fences of sessions, holders of names."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.testing.conformance.engine_words import FakeClock

TTL = timedelta(hours=1)
"""Longer than any run, so that only a rule ends a lease."""

instances = st.sampled_from(["one", "two"])
names = st.sampled_from(["sweep", "destination:log"])


@dataclass
class Owned:
    """The current or last owner of a session, and its fence."""

    owner: str | None = None
    fence: int = 0


@dataclass
class Lives:
    """The model of all instances; after the end of its lease an instance continues under a new id."""

    generation: dict[str, int] = field(default_factory=lambda: {"one": 0, "two": 0})
    living: set[str] = field(default_factory=set[str])
    held: dict[str, str] = field(default_factory=dict[str, str])

    def id_of(self, which: str) -> str:
        return f"{which}-{self.generation[which]}"


class LeaseRules(RuleBasedStateMachine):
    """The rules for leases; the subclass has the engine and its sessions."""

    engine: Engine
    clock: FakeClock
    lives: Lives
    owned: dict[SessionId, Owned]
    own_clock: bool = False
    """Whether the engine's leases use a clock that a test cannot advance."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        raise NotImplementedError

    @rule(which=instances)
    def beat(self, which: str) -> None:
        instance = self.lives.id_of(which)
        assert self.run(self.engine.beat(instance, url=f"http://{instance}", ttl=TTL))
        self.lives.living.add(instance)

    @rule(which=instances)
    def resign(self, which: str) -> None:
        instance = self.lives.id_of(which)
        self.run(self.engine.release(instance))
        if instance in self.lives.living:
            for owned in self.owned.values():
                if owned.owner == instance:
                    owned.owner = None
            self._end(which)

    @precondition(lambda self: not self.own_clock)
    @rule()
    def lapse(self) -> None:
        """Let every lease expire; the dead instances remain the recorded owners."""
        self.clock.turn(2 * TTL)
        for which in ("one", "two"):
            if self.lives.id_of(which) in self.lives.living:
                self._end(which)

    @rule(which=instances, index=st.integers(0, 2))
    def take(self, which: str, index: int) -> None:
        instance, session_id = self.lives.id_of(which), list(self.owned)[index]
        owned = self.owned[session_id]
        row = self.run(self.engine.take(instance, session_id))
        others = owned.owner != instance and owned.owner in self.lives.living
        if instance not in self.lives.living or others:
            assert row is None
            return
        if owned.owner != instance:
            owned.owner, owned.fence = instance, owned.fence + 1
        assert (row.owner, row.fence) == (owned.owner, owned.fence)

    @rule(which=instances, limit=st.integers(1, 3))
    def take_over(self, which: str, limit: int) -> None:
        instance, living = self.lives.id_of(which), self.lives.living
        rows = self.run(self.engine.take_over(instance, runtimes=["finn"], limit=limit))
        if instance not in living:
            assert not rows
            return
        orphans = {name for name, owned in self.owned.items() if owned.owner not in living}
        mine = sum(owned.owner == instance for owned in self.owned.values())
        share = -(-len(self.owned) // len(living)) - mine
        assert len(rows) == max(0, min(limit, share, len(orphans)))
        assert {row.session_id for row in rows} <= orphans
        for row in rows:
            owned = self.owned[row.session_id]
            owned.owner, owned.fence = instance, owned.fence + 1
            assert (row.owner, row.fence) == (instance, owned.fence)

    @rule(which=instances, index=st.integers(0, 2))
    def give_up(self, which: str, index: int) -> None:
        instance, session_id = self.lives.id_of(which), list(self.owned)[index]
        self.run(self.engine.release(instance, [session_id]))
        if self.owned[session_id].owner == instance:
            self.owned[session_id].owner = None

    @rule(which=instances, name=names)
    def hold(self, which: str, name: str) -> None:
        instance, living = self.lives.id_of(which), self.lives.living
        holder = self.lives.held.get(name)
        free = instance in living and (holder == instance or holder not in living)
        assert self.run(self.engine.hold(instance, name)) is free
        if free:
            self.lives.held[name] = instance

    @rule(which=instances, name=names)
    def release_name(self, which: str, name: str) -> None:
        instance = self.lives.id_of(which)
        self.run(self.engine.release_name(instance, name))
        if self.lives.held.get(name) == instance:
            del self.lives.held[name]

    @invariant()
    def owners_agree(self) -> None:
        for session_id, owned in self.owned.items():
            row = self.run(self.engine.session(session_id))
            assert (row.owner, row.fence) == (owned.owner, owned.fence)
            shown = self.run(self.engine.owner(session_id))
            living = owned.owner if owned.owner in self.lives.living else None
            assert (None if shown is None else shown.instance_id) == living

    def _end(self, which: str) -> None:
        """End a lease; its id is never used again."""
        ended = self.lives.id_of(which)
        self.lives.living.discard(ended)
        self.lives.generation[which] += 1
        assert not self.run(self.engine.beat(ended, url=f"http://{ended}", ttl=TTL))
