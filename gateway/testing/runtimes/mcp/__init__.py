"""An MCP client, as coding agents are.

May import nothing of the gateway.
"""
