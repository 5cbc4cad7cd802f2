"""Checks of outgoing values, which raise `CannotExpress`, and losses for omitted members. Pure."""

from gateway.errors import CannotExpress
from gateway.events import Loss
from gateway.strict_json import find_fault

ID_LENGTH = 1024
"""Our own limit: no protocol documents one for ids or names of tools."""


def check_text(text: str, path: str) -> None:
    """Refuse a text that JSON cannot express."""
    if not text.isascii():
        check_json(text, path)


def check_id(text: str, path: str) -> None:
    """Refuse an id that is empty, too long or not valid JSON."""
    if not 1 <= len(text) <= ID_LENGTH:
        raise CannotExpress(f"{path} must have 1 to {ID_LENGTH} characters, not {len(text)}", path=path)
    check_text(text, path)


def check_json(value: object, path: str, *, forbidden: frozenset[str] = frozenset()) -> None:
    """Refuse a value that is not plain, bounded JSON or has a key in `forbidden`."""
    if fault := find_fault(value, path, forbidden=forbidden):
        raise CannotExpress(f"{fault.path} {fault.reason}", path=fault.path)


def dropped(*members: tuple[str, object], note: str) -> tuple[Loss, ...]:
    """Return a `dropped` loss for each member with a value other than None."""
    return tuple(Loss(how="dropped", path=f"/{name}", note=note) for name, given in members if given is not None)
