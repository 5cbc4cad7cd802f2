"""Says Herm events in canonical words and back; both directions, no memory. Pure."""

from typing import Any, cast

from adapters.herm import wire
from adapters.herm.reading import read_envelope
from adapters.herm.reading_user import read_user_event
from adapters.herm.writing import write_event
from gateway.adapter.port import Encoded, Frame
from gateway.errors import MalformedFrame
from gateway.events import Draft, Envelope, Opaque
from gateway.json_values import Malformed, find_fault, json_type


class HermCodec:
    """Translates Herm; the channel tells the wrapping, the type's prefix the direction."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words."""
        payload = frame.payload
        if isinstance(payload, Malformed):
            raise MalformedFrame(payload.reason)
        match frame.channel:
            case wire.STREAM:
                return read_envelope(_object(payload))
            case wire.EVENTS:
                return (read_user_event(_typed(payload)) or _keep(frame),)
            case _:
                return (_keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words."""
        return write_event(item)


def _object(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise MalformedFrame(f"expected an object, got {json_type(payload)}")
    return cast("dict[str, Any]", payload)


def _typed(payload: Any) -> dict[str, Any]:
    message = _object(payload)
    if not isinstance(message.get("type"), str):
        raise MalformedFrame(f"expected a string, got {json_type(message.get('type'))}", path="/type")
    return message


def _keep(frame: Frame) -> Draft:
    if fault := find_fault([frame.channel, frame.payload], forbid_keys=False):
        raise MalformedFrame(f"the message {fault.reason}", path=fault.path[2:])
    return Draft(Opaque(channel=frame.channel, payload=wire.without_secrets(frame.payload)))
