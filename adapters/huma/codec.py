"""Says HUMA messages in canonical words and back; both directions, no memory. Pure."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

from adapters.huma import wire
from adapters.huma.checks import check_json, check_text
from adapters.huma.reading import read_server_message
from adapters.huma.writing import write_server_message
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope, Opaque
from gateway.json_values import Malformed, find_fault, json_type


class HumaCodec(ABC):
    """Translates HUMA; the channel tells the direction. The server's side is one, the client's each version's own."""

    protocol: ClassVar[str]
    client_types: ClassVar[frozenset[str]]
    faults_on: ClassVar[str]
    """The channel on which the version's documents show an error."""

    @abstractmethod
    def read_client_message(self, payload: dict[str, Any]) -> Draft | None:
        """Read what a client sends on `message`; None for a type that this version does not have."""

    @abstractmethod
    def write_client_message(self, item: Draft | Envelope) -> Encoded | None:
        """Write what a client may say; None for what only a server says."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words."""
        payload = frame.payload
        if isinstance(payload, Malformed):
            raise MalformedFrame(payload.reason)
        match frame.channel:
            case wire.FROM_CLIENT:
                draft = self.read_client_message(_typed(payload))
            case wire.FROM_SERVER | wire.ERRORS:
                draft = read_server_message(_typed(payload))
            case _:
                draft = None
        return (draft or _keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words."""
        event = item.event
        if isinstance(event, Opaque):
            return self._opaque(event)
        encoded = self.write_client_message(item) or write_server_message(event, faults_on=self.faults_on)
        if encoded is None:
            raise CannotExpress(f"{self.protocol} has no words for {event.kind}")
        return encoded

    def _opaque(self, event: Opaque) -> Encoded:
        types = {
            wire.FROM_CLIENT: self.client_types,
            wire.FROM_SERVER: wire.SERVER_TYPES,
            wire.ERRORS: frozenset({wire.ERROR}),
        }
        match event.payload:
            case {"type": str(known)} if known in types.get(event.channel, ()):
                raise CannotExpress(f"say a {known} by its own kind of event, not as opaque", path="/payload/type")
            case _:
                check_text(event.channel, "/channel")
                check_json(event.payload, "/payload")
                return Encoded((Frame(event.channel, event.payload),))


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
