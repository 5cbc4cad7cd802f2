"""The MCP server: `tools/list` and `tools/call`, on the MCP library."""

from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from sse_starlette.sse import AppStatus
from starlette.types import Receive, Scope, Send

from gateway.core.unheard import GET_RESULT
from gateway.errors import DragomanError, Draining, Overloaded, UnknownTool
from gateway.events import CallProgressed
from gateway.guard import FAULTS
from gateway.http.errors import problem_of
from gateway.http.mcp.exchange import WAIT_ON, CallRefused, Exchange
from gateway.http.mcp.results import gone, mark_replayed, refused, to_tool_result, unfinished
from gateway.http.mcp.tracing import RequestTrace
from gateway.http.reply import dump
from gateway.runtime.app import Gateway
from gateway.traces.names import TOOL_ERROR

Context = ServerRequestContext[Any, Any]

_FRESH = 60_000
"""Milliseconds for which a client may cache a list of tools."""
_LONGEST_REPORT = 1_000

# Streams end with the calls that they wait for; the library would end all of them when one server of the process stops.
AppStatus.disable_automatic_graceful_drain()


class McpServer:
    """Serves authenticated, parsed requests; it is stateless, so any replica can respond."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server = Server(
            "dragoman",
            version=gateway.version,
            on_list_tools=self._list,
            on_call_tool=self._call,
            cache_hints={"tools/list": CacheHint(ttl_ms=_FRESH)},
            get_tool_input_schema=self._schema,
        )
        # The default middleware creates its own span.
        self._server.middleware.clear()

    async def serve(self, scope: Scope, receive: Receive, send: Send, *, streamed: bool) -> None:
        """Respond to one request: with an event stream if `streamed`, otherwise in JSON."""
        # One manager per request: its end also ends the tasks that it started.
        manager = StreamableHTTPSessionManager(
            self._server,
            json_response=not streamed,
            stateless=True,
            max_request_body_size=int(self._gateway.settings.api.max_body),
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    def _schema(self, tool: str) -> Mapping[str, Any] | None:
        spec = self._gateway.settings.tools.get(tool)
        return None if spec is None else spec.parameters

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        del params
        exchange = _exchange_of(ctx)
        await exchange.note_listed()
        tools = self._gateway.offered(exchange.session)
        shown = [
            types.Tool(
                name=one.name,
                description=one.description or None,
                input_schema={"type": "object", **one.parameters},
                annotations=_hints(read_only=one.read_only, idempotent=one.idempotent),
            )
            for one in tools
        ]
        # A call that needs an approval waits for a human, and ends the request of some clients at once.
        if any(one.gated or one.longest > exchange.hold for one in tools):
            shown.append(_WAIT_ON)
        return types.ListToolsResult(tools=shown)

    async def _call(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        exchange = _exchange_of(ctx)
        if (traces := self._gateway.traces) is None:
            return await self._answer(ctx, exchange, params)
        trace, error = RequestTrace(traces, exchange, params.name, ctx.protocol_version), "canceled"
        try:
            result = await self._answer(ctx, exchange, params)
            error = TOOL_ERROR if result.is_error else None
        except MCPError as exc:
            error = str(exc.error.code)
            raise
        finally:
            trace.end(error)
        return result

    async def _answer(
        self, ctx: Context, exchange: Exchange, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            with self._gateway.callers.holding(exchange.session.session_id):
                return await self._held(ctx, exchange, params.name, params.arguments or {})
        except CallRefused as exc:
            return refused(str(exc))
        except Overloaded:
            return refused("too many calls at once; retry when some have ended")
        except Draining as exc:
            exchange.refusal = exc
            return refused(str(exc))
        except UnknownTool as exc:
            raise MCPError(types.INVALID_PARAMS, str(exc)) from exc
        except DragomanError as exc:
            return refused(problem_of(exc).detail or str(exc))
        except Exception as exc:
            FAULTS.get().note("mcp", exc, text="request failed")
            raise MCPError(types.INTERNAL_ERROR, "internal error") from exc

    async def _held(
        self, ctx: Context, exchange: Exchange, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult:
        """Open a call and wait for its end, within the limit of waiting requests."""
        callers, reports = self._gateway.callers, 0
        call = await exchange.take(tool, arguments, f"mcp/{ctx.protocol_version}")

        async def tell(progress: CallProgressed | None) -> None:
            nonlocal reports
            reports += 1
            said = None if progress is None else dump(progress.data).decode()[:_LONGEST_REPORT]
            await ctx.session.report_progress(reports, None, said)

        if call.state == "held" and exchange.tells_held:
            return unfinished(call)
        report, exchange.waits = tell if exchange.streamed else None, call.is_open
        call, finished = await callers.outcome(call, exchange.hold.total_seconds(), report)
        if finished is not None:
            exchange.ended = True
            result = to_tool_result(finished, call, ctx.protocol_version)
            return mark_replayed(result, call) if exchange.replayed else result
        return unfinished(call) if call.is_open else gone(call)


def _hints(*, read_only: bool, idempotent: bool) -> types.ToolAnnotations | None:
    """Return hints only for declared properties."""
    if not (read_only or idempotent):
        return None
    return types.ToolAnnotations(read_only_hint=read_only or None, idempotent_hint=idempotent or None)


_WAIT_ON = types.Tool(
    name=GET_RESULT,
    description="Continue to wait for the result of a call that was not finished.",
    input_schema=WAIT_ON,
    annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True),
)


def _exchange_of(ctx: Context) -> Exchange:
    assert ctx.request is not None
    return cast(Exchange, ctx.request.state.mcp)
