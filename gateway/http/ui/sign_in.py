"""Signs operators in to the web UI: an API key in a form becomes a cookie that every replica can verify."""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.addresses import is_loopback
from gateway.errors import EngineUnavailable
from gateway.http.auth import LOCAL, Keyring
from gateway.http.errors import PROBLEMS, Refused
from gateway.http.prefix import prefix_of
from gateway.http.route import ApiState
from gateway.http.ui.guard import UI_HEADERS, check_enabled, check_write, is_https, read_form
from gateway.http.ui.rendering import fill
from gateway.http.web_pages import check_host
from gateway.runtime.app import Gateway
from gateway.settings.model import ApiKey, Settings

LIFETIME = timedelta(hours=12)
HOME = "/ui"
PAGE = "/ui/sign-in"
_SIGNED_OUT = "ui sign-out"
_LONGEST_NEXT = 2_000
_NEXT = re.compile(r"/ui(?:[/?][!-\[\]-~]*)?")
"""A path of the UI with its query: no other host, no backslash, no control character."""
_VALUE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})~([0-9]{1,12})~([0-9a-f]{64})")
"""The value of a cookie: the key's name, the expiry in seconds since 1970, and the MAC."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The signed-in user of the UI."""

    name: str
    """The name of the API key; `local` if no keys are configured."""
    scopes: frozenset[str]
    key: SecretStr | None
    """Authenticates requests to the API in this process."""

    @property
    def credentials(self) -> list[tuple[bytes, bytes]]:
        """The headers that authenticate requests to the API; a key may contain letters beyond ASCII."""
        return [] if self.key is None else [(b"authorization", f"Bearer {self.key.get_secret_value()}".encode())]


@dataclass(frozen=True, slots=True)
class Cookie:
    """The cookie at the address of a request."""

    name: str
    host: str
    """The host that it is valid for."""
    is_secure: bool
    root: str = ""
    """The path of the gateway on the host, which may have other pages."""

    @property
    def path(self) -> str:
        """The path that browsers send it to; `__Host-` requires the root."""
        return "/" if self.is_secure and not self.root else self.root + HOME

    def sign(self, key: ApiKey, expiry: int) -> str:
        """Return the value that signs in a key until its expiry."""
        return f"{key.name}~{expiry}~{self._mac(key, expiry)}"

    def verify(self, value: str, key: ApiKey, now: datetime) -> bool:
        """Check whether a value was signed with a key and has not expired."""
        found = _VALUE.fullmatch(value)
        if found is None or found[1] != key.name or int(found[2]) <= now.timestamp():
            return False
        return hmac.compare_digest(self._mac(key, int(found[2])), found[3])

    def _mac(self, key: ApiKey, expiry: int) -> str:
        signed = "\n".join(("dragoman ui 1", self.name, self.host, key.name, str(expiry)))
        return hmac.new(key.key.get_secret_value().encode(), signed.encode(), hashlib.sha256).hexdigest()


def cookie_of(request: Request, settings: Settings) -> Cookie | None:
    """Return the cookie at the address of a request; None if this address must not have one."""
    hosts = request.headers.getlist("host")
    host = hosts[0].lower() if len(hosts) == 1 else ""
    root = prefix_of(settings)
    if is_https(request, settings):
        url = settings.public_url
        # Replicas behind one proxy may see a `Host` each.
        public = url.host if url is not None and url.scheme == "https" else host
        return Cookie("__Secure-dragoman" if root else "__Host-dragoman", public or "", is_secure=True, root=root)
    if not host or not (is_loopback(host) or settings.ui.insecure):
        return None
    try:
        port = urlsplit(f"//{host}").port or 80
    except ValueError:
        return None
    return Cookie(f"dragoman-{port}", host, is_secure=False, root=root)


def operator_of(request: Request, settings: Settings, *, now: datetime) -> Operator | None:
    """Return who sent a request to the UI; None if they must sign in first.

    Raises:
        Refused: no keys are configured, and the `Host` is not a loopback one.
    """
    if not settings.api.keys:
        check_host(request)
        return Operator(LOCAL.name, LOCAL.scopes, None)
    cookie = cookie_of(request, settings)
    value = None if cookie is None else request.cookies.get(cookie.name)
    if cookie is None or value is None:
        return None
    return next((_operator(key) for key in settings.api.keys if cookie.verify(value, key, now)), None)


def _operator(key: ApiKey) -> Operator:
    return Operator(key.name, frozenset(key.scopes), key.key)


