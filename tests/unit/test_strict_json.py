"""Strict JSON: the limits of values from outside, and the same answer of every reader."""

import json
from collections.abc import Generator
from typing import Any, cast
from uuid import UUID

import orjson
import pytest
from hypothesis import example, given, strategies as st

from gateway.executors.webhook.answers import read_json
from gateway.http.body import parse_json
from gateway.http.errors import Refused
from gateway.links import json as link_json
from gateway.strict_json import (
    MAX_DEPTH,
    MEMBERS,
    MOST,
    Fault,
    Malformed,
    Unreadable,
    find_fault,
    read_and_write,
    read_strictly,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) - 2, 2**64 + 2)
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["[[[[", "}}]]", '"', "\\", "\\u00", "\x7f", "é", "1" * 25])
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=70) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=80,
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
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def integers_of(value: Any) -> list[int]:
    own = [value] if type(value) is int else []
    return own + [number for inner in inside(value) for number in integers_of(inner)]


def levels_of(value: Any) -> int:
    return 1 + max(map(levels_of, inside(value)), default=0) if isinstance(value, dict | list) else 0


def count_of(value: Any) -> int:
    inner = inside(value)
    return len(inner) + sum(map(count_of, inner))


def fault_of(text: str) -> str | None:
    try:
        read_strictly(text)
    except Unreadable as exc:
        return exc.fault
    return None


@pytest.fixture(autouse=True)
def _usual_limit() -> Generator[None]:
    yield
    MEMBERS.get().most = MOST


@given(TEXTS)
@example('"' + "1" * 20 + '"')
@example('["' + "-" * 30 + '", 1.00000000000000000000001]')
@example("[-9223372036854775808,18446744073709551615]")
@example("[18446744073709551616]")
@example("[-9223372036854775809,1e20,100000000000000000000]")
@example(json.dumps(nested(MAX_DEPTH)))
@example(json.dumps(nested(MAX_DEPTH + 1)))
def test_a_value_is_read_as_python_reads_it_or_refused_for_its_fault(text: str) -> None:
    known = json.loads(text)
    fault = fault_of(text)
    if fault is None:
        value, written = read_and_write(text)
        assert written == orjson.dumps(value) == orjson.dumps(known)
        assert read_strictly(text.encode()) == value
        assert find_fault(value) is None
    if fault == "syntax":
        assert "NaN" in text or "Infinity" in text
    else:
        is_huge = any(not -(2**63) <= number < 2**64 for number in integers_of(known))
        assert fault == ("depth" if levels_of(known) > MAX_DEPTH else "integer" if is_huge else None)


@given(st.integers(15, 45), st.sampled_from(["", "-", "a", "a-", "1.", '"', '",']), st.integers(0, 4))
def test_a_huge_integer_is_found_in_any_place(digits: int, before: str, spaces: int) -> None:
    number = before.replace('"', "") + "1" * digits
    is_number = before in {"", "-", "1."}
    head = " " * spaces + '["a' + "1" * 25 + '",'
    fault = fault_of(head + (number if is_number else json.dumps(number)) + ',"é"]')
    assert (fault == "integer") == (before in {"", "-"} and not -(2**63) <= int(number) < 2**64)


@pytest.mark.requirement("A37")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "syntax"),
        ("<html>canary", "syntax"),
        ('{"canary": 1', "syntax"),
        ("NaN", "syntax"),
        ('{"a": Infinity}', "syntax"),
        ("1e400", "syntax"),
        ('"\\ud800"', "syntax"),
        ("[" * 100_000, "syntax"),
        ("[" * 2_000 + "]" * 2_000, "syntax"),
        ("[" * 65 + "]" * 65, "depth"),
        ('{"a":' * 500 + "1" + "}" * 500, "depth"),
        ("18446744073709551616", "integer"),
        ('{"n": [-9223372036854775809]}', "integer"),
        ("[" + "0," * 5_000 + "-19876543210987654321]", "integer"),
        ("1" + "0" * 30, "integer"),
        ("[" + "0," * MOST + "0]", "members"),
        ('{"a":[' + "[]," * MOST + "0]}", "members"),
    ],
)
def test_every_reader_refuses_a_text_and_quotes_nothing_of_it(text: str, fault: str) -> None:
    assert fault_of(text) == fault
    with pytest.raises(ValueError, match=r".") as caught:
        read_json(text.encode())
    assert "canary" not in str(caught.value)
    with pytest.raises(Refused):
        parse_json(text.encode())
    for read in (link_json.loads(text), link_json.loads(text.encode())):
        assert isinstance(read, Malformed)
        assert len(read.excerpt) <= link_json.EXCERPT
        orjson.dumps([read.reason, read.excerpt])


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(Unreadable):
        read_strictly(b'"\xff\xfe"')


