"""The HTTP API for backends, operators and probes.

May import `adapter`, `addresses`, `core`, `dragoman.models`, `errors`, `events`, `executors`, `guard`, `log_limit`,
`runtime`, `settings`, `store`, `strict_json`.
"""
