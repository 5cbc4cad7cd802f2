"""An MCP client, as coding agents are."""
