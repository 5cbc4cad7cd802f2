"""MCP: clients of the Model Context Protocol call the tools of a session (gateway/http/README.md#mcp).

Only `server` imports the MCP library, on the first request.

May import `adapter`, `core`, `errors`, `events`, `guard`, `runtime`, `settings`, `store`, `traces`.
"""
