"""A live frame without a step is shown exactly as by a step, after any history."""

from typing import Any

from hypothesis import given, settings, strategies as st

from gateway.adapter.port import Frame
from gateway.core.effects import Tell
from gateway.core.live import only_live
from gateway.events import Live
from tests.unit.core.harness import GOOD, HERM, HUMA_0_2, OPENHANDS, Harness

IDS = st.sampled_from([None, "evt_1", "evt_2", "evt_3"])
TEXTS = st.text(alphabet="ab ", max_size=3_000)


def _herm(kind: str, event_id: str | None, **inside: Any) -> Frame:
    return Frame("stream", {"id": event_id, "type": kind, "payload": {"type": kind, **inside}})


def _said(event_id: str | None, text: str, delta: bool | None) -> Frame:
    return _herm("agent.message", event_id, content=[{"type": "text", "text": text}], delta=delta)


HEARD = st.one_of(
    st.builds(_said, IDS, TEXTS, st.sampled_from([True, True, False, None])),
    st.builds(_herm, st.just("session.title_updated"), IDS, title=TEXTS),
    st.builds(_herm, st.just("session.status_running"), IDS),
    st.builds(_herm, st.just("session.status_idle"), IDS, stop_reason=st.just({"type": "end_turn"})),
    st.builds(
        _herm,
        st.just("agent.custom_tool_use"),
        IDS,
        id=st.just("c1"),
        tool=st.just("ask_for_cards"),
        input=st.just(GOOD),
    ),
    st.builds(_herm, st.just("agent.message"), IDS, content=st.just("not a list"), delta=st.just(True)),
    st.just(Frame("event", {"type": "messaging", "toolCallId": "b", "event": "typing_start"})),
    st.just(Frame("event", {"type": "status", "status": "thinking"})),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(HEARD, max_size=12), st.sampled_from([HERM, HUMA_0_2, OPENHANDS]))
def test_a_live_frame_is_shown_as_by_a_step(heard: list[Frame], adapter: Any):
    harness = Harness(adapter)
    for frame in heard:
        before = harness.view
        at_once = only_live(harness.runtime, before, frame, now=harness.now)
        harness.receive(frame.payload, channel=frame.channel)
        if at_once is not None:
            shown = [Live(tell.event, tell.after) for tell in harness.effects if isinstance(tell, Tell)]
            assert at_once == (harness.view, shown)
            assert len(shown) == len(harness.effects)
            assert not harness.step.events
            assert harness.step.state is None


@given(TEXTS)
def test_a_piece_of_a_message_takes_no_step(text: str):
    harness = Harness(HERM)
    assert only_live(harness.runtime, harness.view, _said("evt_1", text, delta=True), now=harness.now) is not None
