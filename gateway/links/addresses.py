"""Refuses forbidden addresses when a socket is opened, after name resolution.

A name may resolve to another address a second later, and an IP literal is never resolved, so the check belongs to the
moment of connecting. `check_url` refuses forbidden literals when the configuration is loaded.
"""

import socket
from typing import Any

from gateway.addresses import why_refused
from gateway.errors import LinkRefused, OperatorError

REDIRECTS = range(300, 400)


class AddressRefused(OSError):
    """The address is forbidden.

    It is an OSError because aiohappyeyeballs handles only those in its race between the addresses of a name. The text
    is constant, so that aiohappyeyeballs raises one of these errors if all addresses are refused.
    """

    def __init__(self) -> None:
        super().__init__("the address is refused")


def refused_address() -> LinkRefused:
    """Return the refusal of a forbidden address."""
    detail = "the address is forbidden (link-local, a metadata service or similar); check `url` and its DNS entry"
    return LinkRefused("ADDRESS_REFUSED", detail, until_reload=True)


def refused_redirect(request: str = "") -> LinkRefused:
    """Return the refusal of a redirect, without its target; `request` names the request and the status."""
    detail = (
        "the runtime answered with a redirect, which is not followed; check `url`, or a proxy in front of the runtime"
    )
    detail = f"{request}: {detail}" if request else detail
    return LinkRefused("REDIRECT_REFUSED", detail, until_reload=True)


def check_url(url: str, host: str | None) -> None:
    """Refuse a URL with a forbidden IP literal as its host.

    Raises:
        OperatorError: with the host, never the rest of the URL.
    """
    if not host:
        raise OperatorError("url: the host is missing")
    if (reason := why_refused(host)) is not None:
        raise OperatorError(f"url: {host} is {reason}, which is forbidden; write the address of your service")
    if not url.startswith(("http://", "https://")):
        raise OperatorError("url: must begin with http:// or https://")


def guarded_socket(addr_info: tuple[Any, ...]) -> socket.socket:
    """Open a socket for one resolved address, as a `socket_factory` of aiohappyeyeballs and aiohttp.

    Raises:
        AddressRefused: the address is forbidden.
    """
    family, kind, protocol, _, address = addr_info
    if why_refused(str(address[0])) is not None:
        raise AddressRefused
    return socket.socket(family=family, type=kind, proto=protocol)
