"""Ports for servers that must be told theirs before they start."""

import random
import socket

_FIRST, _LAST = 10_000, 32_767
"""Below what Linux and macOS give to connections, one of which might take the port before the server does."""


def free_port() -> int:
    """Find a loopback port that nobody uses now; a server that can bind port 0 should rather do that."""
    while True:
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            # As servers bind: who has just left it does not keep them from it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
