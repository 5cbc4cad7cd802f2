"""Executors and destinations in use, copies of events, and periodic maintenance.

May import `clock`, `core`, `errors`, `events`, `executors`, `guard`, `log_limit`, `settings`, `store`.
"""
