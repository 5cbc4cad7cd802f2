"""Shows characters that a reader cannot see as escapes such as `\\u202e`: on pages, in terminals and in logs. Pure."""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

LONGEST_DECISION = 64 * 1024
"""The maximum number of characters of a request that a person decides on in a list, which shows all of it."""
_NOT_ASCII = re.compile(r"[^ -~]+")
_FILLERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Default ignorable code points that are letters or marks, and the blank Braille pattern."""


def show_hidden(text: str, write: Callable[[str], str] = str, *, keep: str = "") -> str:
    """Replace each hidden character by its escape, as `write` writes it; the characters to `keep` stay."""
    if text.isascii() and text.isprintable():
        return text
    return _NOT_ASCII.sub(partial(_show, write, keep), text)


def is_hidden(character: str) -> bool:
    """Return whether readers cannot see a character, or it changes how they see others.

    These are controls, formats, surrogates, private and unassigned characters, line separators, and fillers.
    """
    # Of the characters that are not printable, only spaces are harmless.
    printable = character.isprintable() or unicodedata.category(character) == "Zs"
    return not printable or _FILLERS.match(character) is not None


def _show(write: Callable[[str], str], keep: str, found: re.Match[str]) -> str:
    run = found[0]
    if run.isprintable() and not _FILLERS.search(run):
        return run
    return "".join(write(_escape(one)) if one not in keep and is_hidden(one) else one for one in run)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def length_of(event: Mapping[str, Any]) -> int:
    """Return the number of characters of an event as JSON."""
    return len(json.dumps(event, ensure_ascii=False))
