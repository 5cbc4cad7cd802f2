"""How many members a value from outside may have: request bodies, answers of executors, frames of runtimes."""

from collections.abc import Generator

import orjson
import pytest

from gateway.executors.json_body import read_json
from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.ports.members import MEMBERS, MOST
from gateway.ports.values import find_fault


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
    "few commas": [nested(50)] * (MOST // 51 + 1),
}
FEW = {
    "an object": {f"k{number}": number for number in range(MOST)},
    "an array": list(range(MOST)),
    "a text full of commas": {"text": ',{["' * MOST},
    "texts that begin with a colon": [":"] * MOST,
    "keys that begin with a colon": {f":{number}": 1 for number in range(MOST)},
    "a text like keys": {"text": 'a":1,\\":' * MOST},
}


@pytest.mark.parametrize("value", MANY.values(), ids=MANY)
def test_more_members_than_the_bound_are_refused_by_every_door(value: object) -> None:
    raw = orjson.dumps(value)
    with pytest.raises(Refused, match=r"more than 20000 members in all \(limits\.members\)"):
        parse_json(raw)
    with pytest.raises(ValueError, match="with more than 20000 members in all"):
        read_json(raw)
    fault = find_fault(value)
    assert fault is not None
    assert fault.reason == "has more than 20000 members in all"


@pytest.mark.parametrize("value", FEW.values(), ids=FEW)
def test_as_many_as_the_bound_pass_whatever_their_texts_hold(value: object) -> None:
    raw = orjson.dumps(value)
    assert parse_json(raw) == read_json(raw) == value
    assert find_fault(value) is None
