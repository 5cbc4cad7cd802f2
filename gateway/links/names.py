"""Resolves names, each in its own thread, so that an unresponsive name server delays no other lookup.

The loop's own lookups share a few threads. With uvloop every connection does, even one to an IP address.
"""

import asyncio
import socket
from threading import Thread
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.guard import guard_call

AddressInfo = tuple[Any, ...]
"""One result of `socket.getaddrinfo`."""
_Lookup = tuple[asyncio.AbstractEventLoop, str, int, int, int]

_pending: dict[_Lookup, asyncio.Future[list[AddressInfo]]] = {}
"""Pending lookups; equal lookups share one thread and its result."""


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
    lookup = loop, host, port, family, flags
    answer = _pending.get(lookup)
    if answer is None:
        answer = loop.create_future()
        Thread(target=_resolve, args=(lookup, answer), name="dragoman-name", daemon=True).start()
        _pending[lookup] = answer
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


def _resolve(lookup: _Lookup, answer: asyncio.Future[list[AddressInfo]]) -> None:
    loop, host, port, family, flags = lookup
    found: list[AddressInfo] | Exception
    try:
        found = _find(host, port, family, flags)
    # Any exception is passed to the caller.
    except Exception as exc:  # noqa: BLE001
        found = exc
    try:
        loop.call_soon_threadsafe(guard_call("names", _settle), lookup, answer, found)
    except RuntimeError:
        # The loop is closed.
        del _pending[lookup]


def _settle(lookup: _Lookup, answer: asyncio.Future[list[AddressInfo]], found: list[AddressInfo] | Exception) -> None:
    del _pending[lookup]
    if not isinstance(found, Exception):
        answer.set_result(found)
        return
    answer.set_exception(found)
    # Mark the exception as retrieved: the callers may be gone.
    answer.exception()
