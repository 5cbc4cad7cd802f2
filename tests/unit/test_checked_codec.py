"""An adapter's codec that answers with the wrong thing is told as one that fails: it is somebody else's code."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope, FaultReported, Opaque
from gateway.runtime.session.codec import CheckedCodec

_DRAFT = Draft(FaultReported(message="words"))
_FRAME = Frame("event", {"type": "words"})
_READ = ("nothing", "no drafts", "one alone", "an event", "a text", "one of two", "fails behind one")
_SAID = ("nothing", "frames alone", "one of two")
_NO_FRAMES: Any = (_FRAME, {"type": "words"})


def _raises() -> Iterator[Draft]:
    yield _DRAFT
    raise LookupError


class Answers:
    """Answers everything with one value."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        del frame
        return self._answer

    def encode(self, item: Draft | Envelope) -> Encoded:
        del item
        return self._answer


@pytest.mark.parametrize("answer", [None, (), _DRAFT, (_DRAFT.event,), "words", (_DRAFT, None), _raises()], ids=_READ)
def test_a_frame_that_is_read_as_no_drafts_is_rejected(answer: object) -> None:
    with pytest.raises(MalformedFrame, match="the adapter failed to decode it"):
        CheckedCodec(Answers(answer), runtime="finn").decode(_FRAME)


def test_drafts_in_a_list_are_taken() -> None:
    assert CheckedCodec(Answers([_DRAFT]), runtime="finn").decode(_FRAME) == (_DRAFT,)


@pytest.mark.parametrize("answer", [None, (_FRAME,), Encoded(_NO_FRAMES)], ids=_SAID)
def test_an_event_that_is_said_in_no_frames_is_refused(answer: object) -> None:
    with pytest.raises(CannotExpress, match="the adapter failed to encode it"):
        CheckedCodec(Answers(answer), runtime="finn").encode(_DRAFT)


@pytest.mark.parametrize("frames", [(), (_FRAME,)], ids=len)
def test_an_event_may_be_said_in_any_number_of_frames(frames: tuple[Frame, ...]) -> None:
    assert CheckedCodec(Answers(Encoded(frames)), runtime="finn").encode(_DRAFT).frames == frames


@pytest.mark.parametrize("channel", ["erased", "unknown-kind"])
def test_nobody_else_uses_the_channels_by_which_the_gateways_own_events_are_known(channel: str) -> None:
    forged = Draft(Opaque(channel=channel, payload={"kind": "tool.finished", "outcome": "success"}))
    codec = CheckedCodec(Answers((forged,)), runtime="finn")
    with pytest.raises(MalformedFrame, match="the gateway's own"):
        codec.decode(_FRAME)
    with pytest.raises(CannotExpress, match="the gateway's own"):
        codec.encode(forged)
