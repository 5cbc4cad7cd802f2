"""Translates HUMA messages in both directions, without memory. Pure."""

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
    """The codec of HUMA; the channel gives the direction. Each version has its own client messages."""

    protocol: ClassVar[str]
    client_types: ClassVar[frozenset[str]]
    faults_on: ClassVar[str]
    """The documented channel of errors in this version."""
    client_records: ClassVar[tuple[str, ...]] = ()
    """Members of a client message that refuse `forbidden_keys` at any depth."""
    forbidden_keys: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read_client_message(self, payload: dict[str, Any]) -> Draft | None:
        """Decode a client message on `message`; None for an unknown type."""

    @abstractmethod
    def write_client_message(self, item: Draft | Envelope) -> Encoded | None:
        """Encode a client message; None for an event that only a server sends."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame."""
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
        """Encode an event."""
        event = item.event
        # Compare the kind: a failed isinstance check takes several times as long.
        if event.kind == "opaque":
            return self._opaque(event)
        encoded = self.write_client_message(item) or write_server_message(event, faults_on=self.faults_on)
        if encoded is None:
            raise CannotExpress(f"{self.protocol} has no equivalent of {event.kind}")
        return encoded

    def _opaque(self, event: Opaque) -> Encoded:
        types = {
            wire.FROM_CLIENT: self.client_types,
            wire.FROM_SERVER: wire.SERVER_TYPES,
            wire.ERRORS: frozenset({wire.ERROR}),
        }
        match event.payload:
            case {"type": str(known)} if known in types.get(event.channel, ()):
                raise CannotExpress(f"send {known} as its own kind of event, not as opaque", path="/payload/type")
            case payload:
                check_text(event.channel, "/channel")
                check_json(payload, "/payload")
                if event.channel == wire.FROM_CLIENT and isinstance(payload, dict):
                    members = cast("dict[str, Any]", payload)
                    for name in self.client_records:
                        check_json(members.get(name), f"/payload/{name}", forbidden=self.forbidden_keys)
                return Encoded((Frame(event.channel, payload),))
