"""Finds every secret in a configuration, so that none of them is shown. Pure."""

from collections.abc import Iterable, Iterator
from typing import cast
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr


def secrets_in(value: object) -> Iterator[str]:
    """Find every secret in settings, however deep."""
    match value:
        case SecretStr():
            yield value.get_secret_value()
            # The password of a URL alone is as secret as the whole.
            password = urlsplit(value.get_secret_value()).password if "://" in value.get_secret_value() else None
            if password:
                yield from {password, unquote(password)}
        case BaseModel():
            for name in type(value).model_fields:
                yield from secrets_in(getattr(value, name))
        case dict():
            for item in cast("dict[object, object]", value).values():
                yield from secrets_in(item)
        case list() | tuple() | set() | frozenset():
            for item in cast("Iterable[object]", value):
                yield from secrets_in(item)
        case _:
            return
