"""Connects to no address that is refused: looked at where a socket is made, for the address that was resolved.

A name may resolve to something else a second later, and an IP literal is never resolved at all, so the check
belongs to the moment of connecting. `check_url` finds the literal that can never work while the configuration
is still being read.
"""

import socket
from typing import Any

from gateway.addresses import why_refused
from gateway.errors import LinkRefused, OperatorError

REDIRECTS = range(300, 400)


class AddressRefused(OSError):
    """The address must not be connected to.

    An OSError because aiohappyeyeballs' race between the addresses of a name understands nothing else.
    The text is constant: where all addresses of a name are refused, it then hands one of these errors
    on instead of a mixture.
    """

    def __init__(self) -> None:
        super().__init__("the address is refused")


def refused_address() -> LinkRefused:
    """Say that a runtime's address is one that is never connected to."""
    detail = "its address is link-local, a metadata service or otherwise never connected to; check `url` and its name"
    return LinkRefused("ADDRESS_REFUSED", detail, until_reload=True)


def refused_redirect(where: str = "") -> LinkRefused:
    """Refuse a redirect, whose target is not shown; `where` names the request and the status."""
    detail = "the runtime answered with a redirect, and none is followed; a proxy may answer instead, or `url` is wrong"
    detail = f"{where}: {detail}" if where else detail
    return LinkRefused("REDIRECT_REFUSED", detail, until_reload=True)


def check_url(url: str, host: str | None) -> None:
    """Refuse a URL whose host is a literal that would never be connected to.

    Raises:
        OperatorError: names the host and what it is, never the rest of the URL.
    """
    if not host:
        raise OperatorError("url: there is no host in it")
    if (reason := why_refused(host)) is not None:
        raise OperatorError(f"url: {host} is {reason}, which is never connected to; write the address of your service")
    if not url.startswith(("http://", "https://")):
        raise OperatorError("url: must begin with http:// or https://")


def guarded_socket(addr_info: tuple[Any, ...]) -> socket.socket:
    """Open a socket for one resolved address, as a `socket_factory` of aiohappyeyeballs and aiohttp.

    Raises:
        AddressRefused: the address must not be connected to.
    """
    family, kind, protocol, _, address = addr_info
    if why_refused(str(address[0])) is not None:
        raise AddressRefused
    return socket.socket(family=family, type=kind, proto=protocol)
