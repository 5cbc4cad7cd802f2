"""The HTTP session that links share; it keeps no cookies, follows no redirect, and connects only where it may."""

import aiohttp

from gateway.errors import LinkRefused
from gateway.links.addresses import REDIRECTS, AddressRefused, guarded_socket, refused_address, refused_redirect
from gateway.links.keep_alive import IDLE_SECONDS
from gateway.links.names import Resolver


def shared_session() -> aiohttp.ClientSession:
    """Make the one HTTP session that all links of a connector share.

    Each link holds a connection for as long as it lives, so their number must not be limited here:
    aiohttp's own limit would let the 101st wait for ever.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, socket_factory=guarded_socket, resolver=Resolver(), keepalive_timeout=IDLE_SECONDS
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        # Every wait is bounded by whoever waits; a limit here would keep a timer for each link.
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
        middlewares=(_stay,),
    )


class RedirectRefused(aiohttp.ClientConnectionError):
    """A server answered with a redirect; the text names the request and the status."""


async def _stay(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop every redirect before aiohttp follows it."""
    response = await handler(request)
    if response.status in REDIRECTS:
        response.close()
        raise RedirectRefused(f"{request.method} {request.url.with_query(None)}: HTTP {response.status}")
    return response


def refusal_of(exc: BaseException) -> LinkRefused | None:
    """Say a failed request as a refusal where no further try can mend it."""
    match exc:
        case RedirectRefused():
            return refused_redirect(str(exc))
        case aiohttp.ClientConnectorError(os_error=AddressRefused()):
            return refused_address()
        case _:
            return None
