"""Traces: spans of turns, calls, attempts and MCP requests, written after their end and exported over OTLP.

Only `otlp` imports the OpenTelemetry libraries, and only if traces are on.

May import `core`, `events`, `executors`, `store`.
"""
