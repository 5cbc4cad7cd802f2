"""The hash of what a person allows: SHA-256 over compact JSON with sorted members. Pure."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

VERSION = 1


def binding_of(*, session: str, call: str, tool: str, arguments: Mapping[str, Any], rule: str) -> str:
    """Hash a held call with its arguments; `rule` is the hash of the route that holds it."""
    named = {"v": VERSION, "session": session, "call": call, "tool": tool, "arguments": arguments, "rule": rule}
    return digest_of(named)


def asked_binding_of(*, session: str, interaction: str, asked: Mapping[str, Any]) -> str:
    """Hash a runtime's own approval; `asked` is the data of its event."""
    return digest_of({"v": VERSION, "session": session, "interaction": interaction, "asked": asked})


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value's compact JSON as 64 hexadecimal digits; members are sorted by code point."""
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # Keys other than strings never come from JSON, and allowing them takes half as long again.
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return sha256(written).hexdigest()
