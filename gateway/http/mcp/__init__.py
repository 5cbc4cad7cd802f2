"""MCP: clients of the Model Context Protocol call the tools of a session (gateway/http/README.md#mcp).

The library of the protocol is imported by `server` alone, when the first client comes.
"""
