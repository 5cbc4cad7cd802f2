"""A secret is found however it is written, and where a look through an answer says that none is in it, none is."""

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, strategies as st

from dragoman.hidden import Hidden

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


def in_small_hex(text: str) -> str:
    return "%".join(part[:2].lower() + part[2:] if number else part for number, part in enumerate(text.split("%")))


WRITERS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "a path": quote,
    "a query": lambda text: quote(text, safe=""),
    "a form": quote_plus,
    "a path in small hex": lambda text: in_small_hex(quote(text)),
    "a query in small hex": lambda text: in_small_hex(quote(text, safe="")),
    "a query in hex of both kinds": lambda text: in_small_hex(quote(text[:4], safe="")) + quote(text[4:], safe=""),
    "JSON": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON in ASCII": lambda text: json.dumps(text)[1:-1],
    "JSON as PHP writes it": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON as Go writes it": lambda text: json.dumps(text)[1:-1].replace("&", "\\u0026").replace("<", "\\u003C"),
}


@given(
    st.text(st.sampled_from("aB3/+= \"'\\&<~*%.-\n\x1b\u2028é🂡"), min_size=1, max_size=12),
    st.sampled_from(sorted(WRITERS)),
)
@example("aaaa/bbbb+cccc==", "a query in small hex")
@example("\\" * 12, "JSON")
def test_a_secret_is_masked_in_percent_and_json_form(secret: str, writer: str) -> None:
    written = WRITERS[writer](secret)
    hidden = Hidden([secret])
    assert hidden.mask(f"({written})") == "(***)"
    assert hidden.may_be_in(json.dumps({"error": written}).encode())


@given(secret=st.text(min_size=9, max_size=40), before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_a_secret_is_masked_in_base64_form(secret: str, before: bytes, after: bytes) -> None:
    for encode in (b64encode, urlsafe_b64encode):
        written = encode(before + secret.encode() + after).decode()
        masked = Hidden([secret]).mask(written)
        # What is left is the text around, and a character at each end that also holds bits of it.
        assert "***" in masked
        assert len(masked) <= len("***") + 12
        assert Hidden([secret]).may_be_in(written.encode())


def test_the_tokens_of_the_gateway_are_masked_by_their_form() -> None:
    assert Hidden().mask("token=dtt_abc-_1 and whsec_abc+/=") == "token=*** and ***"


@pytest.mark.parametrize("text", ["ab%2Gcd", "ab%2F", "ab cd", "AB/CD", "AB%2FCD", "%61b%2Fcd", "ab//cd"])
def test_what_is_no_spelling_is_left_alone(text: str) -> None:
    assert Hidden(["ab/cd"]).mask(text) == text


def test_of_two_secrets_one_of_which_begins_the_other_the_whole_goes() -> None:
    assert Hidden(["abc/", "", "abc/def"]).mask("abc%2fdef abc/d") == "*** ***d"
    assert Hidden([""]).mask("text") == Hidden().mask("text") == "text"
