"""Engine conformance: random steps on an engine and on a small model, which must always agree."""

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings, strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from gateway.errors import Repeated, Stale
from gateway.events import CallId, Envelope, SessionId
from gateway.store.call import CallChange
from gateway.store.port import Engine
from gateway.store.rows import RetentionPolicy
from gateway.store.step import RUNTIME, Committed, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_model_leases import LeaseRules, Lives, Owned
from gateway.testing.conformance.engine_words import DAY, FakeClock, answered, asked, call, open_session, said, settled

SESSIONS = [SessionId(name) for name in ("a", "b", "c")]
CALLS = [CallId(f"call-{n}") for n in range(4)]

sessions = st.sampled_from(SESSIONS)
calls = st.sampled_from(CALLS)
keys = st.none() | st.sampled_from(["k1", "k2", "k3"])


@dataclass
class Told:
    """The model of one session."""

    ids: list[str] = field(default_factory=list[str])
    first: int = 1
    keys: dict[str, int] = field(default_factory=dict[str, int])
    """The sequences of dedupe keys; a key is forgotten together with its event."""
    pending: set[int] = field(default_factory=set[int])
    calls: dict[CallId, tuple[bool, int]] = field(default_factory=dict[CallId, tuple[bool, int]])
    """Whether it is open, and the sequence of its request."""


