"""The request for a new conversation, from the options and an order (OV16, OV52). Pure."""

from hashlib import sha256
from typing import Any, assert_never

from adapters.openhands.v1 import wire
from adapters.openhands.v1.options import AcpAgent, BuiltInAgent, NewConversation
from gateway.adapter.port import McpEndpoint, Order
from gateway.events import Loss
from gateway.strict_json import pointer

_BARE_SERVERS = (1, 31)
"""The first minor whose `mcp_config` is the map of servers itself, since 1.31.2 (OV1)."""


def conversation_id_for(order: Order) -> str | None:
    """Return the id of the new conversation, from the key that only this order has (OV17); None without one.

    A repeated request with it creates no second conversation.
    """
    if order.key is None:
        return None
    digest = sha256(b"openhands-v1:" + order.key.encode()).hexdigest()
    # A UUID of version 8: custom data.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def request_for(options: NewConversation, order: Order, version: tuple[int, int]) -> dict[str, Any]:
    """Return the body of `POST /api/conversations`; it never contains a first message (OV17)."""
    agent = options.agent
    body: dict[str, Any] = {}
    match agent:
        case BuiltInAgent():
            body["agent"] = _agent(agent, order, version)
        case AcpAgent():
            body["agent_settings"] = _acp_settings(agent, order)
        case _:
            assert_never(agent)
    body["workspace"] = {"kind": "LocalWorkspace", "working_dir": options.working_dir}
    body["confirmation_policy"] = _policy(options)
    body["max_iterations"] = options.max_iterations
    body["stuck_detection"] = options.stuck_detection
    body["autotitle"] = False
    if options.security_analyzer:
        body["security_analyzer"] = {"kind": "LLMSecurityAnalyzer"}
    if options.secrets:
        body["secrets"] = {
            name: {"kind": "StaticSecret", "value": value.get_secret_value()} for name, value in options.secrets.items()
        }
    if options.tags:
        body["tags"] = dict(options.tags)
    if (conversation_id := conversation_id_for(order)) is not None:
        body["conversation_id"] = conversation_id
    return body


def _agent(agent: BuiltInAgent, order: Order, version: tuple[int, int]) -> dict[str, Any]:
    llm = agent.llm
    model: dict[str, Any] = {"usage_id": "agent", **llm.more, "model": llm.model, "stream": llm.stream}
    if llm.api_key is not None:
        model["api_key"] = llm.api_key.get_secret_value()
    if llm.base_url is not None:
        model["base_url"] = llm.base_url
    body: dict[str, Any] = {"kind": "Agent", "llm": model, "tools": [{"name": name} for name in agent.tools]}
    if order.mcp is not None:
        servers = _servers(order.mcp)
        body["mcp_config"] = servers if version >= _BARE_SERVERS else {"mcpServers": servers}
    if order.instructions is not None:
        body["agent_context"] = {"system_message_suffix": order.instructions}
    return body


def _acp_settings(agent: AcpAgent, order: Order) -> dict[str, Any]:
    settings: dict[str, Any] = {"agent_kind": "acp", "acp_server": agent.server}
    if agent.model is not None:
        settings["acp_model"] = agent.model
    if agent.command:
        settings["acp_command"] = list(agent.command)
    if order.mcp is not None and agent.takes_tools:
        settings["mcp_config"] = _servers(order.mcp)
    return settings


def _servers(endpoint: McpEndpoint) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {endpoint.ticket.get_secret_value()}"}
    return {wire.MCP_SERVER: {"url": endpoint.url, "transport": "http", "headers": headers}}


def _policy(options: NewConversation) -> dict[str, Any]:
    match options.confirmation_policy:
        case "never":
            return {"kind": "NeverConfirm"}
        case "always":
            return {"kind": "AlwaysConfirm"}
        case "risky":
            return {
                "kind": "ConfirmRisky",
                "threshold": options.risk_threshold,
                "confirm_unknown": options.confirm_unknown,
            }


def tools_of(options: NewConversation | None, order: Order) -> tuple[str, ...]:
    """Return the tools of an order that the agent receives."""
    return () if _why_dropped(options, order) is not None else tuple(tool.name for tool in order.tools)


def losses_of(options: NewConversation | None, order: Order) -> tuple[Loss, ...]:
    """Return what of an order is not sent; without options the app server's settings make the agent."""
    losses: list[Loss] = []
    note = _why_dropped(options, order)
    if note is not None:
        losses += [Loss(how="dropped", path=pointer("/tools", tool.name), note=note) for tool in order.tools]
    if order.name is not None:
        losses.append(Loss(how="dropped", path="/name", note="OpenHands titles its conversations itself"))
    if order.instructions is not None and not (options is not None and isinstance(options.agent, BuiltInAgent)):
        losses.append(Loss(how="dropped", path="/instructions", note="the agent has instructions of its own"))
    return tuple(losses)


def _why_dropped(options: NewConversation | None, order: Order) -> str | None:
    """Explain why an agent gets none of the tools; None if it gets them."""
    if options is None:
        return "enter the gateway's MCP server in the settings of the app server"
    if isinstance(options.agent, AcpAgent) and not options.agent.takes_tools:
        return "the agent may not accept MCP servers over HTTP; set http_mcp: true if it does"
    if order.mcp is None:
        return "the gateway's address for the server is unknown; set public_url or mcp_url"
    return None
