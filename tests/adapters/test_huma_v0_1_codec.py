"""The codec of HUMA 0.1 against its vectors, against hostile input, and in the places a vector cannot show."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapters.huma import HUMA_0_1 as ADAPTER
from gateway.adapter.port import Frame
from gateway.events import (
    ContextUpdated,
    Draft,
    Envelope,
    Event,
    EventId,
    MessagePosted,
    SessionId,
    Text,
    ToolFinished,
    ToolRequested,
)
from gateway.testing.conformance.codec import CodecSuite, nested

CODEC = ADAPTER.codec()


class TestHumaCodec(CodecSuite):
    adapter = ADAPTER
    vectors = Path(__file__).parents[1] / "vectors" / "huma_v0_1"
    # 0.1 has no field for a result's tool; the id tells it.
    derived = frozenset({"call_id", "tool"})


@pytest.mark.requirement("L6", "L52", "L60", "L61")
@pytest.mark.parametrize(
    ("event", "content", "lost"),
    [
        (
            ContextUpdated(name="go-fish", context={"hand": []}, description="Bob drew.", wakes_agent=False),
            {"name": "go-fish", "context": {"hand": []}, "description": "Bob drew."},
            ["/wakes_agent"],
        ),
        (
            ContextUpdated(name="go-fish", context={"hand": []}, description="Bob drew.", wakes_agent=True),
            {"name": "go-fish", "context": {"hand": []}, "description": "Bob drew."},
            [],
        ),
        (
            ToolFinished(native_call_id="tc_1", outcome="canceled", error="Canceled by server", wakes_agent=False),
            {
                "type": "tool-result",
                "toolCallId": "tc_1",
                "status": "canceled",
                "success": False,
                "error": "Canceled by server",
            },
            ["/wakes_agent"],
        ),
        (
            ToolFinished(
                native_call_id="tc_1", outcome="success", result="Go Fish!", wakes_agent=False, context={"hand": []}
            ),
            {
                "type": "tool-result",
                "toolCallId": "tc_1",
                "status": "completed",
                "success": True,
                "result": "Go Fish!",
            },
            ["/wakes_agent", "/context"],
        ),
    ],
    ids=["quiet context", "waking context", "canceled", "quiet result with a context"],
)
def test_without_extensions_only_documented_fields_are_written(
    event: Event, content: dict[str, Any], lost: list[str]
) -> None:
    given = {"adapter": "huma-0.1", "url": "http://h", "api_key": "k", "agent_id": "a", "extensions": False}
    encoded = ADAPTER.codec(ADAPTER.options.model_validate(given)).encode(Draft(event))
    assert [frame.payload for frame in encoded.frames] == [{"type": "huma-0.1-event", "content": content}]
    assert [(loss.how, loss.path) for loss in encoded.losses] == [("dropped", path) for path in lost]


def recorded(event: Event) -> Envelope:
    return Envelope(
        event_id=EventId("01ABC"),
        session_id=SessionId("s"),
        sequence=1,
        recorded_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        direction="to_runtime",
        event=event,
    )


@pytest.mark.requirement("L16", "L23")
def test_a_message_without_an_id_or_a_time_gets_the_same_ones_on_every_repeat() -> None:
    envelope = recorded(MessagePosted(content=(Text(text="Hi"),)))
    once, again = CODEC.encode(envelope), CODEC.encode(envelope)
    assert once == again
    assert once.frames[0].payload["content"]["id"] == "01ABC"
    assert once.frames[0].payload["content"]["createdAt"] == "2026-01-02T03:04:05Z"
    assert {loss.path for loss in once.losses} >= {"/message_id", "/created_at"}
    draft = Draft(MessagePosted(content=(Text(text="Hi"),)))
    assert CODEC.encode(draft) == CODEC.encode(draft)
    assert CODEC.encode(draft) != CODEC.encode(Draft(MessagePosted(content=(Text(text="Ho"),))))


@pytest.mark.requirement("L13", "L62")
def test_no_field_of_0_2_0_is_ever_written() -> None:
    spoken: tuple[Event, ...] = (
        ContextUpdated(name="n", context={}),
        ToolFinished(native_call_id="c", tool="t", outcome="success"),
        ToolFinished(native_call_id="c", tool="t", outcome="canceled"),
    )
    for event in spoken:
        content = CODEC.encode(recorded(event)).frames[0].payload["content"]
        assert not {"triggering", "toolName", "outcome"} & content.keys()


@pytest.mark.requirement("L40", "L43")
@pytest.mark.parametrize("arguments", ["text", 7, True, [1], {"b": b"x"}, {"d": nested(80)}, {"s": "\ud800"}])
def test_a_call_with_an_id_is_a_call_with_a_problem_whatever_its_arguments_are(arguments: Any) -> None:
    payload = {"type": "tool-call", "toolCallId": "tc_1", "toolName": "t", "arguments": arguments}
    (draft,) = CODEC.decode(Frame("event", payload))
    assert isinstance(draft.event, ToolRequested)
    assert draft.event.problem
    assert draft.event.native_call_id == "tc_1"
