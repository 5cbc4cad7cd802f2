"""What a client's message leaves out is what does not come back when OpenHands reads it."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st

from adapters.openhands import ADAPTER
from adapters.openhands.writing import differences
from gateway.errors import CannotExpress
from gateway.events import (
    ActionOrdered,
    ApprovalGiven,
    Author,
    Burst,
    Data,
    Draft,
    Event,
    Image,
    MessagePosted,
    Text,
    TurnInterrupted,
)

NAMES = st.none() | st.sampled_from(["", "Alice"])
BLOCKS = st.one_of(
    st.builds(Text, text=st.sampled_from(["", "a", "a\nb"])),
    st.builds(Image, url=st.sampled_from(["https://x/y.png", "data:,"]), alt=NAMES),
    st.builds(Data, data=st.none() | st.just({"a": 1})),
)
EXTRA = st.fixed_dictionaries(
    {},
    optional={
        "file_urls": st.sampled_from([[], ["a"], None, "a", [1]]),
        "wait_for_response": st.sampled_from([False, True, None, 0]),
        "security_risk": st.sampled_from([-1, 2, None, 1.5, True]),
        "image_urls": st.sampled_from([[], ["a"], None]),
        "action": st.sampled_from(["finish", None, {"a": {"b": 1}}]),
    },
)
MESSAGES = st.builds(
    MessagePosted,
    author=st.builds(Author, role=st.sampled_from(["user", "system"]), id=NAMES, name=NAMES),
    content=st.lists(BLOCKS, max_size=4).map(tuple),
    message_id=NAMES,
    wakes_agent=st.booleans(),
    complete=st.booleans(),
    burst=st.none() | st.builds(Burst, call=st.just("c"), index=st.just(0)),
    extra_args=st.none() | EXTRA,
    created_at=st.none() | st.just(datetime(2026, 11, 20, tzinfo=UTC)),
)
OTHERS = st.one_of(
    st.builds(
        ApprovalGiven,
        id=st.sampled_from(["", "7"]),
        native_call_id=NAMES,
        decision=st.sampled_from(["allow", "deny"]),
        scope=st.sampled_from([None, "once", "session", "always"]),
        reason=NAMES,
    ),
    st.builds(TurnInterrupted, reason=NAMES),
    st.builds(ActionOrdered, action=st.just("run"), arguments=st.just({"command": "ls", "thought": ""})),
    st.builds(
        ActionOrdered,
        action=st.just("change_agent_state"),
        arguments=st.sampled_from([{"agent_state": "paused"}, {"agent_state": "running", "thought": "x"}]),
    ),
)


def check_losses(event: Event) -> None:
    codec = ADAPTER.codec()
    try:
        encoded = codec.encode(Draft(event))
    except CannotExpress:
        return
    (frame,) = encoded.frames
    (heard,) = codec.decode(frame)
    assert heard.event.kind == event.kind
    assert encoded.losses == differences(event, heard.event)


@given(MESSAGES | OTHERS)
def test_every_loss_is_told_and_no_other(event: Event) -> None:
    check_losses(event)


@pytest.mark.parametrize("extra", [{}, {"file_urls": []}, {"security_risk": 2, "file_urls": []}, {"action": None}])
def test_what_a_message_has_besides_is_carried_or_told(extra: dict[str, object]) -> None:
    check_losses(MessagePosted(content=(Text(text="a"),), extra_args=extra))


@pytest.mark.parametrize(
    ("content", "extra", "where"),
    [
        ((Text(text="\ud800"),), None, "/args/content"),
        ((Text(text="a"), Text(text="\ud800")), None, "/args/content"),
        ((Image(url="\ud800"),), None, "/args/image_urls/0"),
        ((Text(text="a"),), {"file_urls": ["\ud800"]}, "/args/file_urls/0"),
    ],
)
def test_a_text_that_no_json_can_carry_is_refused_wherever_it_stands(
    content: tuple[Text | Image, ...], extra: dict[str, object] | None, where: str
) -> None:
    with pytest.raises(CannotExpress) as caught:
        ADAPTER.codec().encode(Draft(MessagePosted(content=content, extra_args=extra)))
    assert caught.value.path == where
