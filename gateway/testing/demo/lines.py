"""The shell commands that `dragoman demo --keep` prints."""

import json
import sys
from typing import Any

from gateway.testing.demo.environment import Environment
from gateway.testing.serving import LOOPBACK


async def sample_lines(environment: Environment) -> list[str]:
    """Make shell commands for the running demo; the first lines set the variables of the others."""
    sessions = {row["runtime"]: row["session_id"] for row in (await environment.get("/v1/sessions"))["data"]}
    agent = sessions.get(environment.runtimes["huma 0.2"], "SESSION")
    huma, herm, openhands = environment.huma["0.2"], environment.herm, environment.openhands
    ada, coder = (next(iter(known), "NONE") for known in (herm.sessions, openhands.conversations))
    ask = {"tool": "ask_for_cards", "arguments": {"targetPlayer": "Alice", "rank": "3"}}
    over_mcp = {"name": ask["tool"], "arguments": ask["arguments"]}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": over_mcp}
    bearer = {"Authorization": f"Bearer {environment.mcp_token}"}
    client = {"type": "http", "url": environment.mcp_url, "headers": bearer}
    key = '-H "X-API-Key: $KEY"'
    again = [
        "# kill the gateway, and restart it with",
        f"{sys.executable} -m gateway serve --config {environment.config} --port {environment.port}",
    ]
    return [
        f"# open {environment.url}/ui in a browser and sign in with KEY",
        "# paste these first",
        f"GATEWAY={environment.url} KEY={environment.api_key}",
        f"SESSION={agent}",
        f"HUMA={huma.url}/simulator/agents/{environment.runtimes['huma 0.2']} HUMA_KEY={huma.api_key}",
        f"HERM={herm.url}/simulator/sessions/{ada} HERM_KEY={herm.api_key}",
        f"CODER={openhands.url}/simulator/conversations/{coder}",
        f"CODER_KEY={openhands.session_api_key}",
        f"MCP={environment.mcp_url} MCP_TOKEN={environment.mcp_token}",
        "# list the sessions and the calls; follow a session; send a message to its agent",
        f"curl -s $GATEWAY/v1/sessions {key}",
        f"curl -s $GATEWAY/v1/calls {key}",
        f'curl -sN "$GATEWAY/v1/sessions/$SESSION/events/stream?after=0" {key}',
        f"curl -s $GATEWAY/v1/sessions/$SESSION/events {key} {_body({'kind': 'message.posted', 'content': 'Hi Finn'})}",
        "# let the simulated agents call a tool, send a message, or run a command that needs approval",
        f'curl -s $HUMA/call -H "X-API-Key: $HUMA_KEY" {_body(ask)}',
        f'curl -s $HUMA/say -H "X-API-Key: $HUMA_KEY" {_body({"messages": ["Hello"]})}',
        f'curl -s $HERM/call -H "Authorization: Bearer $HERM_KEY" {_body(ask)}',
        f'curl -s $CODER/call -H "X-Session-API-Key: $CODER_KEY" {_body(ask)}',
        f'curl -s $CODER/run -H "X-Session-API-Key: $CODER_KEY" {_body({"command": "rm deck.txt", "gated": True})}',
        "# let agents ask a human, and list the requests",
        f"curl -s {herm.url}/simulator/ask/question -d 'Whom shall I ask?'",
        f"curl -s {herm.url}/simulator/ask/sudo -d ''",
        f'curl -s "$GATEWAY/v1/interactions?state=waiting" {key}',
        "# call a tool as an MCP client; then the configuration for your own client",
        f'curl -s $MCP -H "Authorization: Bearer $MCP_TOKEN" {_body(rpc)}',
        f"echo '{json.dumps({'mcpServers': {'go-fish': client}})}'",
        "# show the tables of the backend",
        f"curl -s {environment.backend_served.url}/",
        # With another host the demo probably runs in a container, so its Python is not available outside.
        *(again if environment.host == LOOPBACK else []),
    ]


def _body(content: dict[str, Any]) -> str:
    return f"-H 'content-type: application/json' -d '{json.dumps(content)}'"
