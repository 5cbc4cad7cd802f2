"""The strict reader and its looks at a text: they let pass, and refuse, just what a walk through all of it does."""

import json
from typing import Any
from weakref import ref

import orjson
import pytest
from hypothesis import example, given, strategies as st

from gateway.json_reading import Unreadable, read_and_write, read_strictly
from gateway.json_values import LONG, MAX_DEPTH, Fault, find_fault, has_more_levels, nests_deeper, write_within

ODD = st.sampled_from(
    ["__proto__", "constructor", "prototype", "proto", "[[[[", "}}]]", '"', "\\", "\\u00", "\x7f", "é"]
)
KEYS = st.text(max_size=5) | ODD
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) - 2, 2**64 + 2)
    | st.floats()
    | st.text(max_size=10)
    | ODD
    | st.just("x" * LONG)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=70) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=80
)


def write(value: Any, ensure_ascii: bool, spaced: bool) -> str:
    separators = (" , ", " : ") if spaced else (",", ":")
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators)


TEXTS = st.builds(write, VALUES, st.booleans(), st.booleans())


def nested(levels: int, *, wide: int = 0) -> Any:
    value: Any = [[] for _ in range(wide)]
    for _ in range(levels - 1 - bool(wide)):
        value = {"a": value} if levels % 2 else [value]
    return value


def inside(value: Any) -> list[Any]:
    kind = value.__class__
    return list(value.values()) if kind is dict else value if kind is list else []


def has_fault(value: Any, depth: int) -> bool:
    """Walk through all of it."""
    kind = value.__class__
    if kind not in {dict, list}:
        return False
    return depth == 0 or any(has_fault(inner, depth - 1) for inner in inside(value))


def integers_of(value: Any) -> list[int]:
    own = [value] if type(value) is int else []
    return own + [number for inner in inside(value) for number in integers_of(inner)]


def read(text: str, *, max_depth: int = MAX_DEPTH) -> tuple[Any, str | None]:
    try:
        return read_strictly(text, max_depth=max_depth), None
    except Unreadable as exc:
        return None, exc.fault


@given(TEXTS)
@example('"' + "1" * 20 + '"')
@example('["' + "-" * 30 + '", 1.00000000000000000000001]')
@example("[-9223372036854775808,18446744073709551615]")
@example("[18446744073709551616]")
@example("[-9223372036854775809,1e20,100000000000000000000]")
def test_what_is_read_is_what_everybody_reads_and_no_number_is_another_one(text: str) -> None:
    known = json.loads(text)
    value, fault = read(text)
    if fault == "syntax":
        assert "NaN" in text or "Infinity" in text
    elif fault is None:
        assert orjson.dumps(value) == orjson.dumps(known)
        assert read_strictly(text.encode()) == value
    huge = any(not -(2**63) <= number < 2**64 for number in integers_of(known))
    assert (fault == "integer") == huge or fault in {"syntax", "depth"}


@given(TEXTS)
@example('{"a": "\\u00e9"}')
@example(json.dumps(nested(MAX_DEPTH)))
@example(json.dumps(nested(MAX_DEPTH + 1)))
@example(json.dumps(["]" * 200, nested(MAX_DEPTH)]))
@example(json.dumps({"constructor": "x" * LONG}))
def test_what_is_plain_has_no_fault(text: str) -> None:
    value, fault = read(text, max_depth=256)
    if fault is not None:
        return
    assert (find_fault(value) is not None) == has_fault(value, MAX_DEPTH)
    written = read_and_write(text, max_depth=256)[1]
    assert written is None or (written == orjson.dumps(value) and not has_fault(value, MAX_DEPTH))


def test_ordinary_values_of_any_size_are_plain() -> None:
    cards = [{"id": number, "seen_by": None, "at": {"x": 1.5}, "name": "seven of hearts"} for number in range(1_000)]
    for value in ({"rank": "7"}, {"cards": cards}, {"text": "a [list] of {things}: __init__, " * 1_000}):
        assert read_and_write(json.dumps(value)) == (value, orjson.dumps(value))


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
@pytest.mark.parametrize("count", [1, 100])
def test_a_key_is_a_fault_only_for_who_forbids_it(key: str, count: int) -> None:
    forbidden = frozenset({"__proto__", "constructor", "prototype"})
    text = {"code": [f'{{"{key}": this.{key}}}'] * count, f" {key}": key, f"{key} ": [key, {"a": key}]}
    for value in (text, {**text, key: 1}, [{"a": {**text, key: 1}}]):
        assert read_and_write(json.dumps(value)) == (value, orjson.dumps(value))
        assert find_fault(value) is None
    assert find_fault(text, forbidden=forbidden) is None
    assert find_fault([{"a": {**text, key: 1}}], "/x", forbidden=forbidden) == Fault(
        f"has the forbidden key {key!r}", f"/x/0/a/{key}"
    )


@pytest.mark.parametrize("levels", [1, 2, 63, 64, 65, 253, 254, 255, 256, 257, 900])
@pytest.mark.parametrize("wide", [0, 100])
@pytest.mark.parametrize("most", [2, 64, 253, 254, 255, 256, 300])
def test_levels_are_counted_without_a_walk(levels: int, wide: int, most: int) -> None:
    value = nested(levels, wide=wide)
    real = max(levels, 1 + bool(wide))
    assert nests_deeper(value, most) == has_more_levels(value, most) == (real > most)


def test_what_was_measured_is_let_go_of() -> None:
    class Strange:
        pass

    value = [Strange()]
    known = ref(value[0])
    assert write_within([[1]], MAX_DEPTH) == b"[[1]]"
    assert write_within(value, MAX_DEPTH) is None
    del value
    assert known() is None
    assert write_within([[2]], MAX_DEPTH) == b"[[2]]"


@given(st.integers(15, 45), st.sampled_from(["", "-", "a", "a-", "1.", '"', '",']), st.integers(0, 4), st.booleans())
def test_a_huge_integer_is_found_wherever_it_stands(digits: int, before: str, place: int, wide: bool) -> None:
    number = before.replace('"', "") + "1" * digits
    is_number = before in {"", "-", "1."}
    # An id of digits is no number, and what comes behind it is still looked at.
    head = " " * place + '["a' + "1" * 25 + '",' + "0.5," * (LONG if wide else 0)
    text = head + (number if is_number else json.dumps(number)) + ',"é"]'
    _, fault = read(text)
    assert (fault == "integer") == (before in {"", "-"} and not -(2**63) <= int(number) < 2**64)
