"""Takes secrets out of whatever is about to be logged: query strings, headers, known values."""

import re
import traceback
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, cast

from gateway.hidden import MASK, NOTHING, Hidden, spellings

_MAX_VALUE = 2_000
_MAX_END = 8_000
_MAX_READ = 100_000
_MAX_DEPTH = 6
_MAX_MEMBERS = 100
_SHORTEST_SECRET = 4

_NAMES = (
    r"(?:session[_-]?)?api[_-]?key|x[_-](?:session[_-])?api[_-]key|apikey|access[_-]?token|callback[_-]?token|token"
    r"|client[_-]?secret|secret|password|passwd|authorization|proxy-authorization|webhook-signature|cookie|set-cookie"
)
_SECRET_NAME = re.compile(rf"(?:{_NAMES})s?\Z", re.IGNORECASE)
_START = r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))"
# A quoted value may have lost its end, where a long text was cut to an excerpt.
_VALUE = r"(?:b?\\?\"[^\"]*(?:\"|\Z)|b?'[^']*(?:'|\Z)|[^\s\"',;&)\]}]+)"
_RULES = (
    # name=value in query strings, also percent-encoded ones; `key` alone is a secret only here
    (
        ("=", "%3D", "%3d"),
        re.compile(rf"{_START}({_NAMES}|key|sig|signature)(=|%3D)[^&\s\"'<>#;,)\]}}]+", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    # Authorization: Bearer value
    (
        ("earer", "EARER", "asic", "ASIC"),
        re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    # name: value in headers and JSON, and pairs as Python writes them
    (
        (":", ",", "="),
        re.compile(rf"{_START}({_NAMES})(\\?[\"']?\s*:\s*|[\"']\s*,\s*|\\?[\"']?\s*=\s*[\"']?){_VALUE}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    # user:password@ in URLs
    (("://",), re.compile(r"(://)[^/\s@\"']+@"), rf"\1{MASK}@"),
    # secrets that can be told by their form
    (("whsec_", "dtt_"), re.compile(r"\b(?:whsec|dtt)_[A-Za-z0-9+/=_-]+"), MASK),
)
"""Texts one of which must occur for the rule to be tried, the rule, and what stands in its place."""
_SIGNS = tuple(dict.fromkeys(sign for signs, _, _ in _RULES for sign in signs))
"""Most values contain none of them, and looking for each takes less than one expression for all."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What steers terminals, ends lines for some readers, or turns the direction of writing."""

_known = [NOTHING]
_signs = [_SIGNS]
"""Of the rules and of all secrets that are known."""


def register_secret(value: str) -> None:
    """Have a value replaced wherever it turns up, in every spelling.

    Values of fewer than 4 characters are not taken: they would blank out half of every line.
    """
    if len(value) < _SHORTEST_SECRET or is_registered(value):
        return
    _known[0] = Hidden((*_known[0].texts, value))
    _signs[0] = (*_SIGNS, *_known[0].signs)
    _name.cache_clear()


def is_registered(value: str) -> bool:
    """Whether a value is known to be a secret."""
    return value in _known[0].texts


def mask_text(text: str, *, keep_end: bool = False) -> str:
    """Take the secrets out of a text, and everything a terminal or a JSON writer could stumble over.

    The result is bounded; `keep_end` keeps more, and the end rather than the middle, as tracebacks want it.
    """
    cut = len(text) > _MAX_READ
    if cut:
        text = text[-_MAX_READ:] if keep_end else text[:_MAX_READ]
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    text = _known[0].mask(text)
    if cut:
        # Half a secret may stand where the text was cut.
        longest = max((len(spellings(known)) for known in _known[0].texts), default=0)
        text = text[longest:].partition("\n")[2] if keep_end else text[: len(text) - longest]
    if any(sign in text for sign in _SIGNS):
        for signs, rule, replacement in _RULES:
            if any(sign in text for sign in signs):
                text = rule.sub(replacement, text)
    if not text.isprintable():
        text = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    if keep_end:
        return text if len(text) <= _MAX_END else f"{text[:_MAX_VALUE]}\n…\n{text[_MAX_VALUE - _MAX_END :]}"
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def mask_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Do for the facts of a line what `masked` does; one look at all of them settles it for nearly every line."""
    return facts if _are_plain(facts) else masked(facts)


def _are_plain(facts: dict[str, Any]) -> bool:
    """Whether `masked` surely changes nothing."""
    texts: list[str] = []
    for name, value in facts.items():
        if _name(name) != (name, False):
            return False
        match value:
            case str():
                texts.append(value)
            case None | bool():
                pass
            case int() if -(2**63) <= value < 2**63:
                texts.append(str(value))
            case _:
                return False
    text = " ".join(texts)
    if not (text.isascii() and text.isprintable()) or len(text) > _MAX_VALUE or len(facts) > _MAX_MEMBERS:
        return False
    # A loop, as one that is made for `any` takes twice as long.
    for sign in _signs[0]:  # noqa: SIM110
        if sign in text:
            return False
    return True


def masked(value: Any, *, keep_end: bool = False, depth: int = 0) -> Any:
    """Turn any value into plain JSON without secrets and of bounded size."""
    match value:
        case str():
            return mask_text(value, keep_end=keep_end)
        case None | bool():
            return value
        case int() | float():
            return _number(value)
        case Mapping() if depth < _MAX_DEPTH:
            members = cast("Mapping[Any, Any]", value)
            pairs = list(members.items())[:_MAX_MEMBERS]
            return dict(_member(str(name), one, depth) for name, one in pairs)
        case list() | tuple() | set() | frozenset() if depth < _MAX_DEPTH:
            items = list(cast("Sequence[Any]", value))[:_MAX_MEMBERS]
            return [masked(item, depth=depth + 1) for item in items]
        case _:
            return mask_text(_write(value))


def _member(name: str, value: Any, depth: int) -> tuple[str, Any]:
    shown, secret = _name(name)
    return shown, MASK if secret and value is not None else masked(value, depth=depth + 1)


@lru_cache(maxsize=1024)
def _name(name: str) -> tuple[str, bool]:
    return mask_text(name), _SECRET_NAME.match(name) is not None


def _number(value: float) -> Any:
    if isinstance(value, int):
        # Beyond 64 bits JSON writers refuse, and beyond 4,300 digits Python does.
        small = value if value.bit_length() < 64 else f"an integer of {value.bit_length()} bits"
    else:
        small = value if isfinite(value) else repr(value)
    return small if mask_text(str(small)) == str(small) else MASK


def _write(value: Any) -> str:
    match value:
        case BaseException():
            # Not str(): an exception may fail to write itself.
            return "".join(traceback.format_exception_only(value)).strip()
        case bytes() | bytearray():
            return value.decode("utf-8", "backslashreplace")
        case Mapping() | list() | tuple() | set() | frozenset():
            return f"{type(cast('object', value)).__name__} nested too deeply to log"
        case _:
            return str(value)
