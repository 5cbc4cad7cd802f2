"""Network addresses: valid URLs and forbidden addresses. Pure.

Link-local, cloud metadata, unspecified and multicast addresses are refused. The check of a configuration and every
transport use the same rules.
"""

import ipaddress
import re
from urllib.parse import urlsplit

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
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_LOCAL_PREFIXES = (48, 56, 64)
"""Lengths of NAT64 prefixes, besides 96, with an unused octet inside the IPv4 address (RFC 6052)."""
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+", re.ASCII)

_HOST = re.compile(r"[A-Za-z0-9\u0080-\U0010ffff._:%-]{1,253}")
"""Letters of a host name or an address without its brackets; international names are encoded by the client."""


_ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def read_origin(text: str) -> str | None:
    """Return a web origin in its canonical form: lower case, no default port (RFC 6454, 6.2); None if it is invalid."""
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return None
    scheme, host = found[1].lower(), found[2].lower()
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            return None
    port = None if found[3] is None else int(found[3])
    if port is None or port == _DEFAULT_PORTS.get(scheme):
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}" if 0 < port <= 65_535 else None


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, names this machine."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def find_url_fault(url: str) -> str | None:
    """Explain why a URL cannot be connected to, without quoting it; None if it can."""
    if not url.isprintable() or any(letter.isspace() for letter in url):
        return "must not contain a space, a line break or another control character"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # An IPv6 address without its closing bracket, or a port outside the range.
        return "must have a valid host, and a port from 1 to 65535"
    if port == 0:
        return "must have a port from 1 to 65535"
    return None if host and _is_host(host) else "must have a valid host"


def _is_host(name: str) -> bool:
    if not _HOST.fullmatch(name):
        return False
    try:
        # As a resolver does: labels have 1 to 63 characters.
        name.removesuffix(".").encode("idna")
    except UnicodeError:
        return False
    return name != "."


def why_refused(host: str) -> str | None:
    """Explain why an IP literal in any accepted spelling is forbidden; None for names and other addresses."""
    address = _read_literal(host)
    return None if address is None else _fault_of(address)


def _fault_of(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := _inner(address)) is not None:
            return _fault_of(inner)
        if address in _LOCAL_NAT64:
            return next((fault for inner in _local_inners(address) if (fault := _worst_of(inner))), None)
    if (fault := _worst_of(address)) is not None:
        return fault
    if address.is_unspecified or (isinstance(address, ipaddress.IPv4Address) and address in _THIS_NETWORK):
        return "the unspecified address"
    if address.is_multicast or address == _BROADCAST:
        return "a multicast address"
    return None


def _worst_of(address: Address) -> str | None:
    if address in _METADATA:
        return "a cloud metadata address"
    return "a link-local address" if address.is_link_local else None


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address inside a mapped, compatible, NAT64 or 6to4 IPv6 address."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _local_inners(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """List the possible IPv4 addresses inside a local NAT64 address: the length of the prefix is unknown."""
    whole = int(address)
    found = [ipaddress.IPv4Address(whole & 0xFFFFFFFF)]
    for prefix in _LOCAL_PREFIXES:
        # The 64 - prefix bits before the unused octet, and the rest behind it.
        before = 64 - prefix
        high = (whole >> 64) & ((1 << before) - 1)
        low = (whole >> (56 - (32 - before))) & ((1 << (32 - before)) - 1)
        found.append(ipaddress.IPv4Address((high << (32 - before)) | low))
    return found


def _read_literal(host: str) -> Address | None:
    bare = host.removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return _read_numbers(bare)


def _read_numbers(text: str) -> ipaddress.IPv4Address | None:
    """Parse the forms that only the C library accepts: 2852039166, 0251.0376.43518, 0xa9fea9fe."""
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    *first, last = [_read_number(part) for part in parts]
    bits = 8 * (4 - len(first))
    if last is None or last >= 1 << bits:
        return None
    value = 0
    for octet in first:
        if octet is None or octet > 255:
            return None
        value = (value << 8) | octet
    return ipaddress.IPv4Address((value << bits) | last)


def _read_number(text: str) -> int | None:
    try:
        if text[:2] in {"0x", "0X"}:
            return int(text[2:] or "0", 16)
        return int(text, 8 if text.startswith("0") else 10)
    except ValueError:
        return None
