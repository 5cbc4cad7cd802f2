"""Where a look through the text of an answer says that no secret is in it, none is, however it was written."""

import json
from typing import Any

from hypothesis import example, given, strategies as st

from gateway.executors.webhook.hidden import Hidden

letters = st.sampled_from('ab/"\\\n\té🂡0')
texts = st.text(letters, max_size=6)
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t"}


@st.composite
def written(draw: st.DrawFn, text: str) -> str:
    """Write a text as JSON, each letter in one of the ways that JSON has for it."""
    return '"' + "".join([draw(st.sampled_from(ways(letter))) for letter in text]) + '"'


def ways(letter: str) -> list[str]:
    by_number = json.dumps(letter)[1:-1] if ord(letter) > 127 else f"\\u{ord(letter):04x}"
    plain = [] if letter in '"\\\n\t' else [letter]
    return [*plain, by_number, *([SHORT[letter]] if letter in SHORT else [])]


def holds(value: Any, hidden: str) -> bool:
    match value:
        case dict():
            return any(holds(one, hidden) for pair in value.items() for one in pair)  # pyright: ignore[reportUnknownVariableType]
        case list():
            return any(holds(one, hidden) for one in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return isinstance(value, str) and hidden in value


@given(st.lists(st.text(letters, min_size=1, max_size=4), max_size=3), texts, texts, texts, st.data())
def test_what_surely_is_not_in_a_text_is_not_in_its_value(
    hidden: list[str], key: str, before: str, behind: str, data: st.DataObject
) -> None:
    told = data.draw(st.sampled_from([*hidden, ""]))
    body = f"{{{data.draw(written(key))}: [1, {data.draw(written(before + told + behind))}]}}"
    value = json.loads(body)
    found = any(holds(value, one) for one in hidden)
    assert Hidden(hidden).may_be_in(body.encode()) or not found


@given(texts)
@example("a")
def test_what_was_not_sent_is_never_looked_for(text: str) -> None:
    assert not Hidden().may_be_in(json.dumps(text).encode())


def test_a_plain_answer_needs_no_second_look() -> None:
    hidden = Hidden(["whsec_abc/def+ghi=", "Bearer tok"])
    assert not hidden.may_be_in(b'{"outcome": "success", "result": "one\\ntwo \\"three\\""}')
    assert hidden.may_be_in(b'{"outcome": "success", "result": "whsec_abc\\/def+ghi="}')
    assert hidden.may_be_in(b'{"outcome": "success", "result": "Bearer\\u0020tok"}')
