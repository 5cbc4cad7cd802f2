"""The path under which a proxy publishes the gateway: that of `public_url`. Pure."""

from collections.abc import Collection
from urllib.parse import unquote

from gateway.settings.model import Settings


def prefix_of(settings: Settings) -> str:
    """Return the path without a slash at its end, percent-encoded; empty for the root of a host."""
    url = settings.public_url
    return "" if url is None else (url.path or "").rstrip("/")


def local_path(path: str, prefix: str, roots: Collection[str]) -> str:
    """Return a path without the prefix, which some proxies keep, and without the slashes that others add before it.

    `roots` are the first segments of the gateway's own paths, which the prefix may begin with too.
    """
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    for known in {prefix, unquote(prefix)} - {""}:
        rest = "/" + path.removeprefix(known).lstrip("/")
        if path.startswith(f"{known}/") and rest[1:].partition("/")[0] in roots:
            return rest
    return path
