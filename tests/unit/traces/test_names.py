"""The names of attributes are those of the pinned conventions."""

import re

from gateway.traces import names

RECORDED = {
    "gen_ai.agent.name", "gen_ai.conversation.id", "gen_ai.operation.name", "gen_ai.provider.name",
    "gen_ai.tool.call.arguments", "gen_ai.tool.call.id", "gen_ai.tool.call.result", "gen_ai.tool.name",
    "gen_ai.tool.type", "mcp.method.name", "mcp.protocol.version",
}  # fmt: skip
"""Attributes of docs/registry/attributes/gen-ai.md at the pinned commit, and of docs/gen-ai/mcp.md."""
STABLE = {
    "error.type", "http.request.method", "http.request.resend_count", "http.response.status_code", "jsonrpc.request.id",
    "server.address", "server.port", "url.full",
}  # fmt: skip
"""Attributes of the general conventions, to which the pinned ones refer."""
VALUES = {"invoke_agent", "execute_tool", "tools/call", "function", "tool_error"}
"""Well-known values of the pinned commit."""


def test_the_commit_is_pinned() -> None:
    assert re.fullmatch(r"open-telemetry/semantic-conventions-genai@[0-9a-f]{40}", names.CONVENTIONS)


def test_every_name_is_in_the_recorded_list_or_our_own() -> None:
    ours = {value for name, value in vars(names).items() if name.isupper() and name != "CONVENTIONS"}
    assert {value for value in ours if not value.startswith("dragoman.")} == RECORDED | STABLE | VALUES
    assert {value for value in ours if value.startswith("dragoman.")} == {"dragoman.adapter", "dragoman.unknown"}
