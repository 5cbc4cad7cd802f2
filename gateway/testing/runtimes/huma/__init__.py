"""A simulated HUMA server of either dialect.

May import nothing of the gateway.
"""
