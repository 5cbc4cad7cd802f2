"""Calls: dispatching, slots, breakers, callbacks, tickets and tokens.

May import `adapter`, `clock`, `core`, `dragoman.hidden`, `errors`, `events`, `executors`, `guard`, `log_limit`,
`settings`, `store`, `strict_json`, `traces`.
"""
