"""What needs no second look: whatever `is_simple` lets pass, the slow looks let pass as well."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from gateway.json_values import FEW, LONG, find_fault, is_simple

KEYS = st.text(max_size=5)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=10) | st.just("\ud800")
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=70) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=80
)


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


@given(VALUES)
@example(nested(FEW))
@example({"a": 1.0})
@example({"\ud800": 1})
def test_what_is_simple_has_no_fault_and_is_json_as_it_stands(value: object) -> None:
    if is_simple(value):
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        assert orjson.loads(text) == value
        assert find_fault(value) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "",
        "Grüße",
        2**64 - 1,
        -(2**63),
        [],
        {},
        {"a": [1, {"b": "x" * 100_000}]},
        nested(FEW),
        ["x"] * (FEW - 1),
    ],
)
def test_ordinary_values_are_simple(value: object) -> None:
    assert is_simple(value)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        float("nan"),
        2**64,
        -(2**63) - 1,
        "\udfff",
        {"\ud800": 1},
        {1: 2},
        b"",
        (1,),
        nested(FEW + 1),
        ["x"] * FEW,
        {str(n): n for n in range(FEW)},
    ],
)
def test_whatever_needs_a_closer_look_is_not(value: object) -> None:
    assert not is_simple(value)


def test_a_shallow_limit_is_kept_also_for_simple_values() -> None:
    assert find_fault([nested(4), "x" * LONG], max_depth=4) is not None
