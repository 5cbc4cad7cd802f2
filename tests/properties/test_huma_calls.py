"""A tool call of HUMA is read the same on the short way and on the long one, which an extra field makes it take."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from adapters.huma import HUMA_0_1, HUMA_0_2
from gateway.adapter.port import Adapter, Frame
from gateway.errors import MalformedFrame
from gateway.events import Draft, Loss

EXTRA = Loss(how="dropped", path="/extra", note="unknown field")

texts = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(
    ["null", "__proto__", "constructor", "prototype"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
ids = texts | st.sampled_from(["tc-1", "x" * 1024, "x" * 1025]) | st.none() | st.integers()
payloads = st.fixed_dictionaries(
    {"toolCallId": ids, "toolName": ids},
    optional={"arguments": st.dictionaries(texts, values, max_size=3) | values, "note": values},
)


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def read(adapter: Adapter, payload: dict[str, Any]) -> Draft | str:
    try:
        (draft,) = adapter.codec().decode(Frame("event", payload))
    except MalformedFrame as exc:
        return f"{exc} at {exc.path}"
    return draft


def same_both_ways(adapter: Adapter, payload: dict[str, Any]) -> None:
    payload = {"type": "tool-call", **payload}
    short, long = read(adapter, payload), read(adapter, {**payload, "extra": 1})
    if isinstance(short, str) or isinstance(long, str):
        assert short == long
        return
    assert short.event == long.event
    assert sorted([*short.losses, EXTRA], key=repr) == sorted(long.losses, key=repr)


@pytest.mark.parametrize("adapter", [HUMA_0_1, HUMA_0_2], ids=lambda adapter: adapter.name)
@given(payload=payloads)
def test_a_call_of_any_shape_is_read_the_same_both_ways(adapter: Adapter, payload: dict[str, Any]) -> None:
    same_both_ways(adapter, payload)


@pytest.mark.parametrize("adapter", [HUMA_0_1, HUMA_0_2], ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("levels", [1, 62, 63, 64, 65, 66])
def test_arguments_are_as_deep_as_they_may_be_both_ways(adapter: Adapter, levels: int) -> None:
    same_both_ways(adapter, {"toolCallId": "tc-1", "toolName": "look", "arguments": deep(levels)})
