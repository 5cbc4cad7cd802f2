"""Resolves names, each in its own thread, so that an unresponsive name server delays no other lookup.

The loop's own lookups share a few threads. With uvloop every connection does, even one to an IP address.
"""

import asyncio
import socket
from contextvars import ContextVar
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.guard import guard_call, start_thread

AddressInfo = tuple[Any, ...]
"""One result of `socket.getaddrinfo`."""
_Lookup = tuple[asyncio.AbstractEventLoop, str, int, int, int]

Lookups = dict[_Lookup, asyncio.Future[list[AddressInfo]]]
"""Pending lookups; equal lookups share one thread and its result."""
LOOKUPS: ContextVar[Lookups] = ContextVar("lookups", default={})  # noqa: B039 - for links without a gateway
"""The pending lookups of the gateway in whose context the code runs."""


async def look_up(host: str, port: int, *, family: int = 0, flags: int = 0) -> list[AddressInfo]:
    """Return the addresses of a host.

    Raises:
        socket.gaierror: the host has no address, or the lookup failed.
        UnicodeError: the name is invalid.
    """
    try:
        # An IP literal requires no lookup.
        return _find(host, port, family, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
    lookup, pending = (loop, host, port, family, flags), LOOKUPS.get()
    answer = pending.get(lookup)
    if answer is None:
        answer = pending[lookup] = start_thread("name", partial(_find, host, port, family, flags))
        answer.add_done_callback(guard_call("names", lambda _: pending.pop(lookup, None)))
    return await asyncio.shield(answer)


class Resolver(AbstractResolver):
    """The resolver for aiohttp."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await look_up(host, port, family=family, flags=socket.AI_ADDRCONFIG)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=address[0], port=address[1], family=kind, proto=protocol, flags=numeric)
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing; no resource is open."""


def _find(host: str, port: int, family: int, flags: int) -> list[AddressInfo]:
    return [*socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, flags)]
