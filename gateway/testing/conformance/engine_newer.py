"""What every engine must do with rows that a newer release has written, and this one does not know."""

from typing import Any, Literal

import pytest

from gateway.errors import Stale
from gateway.events import CallId, Envelope, InteractionId, MessagePosted, Opaque, Origin, Text, to_copy, to_json
from gateway.events.content import Value
from gateway.store.call import Claim
from gateway.store.port import Engine
from gateway.store.rows import CallFilter, RetentionPolicy
from gateway.store.step import NEWER, RUNTIME, Enqueue, InteractionChange, SendChange, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    DAY,
    START,
    FakeClock,
    answered,
    asked,
    call,
    new,
    open_session,
    row_of,
    said,
    settled,
)

COPIES = "destination:log"


class WeatherChanged(Value):
    """A kind of a release to come."""

    kind: Literal["weather.changed"] = "weather.changed"
    degrees: float = 21.5
    where: dict[str, Any] = {"town": "Köln", "null": None}


class MoodyMessage(MessagePosted):
    """A kind with a member of a release to come."""

    mood: str = "calm"


class CountedTyping(Value):
    """A kind one of whose members has another shape in a release to come."""

    kind: Literal["typing.changed"] = "typing.changed"
    typing: int = 3


WEATHER: dict[str, Any] = {"kind": "weather.changed", "degrees": 21.5, "where": {"town": "Köln", "null": None}}
MOODY = MoodyMessage(content=(Text(text="hello"),))
LATER: list[Any] = [WeatherChanged(), MOODY, CountedTyping()]


def is_opaque(envelope: Envelope, event: Any) -> bool:
    """Whether an event of a newer release is shown as such, with all that it says."""
    shown = Opaque(channel="unknown-kind", payload=event.model_dump(mode="json"))
    return (envelope.event, envelope.stored_kind) == (shown, event.kind)


