"""Translates Herm events in both directions, without memory. Pure."""

from adapters.herm import wire
from adapters.herm.reading import read_envelope
from adapters.herm.reading_user import read_user_event
from adapters.herm.writing import write_event
from gateway.adapter.payload import keep, payload_of, read_object, read_typed
from gateway.adapter.port import Encoded, Frame
from gateway.events import Draft, Envelope


class HermCodec:
    """The codec of Herm; the channel gives the wrapper, the prefix of the type the direction."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame."""
        payload = payload_of(frame)
        match frame.channel:
            case wire.STREAM:
                return read_envelope(read_object(payload), plain=frame.written is not None)
            case wire.EVENTS:
                return (read_user_event(read_typed(payload)) or keep(frame, hide=wire.without_secrets),)
            case _:
                return (keep(frame, hide=wire.without_secrets),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event."""
        return write_event(item)
