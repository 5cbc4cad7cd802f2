"""Says which network addresses are never connected to: link-local, cloud metadata, unspecified, multicast.

The check belongs to the moment of connecting (`guarded_socket`), because a name may resolve to
something else a second later and an IP literal is never resolved at all. `check_url` finds the
literal that can never work while the configuration is still being read.
"""

import ipaddress
import socket
from typing import Any

from gateway.errors import OperatorError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Metadata services that live outside the link-local range: AWS over IPv6 (instance, container and
# pod credentials), GCP over IPv6, Alibaba Cloud, Oracle Cloud (old), Azure's host agent.
_METADATA = frozenset(
    ipaddress.ip_address(literal)
    for literal in (
        "fd00:ec2::254",
        "fd00:ec2::253",
        "fd00:ec2::23",
        "fd20:ce::254",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
    )
)
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
_BROADCAST = ipaddress.ip_address("255.255.255.255")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AddressRefused(OSError):
    """The address must not be connected to.

    An OSError because aiohappyeyeballs' race between the addresses of a name understands nothing else.
    The text is constant: where all addresses of a name are refused, it then hands one of these errors
    on instead of a mixture.
    """

    def __init__(self) -> None:
        super().__init__("the address is refused")


def why_refused(host: str) -> str | None:
    """Say what is wrong with an IP literal, in any spelling the system accepts; None for names and good addresses."""
    address = _read_literal(host)
    return None if address is None else _fault_of(address)


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
    """Open a socket for one resolved address, as a `socket_factory` of aiohappyeyeballs.

    Raises:
        AddressRefused: the address must not be connected to.
    """
    family, kind, protocol, _, address = addr_info
    if why_refused(str(address[0])) is not None:
        raise AddressRefused
    return socket.socket(family=family, type=kind, proto=protocol)


def _fault_of(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv6Address) and (inner := _inner(address)) is not None:
        return _fault_of(inner)
    if address in _METADATA:
        return "a cloud metadata address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_unspecified or (isinstance(address, ipaddress.IPv4Address) and address in _THIS_NETWORK):
        return "the unspecified address"
    if address.is_multicast or address == _BROADCAST:
        return "a multicast address"
    return None


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Find the IPv4 address that an IPv6 one stands for: mapped, compatible, NAT64 or 6to4."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _read_literal(host: str) -> Address | None:
    bare = host.removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    try:
        # Decimal, octal, hexadecimal and shortened forms: 2852039166, 0251.0376.43518, 0xa9fea9fe.
        return ipaddress.IPv4Address(socket.inet_aton(bare))
    except (OSError, ValueError):
        return None
