"""Executors and destinations in use, and copies of events.

May import `clock`, `core`, `errors`, `events`, `executors`, `guard`, `log_limit`, `settings`, `store`,
`visible`.
"""
