"""Simulated runtimes on real sockets, speaking raw native JSON."""
