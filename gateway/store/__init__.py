"""The store: its port, and the engines for SQLite and PostgreSQL."""
