"""A null for an optional argument counts as omitted if the schema refuses it, and nothing else is changed."""

from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from gateway.adapter.port import Tool
from gateway.core.arguments import ArgumentValidator
from gateway.core.nulls import MOST_NULLS, sent_arguments
from gateway.events import Envelope, EventId, Loss, SessionId, ToolRequested
from tests.unit.core.harness import START

CARD: dict[str, Any] = {
    "type": "object",
    "properties": {"rank": {"type": "string"}, "suit": {"enum": ["hearts", "spades"]}},
    "required": ["rank"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rank": {"type": "string"},
        "player": {"type": "string"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "maybe": {"type": ["string", "null"]},
        "anything": {},
        "named/with~marks": {"type": "string"},
        "card": {"$ref": "#/$defs/card"},
        "cards": {"type": "array", "items": {"$ref": "#/$defs/card"}},
        "all": {"allOf": [{"$ref": "#/$defs/card"}]},
        "any": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/card"}, {"type": "array", "items": CARD}]},
        "one": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/card"}]},
        "texts": {"type": "array", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "patterns": {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
        "tree": {"$ref": "#/$defs/tree"},
        "items": {"type": "object", "properties": {"properties": {"type": "string"}}},
    },
    "required": ["rank"],
    "$defs": {
        "card": CARD,
        "tree": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "inner": {"$ref": "#/$defs/tree"}},
        },
    },
}
GOOD: dict[str, Any] = {"rank": "7"}


def validator(schema: dict[str, Any] = SCHEMA, *keeping: str) -> ArgumentValidator:
    return ArgumentValidator({"t": Tool("t", "", schema)}, keeping_nulls=keeping)


@pytest.mark.parametrize(
    ("given", "fitted", "paths"),
    [
        ({"player": None}, {}, ["/player"]),
        ({"either": None}, {}, ["/either"]),
        ({"named/with~marks": None}, {}, ["/named~1with~0marks"]),
        ({"card": None}, {}, ["/card"]),
        ({"card": {"rank": "7", "suit": None}}, {"card": {"rank": "7"}}, ["/card/suit"]),
        (
            {"cards": [{"rank": "7", "suit": None}, {"rank": "8", "suit": "hearts"}, {"rank": "9", "suit": None}]},
            {"cards": [{"rank": "7"}, {"rank": "8", "suit": "hearts"}, {"rank": "9"}]},
            ["/cards/0/suit", "/cards/2/suit"],
        ),
        ({"all": {"rank": "7", "suit": None}}, {"all": {"rank": "7"}}, ["/all/suit"]),
        ({"any": {"rank": "7", "suit": None}}, {"any": {"rank": "7"}}, ["/any/suit"]),
        ({"any": [{"rank": "7", "suit": None}]}, {"any": [{"rank": "7"}]}, ["/any/0/suit"]),
        ({"one": {"rank": "7", "suit": None}}, {"one": {"rank": "7"}}, ["/one/suit"]),
        (
            {"tree": {"name": None, "inner": {"inner": None, "name": "x"}}},
            {"tree": {"inner": {"name": "x"}}},
            ["/tree/inner/inner", "/tree/name"],
        ),
        ({"items": {"properties": None}}, {"items": {}}, ["/items/properties"]),
    ],
)  # fmt: skip
def test_a_null_that_an_optional_member_refuses_is_dropped(
    given: dict[str, Any], fitted: dict[str, Any], paths: list[str]
) -> None:
    arguments = GOOD | given
    before = repr(arguments)
    found = validator().fit("t", arguments)
    assert found.problem is None
    assert found.arguments == GOOD | fitted
    assert [(loss.how, loss.path) for loss in found.losses] == [("dropped", f"/arguments{path}") for path in paths]
    # The arguments of the agent are not changed.
    assert repr(arguments) == before
    event = ToolRequested(native_call_id="n", tool="t", arguments=arguments)
    recorded = Envelope(EventId("e"), SessionId("s"), 1, START, "from_runtime", event, losses=found.losses)
    assert sent_arguments(recorded, event) == found.arguments


@pytest.mark.parametrize("given", [{"maybe": None}, {"anything": None}, {"unknown": None}, {"one": 3}])
def test_arguments_that_fit_are_not_changed(given: dict[str, Any]) -> None:
    found = validator().fit("t", GOOD | given)
    assert (found.arguments, found.losses, found.problem) == (GOOD | given, (), None)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"rank": None}, "/rank"),
        ({"card": {"rank": None}}, "/card/rank"),
        ({"texts": [None]}, "/texts/0"),
        ({"map": {"a": None}}, "/map/a"),
        ({"patterns": {"x": None}}, "/patterns/x"),
        ({"any": {"rank": None}}, "/any"),
    ],
)
def test_a_null_of_anything_else_is_refused_with_its_place(given: dict[str, Any], place: str) -> None:
    found = validator().fit("t", GOOD | given)
    assert found.problem is not None
    assert f"at {place}:" in found.problem
    assert (found.arguments, found.losses) == (GOOD | given, ())


