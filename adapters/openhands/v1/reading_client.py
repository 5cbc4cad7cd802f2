"""Decodes what clients send: the bodies of POSTs, and messages over a socket. Pure."""

from typing import Any

from adapters.openhands.v1 import wire
from adapters.openhands.v1.content import read_blocks
from adapters.openhands.v1.drafts import silent, unknown_of
from gateway.errors import MalformedFrame
from gateway.events import ApprovalGiven, Content, Draft, Loss, MessagePosted, Text, TurnInterrupted
from gateway.strict_json import json_type, read_model, unknown_fields


def read_post(channel: str, body: dict[str, Any]) -> Draft | None:
    """Decode the body of a POST; None for one without an equivalent event.

    Raises:
        MalformedFrame: with the path of the first error.
    """
    match channel:
        case wire.POST_MESSAGE:
            return _message(body, always_runs=False)
        case wire.POST_CONFIRMATION:
            native = read_model(wire.ConfirmationBody, body)
            # The answer concerns all held actions and names none of them (OV33).
            decision = "allow" if native.accept else "deny"
            return Draft(ApprovalGiven(id="", decision=decision, reason=native.reason), losses=unknown_of(native))
        case wire.POST_INTERRUPT:
            return Draft(TurnInterrupted(), losses=unknown_fields(body))
        case _:
            return None


def read_client_frame(channel: str, frame: dict[str, Any]) -> tuple[Draft, ...]:
    """Decode what a client sends over a socket: its key, or a message, which always runs (OV5, OV28).

    Raises:
        MalformedFrame: with the path of the first error.
    """
    if "role" in frame:
        return (_message(frame, always_runs=True),)
    if frame.get("type") == wire.AUTH:
        return (silent(frame, channel),)
    name = "kind" if channel == wire.EVENTS else "type"
    raise MalformedFrame(f"expected a string, got {json_type(frame.get(name))}", path=f"/{name}")


def _message(body: dict[str, Any], *, always_runs: bool) -> Draft:
    native = read_model(wire.UserMessage, body)
    if native.role != "user":
        raise MalformedFrame("only user messages are accepted", path="/role")
    losses = unknown_of(native)
    if isinstance(native.content, list):
        content, more = read_blocks(native.content, "/content")
        losses += more
    elif always_runs:
        content: tuple[Content, ...] = (Text(text=native.content),)
    else:
        raise MalformedFrame("expected an array", path="/content")
    if always_runs and native.run is False:
        losses += (Loss(how="dropped", path="/run", note="a message over a socket always runs"),)
    return Draft(MessagePosted(content=content, wakes_agent=always_runs or native.run is True), losses=losses)
