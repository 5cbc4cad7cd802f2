"""Values are changed by making others of them, and no field is lost on the way."""

import dataclasses
from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.core.routing import Matched
from gateway.core.state import Gate, Remembered
from gateway.events import CallId, SessionId
from gateway.events.frozen import frozen, replace
from gateway.store.call import Call, Redriven

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
CALL = Call(CallId("c"), SessionId("s"), "finn", "tc-1", 0, "ask", "sha", "dispatched", 1, NOW, NOW, 3, size=7)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (CALL, {"state": "succeeded", "outcome_sequence": 4, "arguments": {"rank": "7"}}),
        (CALL, {}),
        (Remembered(history=("[12:00] Finn: Hello",)), {"running": True}),
        (Redriven(CallId("c")), {"call_id": CallId("d")}),
        (Matched("cards", 1), {"index": 2}),
    ],
)
def test_what_is_replaced_is_what_dataclasses_would_make_of_it(value: object, changes: dict[str, object]) -> None:
    before = dataclasses.asdict(value)  # type: ignore[call-overload]
    made = replace(value, **changes)
    assert type(made) is type(value)
    assert dataclasses.asdict(made) == before | changes  # type: ignore[call-overload]
    assert dataclasses.asdict(value) == before  # type: ignore[call-overload]


def test_there_is_no_field_to_invent() -> None:
    with pytest.raises(TypeError, match="nobody"):
        replace(CALL, nobody=1)


def test_a_value_of_one_field_keeps_it() -> None:
    @frozen
    class One:
        names: tuple[str, ...]

    assert replace(One(("a", "b"))) == One(("a", "b"))


def test_a_value_stays_as_it_is() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        CALL.state = "succeeded"  # type: ignore[misc]


def test_what_is_not_compared_makes_no_difference_and_everything_else_does() -> None:
    assert replace(CALL, arguments={"rank": "7"}, size=9) == CALL
    assert hash(replace(CALL, size=9)) == hash(CALL)
    assert replace(CALL, attempt=2) != CALL
    assert Redriven(CallId("c")) == Redriven(CallId("c")) != Redriven(CallId("d"))


def test_pydantic_writes_values_and_reads_them_back() -> None:
    memory = TypeAdapter(Remembered)
    held = Remembered(gate=Gate(4, 7), labels={"team": "blue"}, tasks=("fold",))
    assert memory.validate_json(memory.dump_json(held)) == held
    with pytest.raises(ValidationError, match="gate"):
        memory.validate_python({"gate": {"sequence": "four"}})


def test_what_inherits_has_all_fields_also_for_dataclasses_and_pydantic() -> None:
    @frozen
    class Longer(Gate):
        words: tuple[str, ...] = ()

    value = Longer(4, 7, words=("a",))
    assert dataclasses.asdict(value) == {"sequence": 4, "number": 7, "actions": (), "words": ("a",)}
    assert dataclasses.replace(value, number=8) == replace(value, number=8) == Longer(4, 8, words=("a",))
    longer = TypeAdapter(Longer)
    assert longer.validate_json(longer.dump_json(value)) == value


def test_what_inherits_takes_plain_defaults_alone() -> None:
    with pytest.raises(TypeError, match=r"Longer\.counts: .* requires a plain default"):

        @frozen
        class Longer(Gate):
            counts: dict[str, int] = dataclasses.field(default_factory=dict[str, int])
