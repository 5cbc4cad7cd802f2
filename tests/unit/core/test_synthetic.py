"""Events of the gateway itself, and those of a runtime, a client or a backend."""

from collections.abc import Callable

import pytest

from gateway.core import confirmations, lifecycle
from gateway.core.routing import Route
from gateway.events import (
    Author,
    ContextUpdate,
    ContextUpdated,
    LinkChanged,
    MessagePosted,
    Outcome,
    Text,
    TurnSteered,
)
from gateway.executors.port import Answered, Replied, Uncertain
from tests.unit.core.harness import ROUTES, Harness

CHAT = Route(event="message.posted", to="chat")
START = ContextUpdated(name="start", context={"group": "Movie Night"}, description="")


def success(harness: Harness) -> None:
    update = ContextUpdate(name="table", context={"cards": 3})
    harness.call()
    harness.answer(Answered(Outcome(outcome="success", result=7), updates=(update,)))


def failed_by_its_executor(harness: Harness) -> None:
    harness.call()
    harness.answer(Answered(Outcome(outcome="failure", error="It is not your turn.")))


def silence(harness: Harness) -> None:
    harness.call()
    harness.wait(121)


def unknown(harness: Harness) -> None:
    harness.call(tool="slow_count")
    harness.answer(Uncertain("the connection broke"))


def unrouted(harness: Harness) -> None:
    harness.call(tool="lonely")


def withdrawn(harness: Harness) -> None:
    harness.call()
    harness.cancel()


def hint(harness: Harness) -> None:
    harness.post(START)
    harness.post(TurnSteered(text="Be quick."))


def message(harness: Harness) -> None:
    harness.post(START)
    harness.post(MessagePosted(author=Author(name="Alice"), content=(Text(text="Hello"),)))


def unrouted_message(harness: Harness) -> None:
    harness.post(START)
    harness.send()


def delivered_message(harness: Harness) -> None:
    harness.send()
    answer, place = Replied({"delivered": True}), harness.view.last_sequence
    harness.decide(lambda builder: confirmations.replied(builder, place, answer))


def unconfirmed_message(harness: Harness) -> None:
    harness.send()
    harness.wait(21)


def new_link(harness: Harness) -> None:
    harness.post(START)
    harness.decide(lambda builder: lifecycle.link(builder, LinkChanged(state="up")))


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (success, {"context.updated": False, "tool.finished": False}),
        (failed_by_its_executor, {"tool.finished": False}),
        (silence, {"tool.finished": True}),
        (unknown, {"tool.finished": True}),
        (unrouted, {"tool.requested": False, "tool.finished": True}),
        (withdrawn, {"tool.canceled": False, "tool.finished": True}),
        (hint, {"turn.steered": False, "context.updated": True}),
        (message, {"message.posted": False, "context.updated": True}),
        (unrouted_message, {"message.posted": False, "message.confirmed": True}),
        (delivered_message, {"message.confirmed": False}),
        (unconfirmed_message, {"message.confirmed": True}),
        (new_link, {"link.changed": True, "context.updated": True}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_only_events_of_the_gateway_itself_are_marked_as_synthetic(
    happens: Callable[[Harness], None], expected: dict[str, bool]
) -> None:
    harness = Harness(routes=ROUTES if happens is unrouted_message else (*ROUTES, CHAT))
    happens(harness)
    found = {one.event.kind: one.synthetic for one in harness.step.events}
    # That a turn begins or ends is inferred on the way.
    assert found.pop("session.moved", True)
    assert found == expected
