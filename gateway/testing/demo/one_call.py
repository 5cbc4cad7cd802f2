"""One call from a runtime to the backend and back, as it went over four connections."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.testing.wire import Passed, Wire

DIALECTS = {"huma 0.1": "HUMA 0.1", "huma 0.2": "HUMA 0.2.0", "openhands": "OpenHands", "herm": "Herm", "mcp": "MCP"}


@dataclass(frozen=True, slots=True)
class OneCall:
    """What each side wrote, to the letter."""

    runtime: str
    mark: str
    """The text by which its frames are known."""
    asked: Passed
    """The call, as the runtime wrote it."""
    copied: Passed
    """The copy of what went on record: its `data` is the envelope."""
    webhook: Passed
    answered: Passed
    """What the backend answered."""
    told: Passed
    """The result, as the runtime read it."""

    @property
    def envelope(self) -> dict[str, Any]:
        return json.loads(self.copied.text)["data"]

    @property
    def request(self) -> dict[str, Any]:
        """What the backend was asked."""
        return json.loads(self.webhook.text)["data"]


def find_call(runtime: str, mark: str, call_id: str, *, wire: Wire, backend: Wire) -> OneCall | None:
    """Find a call by what its runtime calls it on its wire, as far as all of it has passed.

    Args:
        runtime: What the report calls it.
        mark: The text by which its frames are known there.
        call_id: The gateway's own id.
        wire: The runtime's connections.
        backend: The backend's connections.
    """
    asked = wire.find(mark, by_gateway=False)
    webhook = next((each for each in backend.passed if each.headers.get("webhook-id") == call_id), None)
    copied = next((each for each in backend.passed if _is_copy(each, call_id)), None)
    if asked is None or webhook is None or copied is None:
        return None
    answered = backend.answer_to(webhook)
    told = wire.find(mark, by_gateway=True) or wire.answer_to(asked)
    if answered is None or told is None:
        return None
    return OneCall(runtime, mark, asked, copied, webhook, answered, told)


def _is_copy(passed: Passed, call_id: str) -> bool:
    if passed.head != "POST /events" or call_id not in passed.text:
        return False
    event = json.loads(passed.text)["data"].get("event", {})
    return event.get("kind") == "tool.requested" and event.get("call_id") == call_id
