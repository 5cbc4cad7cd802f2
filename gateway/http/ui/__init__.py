"""The web UI: pages for operators, rendered from the responses of the API.

May import `addresses`, `core`, `dragoman.models`, `errors`, `events`, `executors`, `runtime`, `settings`, `store`,
`strict_json`, `visible`.
"""
