"""The cost of a route with arguments for each call of its tool."""

import timeit
from typing import Any

import orjson
import pytest

from gateway.core.arguments import Fragment
from gateway.core.routing import Approval, Route, Routes, Ruling
from gateway.strict_json import MOST as MOST_MEMBERS
from tests.pace import within

pytestmark = pytest.mark.timing
MOST_SMALL, MOST_LARGE = within(5e-6), within(10e-3)
"""Seconds for one fragment: arguments of a kilobyte, and any of a megabyte."""
AMOUNT = Fragment(
    {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "minimum": 0, "maximum": 99.99},
            "currency": {"enum": ["EUR", "USD"]},
            "note": {"type": "string", "maxLength": 2_000_000},
        },
        "required": ["amount", "currency"],
    }
)
LARGE = {
    "amount": AMOUNT,
    "deep": Fragment(
        {"properties": {"cards": {"items": {"properties": {"rank": {"type": "string", "maxLength": 99}}}}}}
    ),
    "unique": Fragment({"properties": {"cards": {"uniqueItems": True}}}),
    "contains": Fragment({"properties": {"cards": {"contains": {"const": -1}, "minContains": 0}}}),
    "names": Fragment({"propertyNames": {"pattern": "^[a-z0-9-]+$"}}),
    "others": Fragment({"unevaluatedProperties": {"type": ["integer", "string", "array"]}}),
    "pattern": Fragment({"properties": {"note": {"type": "string", "pattern": "^(a|aa)*(b|x)*$"}}}),
}
SMALL: dict[str, Any] = {"amount": 50, "currency": "EUR", "note": "x" * 900, "lines": [{"card": "K"}] * 5}
COMMON: dict[str, Any] = {"amount": 50, "currency": "EUR", "note": ""}
MOST = MOST_MEMBERS - 10
MEGABYTE: dict[str, dict[str, Any]] = {
    "cards": COMMON | {"cards": [{"rank": "K" * 70, "n": n} for n in range(MOST // 3)], "note": "x" * 400_000},
    "numbers": COMMON | {"cards": list(range(MOST)), "note": "x" * 900_000},
    "text": COMMON | {"note": "x" * 1_048_000},
    "wide": COMMON | {f"member-{n}-{'x' * 30}": n for n in range(MOST)},
}
"""Arguments as large as `limits.members` and a megabyte let them be."""


def fastest(fragment: Fragment, arguments: dict[str, Any], number: int) -> float:
    """Return the shortest time of one comparison, in which the arguments fit."""
    assert fragment.fits(arguments)
    return min(timeit.repeat(lambda: fragment.fits(arguments), number=number, repeat=9)) / number


def test_the_examples_have_their_sizes() -> None:
    assert 900 <= len(orjson.dumps(SMALL)) <= 1_024
    assert all(900_000 <= len(orjson.dumps(large)) <= 1_100_000 for large in MEGABYTE.values())


def test_a_fragment_costs_a_small_call_microseconds() -> None:
    assert fastest(AMOUNT, SMALL, 2_000) <= MOST_SMALL


@pytest.mark.parametrize("fragment", LARGE)
@pytest.mark.parametrize("arguments", MEGABYTE)
def test_any_fragment_costs_a_megabyte_milliseconds(fragment: str, arguments: str) -> None:
    assert fastest(LARGE[fragment], MEGABYTE[arguments], 1) <= MOST_LARGE


def test_a_route_with_a_fragment_costs_little_more_than_its_fragment() -> None:
    gated = Routes(
        (
            Route(tool="refund", arguments=AMOUNT, to="billing"),
            Route(tool="refund", to="billing", approve=Approval(), rule="r"),
        )
    )

    def rule() -> object:
        return gated.rule_for(runtime="finn", tool="refund", labels={}, arguments=SMALL)

    assert isinstance(rule(), Ruling)
    assert min(timeit.repeat(rule, number=2_000, repeat=9)) / 2_000 <= 2 * MOST_SMALL
