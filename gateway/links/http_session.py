"""The HTTP session that links share, without cookies, redirects and forbidden addresses."""

import os

import aiohttp

from gateway.errors import LinkRefused
from gateway.links.addresses import REDIRECTS, AddressRefused, guarded_socket, refused_address, refused_redirect
from gateway.links.keep_alive import IDLE_SECONDS
from gateway.links.names import Resolver


def shared_session() -> aiohttp.ClientSession:
    """Make the HTTP session of all links of a connector.

    Each link holds a connection for its whole life, so the number is unlimited: with aiohttp's default the 101st link
    would wait forever.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, socket_factory=guarded_socket, resolver=Resolver(), keepalive_timeout=IDLE_SECONDS
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        # The callers have time limits; a limit here would keep a timer for each link.
        timeout=aiohttp.ClientTimeout(),
        trust_env=False,
        middlewares=(_refuse_redirect,),
    )


class RedirectRefused(aiohttp.ClientConnectionError):
    """A server answered with a redirect; the text names the request and the status."""


async def _refuse_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse every redirect before aiohttp follows it."""
    response = await handler(request)
    if response.status in REDIRECTS:
        response.close()
        raise RedirectRefused(f"{request.method} {request.url.with_query(None)}: HTTP {response.status}")
    return response


def describe(exc: BaseException) -> str:
    """Describe an exception by address and cause; aiohttp's own texts name `ssl` for an address without TLS too."""
    match exc:
        case aiohttp.ClientConnectorCertificateError():
            reason: object = exc.certificate_error
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number), strerror=str(text))):
            # asyncio repeats the address instead of the cause.
            reason = os.strerror(number) if text.startswith("Connect call failed") else text
        case aiohttp.ClientConnectorError():
            reason = str(exc.os_error) or type(exc.os_error).__name__
        case aiohttp.ServerDisconnectedError():
            return "the server closed the connection before its response"
        case aiohttp.ClientPayloadError():
            return "the connection broke within a response"
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case OSError(errno=int(number)) if number > 0:
            return f"the connection broke: {os.strerror(number)}"
        case _:
            return f"{type(exc).__name__}: {exc}"
    return f"cannot connect to {exc.host}:{exc.port}: {reason}"


def refusal_of(exc: BaseException) -> LinkRefused | None:
    """Return the refusal for a failed request that a retry cannot fix."""
    match exc:
        case RedirectRefused():
            return refused_redirect(str(exc))
        case aiohttp.ClientConnectorError(os_error=AddressRefused()):
            return refused_address()
        case _:
            return None
