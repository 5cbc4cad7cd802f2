"""Which addresses are never connected to, and that no spelling gets around it."""

import socket

import pytest

from gateway.addresses import why_refused
from gateway.errors import OperatorError
from gateway.links.addresses import AddressRefused, check_url, guarded_socket

REFUSED = [
    "169.254.169.254",
    "169.254.0.1",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.254.169.254.",
    "fe80::1",
    "[fe80::1]",
    "fe80::1%eth0",
    "febf::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:a9:fe:a9fe::",
    "64:ff9b:1:0:a9:fea9:fe00::",
    "64:ff9b:1::6464:64c8",
    "2002:a9fe:a9fe::1",
    # S104 takes it for an address to listen on.
    "0.0.0.0",  # noqa: S104
    "0",
    "0.1.2.3",
    "::",
    "::ffff:0.0.0.0",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
]

ALLOWED = [
    "127.0.0.1",
    "::1",
    "10.0.0.1",
    "192.168.1.1",
    "172.17.0.2",
    "fd00::1",
    "93.184.216.34",
    "2606:2800::1",
    "64:ff9b::808:808",
    "64:ff9b:1::808:808",
    "64:ff9b:1:808:8:800::",
    "64:ff9b:1:abcd::8.8.8.8",
]


@pytest.mark.parametrize("host", REFUSED)
def test_link_local_metadata_unspecified_and_multicast_are_refused_in_every_spelling(host: str) -> None:
    assert why_refused(host) is not None
    with pytest.raises(OperatorError, match="is forbidden"):
        check_url(f"http://{host}/latest?token=canary", host)


@pytest.mark.parametrize("host", ALLOWED)
def test_loopback_private_and_public_addresses_are_allowed(host: str) -> None:
    assert why_refused(host) is None
    check_url(f"http://{host}/", host)


@pytest.mark.parametrize("host", ["localhost", "cards", "example.com", "1.example.com", "169.254.169.254.example.com"])
def test_names_are_left_to_the_moment_of_connecting(host: str) -> None:
    assert why_refused(host) is None


def test_the_error_names_the_host_and_not_the_rest_of_the_url() -> None:
    with pytest.raises(OperatorError) as caught:
        check_url("http://169.254.169.254/latest?token=canary", "169.254.169.254")
    assert "169.254.169.254" in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://files/x", "unix:/run/socket"])
def test_only_http_urls_are_usable(url: str) -> None:
    with pytest.raises(OperatorError):
        check_url(url, "files")


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(OperatorError, match="host is missing"):
        check_url("http:///x", None)


def test_a_socket_is_opened_for_good_addresses_only() -> None:
    opened = guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 80)))
    opened.close()
    with pytest.raises(AddressRefused):
        guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("169.254.169.254", 80)))
    with pytest.raises(AddressRefused):
        guarded_socket((socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("fe80::1%eth0", 80, 0, 2)))
