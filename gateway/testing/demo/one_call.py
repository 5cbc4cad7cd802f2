"""One call from a runtime to the backend and back, as recorded on four connections."""

import json
from dataclasses import dataclass
from typing import Any

from gateway.testing.wire import Passed, Wire

DIALECTS = {
    "huma 0.1": "HUMA 0.1",
    "huma 0.2": "HUMA 0.2.0",
    "openhands": "OpenHands",
    "openhands v1": "OpenHands V1",
    "herm": "Herm",
    "mcp": "MCP",
}
FURTHER = frozenset({"openhands v1"})
"""The dialects that are played only on request."""


@dataclass(frozen=True, slots=True)
class OneCall:
    """The recorded messages of one call."""

    runtime: str
    mark: str
    """The text that identifies its frames."""
    asked: Passed
    """The runtime's request."""
    copied: Passed
    """The copy of the recorded event; its `data` is the envelope."""
    webhook: Passed
    answered: Passed
    """The backend's response."""
    told: Passed
    """The result that the runtime received."""

    @property
    def envelope(self) -> dict[str, Any]:
        return json.loads(self.copied.text)["data"]

    @property
    def request(self) -> dict[str, Any]:
        """The data of the webhook."""
        return json.loads(self.webhook.text)["data"]


def find_call(runtime: str, mark: str, call_id: str, *, wire: Wire, backend: Wire) -> OneCall | None:
    """Find all messages of a call; return None while one is missing.

    Args:
        runtime: The runtime's label in the report.
        mark: The text that identifies the call's frames.
        call_id: The gateway's id of the call.
        wire: The runtime's traffic.
        backend: The backend's traffic.
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
