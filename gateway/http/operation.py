"""Reads OpenAPI options from an operation's function. Pure."""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any


def options_of(endpoint: Callable[..., Any]) -> dict[str, Any]:
    """Return the operation id, and the summary and description from the docstring."""
    first, *words = endpoint.__name__.split("_")
    summary, _, description = cleandoc(endpoint.__doc__ or "").partition("\n\n")
    return {
        "operation_id": first + "".join(word.capitalize() for word in words),
        "summary": summary.removesuffix("."),
        "description": re.sub(r"(?<!\n)\n(?!\n)", " ", description),
    }
