"""Checks that every codec makes on a frame before it decodes the content. Pure."""

from collections.abc import Callable
from typing import Any, cast

from gateway.adapter.port import Frame
from gateway.errors import MalformedFrame
from gateway.events import Draft, Opaque
from gateway.strict_json import Malformed, find_fault, json_type


def payload_of(frame: Frame) -> Any:
    """Return the payload of a frame. The functions below also raise `MalformedFrame`.

    Raises:
        MalformedFrame: the link could not read the payload.
    """
    if isinstance(frame.payload, Malformed):
        raise MalformedFrame(frame.payload.reason)
    return frame.payload


def read_object(payload: object) -> dict[str, Any]:
    """Return a payload that must be an object."""
    if not isinstance(payload, dict):
        raise MalformedFrame(f"expected an object, got {json_type(payload)}")
    return cast("dict[str, Any]", payload)


def read_typed(payload: object) -> dict[str, Any]:
    """Return a payload that must be an object with a text at `type`."""
    members = read_object(payload)
    if isinstance(members.get("type"), str):
        return members
    raise MalformedFrame(f"expected a string, got {json_type(members.get('type'))}", path="/type")


def keep(frame: Frame, *, hide: Callable[[Any], Any] | None = None) -> Draft:
    """Make an `opaque` draft of an unknown message; `hide` removes secrets from the payload."""
    if fault := find_fault([frame.channel, frame.payload]):
        raise MalformedFrame(f"the message {fault.reason}", path=fault.path[2:])
    return Draft(Opaque(channel=frame.channel, payload=hide(frame.payload) if hide else frame.payload))
