"""Feeds for followers: the events of sessions, also of those elsewhere, and requests for human input.

May import `errors`, `events`, `guard`, `store`.
"""
