"""Engine conformance: events of a kind or form that this release does not know."""

from typing import Any, Literal

import pytest

from dragoman.models.content import Value
from gateway.events import Envelope, MessagePosted, Opaque, Origin, Text, to_copy, to_json
from gateway.store.port import Engine
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import ALICE, ALL, START, new, open_session, said

COPIES = "destination:log"


class WeatherChanged(Value):
    """An unknown kind."""

    kind: Literal["weather.changed"] = "weather.changed"
    degrees: float = 21.5
    where: dict[str, Any] = {"town": "Köln", "null": None}


class MoodyMessage(MessagePosted):
    """A known kind with an unknown member."""

    mood: str = "calm"


class CountedTyping(Value):
    """A known kind with a member of another type."""

    kind: Literal["typing.changed"] = "typing.changed"
    typing: int = 3


WEATHER: dict[str, Any] = {"kind": "weather.changed", "degrees": 21.5, "where": {"town": "Köln", "null": None}}
MOODY = MoodyMessage(content=(Text(text="hello"),))
UNKNOWN: list[Any] = [WeatherChanged(), MOODY, CountedTyping()]


def is_opaque(envelope: Envelope, event: Any) -> bool:
    """Whether an unknown event is shown as opaque, with its whole content."""
    shown = Opaque(channel="unknown-kind", payload=event.model_dump(mode="json"))
    return (envelope.event, envelope.stored_kind) == (shown, event.kind)


class UnknownSuite:
    """Unknown events read as opaque, and are listed and copied."""

    @pytest.mark.parametrize("event", UNKNOWN, ids=["kind", "member", "shape"])
    async def test_an_unknown_event_reads_back_as_opaque(self, engine: Engine, event: Any) -> None:
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

    async def test_a_copy_of_an_unknown_event_keeps_its_kind_and_content(self, engine: Engine) -> None:
        await open_session(engine)
        await engine.commit(Step(ALICE, (new(WeatherChanged()),), sends=(Enqueue(0, COPIES),)))
        (row,) = await engine.pending_sends(target=COPIES, due_before=START)
        kind, data = to_copy(row.envelope, engine.generation.name)
        assert (kind, data["event"], data["sequence"]) == ("weather.changed", WEATHER, 2)

    async def test_an_unknown_event_is_listed_with_its_outbound_rows(self, engine: Engine) -> None:
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
