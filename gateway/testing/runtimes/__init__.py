"""Simulated runtimes on real sockets, speaking raw native JSON.

May import nothing of the gateway.
"""
