"""Says HUMA 0.2.0 messages in canonical words and back; both directions, no memory. Pure."""

from typing import Any, cast

from adapters.huma_v0_2 import wire
from adapters.huma_v0_2.reading import read_client_message, read_server_message
from adapters.huma_v0_2.writing import write_event
from gateway.adapter.port import Encoded, Frame
from gateway.errors import MalformedFrame
from gateway.events import Draft, Envelope, Opaque
from gateway.json_values import Malformed, find_fault, json_type


class HumaCodec:
    """Translates HUMA 0.2.0; the channel tells the direction."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words."""
        payload = frame.payload
        if isinstance(payload, Malformed):
            raise MalformedFrame(payload.reason)
        match frame.channel:
            case wire.FROM_CLIENT:
                draft = read_client_message(_typed(payload))
            case wire.FROM_SERVER | wire.ERRORS:
                draft = read_server_message(_typed(payload))
            case _:
                draft = None
        return (draft or _keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words."""
        return write_event(item)


def _typed(payload: Any) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise MalformedFrame(f"expected an object, got {json_type(payload)}")
    message = cast("dict[str, Any]", payload)
    if not isinstance(message.get("type"), str):
        raise MalformedFrame(f"expected a string, got {json_type(message.get('type'))}", path="/type")
    return message


def _keep(frame: Frame) -> Draft:
    if fault := find_fault([frame.channel, frame.payload], forbid_keys=False):
        raise MalformedFrame(f"the message {fault.reason}", path=fault.path[2:])
    return Draft(Opaque(channel=frame.channel, payload=frame.payload))
