"""Holds a codec to its contract: whatever else it raises or answers becomes one of the two errors of the core."""

from typing import cast

from gateway.adapter.port import Codec, Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope
from gateway.guard import FAULTS, is_fault

_TRIES = 3
"""How often one frame or event may make a codec fail; a codec is pure, so that waiting in between helps nobody."""


class CheckedCodec:
    """A codec of an adapter, which is somebody else's code."""

    def __init__(self, codec: Codec, *, runtime: str) -> None:
        self._codec = codec
        self._runtime = runtime

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words.

        Raises:
            MalformedFrame: and nothing else.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                drafts = tuple(self._codec.decode(frame))
                if set(map(type, drafts)) != {Draft}:
                    raise TypeError("what a frame says is one Draft or more")
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
        raise MalformedFrame(f"the adapter failed to read it ({reason})")

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words.

        Raises:
            CannotExpress: and nothing else.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                encoded = cast("object", self._codec.encode(item))
                if not isinstance(encoded, Encoded) or not {Frame}.issuperset(map(type, encoded.frames)):
                    raise TypeError("what an event is said in is an Encoded with frames")
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
        raise CannotExpress(f"the adapter failed to say it ({reason})")
