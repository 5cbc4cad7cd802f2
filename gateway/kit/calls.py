"""What a tool function gets and gives."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class RequestedCall(BaseModel):
    """The `data` of a `tool.requested`; members of later releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    call_id: str
    native_call_id: str
    session_id: str
    native_session_id: str
    runtime: str
    protocol: str
    tool: str
    arguments: dict[str, Any]
    labels: dict[str, str] = {}
    attempt: int = 1
    deadline: datetime
    callback_url: str | None = None
    progress_url: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """The call that a tool function answers: `requested` is who calls, in which session, until when."""

    key: str
    """The idempotency key: the same for each repeat of this call."""
    requested: RequestedCall
    _report: Callable[[dict[str, Any]], Awaitable[None]] = field(repr=False)

    async def progress(self, data: dict[str, Any]) -> None:
        """Tell followers of the session how far it is; what cannot be told is logged and costs the call nothing."""
        await self._report(data)


class ToolFailed(Exception):
    """Raise it to tell the agent why its call failed; the text of any other exception stays in your log."""


class Update(BaseModel):
    """Fresh state that reaches the agent before the result."""

    name: str = Field(min_length=1)
    context: Mapping[str, Any]
    description: str = ""


@dataclass(frozen=True)
class Answer:
    """Return it instead of a plain result to send updates along, or to let the agent sleep on."""

    result: Any = None
    updates: Sequence[Update] = ()
    wakes_agent: bool | None = None
