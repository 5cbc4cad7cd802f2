"""The server of the protocol's library with an empty handler, on a bare uvicorn: what an MCP call costs anybody."""

import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

ANSWER = types.CallToolResult(content=[types.TextContent(text="seven")])


async def _call(_ctx: Any, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return ANSWER


def main(port: int) -> None:
    """Serve until told to stop."""
    server = Server("floor", on_call_tool=_call, get_tool_input_schema=lambda _: None)
    server.middleware.clear()
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with manager.run():
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await send({"type": "lifespan.shutdown.complete"})
            return
        await manager.handle_request(scope, receive, send)

    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
