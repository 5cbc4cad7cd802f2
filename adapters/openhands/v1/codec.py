"""Translates messages of a V1 agent-server to events and back, in both directions and without memory. Pure."""

from collections.abc import Mapping
from typing import Any

import orjson

from adapters.openhands.v1 import wire
from adapters.openhands.v1.acp import mcp_name
from adapters.openhands.v1.reading import read_event, read_session_frame
from adapters.openhands.v1.reading_client import read_client_frame, read_post
from adapters.openhands.v1.writing import place_opaque, speaks_as_client, write_post, write_server_frame
from adapters.openhands.writing import differences
from gateway.adapter.checks import check_json, check_text
from gateway.adapter.payload import keep, payload_of, read_object
from gateway.adapter.port import Encoded, Frame, McpCall
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope, Opaque
from gateway.strict_json import find_fault


class OpenHandsV1Codec:
    """The codec of OpenHands V1; the channel gives the direction, except for a client's frame on a socket."""

    def __init__(self, *, steering_runs: bool = False) -> None:
        """Make the codec; with `steering_runs`, a hint replaces the turn of an ACP agent (OV59)."""
        self._steering_runs = steering_runs

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame."""
        payload = payload_of(frame)
        known = frame.channel in wire.SOCKETS or frame.channel in wire.POST_PATHS
        if not known:
            return (keep(frame, hide=wire.without_secrets),)
        members = read_object(payload)
        if frame.written is None and (fault := find_fault(members)):
            raise MalformedFrame(fault.reason, path=fault.path)
        if frame.channel in wire.POST_PATHS:
            return (read_post(frame.channel, members) or _kept(frame.channel, members),)
        if frame.channel == wire.EVENTS:
            return read_client_frame(frame.channel, members) if "kind" not in members else read_event(members)
        if "type" not in members:
            return read_client_frame(frame.channel, members)
        return read_session_frame(members) or (_kept(frame.channel, members),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event.

        A frame of the server is decoded again, and each member that differs is a loss.
        """
        if isinstance(item.event, Opaque):
            return self._opaque(item, item.event)
        if speaks_as_client(item):
            frame, losses = write_post(item.event, steering_runs=self._steering_runs)
            return Encoded((frame,), losses)
        frame = write_server_frame(item)
        check_json(frame.payload, "")
        frame = Frame(frame.channel, frame.payload, written=orjson.dumps(frame.payload))
        decoded = [draft.event for draft in self._decode_again(frame) if draft.event.kind == item.event.kind]
        if not decoded:
            raise CannotExpress(f"OpenHands cannot express this {item.event.kind}")
        return Encoded((frame,), differences(item.event, decoded[0]))

    def mcp_call(self, tool: str, arguments: Mapping[str, Any]) -> McpCall | None:
        """Return the call of an MCP tool: under its own name, or with the server's before it (OV47, OV55)."""
        name = mcp_name(tool)
        return None if name is None else McpCall(name, dict(arguments))

    def _opaque(self, item: Draft | Envelope, event: Opaque) -> Encoded:
        check_text(event.channel, "/channel")
        check_json(event.payload, "/payload")
        if event.channel not in wire.SOCKETS and event.channel not in wire.POST_PATHS:
            raise CannotExpress("OpenHands V1 has no such channel", path="/channel")
        is_event = event.channel == wire.EVENTS
        frame = place_opaque(item, event.payload) if is_event else Frame(event.channel, event.payload)
        # Only the first draft: a blocked message is kept as opaque and reported as a fault.
        decoded = self._decode_again(frame, "/payload")[0].event
        if not isinstance(decoded, Opaque):
            raise CannotExpress(f"send it as {decoded.kind}, not as opaque", path="/payload")
        return Encoded((frame,))

    def _decode_again(self, frame: Frame, path: str = "") -> tuple[Draft, ...]:
        try:
            return self.decode(frame)
        except MalformedFrame as exc:
            raise CannotExpress(f"invalid for OpenHands: {exc.reason}", path=f"{path}{exc.path}") from exc


def _kept(channel: str, payload: dict[str, Any]) -> Draft:
    return Draft(Opaque(channel=channel, payload=wire.without_secrets(payload)))
