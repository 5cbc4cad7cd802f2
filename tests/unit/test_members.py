"""How many members a value from outside may have: request bodies, answers of executors, frames of runtimes."""

import asyncio
import json as standard
from collections.abc import Generator
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, strategies as st

from gateway.executors.webhook.json_body import read_json
from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.json_members import MEMBERS, MOST, Members
from gateway.json_values import Malformed, find_fault
from gateway.links import json
from gateway.links.rest import MAX_SHORT


@pytest.fixture(autouse=True)
def _usual() -> Generator[None]:
    MEMBERS.most = MOST
    yield
    MEMBERS.most = MOST


def nested(count: int) -> object:
    """Make a value of so many members that has no comma in it."""
    value: object = 0
    for _ in range(count):
        value = [value]
    return value


MANY = {
    "an object": {f"k{number}": number for number in range(MOST + 1)},
    "far too large an object": {f"k{number}": number for number in range(10 * MOST)},
    "an array": list(range(MOST + 1)),
    "many small ones": [{"a": 1}] * (MOST // 2 + 1),
    "keys that end with a backslash": {f"{number}\\": 1 for number in range(MOST + 1)},
    "few commas": [nested(50)] * (MOST // 51 + 1),
}
FEW: dict[str, object] = {
    "an object": {f"k{number}": number for number in range(MOST)},
    "an array": list(range(MOST)),
    "a text full of commas": {"text": ',{["' * MOST},
    "texts that begin with a colon": [":"] * MOST,
    "keys that begin with a colon": {f":{number}": 1 for number in range(MOST)},
    "a text like keys": {"text": 'a":1,\\":' * MOST},
    "texts that end with a backslash": {f"{number}\\": '\\",{\\' for number in range(MOST)},
    "empty containers": [[], {}] * (MOST // 2),
    "containers of one text": [["a"]] * (MOST // 2),
}


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
def test_more_members_than_the_bound_are_refused_by_every_door(value: object) -> None:
    raw = orjson.dumps(value)
    with pytest.raises(Refused, match=r"more than 20000 members in all \(limits\.members\)"):
        parse_json(raw)
    with pytest.raises(ValueError, match=r"with more than 20000 members in all \(limits\.members\)"):
        read_json(raw)
    for read in (json.loads(raw), json.salvage(raw.decode()), json.read(raw.decode())):
        assert isinstance(read, Malformed)
        assert read.reason == "has more than 20000 members in all (limits.members)"
    fault = find_fault(value)
    assert fault is not None
    assert fault.reason == "has more than 20000 members in all (limits.members)"


@pytest.mark.parametrize("value", FEW.values(), ids=FEW)
def test_as_many_as_the_bound_pass_whatever_their_texts_hold(value: object) -> None:
    raw = orjson.dumps(value)
    assert parse_json(raw) == read_json(raw)[0] == json.loads(raw) == json.loads(raw.decode()) == value
    assert find_fault(value) is None


@pytest.mark.parametrize("layout", [{"indent": 1}, {"separators": (" , ", " : ")}, {"indent": "\t"}])
def test_white_space_neither_hides_members_nor_makes_any(layout: dict[str, Any]) -> None:
    for count, is_refused in ((MOST // 2 - 2, False), (MOST // 2 - 1, True)):
        value: list[object] = [{f"k{number}": ["x, y"] for number in range(count)}, [[]], 1]
        assert (MEMBERS.too_many(standard.dumps(value, **layout)) is not None) == is_refused


@given(
    st.recursive(st.text('"\\,:[]{} a') | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_members_are_counted_to_the_last_one(value: object) -> None:
    members = Members()
    raw = orjson.dumps(value)
    # So short a text is never counted with the usual bound, and this one counts any.
    members.most = count_of(value)
    assert members.too_many(raw) is None
    members.most -= 1
    assert members.most < 0 or len(raw) <= 2 * members.most or members.too_many(raw) is not None


def count_of(value: object) -> int:
    inner: list[object] = []
    if isinstance(value, dict):
        inner = list(cast("dict[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    return len(inner) + sum(map(count_of, inner))


@pytest.mark.parametrize("around", ["%s", '{"n": [1], "events": %s, "more": {"a": {}}}'])
async def test_each_event_of_an_answer_is_bounded_by_itself(around: str) -> None:
    full = {"text": '},{"', "more": {f"k{number}": number for number in range(MOST - 2)}}
    over = {f"k{number}": number for number in range(MOST + 1)}
    said: list[object] = [full, over, 1, full, [], "[]", full]
    answer = await json.read_answer(around.encode() % orjson.dumps(said))
    events = cast("list[object]", answer if isinstance(answer, list) else answer["events"])
    assert events == [*said[:1], Malformed("has more than 20000 members in all (limits.members)"), *said[2:]]
    assert isinstance(answer, list) or (answer["n"], answer["more"]) == ([1], {"a": {}})


async def test_an_answer_that_is_too_much_around_its_events_is_not_read() -> None:
    answer = await json.read_answer(orjson.dumps({"events": [{}] * MOST, "more": list(range(MOST))}))
    assert isinstance(answer, Malformed)


BROKEN = {
    "a text without end": '[{"b":"' + "x" * MAX_SHORT,
    "much behind it": "]]" + " " * MAX_SHORT,
    "cut off": '{"a":[{"b":',
    "one bracket too many": '[{"b":1}]]]',
    "one bracket too few": '[{"b":1}]',
}


@pytest.mark.parametrize("cut", BROKEN.values(), ids=BROKEN)
async def test_a_broken_answer_of_many_members_is_a_value_and_no_exception(cut: str) -> None:
    text = "[" + "[1]," * MOST * 2 + cut
    async with asyncio.timeout(60):
        assert isinstance(await json.read_answer(text.encode()), Malformed)
