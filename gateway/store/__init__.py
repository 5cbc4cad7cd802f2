"""The store: its port, and the engines for SQLite and PostgreSQL.

May import `clock`, `dragoman.models`, `errors`, `events`, `guard`.
"""
