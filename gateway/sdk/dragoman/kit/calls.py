"""The parameters and results of tool functions."""

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
    edited: bool = False
    """Whether a person has changed the arguments before they allowed the call."""


@dataclass(frozen=True)
class ToolCall:
    """The call of a tool function; `requested` has the session, its labels and the deadline."""

    key: str
    """The idempotency key: the same for each repeat of this call."""
    requested: RequestedCall
    _report: Callable[[dict[str, Any]], Awaitable[None]] = field(repr=False)

    async def progress(self, data: dict[str, Any]) -> None:
        """Report progress to the session's followers; errors are logged and do not affect the call."""
        await self._report(data)


class ToolFailed(Exception):
    """A failure whose text the agent receives; the text of any other exception is only logged."""


class Update(BaseModel):
    """New state that the agent receives before the result."""

    name: str = Field(min_length=1)
    context: Mapping[str, Any]
    description: str = ""


@dataclass(frozen=True)
class Answer:
    """A result with updates, or one that does not wake the agent."""

    result: Any = None
    updates: Sequence[Update] = ()
    wakes_agent: bool | None = None
