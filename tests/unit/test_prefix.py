"""The path under which a proxy publishes the gateway."""

import pytest

from gateway.http.prefix import local_path, prefix_of
from gateway.settings.model import Settings

ROOTS = {"v1", "ui", "mcp"}


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        (None, ""),
        ("https://ops.example", ""),
        ("https://ops.example/", ""),
        ("https://ops.example/dragoman", "/dragoman"),
        ("https://ops.example/dragoman/", "/dragoman"),
        ("https://ops.example/a/b c/", "/a/b%20c"),
    ],
)
def test_the_prefix_is_the_path_of_the_public_url(url: str | None, prefix: str) -> None:
    assert prefix_of(Settings.model_validate({} if url is None else {"public_url": url})) == prefix


@pytest.mark.parametrize(
    ("path", "prefix", "local"),
    [
        ("/ui", "", "/ui"),
        ("//ui", "", "/ui"),
        ("/ui", "/dragoman", "/ui"),
        ("/dragoman/ui", "/dragoman", "/ui"),
        ("//dragoman//ui/calls/a//b", "/dragoman", "/ui/calls/a//b"),
        ("/dragoman/v1/calls/dragoman/ui", "/dragoman", "/v1/calls/dragoman/ui"),
        ("/dragomans/ui", "/dragoman", "/dragomans/ui"),
        ("/dragoman", "/dragoman", "/dragoman"),
        ("/dragoman/other", "/dragoman", "/dragoman/other"),
        ("/a b/ui", "/a%20b", "/ui"),
        ("/a%20b/ui", "/a%20b", "/ui"),
        # A proxy that strips the path, and one that keeps it, before a gateway at /v1 or /ui.
        ("/v1/calls", "/v1", "/v1/calls"),
        ("/v1/v1/calls", "/v1", "/v1/calls"),
        ("/ui/calls", "/ui", "/ui/calls"),
        ("/ui/ui/calls", "/ui", "/ui/calls"),
    ],
)
def test_a_path_is_read_with_and_without_the_prefix(path: str, prefix: str, local: str) -> None:
    assert local_path(path, prefix, ROOTS) == local
    assert local_path(local, "/dragoman", ROOTS) == local
