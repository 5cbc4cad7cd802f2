"""Executors of calls and receivers of event copies: webhook, Python function, static answer, destination.

May import `clock`, `dragoman.models`, `errors`, `events`, `guard`, `log_limit`, `settings`, `strict_json`.
"""
