"""Converts the facts of a log line to plain JSON of bounded size without registered secrets."""

import traceback
from collections.abc import Iterable, Mapping
from itertools import islice
from math import isfinite
from typing import Any, cast

import orjson

from dragoman.hidden import MASK, NOTHING, Hidden
from gateway.visible import show_hidden

_LONGEST = 2_000
_LONGEST_TRACEBACK = 8_000
_LONGEST_READ = 100_000
_DEEPEST = 6
_MOST_MEMBERS = 100
_SHORTEST_SECRET = 4
"""Shorter values would blank out half of every line."""
_TOKENS = (b"whsec_", b"dtt_", b"dlk_")
"""The beginnings of the tokens that every mask finds."""

_registered = [NOTHING]


def register_secret(value: str) -> None:
    """Mask a value in every log line from now on; a value of fewer than 4 characters is ignored."""
    if len(value) >= _SHORTEST_SECRET and not is_registered(value):
        _registered[0] = Hidden((*_registered[0].texts, value))


def is_registered(value: str) -> bool:
    """Return whether a value is a registered secret."""
    return value in _registered[0].texts


def mask_json(written: bytes, secrets: Iterable[str] = ()) -> bytes:
    """Mask the registered secrets, and further ones, in each text and number of a JSON document of bounded depth."""
    masks = (_registered[0], Hidden(secrets))
    if not any(mask.may_be_in(written) for mask in masks) and not any(token in written for token in _TOKENS):
        return written
    return orjson.dumps(_mask_value(orjson.loads(written), masks))


def _mask_value(value: Any, masks: Iterable[Hidden]) -> Any:
    match value:
        case dict():
            members = cast("dict[str, Any]", value)
            return {_mask_value(name, masks): _mask_value(one, masks) for name, one in members.items()}
        case list():
            return [_mask_value(one, masks) for one in cast("list[Any]", value)]
        case None | bool():
            return value
        case _:
            text = masked = str(value)
            for mask in masks:
                masked = mask.mask(masked)
            return value if masked == text else masked


def clean_text(text: str) -> str:
    """Mask a text, show its hidden characters, and cut it to 2,000 characters."""
    text = mask_text(text[:_LONGEST_READ], is_cut=len(text) > _LONGEST_READ)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def clean_traceback(text: str) -> str:
    """Mask a traceback, and keep the beginning and the end of a long one."""
    if len(text) > _LONGEST_READ:
        # The cut leaves no part of a secret, because it is at the end of a line.
        text = text[-_LONGEST_READ:].partition("\n")[2]
    text = mask_text(text)
    if len(text) <= _LONGEST_TRACEBACK:
        return text
    return f"{text[:_LONGEST]}\n…\n{text[_LONGEST - _LONGEST_TRACEBACK :]}"


def clean(value: Any, depth: int = 0) -> Any:
    """Turn any value into plain JSON of bounded size without registered secrets."""
    match value:
        case str():
            return clean_text(value)
        case None | bool():
            return value
        case int() if value.bit_length() >= 64:
            # JSON writers refuse such integers, and Python itself refuses the longest.
            return f"an integer of {value.bit_length()} bits"
        case int() | float():
            text = str(value)
            return MASK if _registered[0].mask(text) != text else value if isfinite(value) else text
        case Mapping() if depth < _DEEPEST:
            members = cast("Mapping[Any, Any]", value).items()
            return {clean_text(str(name)): clean(one, depth + 1) for name, one in islice(members, _MOST_MEMBERS)}
        case list() | tuple() | set() | frozenset() if depth < _DEEPEST:
            return [clean(one, depth + 1) for one in islice(cast("Iterable[Any]", value), _MOST_MEMBERS)]
        case BaseException():
            # An exception may fail to write itself; `traceback` handles that.
            return clean_text("".join(traceback.format_exception_only(value)).strip())
        case bytes() | bytearray():
            return clean_text(value.decode("utf-8", "backslashreplace"))
        case Mapping() | list() | tuple() | set() | frozenset():
            return f"{type(cast('object', value)).__name__} nested too deeply to log"
        case _:
            return clean_text(str(value))


def mask_text(text: str, *, is_cut: bool = False) -> str:
    """Mask registered secrets in a text, and show its hidden characters; `is_cut` if the end of it is missing."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    text = _registered[0].mask(text)
    if is_cut:
        # The cut may leave a part of a secret; no encoded form is longer than this.
        longest = max((len(secret) for secret in _registered[0].texts), default=0)
        text = text[: len(text) - 12 * longest]
    return show_hidden(text, keep="\t\n")
