"""The actor of one session: its batches, inbox, outbox and link.

May import `adapter`, `clock`, `core`, `errors`, `events`, `executors`, `guard`, `links`, `settings`, `store`,
`strict_json`, `traces`.
"""