class NewerSuite:
    """Reading, listing and keeping what a newer release has written."""

    @pytest.mark.parametrize("event", LATER, ids=["kind", "member", "shape"])
    async def test_an_event_of_a_newer_release_reads_back_as_opaque(self, engine: Engine, event: Any) -> None:
        await open_session(engine)
        origin = Origin("huma-0.2", "huma/0.2.0", "n-1")
        await engine.commit(Step(ALICE, (said("before"), new(event, origin=origin, caused_by=2), said("after"))))
        opened, before, unknown, after = await engine.read(ALICE)
        assert is_opaque(unknown, event)
        assert (unknown.sequence, unknown.origin, unknown.caused_by) == (3, origin, 2)
        assert {opened.stored_kind, before.stored_kind, after.stored_kind} == {None}
        assert to_json(unknown)["event"] == {
            "kind": "opaque",
            "channel": "unknown-kind",
            "payload": event.model_dump(mode="json"),
        }

    async def test_a_copy_of_it_keeps_its_kind_and_its_words(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (new(WeatherChanged()),), sends=(Enqueue(0, COPIES),)))
        (row,) = await engine.pending_sends(target=COPIES, due_before=START)
        kind, data = to_copy(row.envelope)
        assert (kind, data["event"], data["sequence"]) == ("weather.changed", WEATHER, 2)

    async def test_it_is_shown_wherever_rows_come_with_their_event(self, engine: Engine) -> None:
        await open_session(engine)
        event = WeatherChanged()
        sends = (Enqueue(0, RUNTIME, "turn"), Enqueue(0, COPIES))
        await engine.commit(Step(ALICE, (new(event, direction="to_runtime"),), sends=sends))
        (waiting,) = await engine.pending_sends(target=RUNTIME)
        assert is_opaque(waiting.envelope, event)
        shown = await engine.sends_of(ALICE, 2)
        assert [is_opaque(row.envelope, event) for row in shown] == [True, True]
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, COPIES, "dead", reason="gave up"),)))
        (dead,), _ = await engine.dead_sends(ALL)
        assert is_opaque(dead.envelope, event)
        assert await engine.revive(ALICE, 2, COPIES, due_at=START)

    async def test_a_row_that_waits_for_the_newer_release_is_listed_and_can_be_dismissed(self, engine: Engine) -> None:
        await open_session(engine)
        step = Step(
            ALICE, (new(WeatherChanged()), said()), sends=(Enqueue(0, RUNTIME, "turn"), Enqueue(1, RUNTIME, "turn"))
        )
        await engine.commit(step)
        assert await engine.dead_sends(ALL) == ([], None)
        await engine.commit(Step(ALICE, send_changes=(SendChange(2, RUNTIME, "pending", reason=NEWER),)))
        (listed,), _ = await engine.dead_sends(ALL)
        assert (listed.sequence, listed.state, listed.reason) == (2, "pending", NEWER)
        assert [row.sequence for row in await engine.pending_sends(target=RUNTIME)] == [2, 3]
        assert not await engine.revive(ALICE, 2, RUNTIME, due_at=START)
        assert await engine.dismiss(ALICE, 2, RUNTIME, reason="enough")
        assert not await engine.dismiss(ALICE, 3, RUNTIME, reason="enough")
        assert await engine.dead_sends(ALL) == ([], None)
        assert [row.sequence for row in await engine.pending_sends(target=RUNTIME)] == [3]

    async def test_lanes_and_states_of_a_newer_release_are_kept_and_listed(self, engine: Engine) -> None:
        await open_session(engine)
        lane: Any = "whenever"
        state: Any = "shelved"
        await engine.commit(Step(ALICE, (said(), said()), sends=(Enqueue(0, RUNTIME, lane), Enqueue(1, COPIES))))
        await engine.commit(Step(ALICE, send_changes=(SendChange(3, COPIES, state, reason="on the shelf"),)))
        (waiting,) = await engine.pending_sends(target=RUNTIME)
        assert (waiting.sequence, waiting.lane) == (2, "whenever")
        assert await engine.pending_sends(target=COPIES) == []
        (listed,), _ = await engine.dead_sends(ALL)
        assert (listed.sequence, listed.state, listed.reason) == (3, "shelved", "on the shelf")
        assert not await engine.revive(ALICE, 3, COPIES, due_at=START)
        assert await engine.dismiss(ALICE, 3, COPIES, reason="enough")
        assert await engine.dead_sends(ALL) == ([], None)

    async def test_a_call_in_a_state_of_a_newer_release_is_shown_and_left_alone(self, engine: Engine) -> None:
        await open_session(engine)
        state: Any = "parked"
        await engine.commit(Step(ALICE, (asked(),), calls=(call(state=state),)))
        row = await engine.call(CallId("call-1"))
        assert row is not None
        assert row.state == "parked"
        rows, _ = await engine.calls(CallFilter(), ALL)
        assert [one.state for one in rows] == ["parked"]
        assert await engine.open_calls(ALICE) == []
        late = Step(ALICE, (answered(),), calls=(settled(),))
        for step in (late, Step(ALICE, calls=(Claim(row.call_id, 2),))):
            with pytest.raises(Stale):
                await engine.commit(step)

    async def test_a_question_of_a_newer_release_is_listed_with_its_event(self, engine: Engine) -> None:
        await open_session(engine)
        state: Any = "escalated"
        kind = "weather.asked"
        first = InteractionChange(InteractionId("i-1"), "waiting", kind, 2)
        second = InteractionChange(InteractionId("i-2"), state, kind, 3)
        events = (new(WeatherChanged()), new(WeatherChanged()))
        await engine.commit(Step(ALICE, events, interactions=(first, second)))
        rows, _ = await engine.interactions(ALL)
        assert [(row.kind, row.state) for row in rows] == [(kind, "waiting"), (kind, "escalated")]
        waiting, _ = await engine.interactions(ALL, state="waiting")
        assert [row.interaction_id for row in waiting] == ["i-1"]
        assert await engine.interaction(InteractionId("i-2")) == rows[1]

    async def test_a_sweep_leaves_what_only_a_newer_release_can_go_on_with(
        self, engine: Engine, clock: FakeClock
    ) -> None:
        state: Any = "shelved"
        everything = RetentionPolicy(open_age=DAY, open_events=0, call_age=400 * DAY, copy_age=DAY, max_bytes=0)
        asks = InteractionChange(InteractionId("i-1"), state, "weather.asked", 2)
        await open_session(engine)

        async def stays(step: Step, *more: Step) -> None:
            """Its first event stays, and all before it goes."""
            at = (await engine.commit(step)).envelopes[0].sequence
            for one in more:
                await engine.commit(one)
            await engine.commit(Step(ALICE, (said("newer"), said("newest"))))
            clock.turn(2 * DAY)
            await engine.sweep(everything)
            assert (await row_of(engine)).first_sequence == at

        await stays(Step(ALICE, (said(),), interactions=(asks,)))
        await engine.commit(Step(ALICE, interactions=(InteractionChange(InteractionId("i-1"), "moot"),)))
        await stays(Step(ALICE, (said(),), snapshot=b"s", keep_from=5))
        await engine.commit(Step(ALICE, snapshot=b"t"))
        await stays(
            Step(ALICE, (said(),), sends=(Enqueue(0, COPIES),)),
            Step(ALICE, send_changes=(SendChange(8, COPIES, state),)),
        )
        assert await engine.dismiss(ALICE, 8, COPIES, reason="enough")
        await stays(Step(ALICE, (asked(),), calls=(call(state=state),)))
