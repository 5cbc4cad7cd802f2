"""Functions of python.yaml: each gets the `data` of a webhook request and returns the answer."""
# Users copy this file next to a configuration, so its folder is not a package.
# ruff: noqa: INP001

from collections.abc import Mapping
from typing import Any


async def count_cards(call: Mapping[str, Any]) -> Any:
    """Answer a tool call. Any JSON is the result; an exception becomes the failure that the agent gets."""
    hand, rank = call["arguments"]["hand"], call["arguments"]["rank"]
    if not hand:
        raise ValueError("The hand is empty; draw a card first.")
    count = sum(card == rank for card in hand)
    if count == 4:
        # The long form can add updates, which reach the agent before the result.
        book = {"name": "book", "context": {"book": rank}, "description": f"All four {rank}s are there."}
        return {"outcome": "success", "result": {"count": count}, "updates": [book]}
    return {"count": count}


async def allow_reading(call: Mapping[str, Any]) -> dict[str, str]:
    """Answer an approval: allow reading, leave every other decision to a person."""
    return {"decision": "allow"} if call["event"].get("tool") == "read" else {}
