"""Feeds for followers: the events of sessions, and requests for human input.

May import `errors`, `events`, `guard`, `store`.
"""
