"""The JSON of arguments and results is written once and carried: it is what would be written anew."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, strategies as st
from pydantic import AnyHttpUrl, SecretStr

from gateway.core.calls import fingerprint, outcome_digest
from gateway.events import (
    EVENT,
    ContextUpdate,
    Envelope,
    EventId,
    Origin,
    Outcome,
    SessionId,
    ToolFinished,
    ToolRequested,
)
from gateway.events.envelope import to_json
from gateway.events.frozen import replace
from gateway.events.weight import weight
from gateway.executors.port import Answered, Uncertain
from gateway.executors.webhook.answers import read_answer
from gateway.executors.webhook.reader import HttpAnswer
from gateway.executors.webhook.request import RequestWriter
from gateway.runtime.system_clock import SystemClock
from gateway.store.encoding import decode_envelope, encode_event
from gateway.store.records import EventRecord

NOW = datetime(2026, 7, 1, tzinfo=UTC)
NAMES = st.sampled_from(["result", "arguments", "outcome", 'na"me', "\\", "ü", '"result":', "0"]) | st.text(max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=30,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)


def envelope(event: ToolRequested | ToolFinished, written: bytes | None) -> Envelope:
    return Envelope(EventId("e-1"), SessionId("s-1"), 1, NOW, "from_runtime", event, written=written)


def members(kept: EventRecord) -> list[tuple[str, Any]]:
    found = cast("dict[str, Any]", orjson.loads(kept.body or b""))
    return [(name, value) for name, value in found.items() if value is not None]


@given(OBJECTS, st.text(), st.none() | st.text(), st.none() | st.booleans())
def test_a_request_is_kept_as_if_it_had_been_written_whole(
    arguments: dict[str, Any], tool: str, thought: str | None, asks: bool | None
) -> None:
    event = ToolRequested(
        native_call_id='"', tool=tool, arguments=arguments, thought=thought, needs_approval=bool(asks)
    )
    kept = encode_event(envelope(event, orjson.dumps(arguments)))
    anew = encode_event(envelope(event, None))
    assert members(kept) == members(anew)
    assert decode_envelope(kept).event == decode_envelope(anew).event == EVENT.validate_json(kept.body or b"") == event


@given(VALUES, OBJECTS, st.booleans(), st.booleans())
def test_an_outcome_is_kept_as_if_it_had_been_written_whole(
    result: Any, context: dict[str, Any], has_context: bool, has_updates: bool
) -> None:
    event = ToolFinished(
        native_call_id="c-1",
        tool="ask",
        outcome="success",
        result=result,
        context=context if has_context else None,
        updates=(ContextUpdate(name="table", context=context),) * has_updates,
    )
    kept = encode_event(envelope(event, orjson.dumps(result)))
    anew = encode_event(envelope(event, None))
    assert members(kept) == members(anew)
    assert decode_envelope(kept).event == decode_envelope(anew).event == EVENT.validate_json(kept.body or b"") == event


@given(OBJECTS, VALUES, st.none() | st.text(max_size=3))
def test_followers_are_shown_what_they_would_be_otherwise(
    arguments: dict[str, Any], result: Any, word: str | None
) -> None:
    asked = ToolRequested(native_call_id="c-1", tool="ask", arguments=arguments, thought=word)
    told = ToolFinished(native_call_id="c-1", outcome="success", result=result, error=word)
    for event, value in ((asked, arguments), (told, result)):
        shown, anew = (to_json(envelope(event, written)) for written in (orjson.dumps(value), None))
        assert orjson.dumps(shown) == orjson.dumps(anew)


@given(OBJECTS)
def test_an_executor_is_sent_the_same_body(arguments: dict[str, Any]) -> None:
    writer = RequestWriter(
        AnyHttpUrl("http://127.0.0.1/"), secrets=[SecretStr("whsec_" + "a" * 32)], headers={}, clock=SystemClock()
    )
    data = {"call_id": "c-1", "attempt": 1}
    bodies = [
        writer.write("k-1", "tool.requested", data={**data, "arguments": given}, at=NOW, attempt=1).partition(
            b"\r\n\r\n"
        )[2]
        for given in (arguments, orjson.Fragment(orjson.dumps(arguments)))
    ]
    assert bodies[0] == bodies[1]


@given(st.dictionaries(st.sampled_from(["result", "wakes_agent", "updates", "odd"]), VALUES, max_size=4), st.booleans())
def test_an_answer_brings_its_result_as_it_is_written(body: dict[str, Any], raw: bool) -> None:
    body = {"outcome": "success", **body}
    exchange = HttpAnswer(200, orjson.dumps(body), {})
    answer = read_answer(exchange, "tool.requested", raw=raw, now=lambda: NOW + timedelta(seconds=1))
    if isinstance(answer, Uncertain):
        assert "not an outcome" in answer.reason
        return
    assert isinstance(answer, Answered)
    if answer.written is not None:
        assert answer.written == orjson.dumps(answer.outcome.result)
    else:
        assert answer.outcome.outcome == "failure" or "result" not in body


@given(VALUES | st.dictionaries(st.integers(-9, 9), VALUES))
def test_what_was_asked_and_answered_is_hashed_as_it_always_was(value: Any) -> None:
    option = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    assert fingerprint("ask", value) == sha256(orjson.dumps(["ask", value], option=option)).hexdigest()[:32]
    told = outcome_digest(Outcome(outcome="success", result=value))
    assert told == sha256(orjson.dumps([value, None], option=option)).hexdigest()


def test_fingerprints_are_those_of_the_releases_before() -> None:
    arguments = {"b": [1, 2.5, None, {"ü": "\n", "a": True}], "a": 18446744073709551615}
    assert fingerprint("ask_for_cards", arguments) == "af9a24d3ce046d9a804f95ffe2c546c1"


@pytest.mark.parametrize("count", [3, 100, 1_000])
def test_a_value_weighs_about_the_same_with_its_json_at_hand(count: int) -> None:
    value = {"cards": [{"id": number, "at": {"x": 1.5}, "seen_by": None} for number in range(count)]}
    # One by one, each key weighs like a value.
    near = 2.5 if count == 3 else 1.05
    assert weight(value) / near < weight(value, orjson.dumps(value)) <= weight(value) * near


def test_commas_in_a_text_weigh_little_in_what_is_large() -> None:
    value = [*range(100), "a,b" * 1_000_000]
    assert 3_000_000 < weight(value, orjson.dumps(value)) < 3_100_000


@given(st.builds(Origin, *[st.text(max_size=3)] * 2, *[st.none() | st.text(max_size=3)] * 4))
def test_of_an_origin_only_what_it_has_is_kept(origin: Origin) -> None:
    event = ToolRequested(native_call_id="tc-1", tool="ask", arguments={})
    record = encode_event(replace(envelope(event, None), origin=origin))
    assert list(orjson.loads(record.about or b"")["origin"]) == [
        name for name in Origin.__annotations__ if getattr(origin, name) is not None
    ]
    assert decode_envelope(record).origin == origin


@pytest.mark.parametrize(
    "about", [{"losses": None}, {"losses": 3}, {"losses": {"a": 1}}, {"caused_by": "x"}, {"linked_to": 3}]
)
def test_what_is_written_about_an_event_in_no_form_that_is_known_can_be_read(about: dict[str, Any]) -> None:
    body = b'{"kind":"typing.changed","active":true}'
    record = EventRecord(
        SessionId("s"), 1, EventId("e"), "typing.changed", "from_runtime", None, 0, body, orjson.dumps(about)
    )
    read = decode_envelope(record)
    assert (read.caused_by, read.losses, read.linked_to) == (None, (), None)
