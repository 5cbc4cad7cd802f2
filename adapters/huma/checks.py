"""Checks on what is to be written in HUMA's words, and how what they leave out is told. Pure."""

from typing import Any

from adapters.huma import wire
from gateway.adapter.port import Encoded, Frame
from gateway.errors import CannotExpress
from gateway.events import Loss
from gateway.json_values import find_fault


def say(channel: str, payload: dict[str, Any], losses: tuple[Loss, ...] = ()) -> Encoded:
    """Say an event in one frame."""
    return Encoded((Frame(channel, payload),), losses)


def dropped(*members: tuple[str, object]) -> tuple[Loss, ...]:
    """List those of an event's members that are given as dropped."""
    return tuple(
        Loss(how="dropped", path=f"/{name}", note="HUMA has no place for it")
        for name, given in members
        if given is not None
    )


def check_text(text: str, path: str) -> None:
    """Refuse a text that JSON cannot say.

    Raises:
        CannotExpress: as do the others here.
    """
    if not text.isascii():
        check_json(text, path)


def check_id(text: str, path: str) -> None:
    """Refuse an id or a tool's name that is empty or too long."""
    if not 1 <= len(text) <= wire.ID_LENGTH:
        raise CannotExpress(f"{path} has 1 to {wire.ID_LENGTH} characters, this one has {len(text)}", path=path)
    check_text(text, path)


def check_json(value: object, path: str) -> None:
    """Refuse what is not plain, bounded JSON."""
    if fault := find_fault(value, path):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)
