"""Enforces the contract of a codec: any fault becomes one of the two errors that the core handles."""

from collections.abc import Mapping
from typing import Any, cast

from gateway.adapter.port import Codec, Encoded, Frame, McpCall, McpCallCodec
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import Draft, Envelope, Event
from gateway.guard import FAULTS, is_fault
from gateway.store.encoding import OWN_CHANNELS

_TRIES = 3
"""Attempts per frame or event, without pauses because a codec is pure."""


class CheckedCodec:
    """Wraps the codec of an adapter, which may be third-party code."""

    def __init__(self, codec: Codec, *, runtime: str) -> None:
        self._codec = codec
        self._runtime = runtime

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        """Decode a frame into drafts of events.

        Raises:
            MalformedFrame: the codec rejected the frame, or failed three times.
        """
        reason = ""
        for tries in range(_TRIES):
            try:
                drafts = tuple(self._codec.decode(frame))
                if set(map(type, drafts)) != {Draft}:
                    raise TypeError("decode must return one or more Draft objects")
            except MalformedFrame:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.get().note("codec", exc, runtime=self._runtime, channel=frame.channel)
                reason = type(exc).__name__
            else:
                for draft in drafts:
                    if _takes_own_channel(draft.event):
                        raise MalformedFrame(f"the channel {frame.channel!r} is the gateway's own")
                return drafts
        raise MalformedFrame(f"the adapter failed to decode it ({reason})")

    def encode(self, item: Draft | Envelope) -> Encoded:
        """Encode an event as native frames.

        Raises:
            CannotExpress: the protocol cannot express it, or the codec failed three times.
        """
        if _takes_own_channel(item.event):
            raise CannotExpress("this channel is the gateway's own", path="/channel")
        reason = ""
        for tries in range(_TRIES):
            try:
                encoded = cast("object", self._codec.encode(item))
                if not isinstance(encoded, Encoded) or not {Frame}.issuperset(map(type, encoded.frames)):
                    raise TypeError("encode must return an Encoded with frames")
            except CannotExpress:
                raise
            except BaseException as exc:
                if not is_fault(exc):
                    raise
                if tries == 0:
                    FAULTS.get().note("codec", exc, runtime=self._runtime, kind=item.event.kind)
                reason = type(exc).__name__
            else:
                return encoded
        raise CannotExpress(f"the adapter failed to encode it ({reason})")

    def mcp_call(self, tool: str, arguments: Mapping[str, Any]) -> McpCall | None:
        """Return the MCP call that an action makes; None also if the codec failed."""
        try:
            made = cast("object", cast("McpCallCodec", self._codec).mcp_call(tool, arguments))
            if not isinstance(made, McpCall | None):
                raise TypeError("mcp_call must return an McpCall or None")
        except Exception as exc:  # noqa: BLE001 - an adapter may raise anything
            FAULTS.get().note("codec", exc, runtime=self._runtime, tool=tool)
            return None
        return made


class NullCodec:
    """The codec of a session without its runtime: decodes nothing and encodes to no frames."""

    def decode(self, frame: Frame) -> tuple[Draft, ...]:  # noqa: ARG002 - the port names it
        return ()

    def encode(self, item: Draft | Envelope) -> Encoded:  # noqa: ARG002 - the port names it
        return Encoded(())


def _takes_own_channel(event: Event) -> bool:
    # Compare the kind: a failed isinstance check takes several times as long.
    return event.kind == "opaque" and event.channel in OWN_CHANNELS
