"""The configuration: its schema, its loader, and the problems that it reports with line numbers.

May import `adapter`, `addresses`, `core`, `dragoman.models`, `dragoman.postgres_dsn`, `dragoman.webhook_secret`,
`errors`.
"""
