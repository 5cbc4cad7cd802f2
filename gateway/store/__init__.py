"""The store: its port, and the engines that keep a ledger in memory, in SQLite and in PostgreSQL."""