def test_errors_beside_nulls_are_reported_without_the_nulls() -> None:
    found = validator().fit("t", {"rank": 7, "player": None})
    assert found.problem == "Invalid arguments for 't': at /rank: 7 is not allowed; it must be a string."


def test_a_member_that_another_part_of_the_schema_requires_keeps_its_null() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "allOf": [{"required": ["a"]}]}
    found = validator(schema).fit("t", {"a": None})
    assert found.problem == "Invalid arguments for 't': at /a: null is not allowed; it must be a string."


def test_a_tool_may_keep_nulls() -> None:
    found = validator(SCHEMA, "t").fit("t", GOOD | {"player": None})
    assert found.problem == "Invalid arguments for 't': at /player: null is not allowed; it must be a string."


def test_a_call_with_too_many_nulls_is_refused_with_them() -> None:
    cards = [{"rank": "7", "suit": None}] * MOST_NULLS
    assert validator().fit("t", GOOD | {"cards": cards}).problem is None
    assert validator().fit("t", GOOD | {"cards": [*cards, cards[0]]}).problem is not None


def test_losses_of_another_kind_change_no_arguments() -> None:
    event = ToolRequested(native_call_id="n", tool="t", arguments={"player": None})
    losses = (Loss(how="dropped", path="/arguments/player", note="unknown field"),)
    recorded = Envelope(EventId("e"), SessionId("s"), 1, START, "from_runtime", event, losses=losses)
    assert sent_arguments(recorded, event) == {"player": None}


VALUES = st.none() | st.text(max_size=2) | st.integers(0, 3)
CARDS = st.dictionaries(st.sampled_from(["rank", "suit", "more"]), VALUES, max_size=3)
MEMBERS = {name: VALUES | CARDS | st.lists(CARDS | VALUES, max_size=2) for name in SCHEMA["properties"]}


@given(st.fixed_dictionaries({}, optional=MEMBERS))
def test_fitted_arguments_always_fit_and_lack_nulls_only(arguments: dict[str, Any]) -> None:
    found = validator().fit("t", arguments)
    if found.problem is None:
        assert validator().fit("t", found.arguments).losses == ()
        event = ToolRequested(native_call_id="n", tool="t", arguments=arguments)
        recorded = Envelope(EventId("e"), SessionId("s"), 1, START, "from_runtime", event, losses=found.losses)
        assert sent_arguments(recorded, event) == found.arguments
        assert _without_nulls(found.arguments) == _without_nulls(arguments)
    else:
        assert found.arguments == arguments


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            return {name: _without_nulls(one) for name, one in members.items() if one is not None}
        case list():
            return [_without_nulls(one) for one in cast("list[Any]", value)]
        case _:
            return value
