"""Checks on what a codec is to write, and how what it leaves out is told; all raise `CannotExpress`. Pure."""

from gateway.errors import CannotExpress
from gateway.events import Loss
from gateway.strict_json import find_fault

ID_LENGTH = 1024
"""Ours: no protocol's documents bound ids or the names of tools."""


def check_text(text: str, path: str) -> None:
    """Refuse a text that no JSON can carry."""
    if not text.isascii():
        check_json(text, path)


def check_id(text: str, path: str) -> None:
    """Refuse an id that is empty, endless or not sayable."""
    if not 1 <= len(text) <= ID_LENGTH:
        raise CannotExpress(f"{path} has 1 to {ID_LENGTH} characters, this one has {len(text)}", path=path)
    check_text(text, path)


def check_json(value: object, path: str, *, forbidden: frozenset[str] = frozenset()) -> None:
    """Refuse a value that is not plain, bounded JSON, or has a key that the protocol's document forbids."""
    if fault := find_fault(value, path, forbidden=forbidden):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)


def dropped(*members: tuple[str, object], note: str) -> tuple[Loss, ...]:
    """List those of an event's members that are given as dropped."""
    return tuple(Loss(how="dropped", path=f"/{name}", note=note) for name, given in members if given is not None)