async def signed_in(request: Request, gateway: Gateway, *, now: datetime) -> Operator | None:
    """Like `operator_of`, but None with a cookie that was signed out, at any replica."""
    operator = operator_of(request, gateway.settings, now=now)
    mac = None if operator is None else _mac_in(request, gateway.settings)
    try:
        ended = mac is not None and await gateway.recall(key=mac, scope=_SIGNED_OUT) is not None
    except EngineUnavailable:
        # The overview must show why there is no store; nothing that is stored can be read meanwhile.
        ended = False
    return None if ended else operator


def _mac_in(request: Request, settings: Settings) -> str | None:
    """Return the MAC of the cookie; None without a cookie, or without keys."""
    cookie = cookie_of(request, settings) if settings.api.keys else None
    found = None if cookie is None else _VALUE.fullmatch(request.cookies.get(cookie.name, ""))
    return None if found is None else found[3]


async def show_form(request: Request) -> Response:
    """Show the form, or redirect if the operator is signed in."""
    gateway = _gateway_of(request)
    settings = gateway.settings
    check_enabled(settings)
    target = _read_next(request.query_params.get("next"))
    if await signed_in(request, gateway, now=gateway.clock.now()) is not None:
        return _go(target)
    return _page(request, settings, target)


async def sign_in(request: Request) -> Response:
    """Check the key of the form and set the cookie."""
    gateway = _gateway_of(request)
    settings = gateway.settings
    check_enabled(settings)
    if not settings.api.keys:
        return _go(HOME)
    try:
        check_write(request, settings)
    except Refused as exc:
        request.state.problem = PROBLEMS[exc.problem]
        return _page(request, settings, HOME, 403, str(exc))
    cookie = cookie_of(request, settings)
    if cookie is None:
        return _page(request, settings, HOME)
    fields = await read_form(request)
    target = _read_next(fields.get("next"))
    given = fields.get("key", "").strip().encode()
    key = Keyring((one.key, one) for one in settings.api.keys).find(given)
    if key is None:
        request.state.problem = PROBLEMS["unauthorized"]
        return _page(request, settings, target, 401, "This is not an API key of this gateway.")
    request.state.caller = _operator(key)
    expiry = int((gateway.clock.now() + LIFETIME).timestamp())
    response = _go(target)
    _set(response, cookie, cookie.sign(key, expiry), LIFETIME)
    return response


async def sign_out(request: Request) -> Response:
    """Delete the cookie, and remember that it is no longer valid."""
    gateway = _gateway_of(request)
    settings = gateway.settings
    check_enabled(settings)
    check_write(request, settings)
    operator, mac = operator_of(request, settings, now=gateway.clock.now()), _mac_in(request, settings)
    if operator is not None and mac is not None:
        request.state.caller = operator
        await gateway.remember(key=mac, scope=_SIGNED_OUT, request_sha="", response=b"", keep=LIFETIME)
    response = _go(PAGE if settings.api.keys else HOME)
    cookie = cookie_of(request, settings)
    if cookie is not None:
        _set(response, cookie, "", timedelta())
    return response


def _set(response: Response, cookie: Cookie, value: str, lifetime: timedelta) -> None:
    response.set_cookie(
        cookie.name,
        value,
        max_age=int(lifetime.total_seconds()),
        path=cookie.path,
        secure=cookie.is_secure,
        httponly=True,
        samesite="lax",
    )


def _gateway_of(request: Request) -> Gateway:
    return cast(ApiState, request.app.state.api_state).gateway


def _read_next(given: str | None) -> str:
    """Return the page to go to after the sign-in: a path of the UI, otherwise its first page."""
    return given if given and len(given) <= _LONGEST_NEXT and _NEXT.fullmatch(given) else HOME


def _go(path: str) -> Response:
    return RedirectResponse(path, 303, dict(UI_HEADERS))


def _page(request: Request, settings: Settings, target: str, status: int = 200, message: str = "") -> Response:
    cookie = cookie_of(request, settings)
    if cookie is None:
        status = 403
    is_insecure = cookie is not None and not cookie.is_secure and not is_loopback(cookie.host)
    html = fill(
        "sign_in.html", prefix_of(settings), next=target, message=message, refused=cookie is None, insecure=is_insecure
    )
    challenge = {"www-authenticate": 'Bearer realm="dragoman"'} if status == 401 else {}
    return HTMLResponse(html, status, {**UI_HEADERS, **challenge})


SIGN_IN_ROUTES = [
    Route(PAGE, show_form, methods=["GET"]),
    Route(PAGE, sign_in, methods=["POST"]),
    Route("/ui/sign-out", sign_out, methods=["POST"]),
]
