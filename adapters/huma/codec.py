"""Says HUMA messages in canonical words and back; both directions, no memory. Pure."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, cast

from adapters.huma import wire
from adapters.huma.reading import read_malformed_call, read_server_message
from adapters.huma.writing import write_server_message
from gateway.adapter.checks import check_json, check_text
from gateway.adapter.payload import keep, payload_of, read_typed
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress
from gateway.events import Draft, Envelope, Opaque
from gateway.strict_json import Malformed


class HumaCodec(ABC):
    """Translates HUMA; the channel tells the direction. The server's side is one, the client's each version's own."""

    protocol: ClassVar[str]
    client_types: ClassVar[frozenset[str]]
    faults_on: ClassVar[str]
    """The channel on which the version's documents show an error."""
    client_records: ClassVar[tuple[str, ...]] = ()
    """Members of a client's message in which `forbidden_keys` are refused at any depth."""
    forbidden_keys: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read_client_message(self, payload: dict[str, Any]) -> Draft | None:
        """Read what a client sends on `message`; None for a type that this version does not have."""

    @abstractmethod
    def write_client_message(self, item: Draft | Envelope) -> Encoded | None:
        """Write what a client may say; None for what only a server says."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Say a frame in canonical words."""
        if frame.channel == wire.FROM_SERVER and isinstance(frame.payload, Malformed):
            draft = read_malformed_call(frame.payload)
            if draft is not None:
                return (draft,)
        payload = payload_of(frame)
        match frame.channel:
            case wire.FROM_CLIENT:
                draft = self.read_client_message(read_typed(payload))
            case wire.FROM_SERVER:
                draft = read_server_message(read_typed(payload), written=frame.written)
            case wire.ERRORS if read_typed(payload)["type"] == wire.ERROR:
                draft = read_server_message(payload, written=frame.written)
            case _:
                draft = None
        return (draft or keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Say an event in native words."""
        event = item.event
        # By its kind, since asking whether it is of a class that it is not of takes several times as long.
        if event.kind == "opaque":
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
            case payload:
                check_text(event.channel, "/channel")
                check_json(payload, "/payload")
                if event.channel == wire.FROM_CLIENT and isinstance(payload, dict):
                    members = cast("dict[str, Any]", payload)
                    for name in self.client_records:
                        check_json(members.get(name), f"/payload/{name}", forbidden=self.forbidden_keys)
                return Encoded((Frame(event.channel, payload),))
