"""Enforces the contract of a codec: any fault becomes one of the two errors that the core handles."""

from typing import cast

from gateway.adapter.port import Codec, Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope
from gateway.guard import FAULTS, is_fault

_TRIES = 3
"""Attempts per frame or event, without pauses because a codec is pure."""


class CheckedCodec:
    """Wraps the codec of an adapter, which may be third-party code."""

    def __init__(self, codec: Codec, *, runtime: str) -> None:
        self._codec = codec
        self._runtime = runtime

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame into drafts of events.

        Raises:
            MalformedFrame: the codec rejected the frame, or failed three times.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                drafts = tuple(self._codec.decode(frame))
                if set(map(type, drafts)) != {Draft}:
                    raise TypeError("decode must return one or more Draft objects")
            except MalformedFrame:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.note("codec", exc, runtime=self._runtime, channel=frame.channel)
                reason = type(exc).__name__
            else:
                return drafts
        raise MalformedFrame(f"the adapter failed to decode it ({reason})")

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event as native frames.

        Raises:
            CannotExpress: the protocol cannot express it, or the codec failed three times.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                encoded = cast("object", self._codec.encode(item))
                if not isinstance(encoded, Encoded) or not {Frame}.issuperset(map(type, encoded.frames)):
                    raise TypeError("encode must return an Encoded with frames")
            except CannotExpress:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.note("codec", exc, runtime=self._runtime, kind=item.event.kind)
                reason = type(exc).__name__
            else:
                return encoded
        raise CannotExpress(f"the adapter failed to encode it ({reason})")
