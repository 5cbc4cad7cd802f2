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
