"""The names of attributes are those of the pinned conventions and of the installed library."""

from collections.abc import Iterator
from importlib import import_module

from gateway.traces import names

PINNED = "open-telemetry/semantic-conventions-genai@7269173edd774fb00a9fabc374955e0888714fa7"
"""The commit at which the lists of GenAI and MCP names were read; reading another one changes both."""
GENAI = {
    "gen_ai.agent.name", "gen_ai.conversation.id", "gen_ai.operation.name", "gen_ai.provider.name",
    "gen_ai.tool.call.arguments", "gen_ai.tool.call.id", "gen_ai.tool.call.result", "gen_ai.tool.name",
    "gen_ai.tool.type",
}  # fmt: skip
"""Attributes of model/gen-ai/registry.yaml at the pinned commit."""
MCP = {
    "error.type", "jsonrpc.request.id", "mcp.method.name", "mcp.protocol.version", "server.address", "server.port",
}  # fmt: skip
"""Attributes of docs/gen-ai/mcp.md at the pinned commit."""
STABLE = {"http.request.method", "http.request.resend_count", "http.response.status_code", "url.full"}
"""Attributes of the general conventions."""
VALUES = {"invoke_agent", "execute_tool", "tools/call", "function", "tool_error"}
"""Values of both files at the pinned commit."""


def of_library(*modules: str) -> Iterator[str]:
    """Yield the names of attributes that modules of the installed conventions define."""
    for module in modules:
        made = vars(import_module(f"opentelemetry.semconv.{module}_attributes"))
        yield from (value for name, value in made.items() if name.isupper() and isinstance(value, str))


def test_every_name_was_read_at_the_pinned_commit_or_is_our_own() -> None:
    assert names.CONVENTIONS == PINNED
    ours = {value for name, value in vars(names).items() if name.isupper() and name != "CONVENTIONS"}
    assert {value for value in ours if not value.startswith("dragoman.")} == GENAI | MCP | STABLE | VALUES
    assert {value for value in ours if value.startswith("dragoman.")} == {"dragoman.adapter", "dragoman.unknown"}


def test_the_installed_conventions_have_every_name() -> None:
    assert set(of_library("attributes.http", "attributes.url", "attributes.server", "attributes.error")) >= STABLE
    assert {*of_library(*(f"_incubating.attributes.{name}" for name in ("gen_ai", "mcp", "jsonrpc")))} >= {
        name for name in GENAI | MCP if name.startswith(("gen_ai.", "mcp.", "jsonrpc."))
    }
