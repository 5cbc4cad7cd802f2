"""Operations for API and MCP clients: calls, their waits and outcomes, redrives, dead letters and interactions.

May import `clock`, `core`, `errors`, `events`, `executors`, `store`.
"""
