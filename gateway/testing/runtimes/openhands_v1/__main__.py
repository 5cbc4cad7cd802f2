"""Run the simulated server alone."""

import argparse
import asyncio
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
from gateway.testing.runtimes.openhands_v1.acp import AcpConversation
from gateway.testing.runtimes.openhands_v1.conversation import Conversation
from gateway.testing.runtimes.openhands_v1.manners import NEWEST, Manners
from gateway.testing.runtimes.openhands_v1.rules import ACP_SERVERS
from gateway.testing.runtimes.openhands_v1.server import AgentServer

_LOOK = 0.05
FIRST = "00000000-0000-4000-8000-00000000c0de"


async def _with_servers(server: AgentServer) -> Conversation:
    """Wait for a conversation with MCP servers and a connected client.

    Raises:
        TimeoutError: with a possible reason.
    """
    try:
        async with asyncio.timeout(WAIT):
            while True:
                for one in server.conversations.values():
                    if one.creation.servers and one.sockets:
                        return one
                await asyncio.sleep(_LOOK)
    except TimeoutError as exc:
        raise TimeoutError("no client has created a conversation with an MCP server") from exc


async def _call(server: AgentServer, first: FirstCall) -> str:
    conversation = await _with_servers(server)
    order = {"tool": first.tool, "arguments": first.arguments}
    _show(server, conversation.conversation_id, "call", "Let the agent call again:", order)
    tell_asked(first)
    began = asyncio.get_running_loop().time()
    seen = await conversation.agent_calls(first.tool, first.arguments)
    took = timedelta(seconds=asyncio.get_running_loop().time() - began)
    match seen:
        case {"kind": "ObservationEvent", "observation": observation}:
            said = " ".join(block["text"] for block in observation["content"][1:] or observation["content"])
            return told("failure" if observation["is_error"] else "success", said, took)
        case {"kind": "ACPToolCallEvent", "status": status}:
            return told("success" if status == "completed" else "failure", seen.get("raw_output", ""), took)
        case _:
            return told("failure", seen.get("error", seen.get("rejection_reason", "")), took)


def _show(server: AgentServer, conversation_id: str, page: str, what: str, order: object) -> None:
    url = f"{server.url}/simulator/conversations/{conversation_id}/{page}"
    headers = () if server.session_api_key is None else (f"X-Session-API-Key: {server.session_api_key}",)
    show_line(what, url, order, *headers)


async def _run(given: argparse.Namespace) -> None:
    key = given.session_api_key or given.env.get("OPENHANDS_KEY") or None
    manners = Manners(
        version=given.server_version, mcp_limit=timedelta(seconds=given.mcp_limit), acp_http=not given.acp_without_http
    )
    async with AgentServer(session_api_key=key, host=given.host, port=given.port, manners=manners) as server:
        made = (
            server.add(given.conversation)
            if given.acp is None
            else server.add_acp(given.conversation, server=given.acp)
        )
        name = made.conversation_id
        tell(f"OpenHands agent-server {given.server_version} at {server.url}, conversation {name}")
        if given.call is None and isinstance(made, AcpConversation):
            _show(server, name, "say", "Let the agent say something, when a client is connected:", {"text": "Hello!"})
        elif given.call is None:
            what = "Let the agent run a command, when a client is connected:"
            _show(server, name, "run", what, {"command": "ls", "gated": True})
        show_questions(server.url, server.asking)
        await stay(given.call, lambda first: _call(server, first))


def main() -> None:
    """Serve one conversation and created ones until Ctrl-C."""
    options = Options("openhands_v1", "A simulated OpenHands agent-server of the V1 protocol: REST and WebSockets.")
    options.add_address()
    add = options.parser.add_argument
    add("--session-api-key", metavar="KEY", help="the session API key; default: OPENHANDS_KEY, else no key")
    add("--conversation", metavar="UUID", default=FIRST, help="the ID of an existing conversation (%(default)s)")
    add(
        "--server-version",
        metavar="VERSION",
        default=NEWEST,
        help="the server's version (%(default)s); before 1.45 it has only the events socket",
    )
    add(
        "--acp",
        metavar="SERVER",
        choices=sorted(ACP_SERVERS),
        help="the existing conversation has an ACP agent: " + ", ".join(sorted(ACP_SERVERS)),
    )
    add("--acp-without-http", action="store_true", help="a custom ACP agent cannot use MCP servers over HTTP")
    add(
        "--mcp-limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time limit of the agent for an MCP call (%(default)s)",
    )
    play(_run(options.read()))


if __name__ == "__main__":
    main()
