"""Looks names up, each in a thread of its own: a name server that does not answer for one keeps nobody else waiting.

The loop's own lookups share a few threads, and with uvloop so does every connection, also one to a plain address.
"""

import asyncio
import socket
from threading import Thread
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.guard import guard_call

AddressInfo = tuple[Any, ...]
"""One of what `socket.getaddrinfo` answers."""
_Lookup = tuple[asyncio.AbstractEventLoop, str, int, int, int]

_under_way: dict[_Lookup, asyncio.Future[list[AddressInfo]]] = {}
"""Who asks for a name that is being looked up waits for the same answer, so that there is one thread a name."""


async def look_up(host: str, port: int, *, family: int = 0, flags: int = 0) -> list[AddressInfo]:
    """Find the addresses of a host.

    Raises:
        socket.gaierror: it has none, or they cannot be found now.
        UnicodeError: no host has such a name.
    """
    try:
        # What is an address already takes no time.
        return _find(host, port, family, flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
    lookup = loop, host, port, family, flags
    answer = _under_way.get(lookup)
    if answer is None:
        answer = loop.create_future()
        Thread(target=_ask, args=(lookup, answer), name="dragoman-name", daemon=True).start()
        _under_way[lookup] = answer
    return await asyncio.shield(answer)


class Resolver(AbstractResolver):
    """Looks names up for aiohttp."""

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
        """Keep nothing open."""


def _find(host: str, port: int, family: int, flags: int) -> list[AddressInfo]:
    return [*socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, flags)]


def _ask(lookup: _Lookup, answer: asyncio.Future[list[AddressInfo]]) -> None:
    loop, host, port, family, flags = lookup
    found: list[AddressInfo] | Exception
    try:
        found = _find(host, port, family, flags)
    # Whatever it is, whoever waits is told.
    except Exception as exc:  # noqa: BLE001
        found = exc
    try:
        loop.call_soon_threadsafe(guard_call("names", _tell), lookup, answer, found)
    except RuntimeError:
        # The loop is closed, and nobody waits.
        del _under_way[lookup]


def _tell(lookup: _Lookup, answer: asyncio.Future[list[AddressInfo]], found: list[AddressInfo] | Exception) -> None:
    del _under_way[lookup]
    if not isinstance(found, Exception):
        answer.set_result(found)
        return
    answer.set_exception(found)
    # Looked at here, since whoever asked may be gone.
    answer.exception()
