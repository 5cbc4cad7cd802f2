"""Refuses requests of foreign web pages in a user's browser (`Origin`, `Host`).

A browser adds `Origin` to every request that a page sends across origins. `Host` shows a page that points its own
name at a loopback address (DNS rebinding).
"""

from pydantic import AnyHttpUrl
from starlette.requests import Request

from gateway.addresses import is_loopback, read_origin
from gateway.http.errors import Refused
from gateway.settings.model import Settings

_HTTP = ("http://", "https://")


def check_origin(request: Request, settings: Settings) -> None:
    """Check each `Origin` of the request.

    With API keys, loopback pages, the origin of `public_url` and `api.origins` are allowed; without keys, of the
    loopback pages only those of the same host and port, since every other local page would be let in.

    Raises:
        Refused: another page has sent the request, or one that does not say which it is (`null`).
    """
    for given in request.headers.getlist("origin"):
        origin = read_origin(given)
        if origin is None or not (_is_local(origin, request, settings) or origin in _configured(settings)):
            raise Refused(
                "foreign-origin", "the web page that sent this request is not allowed; list it in `api.origins`"
            )


def check_host(request: Request) -> None:
    """Check that every `Host` is a loopback one: without API keys, the loopback address is the only protection.

    Raises:
        Refused: it is not, or there is none.
    """
    hosts = request.headers.getlist("host")
    if not hosts or not all(is_loopback(host) for host in hosts):
        raise Refused("foreign-origin", "without API keys, only a loopback Host such as 127.0.0.1 is allowed")


def _is_local(origin: str, request: Request, settings: Settings) -> bool:
    if not origin.startswith(_HTTP) or not is_loopback(origin.partition("://")[2]):
        return False
    return bool(settings.api.keys) or origin in origins_of_host(request)


def origins_of_host(request: Request) -> set[str]:
    """Return the origins that the `Host` of the request can have: a proxy in front hides the scheme."""
    hosts = request.headers.getlist("host")
    found = {read_origin(scheme + hosts[0]) for scheme in _HTTP} if len(hosts) == 1 else set[None]()
    return {origin for origin in found if origin is not None}


def origin_of(url: AnyHttpUrl) -> str:
    """Return the origin of a configured URL; an empty text if it has none."""
    return read_origin(f"{url.scheme}://{url.host}:{url.port}") or ""


def _configured(settings: Settings) -> set[str]:
    url = settings.public_url
    return {*settings.api.origins, "" if url is None else origin_of(url)}