def test_of_equal_keys_the_last_one_counts() -> None:
    assert read_strictly('{"a": 1, "a": 2}') == {"a": 2}


@given(VALUES)
def test_members_are_counted_to_the_last_one(value: Any) -> None:
    text = json.dumps(value)
    if fault_of(text) is None:
        MEMBERS.get().most = count_of(value)
        assert fault_of(text) is None
        MEMBERS.get().most -= 1
        assert MEMBERS.get().most < 0 or fault_of(text) == "members"
        MEMBERS.get().most = MOST


def test_commas_and_brackets_in_texts_are_no_members() -> None:
    for value in ({"text": ',{["' * MOST}, [":"] * MOST, {f"{number}\\": '\\",{\\' for number in range(MOST)}):
        assert read_strictly(orjson.dumps(value)) == value


@pytest.mark.parametrize("key", ["__proto__", "constructor", "prototype"])
def test_a_key_is_a_fault_only_if_it_is_forbidden(key: str) -> None:
    forbidden = frozenset({"__proto__", "constructor", "prototype"})
    text = {"code": f'{{"{key}": this.{key}}}', f" {key}": key, f"{key} ": [key, {"a": key}]}
    assert find_fault({**text, key: 1}) is None
    assert find_fault(text, forbidden=forbidden) is None
    fault = find_fault([{"a": {**text, key: 1}}], "/x", forbidden=forbidden)
    assert fault == Fault(f"has the forbidden key {key!r}", f"/x/0/a/{key}")


@pytest.mark.parametrize("odd", [UUID(int=1), b"", {1: 2}, {1}, 2**64, "\ud800", float("nan"), float("inf")])
@pytest.mark.parametrize("beside", [None, [0] * 100, (1, 2)])
def test_a_fault_is_found_with_its_place(odd: Any, beside: Any) -> None:
    assert find_fault([beside, None]) is None
    fault = find_fault([beside, odd])
    assert fault is not None
    assert fault.path == "/1"


@pytest.mark.parametrize("levels", [1, 2, 63, 64, 65, 253, 256, 900])
@pytest.mark.parametrize("wide", [0, 100])
@pytest.mark.parametrize("most", [2, 64, 253, 300])
def test_levels_are_counted(levels: int, wide: int, most: int) -> None:
    value = nested(levels, wide=wide)
    assert (find_fault(value, max_depth=most) is not None) == (max(levels, 1 + bool(wide)) > most)


def test_a_value_that_holds_itself_is_a_fault() -> None:
    endless: list[object] = []
    endless.extend([endless, endless])
    assert find_fault(endless) is not None


@pytest.mark.parametrize("around", ["%s", '{"n": [1], "events": %s, "more": {"a": {}}}'])
async def test_each_event_of_an_answer_is_checked_by_itself(around: str) -> None:
    full = {"text": '},{"', "more": {f"k{number}": number for number in range(MOST - 2)}}
    over = {f"k{number}": number for number in range(MOST + 1)}
    given_events: list[object] = [full, over, 1, [], "[]", full, "\ud800", 2**70]
    text = around % json.dumps(given_events)
    answer: Any = await link_json.read_answer(text.encode())
    events = cast("list[Any]", answer) if isinstance(answer, list) else answer["events"]
    assert events == [
        full, Malformed(f"has {MEMBERS.get().explain()}"), 1, [], "[]", full,
        Malformed("holds a lone surrogate"), Malformed("is an integer beyond 64 bits"),
    ]  # fmt: skip
    assert isinstance(answer, list) or (answer["n"], answer["more"]) == ([1], {"a": {}})


@pytest.mark.parametrize("cut", ['[{"b":"x', '{"a":[{"b":', '[{"b":1}]]]', "", "[" * 50_000, "1" * 5_000])
async def test_a_broken_answer_is_a_value_and_no_exception(cut: str) -> None:
    assert isinstance(await link_json.read_answer(cut.encode()), Malformed)
