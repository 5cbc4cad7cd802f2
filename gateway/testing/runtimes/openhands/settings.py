"""The settings of a simulated OpenHands server, with the storage and merging of 0.62."""

from copy import deepcopy
from typing import Any, cast

from gateway.testing.runtimes.openhands.mcp import McpServer, read_servers
from gateway.testing.runtimes.openhands.rules import Frame, Violation

_KEPT = ("llm_api_key", "llm_model", "llm_base_url", "search_api_key", "user_consents_to_analytics")
"""The members that keep their value if a client omits them; all others are lost."""
_SECRET = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
"""The members that GET never returns."""
_MEMBERS: dict[str, Any] = {
    "language": None,
    "agent": None,
    "max_iterations": None,
    "security_analyzer": None,
    "confirmation_mode": None,
    "llm_model": None,
    "llm_api_key": None,
    "llm_base_url": None,
    "remote_runtime_resource_factor": None,
    "enable_default_condenser": True,
    "enable_sound_notifications": False,
    "enable_proactive_conversation_starters": True,
    "enable_solvability_analysis": True,
    "user_consents_to_analytics": None,
    "sandbox_base_container_image": None,
    "sandbox_runtime_container_image": None,
    "mcp_config": None,
    "search_api_key": None,
    "sandbox_api_key": None,
    "max_budget_per_task": None,
    "condenser_max_size": None,
    "email": None,
    "email_verified": None,
    "git_user_name": None,
    "git_user_email": None,
}
_LISTS = ("sse_servers", "stdio_servers", "shttp_servers")


class SimSettings:
    """The stored settings, and the MCP servers of the server's config.toml."""

    def __init__(self) -> None:
        self.stored: Frame = {**_MEMBERS, "llm_model": "gpt-4o", "llm_api_key": "sk-simulated", "language": "en"}
        self.config_toml: Frame = {}
        """The `[mcp]` section of config.toml; GET returns it before the stored servers, and each agent start merges
        both."""
        self.writes = 0

    def show(self) -> Frame:
        """Return the body of GET: without API keys, but with all MCP servers and their keys."""
        shown = deepcopy({key: None if key in _SECRET else value for key, value in self.stored.items()})
        if self.config_toml:
            shown["mcp_config"] = _merged(self.config_toml, self.stored["mcp_config"] or {})
        return {
            **shown,
            "secrets_store": {"provider_tokens": {}},
            "provider_tokens_set": {},
            "llm_api_key_set": bool(self.stored["llm_api_key"]),
            "search_api_key_set": bool(self.stored["search_api_key"]),
        }

    def write(self, body: object) -> None:
        """Replace the settings with the body of POST; ignore unknown members.

        Raises:
            Violation: the server would answer 422.
        """
        if not isinstance(body, dict):
            raise Violation("settings must be an object")
        given = cast("Frame", body)
        read_servers(given.get("mcp_config"))
        fresh = {key: given.get(key, usual) for key, usual in _MEMBERS.items()}
        for key in _KEPT:
            if fresh[key] is None:
                fresh[key] = self.stored[key]
        if fresh["mcp_config"] is not None:
            fresh["mcp_config"] = _merged(fresh["mcp_config"], {})
        self.stored = fresh
        self.writes += 1

    def servers(self, named: tuple[McpServer, ...] | None) -> tuple[McpServer, ...]:
        """List the MCP servers of a starting agent; `named`, from its creation, replaces the stored ones."""
        stored = read_servers(self.stored["mcp_config"]) if named is None else named
        return (*read_servers(self.config_toml or None), *stored)


def _merged(first: Frame, second: Frame) -> Frame:
    return {name: [*map(_whole, first.get(name, [])), *map(_whole, second.get(name, []))] for name in _LISTS}


def _whole(server: Any) -> Any:
    """Return a server with all its members, as the server's classes do."""
    whole: dict[str, Any] = {"url": server} if isinstance(server, str) else deepcopy(server)
    return {"api_key": None, **whole} if "url" in whole else whole
