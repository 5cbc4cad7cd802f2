"""Holds a codec to its contract: whatever else it raises becomes one of the two errors that the core can use."""

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
                return self._codec.decode(frame)
            except MalformedFrame:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.note("codec", exc, runtime=self._runtime, channel=frame.channel)
                reason = type(exc).__name__
        raise MalformedFrame(f"the adapter failed to read it ({reason})")

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words.

        Raises:
            CannotExpress: and nothing else.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                return self._codec.encode(item)
            except CannotExpress:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.note("codec", exc, runtime=self._runtime, kind=item.event.kind)
                reason = type(exc).__name__
        raise CannotExpress(f"the adapter failed to say it ({reason})")
