"""Translates OpenHands messages to events and back, in both directions and without memory. Pure."""

from collections.abc import Mapping
from typing import Any, cast

import orjson

from adapters.openhands import wire
from adapters.openhands.reading import read_client_action, read_event
from adapters.openhands.writing import (
    differences,
    speaks_as_client,
    write_client_action,
    write_server_message,
)
from gateway.adapter.payload import keep, payload_of, read_object
from gateway.adapter.port import Encoded, Frame, McpCall
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope, Opaque


class OpenHandsCodec:
    """The codec of OpenHands; the channel gives the direction."""

    def __init__(
        self, action_event: str = wire.ACTIONS, *, keep_prompt: bool = False, unsafe_orders: bool = False
    ) -> None:
        self._action_event = action_event
        self._unsafe_orders = unsafe_orders
        self._keep_prompt = keep_prompt

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame."""
        payload = payload_of(frame)
        match frame.channel:
            case wire.EVENTS:
                draft = read_event(read_object(payload), keep_prompt=self._keep_prompt, plain=frame.written is not None)
            case wire.ACTIONS | wire.USER_ACTIONS:
                draft = read_client_action(read_object(payload), plain=frame.written is not None)
            case _:
                draft = None
        return (draft or keep(frame),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event.

        A server message is decoded again, and each member that differs is a loss.
        """
        if isinstance(item.event, Opaque):
            return self._opaque(item.event)
        if speaks_as_client(item):
            message, losses = write_client_action(item.event, unsafe_orders=self._unsafe_orders)
            return Encoded((Frame(self._action_event, message),), losses)
        message = write_server_message(item)
        # `write_server_message` has already checked the JSON.
        frame = Frame(wire.EVENTS, message, written=orjson.dumps(message))
        try:
            (decoded,) = self.decode(frame)
        except MalformedFrame as exc:
            raise CannotExpress(f"invalid for OpenHands: {exc.reason}", path=exc.path) from exc
        if decoded.event.kind != item.event.kind:
            raise CannotExpress(f"OpenHands would read it as {decoded.event.kind}")
        return Encoded((frame,), differences(item.event, decoded.event))

    def mcp_call(self, tool: str, arguments: Mapping[str, Any]) -> McpCall | None:
        """Return the MCP call that an action makes."""
        match tool, arguments:
            case "call_tool_mcp", {"name": str(name), "arguments": dict()}:
                return McpCall(name, cast("dict[str, Any]", arguments["arguments"]))
            case _:
                return None

    def _opaque(self, event: Opaque) -> Encoded:
        frame = Frame(event.channel, event.payload)
        try:
            (decoded,) = self.decode(frame)
        except MalformedFrame as exc:
            raise CannotExpress(f"invalid for OpenHands: {exc.reason}", path=f"/payload{exc.path}") from exc
        if not isinstance(decoded.event, Opaque):
            raise CannotExpress(f"send it as {decoded.event.kind}, not as opaque", path="/payload")
        match event.payload:
            case {"observation": _} if event.channel in wire.CLIENT_CHANNELS:
                # The server would add it to the conversation as if it had happened (OH53, OH55).
                raise CannotExpress("only the runtime makes observations", path="/payload/observation")
            case _:
                return Encoded((frame,))
