"""Every way in which a call can end before an attempt has left the gateway."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.events import CallId, SessionId, ToolCanceled, ToolRequested
from gateway.executors.port import NeverSent
from tests.http.environment import Environment, until

OVER: Mapping[str, Any] = {
    "limits": {"drain": "1s", "session_concurrency": 1, "open_calls": 9},
    "tools": {"draw": {"description": "Draw cards.", "parameters": {"type": "object", "required": ["count"]}}},
}
"""The configuration: one call of a session runs, and one waits."""

Way = Callable[[Environment, str], Awaitable[str]]


async def _malformed(made: Environment, session_id: str) -> str:
    made.runtime.say(ToolRequested(native_call_id="e-1", tool="ask_for_cards", problem="at /rank: 99 is not allowed"))
    return (await made.call("e-1", "failed")).call_id


async def _invalid(made: Environment, session_id: str) -> str:
    return await made.ask("e-1", "draw", state="failed")


async def _unknown_tool(made: Environment, session_id: str) -> str:
    await made.reload({"routes": [{"match": {"tool": "draw"}, "to": "cards"}]})
    return await made.ask("e-1", "fly", state="failed")


async def _unreachable(made: Environment, session_id: str) -> str:
    made.backend.answers["ask_for_cards"] = NeverSent("connection refused")

    async def is_open() -> bool | None:
        return made.gateway.status.activity().executors[0].breaker != "closed" or None

    for number in range(5):
        made.runtime.say(ToolRequested(native_call_id=f"b-{number}", tool="ask_for_cards"))
    await until(is_open)
    return await made.ask("e-1", state="failed")


async def _queued(made: Environment) -> str:
    """Ask for two calls, of which the second one waits for the first one's end."""
    made.runtime.say(ToolRequested(native_call_id="e-0", tool="ask_for_cards"))
    return await made.ask("e-1", state="queued")


async def _canceled_by_the_agent(made: Environment, session_id: str) -> str:
    with made.backend.held():
        await _queued(made)
        made.runtime.say(ToolCanceled(native_call_id="e-1", reason="no longer needed"))
        return (await made.call("e-1", "canceled")).call_id


async def _canceled_by_an_operator(made: Environment, session_id: str) -> str:
    with made.backend.held():
        call_id = await _queued(made)
        await made.gateway.calls.cancel(CallId(call_id), reason=None)
        return (await made.call("e-1", "canceled")).call_id


async def _closed(made: Environment, session_id: str) -> str:
    with made.backend.held():
        await _queued(made)
        await made.gateway.close_session(SessionId(session_id), erase=False)
        return (await made.call("e-1", "canceled")).call_id


async def _expired(made: Environment, session_id: str) -> str:
    await made.reload({"executors": {"cards": {"deadline": "1s", "timeout": "1s"}}})
    with made.backend.held():
        await _queued(made)
        return (await made.call("e-1", "expired")).call_id


async def _overloaded(made: Environment, session_id: str) -> str:
    with made.backend.held():
        await _queued(made)
        for number in range(2, 9):
            await made.ask(f"e-{number}", state="queued")
        return await made.ask("e-9", state="failed")


WAYS: Mapping[str, Way] = {
    "a request that its codec could not read": _malformed,
    "arguments that the schema refuses": _invalid,
    "a tool without a route": _unknown_tool,
    "an executor that is known to be unreachable": _unreachable,
    "a cancel of the agent": _canceled_by_the_agent,
    "a cancel of an operator": _canceled_by_an_operator,
    "the end of its session": _closed,
    "its deadline": _expired,
    "too many open calls": _overloaded,
}
