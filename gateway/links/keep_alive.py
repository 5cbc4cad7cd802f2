"""How long a client may reuse an idle HTTP connection, so that no request crosses the server's close."""

import re
from collections.abc import Iterable
from math import inf

IDLE_SECONDS = 1.0
"""How long an idle connection is kept by default: gunicorn closes one after 2 s, uvicorn and Node after 5 s."""

_MARGIN = 1.0
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


def reuse_seconds(hints: Iterable[str]) -> float:
    """Return for how many seconds a server's `Keep-Alive` headers let an idle connection be reused (RFC 2068, 19.7.1).

    `timeout=N` gives N - 1, and `max=1` gives 0: no reuse. Without a readable limit it is infinite.
    """
    seconds = inf
    for parameter in ",".join(hints).split(","):
        name, _, value = parameter.partition("=")
        value = value.strip().strip('"').strip()
        if not _NUMBER.fullmatch(value):
            continue
        match name.strip().lower():
            case "timeout":
                seconds = min(seconds, float(value) - _MARGIN)
            case "max" if float(value) <= 1:
                seconds = 0.0
            case _:
                pass
    return max(seconds, 0.0)
