"""Functions that python.yaml calls: each gets the `data` of a webhook and returns the answer."""
# It stands alone, to be copied beside a configuration, so its folder is no package.
# ruff: noqa: INP001

from collections.abc import Mapping
from typing import Any


async def count_cards(call: Mapping[str, Any]) -> Any:
    """Answer a tool call: any JSON is the result; what is raised is told to the agent as the failure."""
    hand, rank = call["arguments"]["hand"], call["arguments"]["rank"]
    if not hand:
        raise ValueError("The hand is empty; draw a card first.")
    count = sum(card == rank for card in hand)
    if count == 4:
        # The long form: updates reach the agent before the result.
        book = {"name": "book", "context": {"book": rank}, "description": f"All four {rank}s are there."}
        return {"outcome": "success", "result": {"count": count}, "updates": [book]}
    return {"count": count}


async def allow_reading(call: Mapping[str, Any]) -> dict[str, str]:
    """Answer an approval: reading is allowed, everything else is left to a person."""
    return {"decision": "allow"} if call["event"].get("tool") == "read" else {}
