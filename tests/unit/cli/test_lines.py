"""Events as single lines: what tells of each kind, and nothing that could steer a terminal."""

from typing import Any
from unicodedata import category

import pytest
from hypothesis import given, strategies as st

from gateway.cli.lines import attempt_line, clean, event_line

AT = "2026-11-20T12:00:00.123456+00:00"


def line(said: dict[str, Any], *, plain: bool = False, **more: Any) -> str:
    item = {"recorded_at": AT, "sequence": 7, "direction": "from_runtime", "origin": {}, "event": said, **more}
    return event_line(item, plain=plain).plain


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"kind": "message.posted", "author": {"role": "agent", "name": "Finn"}, "content": "Hi"}, "Finn: Hi"),
        ({"kind": "message.posted", "content": [{"type": "image", "url": "x"}], "complete": False},
         '?: {"type": "image", "url": "x"} (cut off)'),
        ({"kind": "context.updated", "name": "deal", "context": {"a": 1}}, 'deal: {"a": 1}'),
        ({"kind": "tool.requested", "tool": "ls", "arguments": {"p": "/"}, "runs_in": "runtime"},
         'ls {"p": "/"} (done by the runtime)'),
        ({"kind": "tool.requested", "tool": "x", "problem": "no arguments"}, "x {} problem=no arguments"),
        ({"kind": "tool.finished", "tool": "x", "outcome": "failure", "error": "Why", "unknown": True},
         "x failure (unknown) Why"),
        ({"kind": "tool.finished", "native_call_id": "n", "outcome": "success"}, "n success null"),
        ({"kind": "tool.canceled", "native_call_id": "n", "reason": "late"}, "n late"),
        ({"kind": "approval.asked", "tool": "rm", "arguments": {}}, "rm {}"),
        ({"kind": "question.asked", "text": "Which?", "choices": ["a", "b"]}, "Which? [a, b]"),
        ({"kind": "secret.supplied", "purpose": "sudo", "value": "**********"}, "sudo ***"),
        ({"kind": "message.confirmed", "index": 2, "delivered": False, "error": "no"}, "message 2 not delivered no"),
        ({"kind": "session.moved", "state": "idle", "reason": "done"}, "idle reason=done"),
        ({"kind": "approval.given", "id": "a", "decision": "deny"}, "id=a decision=deny"),
        ({"kind": "invented.later", "what": {"x": [1]}, "nothing": None}, 'what={"x": [1]}'),
    ],
)  # fmt: skip
def test_a_line_tells_the_facts(event: dict[str, Any], told: str) -> None:
    assert line(event).rstrip().endswith(f" {told}")


def test_a_runtimes_own_side_of_a_call_says_which_call_it_is() -> None:
    own = {"kind": "tool.finished", "tool": "call_tool_mcp", "outcome": "success"}
    assert line(own, linked_to="c\x1b[2J-1").endswith("call_tool_mcp success null  [is call c\\x1b[2J-1]")
    linked = {"kind": "call.linked", "native_call_id": "8", "tool": "ask", "call_id": "c-1"}
    told = line(linked, direction="to_runtime", origin=None)
    assert " · call.linked " in told
    assert told.endswith("native_call_id=8 tool=ask call_id=c-1")


@pytest.mark.parametrize(
    ("more", "plain", "arrow"),
    [
        ({}, False, "←"),
        ({}, True, "<-"),
        ({"direction": "to_runtime", "origin": None}, False, "→"),
        ({"origin": None}, False, "·"),
        ({"event": {"kind": "delivery.settled"}, "direction": "to_runtime"}, False, "·"),
        ({"live": True, "origin": None}, False, "←"),
    ],
)
def test_an_arrow_says_from_where_to_where(more: dict[str, Any], plain: bool, arrow: str) -> None:
    assert f" {arrow} " in line({"kind": "opaque"}, plain=plain, **more)[12:24]


def test_what_was_lost_is_told_at_the_end() -> None:
    losses = [{"how": "dropped", "path": "/x", "note": ""}, {"how": "narrowed", "path": "", "note": "too long"}]
    assert line({"kind": "opaque"}, losses=losses).endswith("  [dropped: /x]  [narrowed: too long]")


def test_a_moment_that_is_none_does_not_stop_the_line() -> None:
    assert line({"kind": "opaque"}, recorded_at="yesterday").startswith("??:??:??.???")


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ({"n": 1, "ended_at": AT, "status": 200, "unsure": False, "sent": True}, "attempt 1; 0.000 s; status 200"),
        ({"n": 2, "ended_at": None}, "attempt 2; no end recorded"),
        ({"n": 2, "ended_at": AT, "sent": False, "reason": "no\nconnection"},
         "attempt 2; 0.000 s; not sent; no connection"),
        ({"n": 3, "ended_at": "yesterday", "unsure": True, "due_at": "soon"},
         "attempt 3; no end recorded; may have run; next at ??:??:??.???"),
    ],
)  # fmt: skip
def test_an_attempt_is_one_line(attempt: dict[str, Any], told: str) -> None:
    written = attempt_line({"started_at": AT, **attempt}).plain
    assert written.partition(" ")[2] == told


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_KINDS = st.sampled_from(
    ["message.posted", "context.updated", "tool.requested", "tool.finished", "tool.canceled", "question.asked",
     "message.confirmed", "session.moved", "secret.supplied", "turn.steered", "opaque", "invented.later"]
)  # fmt: skip
_FIELDS = st.sampled_from(
    ["author", "content", "name", "context", "description", "tool", "arguments", "outcome", "error", "result",
     "native_call_id", "reason", "text", "choices", "index", "delivered", "state", "x"]
)  # fmt: skip


@given(kind=_KINDS, fields=st.dictionaries(_FIELDS | st.text(), _JSON), losses=_JSON)
def test_whatever_an_event_holds_it_is_one_line_that_steers_no_terminal(
    kind: str, fields: dict[str, Any], losses: Any
) -> None:
    written = line({**fields, "kind": kind}, losses=losses)
    assert len(written.splitlines()) == 1
    assert not {category(letter) for letter in written} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(written) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069")


def test_a_long_text_is_cut() -> None:
    assert len(clean("x" * 10_000)) == 4_000
    assert clean("x" * 10_000).endswith("…")
