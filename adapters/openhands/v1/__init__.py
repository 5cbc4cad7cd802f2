"""OpenHands V1: the agent-server, its built-in agent and the ACP agents that it runs.

May import `adapter`, `errors`, `events`, `strict_json`.
"""