class EngineMachine(LeaseRules):
    """One run; a subclass makes the engine."""

    def build(self, folder: Path) -> Engine:
        """Make the engine under test; the same folder means the same store."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="dragoman-engine-")
        self.clock = FakeClock()
        self.runner = asyncio.Runner()
        self.told = {session_id: Told() for session_id in SESSIONS}
        self.lives = Lives()
        self.owned = {session_id: Owned() for session_id in SESSIONS}
        self.run(self.enter())
        for session_id in SESSIONS:
            row = self.run(open_session(self.engine, session_id))
            first = self.run(self.engine.read(row.session_id))[0]
            self.told[session_id].ids.append(first.event_id)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    async def enter(self) -> None:
        self.stack = AsyncExitStack()
        self.engine = await self.stack.enter_async_context(self.build(Path(self.folder.name)))

    def commit(self, session_id: SessionId, step: Step) -> bool:
        """Commit a step and update the model; return False if the step must be Stale."""
        told = self.told[session_id]
        keys = [new.dedupe_key for new in step.events if new.dedupe_key is not None]
        repeats = {key for place, key in enumerate(keys) if key in told.keys or key in keys[:place]}
        done: Committed | None = None
        named: frozenset[str] = frozenset()
        try:
            done = self.run(self.engine.commit(step))
        except Repeated as exc:
            named = exc.keys
        except Stale:
            return False
        assert named == repeats
        if done is None:
            return False
        for index, new in enumerate(step.events):
            told.ids.append(new.event_id)
            if new.dedupe_key is not None:
                told.keys[new.dedupe_key] = len(told.ids)
            if any(send.event_index == index for send in step.sends):
                told.pending.add(len(told.ids))
        assert done.last_sequence == len(told.ids)
        assert [e.sequence for e in done.envelopes] == [
            *range(len(told.ids) - len(done.envelopes) + 1, len(told.ids) + 1)
        ]
        return True

    @rule(session_id=sessions, given=st.lists(st.tuples(st.text(), keys, st.booleans()), max_size=4))
    def say(self, session_id: SessionId, given: list[tuple[str, str | None, bool]]) -> None:
        events: tuple[Envelope, ...] = tuple(
            said(text.encode("utf-8", "replace").decode(), dedupe_key=key) for text, key, _ in given
        )
        sends = tuple(Enqueue(index, RUNTIME) for index, (_, _, send) in enumerate(given) if send)
        self.commit(session_id, Step(session_id, events, sends=sends))

    @rule(session_id=sessions, call_id=calls)
    def ask(self, session_id: SessionId, call_id: CallId) -> None:
        known = any(call_id in told.calls for told in self.told.values())
        opened: CallChange = call(call_id)
        written = self.commit(session_id, Step(session_id, (asked(),), calls=(opened,)))
        assert written is not known
        if written:
            self.told[session_id].calls[call_id] = (True, len(self.told[session_id].ids))

    @rule(session_id=sessions, call_id=calls)
    def settle(self, session_id: SessionId, call_id: CallId) -> None:
        told = self.told[session_id]
        open_here, request = told.calls.get(call_id, (False, 0))
        step = Step(
            session_id,
            (answered(),),
            calls=(settled(call_id),),
            sends=(Enqueue(0, RUNTIME),),
        )
        assert self.commit(session_id, step) is open_here
        if open_here:
            told.calls[call_id] = (False, request)

    @rule(session_id=sessions, offset=st.integers(-1, 1))
    def expect(self, session_id: SessionId, offset: int) -> None:
        step = Step(session_id, (said(),), last_sequence=len(self.told[session_id].ids) + offset)
        assert self.commit(session_id, step) is (offset == 0)

    @rule(session_id=sessions, offset=st.integers(-1, 1))
    def expect_fence(self, session_id: SessionId, offset: int) -> None:
        step = Step(session_id, (said(),), fence=self.owned[session_id].fence + offset)
        assert self.commit(session_id, step) is (offset == 0)

    @rule(session_id=sessions)
    def deliver(self, session_id: SessionId) -> None:
        told = self.told[session_id]
        changes = tuple(SendChange(sequence, RUNTIME, "delivered", 1) for sequence in told.pending)
        assert self.commit(session_id, Step(session_id, send_changes=changes))
        told.pending.clear()

    @rule(keep=st.integers(0, 5))
    def sweep(self, keep: int) -> None:
        policy = RetentionPolicy(open_age=10_000 * DAY, open_events=keep, call_age=timedelta(days=10_000))
        self.run(self.engine.sweep(policy))
        for told in self.told.values():
            needed = {request for is_open, request in told.calls.values() if is_open} | told.pending
            first = min([len(told.ids) - keep + 1, *needed])
            if first > told.first:
                told.first = first
            told.keys = {key: sequence for key, sequence in told.keys.items() if sequence >= told.first}

    @rule()
    def restart(self) -> None:
        # Ends all leases, because not every engine keeps them across a restart.
        for which in ("one", "two"):
            self.resign(which)
        self.run(self.stack.aclose())
        self.run(self.enter())

    @invariant()
    def agrees(self) -> None:
        for session_id, told in self.told.items():
            row = self.run(self.engine.session(session_id))
            assert (row.first_sequence, row.last_sequence) == (told.first, len(told.ids))
            kept = self.run(self.engine.read(session_id, after=told.first - 1))
            assert [e.event_id for e in kept] == told.ids[told.first - 1 :]
            assert [e.sequence for e in kept] == [*range(told.first, len(told.ids) + 1)]
            open_calls = self.run(self.engine.open_calls(session_id))
            assert {c.call_id for c in open_calls} == {c for c, (is_open, _) in told.calls.items() if is_open}
            sends = self.run(self.engine.pending_sends(target=RUNTIME, session_id=session_id))
            assert [send.sequence for send in sends] == sorted(told.pending)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()
        self.folder.cleanup()


class ModelSuite:
    """The engine against the model."""

    own_clock: bool = False
    """Whether the engine's leases use a clock that a test cannot advance."""

    def build(self, folder: Path, clock: FakeClock) -> Engine:
        raise NotImplementedError

    def test_random_steps_leave_what_the_model_says(self) -> None:
        suite = self

        class Driven(EngineMachine):
            own_clock = suite.own_clock

            def build(self, folder: Path) -> Engine:
                return suite.build(folder, self.clock)

        run_state_machine_as_test(
            Driven,
            settings=settings(
                max_examples=15,
                stateful_step_count=30,
                deadline=None,
                database=None,
                # No shrinking, because it would reopen a store thousands of times; failing steps are printed in full.
                phases=(Phase.generate,),
            ),
        )
