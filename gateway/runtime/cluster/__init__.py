"""Coordination of the instances on one store: takeover, handover and forwarding.

May import `adapter`, `clock`, `errors`, `events`, `guard`, `links`, `log_limit`, `store`.
"""
