"""Run the simulated server alone."""

import argparse
import asyncio
import json
from datetime import timedelta

from gateway.testing.runtimes.alone import (
    WAIT,
    FirstCall,
    Options,
    play,
    show_line,
    show_questions,
    stay,
    tell,
    tell_asked,
    told,
)
from gateway.testing.runtimes.openhands.conversation import SimConversation
from gateway.testing.runtimes.openhands.server import Manners, OpenHandsServer

_LOOK = 0.05


async def _with_tool(server: OpenHandsServer, tool: str) -> SimConversation:
    """Wait for a conversation whose agent knows a tool.

    Raises:
        TimeoutError: with a possible reason.
    """
    try:
        async with asyncio.timeout(WAIT):
            while True:
                for one in server.conversations.values():
                    if one.mcp.has(tool) and one.sockets and one.state == "awaiting_user_input":
                        return one
                await asyncio.sleep(_LOOK)
    except TimeoutError as exc:
        why = f"no conversation has the tool {tool!r}; conversations from before the start of this server have no tools"
        raise TimeoutError(why) from exc


async def _call(server: OpenHandsServer, first: FirstCall) -> str:
    conversation = await _with_tool(server, first.tool)
    order = {"tool": first.tool, "arguments": first.arguments}
    _show(server, conversation.conversation_id, "call", "Let the agent call again:", order)
    tell_asked(first)
    began = asyncio.get_running_loop().time()
    seen = await conversation.agent_calls(first.tool, first.arguments)
    took = timedelta(seconds=asyncio.get_running_loop().time() - began)
    if seen.get("observation") != "mcp":
        return told("failure", seen.get("message", ""), took)
    result = json.loads(seen["content"])
    return told(
        "failure" if result["isError"] else "success", " ".join(block["text"] for block in result["content"]), took
    )


def _show(server: OpenHandsServer, conversation_id: str, page: str, what: str, order: object) -> None:
    url = f"{server.url}/simulator/conversations/{conversation_id}/{page}"
    headers = () if server.session_api_key is None else (f"X-Session-API-Key: {server.session_api_key}",)
    show_line(what, url, order, *headers)


async def _run(given: argparse.Namespace) -> None:
    key = given.session_api_key or given.env.get("OPENHANDS_KEY") or None
    made = OpenHandsServer(
        session_api_key=key,
        host=given.host,
        port=given.port,
        manners=Manners(
            loading=timedelta(seconds=given.loading),
            listens=frozenset(given.listens_for or Manners().listens),
            rest_status=404 if given.socket_only else None,
        ),
        max_concurrent_conversations=given.max_concurrent_conversations,
    )
    async with made as server:
        server.conversation(given.conversation)
        tell(f"OpenHands at {server.url}, conversation {given.conversation}")
        if given.call is None:
            what = "Let the agent run a command, when a client is connected:"
            _show(server, given.conversation, "run", what, {"command": "ls", "gated": True})
        show_questions(server.url, server.asking)
        await stay(given.call, lambda first: _call(server, first))


def main() -> None:
    """Serve one conversation and created ones until Ctrl-C."""
    options = Options("openhands", "A simulated OpenHands server of the V0 protocol, speaking raw JSON.")
    options.add_address()
    add = options.parser.add_argument
    add("--session-api-key", metavar="KEY", help="the session API key; default: OPENHANDS_KEY, else no key")
    add("--conversation", metavar="ID", default="c0ffee", help="the ID of an existing conversation (%(default)s)")
    add("--loading", type=float, default=0.5, metavar="SECONDS", help="loading time of an agent (%(default)s)")
    add(
        "--listens-for",
        action="append",
        metavar="EVENT",
        help="accept client actions only on this Socket.IO event; may be repeated (default: oh_action, oh_user_action)",
    )
    add("--socket-only", action="store_true", help="respond to every REST request with 404")
    add(
        "--max-concurrent-conversations",
        type=int,
        default=3,
        metavar="N",
        help="maximum number of running agents (%(default)s); the next one ends the oldest",
    )
    play(_run(options.read()))


if __name__ == "__main__":
    main()
