"""Strict JSON: what would be rounded, cannot be JSON, or is too deep is refused."""

from typing import Any

import pytest

from gateway.executors.webhook.json_body import read_json
from gateway.json_values import MAX_DEPTH


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"null", None),
        (b' {"a": [1, 2.5, "x"]} ', {"a": [1, 2.5, "x"]}),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b'{"id": "123456789012345678901234567890"}', {"id": "123456789012345678901234567890"}),
        (b'["--------------------", 1]', ["--------------------", 1]),
        (b"0.123456789012345678901234567890", 0.12345678901234568),
        (b"[" + b"null," * 200 + b"null]", [None] * 201),
        (b'[{"a":1},' + b'{"a":1},' * 99 + b'{"a":1}]', [{"a": 1}] * 101),
    ],
)
def test_ordinary_json_is_read(body: bytes, value: Any) -> None:
    assert read_json(body)[0] == value


def test_nesting_to_the_limit_is_read() -> None:
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)[0] != []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>canary", "not JSON"),
        (b"NaN", "not JSON"),
        (b'{"a": Infinity}', "not JSON"),
        (b"1e400", "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"canary": 1', "not JSON"),
        (b"[" * 2_000 + b"]" * 2_000, "not JSON"),
        (b"[" * 100_000, "more than 20000 members"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper than 64"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "deeper than 64"),
        (b"18446744073709551616", "beyond 64 bits"),
        (b'{"a": [-9223372036854775809]}', "beyond 64 bits"),
        (b"[" + b"0," * 5_000 + b"-19876543210987654321]", "beyond 64 bits"),
        (b"9" * 10_000, "not JSON|beyond 64 bits"),
    ],
)
def test_everything_else_is_refused_without_being_quoted(body: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read_json(body)
    assert "canary" not in str(caught.value)
