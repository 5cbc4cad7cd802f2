"""Executors of calls and receivers of event copies: webhook, Python function, static answer, destination."""
