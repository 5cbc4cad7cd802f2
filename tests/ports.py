"""Ports for servers that must be told theirs before they start."""

import os
import random
import socket
from itertools import chain, cycle

_FIRST, _LAST = 10_000, 32_767
"""Below what Linux and macOS give to connections, one of which might take the port before the server does."""
_WORKERS = 32
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_own = range(_FIRST + _worker, _LAST, _WORKERS)
_start = random.randrange(len(_own))
_ports = cycle(chain(_own[_start:], _own[:_start]))
"""The ports of this worker, in turn: until its server binds one, no other server is told the same."""


def free_port() -> int:
    """Find a loopback port that nobody uses now; a server that can bind port 0 should rather do that."""
    while True:
        port = next(_ports)
        with socket.socket() as probe:
            # As servers bind: who has just left it does not keep them from it.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def listen_on(port: int = 0) -> socket.socket:
    """Listen on a loopback port as `serve` does, and on a free one that outlives a restart if none is given."""
    # asyncio disables Nagle's algorithm only if the protocol is given.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port or free_port()))
        # Before the gateway starts: a runtime that lists its tools meanwhile waits and is not refused.
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
