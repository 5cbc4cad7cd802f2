"""Arguments of declared tools are checked against their schema, and the agent is told what to mend."""

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gateway.adapter.port import Tool
from gateway.core.arguments import ArgumentValidator, problems_in_schema
from gateway.visible import is_hidden

RANKS = ["2", "3", "7", "K"]
CARDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "targetPlayer": {"type": "string", "description": "the name of the player to ask", "minLength": 1},
        "rank": {"enum": RANKS},
        "count": {"type": "integer", "minimum": 1, "maximum": 4},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 3, "uniqueItems": True},
        "mood": {"anyOf": [{"type": "string"}, {"const": 7}, {"enum": [True, None]}]},
        "code": {"type": "string", "pattern": "^(a+)+$"},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["targetPlayer", "rank"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}},
}
GOOD: dict[str, Any] = {"targetPlayer": "Victoria", "rank": "7"}


def validator(parameters: dict[str, Any] = CARDS) -> ArgumentValidator:
    return ArgumentValidator({"ask_for_cards": Tool(name="ask_for_cards", description="", parameters=parameters)})


def said(arguments: Any) -> str:
    text = validator().fit("ask_for_cards", arguments).problem
    assert text is not None
    return text


@pytest.mark.parametrize(
    "arguments",
    [
        GOOD,
        GOOD | {"count": 4},
        GOOD | {"count": 2.0},
        GOOD | {"notes": ["a"], "mood": 7, "code": "aaa", "where": {"x": 1.5, "y": "more"}},
    ],
)
def test_valid_arguments_pass(arguments: dict[str, Any]) -> None:
    assert validator().fit("ask_for_cards", arguments).problem is None


def test_an_undeclared_tool_is_not_judged() -> None:
    assert validator().fit("roll_dice", {"anything": object}).problem is None


@pytest.mark.requirement("L45", "L49")
def test_a_missing_argument_is_named_with_its_type_and_description() -> None:
    assert said({"rank": "7"}) == (
        "Invalid arguments for 'ask_for_cards': at /targetPlayer: missing; it is required"
        " (string: the name of the player to ask)."
    )


@pytest.mark.requirement("L46", "L49")
def test_a_value_outside_the_choices_is_shown_with_the_choices() -> None:
    assert said(GOOD | {"rank": "Q7"}) == (
        """Invalid arguments for 'ask_for_cards': at /rank: 'Q7' is not allowed; allowed are "2", "3", "7", "K"."""
    )


@pytest.mark.requirement("L46")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"count": 9}, "at /count: 9 is too large; at most 4 is allowed"),
        ({"count": 0}, "at /count: 0 is too small; at least 1 is allowed"),
        ({"count": "2"}, "at /count: '2' is not allowed; it must be an integer"),
        ({"count": True}, "at /count: true is not allowed; it must be an integer"),
        ({"targetPlayer": ""}, "at /targetPlayer: '' is too short; at least 1 characters are allowed"),
        ({"notes": ["a", 2]}, "at /notes/1: 2 is not allowed; it must be a string"),
        ({"notes": ["a", "b", "c", "d"]}, "at /notes: an array (4 items) has too many items; at most 3 are allowed"),
        ({"notes": ["a", "a"]}, "at /notes: has an item twice"),
        ({"mood": []}, "at /mood: an array (0 items) is not allowed; it must be a string or 7 or one of true, null"),
        ({"code": "b"}, "at /code: 'b' is not allowed; it must match the pattern"),
        ({"where": {}}, "at /where/x: missing; it is required (number)"),
        ({"player/~": 1}, "at /player~1~0: is not a known argument; known are \"targetPlayer\", \"rank\""),
    ],
)  # fmt: skip
def test_each_kind_of_problem_says_where_what_and_what_is_allowed(arguments: dict[str, Any], expected: str) -> None:
    assert expected in said(GOOD | arguments)


@pytest.mark.parametrize(("arguments", "shown"), [([], "an array (0 items)"), (None, "null"), ("x", "'x'")])
def test_arguments_that_are_no_object_are_refused(arguments: Any, shown: str) -> None:
    assert f"at the top: {shown} is not allowed; it must be an object" in said(arguments)


def test_a_lone_surrogate_is_refused_in_words() -> None:
    assert "not valid Unicode" in said(GOOD | {"rank": "\ud800"})


def test_arguments_nested_too_deeply_are_refused_in_words() -> None:
    deep: Any = {}
    for _ in range(2_000):
        deep = {"x": deep}
    assert "nested too deeply" in said(GOOD | {"where": deep})


def test_a_long_value_is_never_quoted_whole() -> None:
    text = said({"targetPlayer": 1, "rank": "SECRET" * 1_000, "k" * 5_000: 1, "count": 10**5_000})
    assert len(text) <= 1_000
    assert text.count("SECRET") <= 10


def test_at_most_five_problems_are_told() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    text = validator(schema).fit("ask_for_cards", {f"p{n}": n for n in range(50)}).problem
    assert text is not None
    assert text.count("at /p") == 5


def test_huge_wrong_arguments_are_refused_without_listing_every_error() -> None:
    schema = {"type": "object", "properties": {"all": {"type": "array", "items": {"type": "integer"}}}}
    strict, arguments = validator(schema), {"all": ["x"] * 300_000}
    before = time.process_time()
    text = strict.fit("ask_for_cards", arguments).problem
    # Listing takes seconds; the bound is generous because it is the machine's time, not the code's.
    assert time.process_time() - before < 1
    assert text == "Invalid arguments for 'ask_for_cards': at /all/0: 'x' is not allowed; it must be an integer."


def test_a_pattern_cannot_be_made_slow_by_an_argument() -> None:
    before = time.process_time()
    assert "must match the pattern" in said(GOOD | {"code": "a" * 5_000 + "b"})
    assert time.process_time() - before < 1


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=20,
)
ARGUMENTS = JSON | st.fixed_dictionaries({}, optional=dict.fromkeys(CARDS["properties"], JSON))


@given(ARGUMENTS)
def test_whatever_the_arguments_are_the_answer_is_none_or_a_bounded_text(arguments: Any) -> None:
    text = validator().fit("ask_for_cards", arguments).problem
    assert text is None or (len(text) <= 1_000 and text.encode() and not any(map(is_hidden, text)))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], "must be a JSON Schema object"),
        ({}, "it has no `type`; write `type: object`"),
        ({"type": "array"}, "its `type` is 'array'; write `type: object`"),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "at /properties/a/type: 'text' is not a type"),
        ({"type": "object", "properties": {"a": {"minimum": "x"}}}, "at /properties/a/minimum"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "'/nowhere' does not exist"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/s"}}}, "only point inside the same"),
        ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "only point inside the same schema"),
        ({"type": "object", "properties": {"a": {"pattern": "(?<=a)b"}}}, "look-around and back-references"),
        ({"type": "object", "properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}}, "not a usable pattern"),
        ({"type": "object", "properties": {"\ud800": {}}}, "not a valid JSON Schema"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_told_in_words(parameters: Any, expected: str) -> None:
    problem = problems_in_schema(parameters)
    assert problem is not None
    assert expected in problem
    assert len(problem) <= 300


def test_a_usable_schema_has_no_problems() -> None:
    assert problems_in_schema(CARDS) is None
    assert problems_in_schema({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}) is None


def test_a_screen_is_not_made_of_a_broken_schema() -> None:
    with pytest.raises(ValueError, match="tool 'ask_for_cards': parameters must describe an object"):
        validator({"type": "string"})
