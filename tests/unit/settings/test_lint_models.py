"""What model APIs refuse in a tool, and for whom."""

from typing import Any

import pytest
import yaml

from tests.unit.settings.conftest import Complain, Load

RUNTIMES = """\
api: {keys: [{name: a, key: 0123456789abcdef}]}
runtimes:
  pip: {adapter: pigeon, url: "http://loft", api_key: corn, loft: "7"}
  bob: {adapter: pigeon, url: "http://loft", api_key: corn, loft: "8"}
executors: {cards: {type: static}}
"""


def written(tools: dict[str, Any], route: str = '{match: {tool: "*"}, to: cards}') -> str:
    """Write a file whose first lines are its tools."""
    declared = {name: {"description": "Does it.", **tool} for name, tool in tools.items()}
    return yaml.safe_dump({"tools": declared}, allow_unicode=True) + RUNTIMES + f"routes: [{route}]\n"


def refused(complaints: Complain, name: str, schema: dict[str, Any] | None = None) -> str:
    """Say which APIs refuse a tool; of one thing in it at most."""
    tool = {} if schema is None else {"parameters": {"type": "object", **schema}}
    found = complaints(written({name: tool}))
    assert len(found) <= 1, found
    if not found:
        return ""
    assert "warning: tools" in found[0]
    assert "each request that lists the tool, for agents of pip, bob; " in found[0]
    return found[0].split(": ", 3)[3].split(" refuse")[0]


@pytest.mark.parametrize(
    ("name", "apis"),
    [
        ("ask_for-cards_7", ""),
        ("a" * 64, ""),
        ("_private", ""),
        ("größe", "OpenAI, Anthropic and Gemini"),
        ("a b", "OpenAI, Anthropic and Gemini"),
        ("slash/tool", "OpenAI, Anthropic and Gemini"),
        ("new\nline", "OpenAI, Anthropic and Gemini"),
        ("trailing\n", "OpenAI, Anthropic and Gemini"),
        ("dotted.name", "OpenAI and Anthropic"),
        ("with:colon", "OpenAI and Anthropic"),
        ("a" * 65, "OpenAI and Gemini"),
        ("a" * 90, "OpenAI and Gemini"),
        ("a" * 128, "OpenAI and Gemini"),
        ("7up", "Gemini"),
        ("-dash", "Gemini"),
    ],
)
def test_a_name_is_held_to_the_rules_of_each_api(complaints: Complain, name: str, apis: str) -> None:
    assert refused(complaints, name) == apis


OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}


SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"oneOf": [OBJECT]}, "OpenAI and Anthropic"),
    ({"anyOf": [{"required": ["a"]}]}, "OpenAI and Anthropic"),
    ({"allOf": [OBJECT]}, "OpenAI and Anthropic"),
    ({"not": {"required": ["a"]}}, "OpenAI"),
    ({"enum": [{}]}, "OpenAI"),
    ({"const": {}}, "OpenAI"),
    ({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "number"}]}}}, ""),
    ({"properties": {"oneOf": {"type": "string"}, "type": {"type": "string"}}}, ""),
    ({"properties": {"größe": {"type": "string"}}}, "Anthropic"),
    ({"properties": {"filter[id]": {"type": "string"}}}, "Anthropic"),
    ({"properties": {"a" * 65: {"type": "string"}}}, "Anthropic"),
    ({"properties": {"a.b-c_d": {"type": "string"}}}, ""),
    ({"properties": {"a": {"type": "array"}}}, "OpenAI and Gemini"),
    ({"properties": {"a": {"type": ["array", "null"]}}}, "OpenAI and Gemini"),
    ({"properties": {"a": {"type": "array", "items": {"type": "array"}}}}, "OpenAI and Gemini"),
    ({"properties": {"a": {"anyOf": [{"type": "array"}, {"type": "string"}]}}}, "OpenAI and Gemini"),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "array"}}}, "OpenAI and Gemini"),
    ({"properties": {"a": {"type": "array", "items": {}}}}, ""),
    ({"properties": {"a": {"enum": [{"type": "array"}]}, "b": {"default": {"type": "array"}}}}, ""),
    ({"properties": {"a": True, "items": {"type": "string"}}}, ""),
]


@pytest.mark.parametrize(("schema", "apis"), SCHEMAS)
def test_a_schema_is_held_to_the_rules_of_each_api(complaints: Complain, schema: dict[str, Any], apis: str) -> None:
    assert refused(complaints, "tool", schema) == apis


def test_a_fault_is_reported_at_its_line(complaints: Complain) -> None:
    text = (
        RUNTIMES
        + """\
routes: [{match: {tool: "*"}, to: cards}]
tools:
  deep:
    description: Deep.
    parameters:
      type: object
      properties:
        list:
          type: array
      oneOf: [{required: [list]}]
"""
    )
    first, second = complaints(text)
    assert first.startswith("13: warning: tools.deep.parameters.properties.list: OpenAI and Gemini refuse an array")
    assert second.startswith("15: warning: tools.deep.parameters.oneOf: OpenAI and Anthropic refuse `oneOf`")


@pytest.mark.parametrize(
    ("route", "agents"),
    [
        ('{match: {tool: "a *", runtime: bob}, to: cards}', "agents of bob"),
        ('{match: {tool: "*", label: {team: shop}}, to: cards}', "agents of pip, bob"),
        ("{match: {tool: other}, to: cards}", "every agent that gets it"),
    ],
)
def test_it_names_the_runtimes_that_get_the_tool(complaints: Complain, route: str, agents: str) -> None:
    (found,) = [line for line in complaints(written({"a b": {}}, route)) if "refuse" in line]
    assert f"for {agents}; use 1 to 64" in found


def test_five_hundred_tools_with_many_faults_are_a_few_lines(load_text: Load) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a b": {"type": "array"}, "ü": {"type": "string"}},
        "oneOf": [{}],
    }
    tools = {f"tool {n} ü": {"description": "", "parameters": schema} for n in range(500)}
    problems = load_text(written(tools)).problems
    assert len(problems) == 25
    assert sum("(and 495 more like this)" in one.message for one in problems) == 4
    assert sum("(and 995 more like this)" in one.message for one in problems) == 1
    assert all(len(one.message) < 300 for one in problems)


def test_five_faults_of_one_text_have_a_line_each(load_text: Load) -> None:
    problems = load_text(written({f"a {n}": {} for n in range(5)})).problems
    assert [one.path for one in problems] == [f"tools['a {n}']" for n in range(5)]
    assert not any("more like this" in one.message for one in problems)


def test_no_tool_has_the_label_of_undeclared_ones(complaints: Complain) -> None:
    assert complaints(written({"_other": {}})) == [
        "2: tools._other: metrics count undeclared tools under this name; use another one"
    ]
    assert complaints(written({"other": {}})) == []
