"""Suites that every adapter, engine and executor inherits and must pass.

May import `adapter`, `dragoman.models`, `errors`, `events`, `executors`, `store`, `strict_json`.
"""
