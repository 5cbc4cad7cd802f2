"""What the doctor's probes say about the network."""

import socket
from pathlib import Path

import pytest

from gateway.cli.probes import ProbeTarget, free_bytes, probe, target_of, write_bytes


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host/x", ("host", 80)),
        ("https://host", ("host", 443)),
        ("wss://host/socket.io/", ("host", 443)),
        ("http://[::1]:9000/x", ("::1", 9000)),
    ],
)
def test_host_and_port_are_read_out_of_a_url(url: str, expected: tuple[str, int]) -> None:
    target = target_of("it", url)
    assert target is not None
    assert (target.host, target.port) == expected


@pytest.mark.parametrize("url", ["nothing", "http://", "http://host:99999"])
def test_a_url_without_a_usable_host_has_no_target(url: str) -> None:
    assert target_of("it", url) is None


def test_targets_are_reported_in_their_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        two_port = two.getsockname()[1]
        two.close()
        targets = [ProbeTarget("down", "127.0.0.1", two_port), ProbeTarget("up", "127.0.0.1", one.getsockname()[1])]
        assert [(reached.target.label, reached.fault) for reached in probe([*targets, targets[1]])] == [
            ("down", "connection refused"),
            ("up", None),
            ("up", None),
        ]


def test_a_name_that_does_not_resolve_is_told_with_the_mend() -> None:
    (reached,) = probe([ProbeTarget("it", "a" * 70 + ".invalid", 80)])
    assert reached.fault is not None
    assert reached.fix


def test_the_free_space_of_a_folder_is_known_and_that_of_none_is_not(tmp_path: Path) -> None:
    assert (free_bytes(tmp_path) or 0) > 0
    assert free_bytes(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1024**2, "1 MiB"), (5 * 1024**3, "5 GiB"), (1024**4, "1.0 TiB")]
)
def test_sizes_are_written_for_people(number: int, text: str) -> None:
    assert write_bytes(number) == text
