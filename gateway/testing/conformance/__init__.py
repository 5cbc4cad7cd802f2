"""Suites that every adapter, engine and executor inherits and must pass."""
