"""What a function says of the operation it carries out. Pure."""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import Any


def options_of(endpoint: Callable[..., Any]) -> dict[str, Any]:
    """Name the operation after the function; the first line of its docstring is the summary, the rest describes it."""
    first, *words = endpoint.__name__.split("_")
    summary, _, description = cleandoc(endpoint.__doc__ or "").partition("\n\n")
    return {
        "operation_id": first + "".join(word.capitalize() for word in words),
        "summary": summary.removesuffix("."),
        "description": re.sub(r"(?<!\n)\n(?!\n)", " ", description),
    }
