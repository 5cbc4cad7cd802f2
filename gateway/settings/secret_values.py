"""Finds all secrets of a configuration, so that they can be masked. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from gateway.settings.place import Place

_SHORTEST = 8
"""Shorter header values are versions and flags; masking them would garble other texts."""
_PLAIN_HEADERS = frozenset({"accept", "accept-language", "user-agent"})
"""Headers with common values that are not secret."""


def secrets_in(value: object) -> Iterator[str]:
    """Find every secret in settings, at any depth."""
    match value:
        case SecretStr():
            yield value.get_secret_value()
            # The password of a URL is secret on its own.
            url = urlsplit(value.get_secret_value()) if "://" in value.get_secret_value() else None
            if url is not None and url.password:
                yield from {url.password, unquote(url.password)}
            if url is not None:
                yield from (text for name, text in parse_qsl(url.query) if "password" in name)
        case BaseModel():
            for name in type(value).model_fields:
                inner = getattr(value, name)
                yield from secrets_in(inner)
                if name == "headers" and isinstance(inner, dict):
                    yield from _in_headers(cast("dict[str, object]", inner))
        case dict():
            for item in cast("dict[object, object]", value).values():
                yield from secrets_in(item)
        case list() | tuple() | set() | frozenset():
            for item in cast("Iterable[object]", value):
                yield from secrets_in(item)
        case _:
            return


def secrets_from_outside(filled: Mapping[Place, Sequence[str]]) -> Iterator[str]:
    """Find the texts that variables and files contributed to headers of executors and destinations."""
    for place, values in filled.items():
        match place:
            case ("executors" | "destinations", _, "headers", _):
                for value in values:
                    yield from _long_enough(value)
            case _:
                pass


def _in_headers(headers: dict[str, object]) -> Iterator[str]:
    """Find all header values, since a backend may use any header for a credential."""
    for name, value in headers.items():
        if isinstance(value, str) and name.lower() not in _PLAIN_HEADERS:
            yield from _long_enough(value)


def _long_enough(value: str) -> Iterator[str]:
    """Yield a value with and without its scheme (`Bearer`), if they are long enough to mask."""
    yield from (each for each in (value, value.partition(" ")[2]) if len(each) >= _SHORTEST)
