"""Links to runtimes: Socket.IO, REST and server-sent events.

May import `adapter`, `addresses`, `clock`, `dragoman.hidden`, `dragoman.sse`, `errors`, `events`, `guard`,
`strict_json`.
"""
