"""Trace contexts: of callers, derived ones, and the parent of each span."""

from datetime import UTC, datetime

import pytest

from gateway.core.trace_context import (
    NO_SPAN,
    TraceContext,
    attempt_context,
    attempt_span,
    call_span,
    context_of,
    is_sampled,
    key_context,
    place_of_request,
    read_traceparent,
    turn_context,
)
from gateway.events import CallId, SessionId
from gateway.events.frozen import replace
from gateway.store.call import Call

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NOW = datetime(2026, 11, 27, tzinfo=UTC)
CALL = Call(
    call_id=CallId("call-1"), session_id=SessionId("session-1"), runtime="finn", native_call_id="n", n=0, tool="ask",
    args_sha="", state="dispatched", attempt=1, created_at=NOW, deadline_at=NOW, request_sequence=1,
)  # fmt: skip


def test_a_valid_traceparent_is_read_with_its_flag() -> None:
    assert read_traceparent(f"00-{TRACE}-{SPAN}-01") == TraceContext(TRACE, SPAN, sampled=True)
    assert read_traceparent(f"00-{TRACE}-{SPAN}-02") == TraceContext(TRACE, SPAN, sampled=False)
    # Of a later version, the known fields are read.
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-01-what-the-future-holds") == TraceContext(TRACE, SPAN)


@pytest.mark.parametrize(
    "given",
    [
        None, 7, "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{NO_SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n", f" 00-{TRACE}-{SPAN}-01", f"00-{TRACE[:-1]}-{SPAN}-01", "\u0660" * 55,
    ],
)  # fmt: skip
def test_an_invalid_traceparent_is_ignored(given: object) -> None:
    assert read_traceparent(given) is None


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("fw529a3039@dt=FfAAA, ,\tot=th:8;rv:6e , ", "fw529a3039@dt=FfAAA,ot=th:8;rv:6e"),
        ("a= b c,1*/-_=!", "a= b c,1*/-_=!"),
        (f"a={'b' * 253},c={'d' * 254}", f"a={'b' * 253},c={'d' * 254}"),
        (f"a={'b' * 254},c={'d' * 254},", ""),
        (f"a={'b' * 257}", ""), (",".join(f"a{n}=b" for n in range(33)), ""), ("a=b,a=c", ""), ("a", ""), ("a=", ""),
        ("=b", ""), ("A=b", ""), ("a=b=c", ""), ("a=b\r\nx: y", ""), ("a=\u00e9", ""), ("", ""), (7, ""), (None, ""),
    ],
)  # fmt: skip
def test_a_valid_tracestate_is_kept_with_the_call_and_another_is_ignored(given: object, read: str) -> None:
    context = read_traceparent(f"00-{TRACE}-{SPAN}-01", given)
    assert context is not None
    assert context == TraceContext(TRACE, SPAN, state=read)
    call = replace(CALL, trace=context.record())
    assert call.trace_id == TRACE
    assert context_of(call) == context
    assert attempt_context(call).state == read
    assert read_traceparent("nonsense", given) is None


def test_derived_ids_are_the_same_everywhere_and_differ_from_each_other() -> None:
    turn = turn_context(SessionId("session-1"), 4, 1.0)
    assert turn == turn_context(SessionId("session-1"), 4, 1.0)
    assert turn.trace_id != turn_context(SessionId("session-1"), 5, 1.0).trace_id
    ids = [turn.parent, call_span(CALL.call_id)]
    ids += [attempt_span(CALL.call_id, n) for n in (1, 2)] + [attempt_span(CALL.call_id, 1, unsent_at=NOW)]
    assert len(set(ids)) == len(ids) == len([one for one in ids if len(one) == 16])


def test_a_call_has_the_place_on_record_and_its_attempts_are_below() -> None:
    stored = replace(CALL, trace=f"00-{TRACE}-{SPAN}-00")
    assert context_of(stored) == TraceContext(TRACE, SPAN, sampled=False)
    assert str(attempt_context(stored)) == f"00-{TRACE}-{attempt_span(CALL.call_id, 1)}-00"
    assert context_of(replace(CALL, trace=str(TraceContext(TRACE)))) == TraceContext(TRACE, NO_SPAN)


def test_an_mcp_request_lies_between_its_caller_or_the_turn_and_its_call() -> None:
    caller, request = TraceContext(TRACE, SPAN), "1" * 16
    assert place_of_request(replace(CALL, trace=str(caller.below(request))), caller) == caller
    turn = turn_context(SessionId("session-1"), 4, 1.0)
    assert place_of_request(replace(CALL, trace=str(turn.below(request))), None) == turn
    root = key_context(CALL.call_id)
    assert place_of_request(replace(CALL, trace=str(root.below(request))), None) == root


@pytest.mark.parametrize("damaged", [None, "", "not a context"])
def test_a_call_without_a_readable_context_gets_that_of_its_key(damaged: str | None) -> None:
    assert context_of(replace(CALL, trace=damaged, key="k")) == key_context("k")


def test_the_ratio_decides_alike_for_the_same_trace() -> None:
    traces = [key_context(f"key {n}").trace_id for n in range(2_000)]
    kept = [trace for trace in traces if is_sampled(trace, 0.25)]
    assert 400 < len(kept) < 600
    assert all(is_sampled(trace, 0.5) for trace in kept)
    assert not any(is_sampled(trace, 0.0) for trace in traces)
    assert all(is_sampled(trace, 1.0) for trace in traces)
