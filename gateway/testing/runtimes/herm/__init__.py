"""A simulated Herm server.

May import nothing of the gateway.
"""
