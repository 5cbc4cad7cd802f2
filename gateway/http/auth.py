"""Who may do what: one table of operations and scopes, API keys, callback tokens, and the guard against web pages."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from gateway.errors import Unauthorized
from gateway.events import CallId
from gateway.http.errors import Refused
from gateway.runtime.app import Gateway
from gateway.settings.model import Api, ApiKey

Scope = Literal["read", "drive", "operate", "answer"]
Page = Literal["metrics", "version", "openapi"]

SCOPES: dict[Scope, str] = {
    "read": "Look at everything.",
    "drive": "Open and close sessions, post events.",
    "answer": "Answer calls and interactions.",
    "operate": "Cancel, redrive, redeliver, erase, switch destinations on, reload.",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What one operation asks of its caller; without a scope it is open to everybody."""

    scope: Scope | None
    token: bool = False
    """A valid callback token of the call will do as well."""
    page: Page | None = None
    """Open where the settings list it under `api.open`."""


ACCESS: dict[str, Access] = {
    "openSession": Access("drive"),
    "listSessions": Access("read"),
    "getSession": Access("read"),
    "closeSession": Access("drive"),
    "eraseSession": Access("operate"),
    "postEvents": Access("drive"),
    "listEvents": Access("read"),
    "streamEvents": Access("read"),
    "redeliverEvent": Access("operate"),
    "listCalls": Access("read"),
    "getCall": Access("read"),
    "settleCall": Access("answer", token=True),
    "progressCall": Access("answer", token=True),
    "cancelCall": Access("operate"),
    "redriveCall": Access("operate"),
    "listInteractions": Access("read"),
    "streamInteractions": Access("read"),
    "answerInteraction": Access("answer"),
    "listDeadLetters": Access("read"),
    "getDeadLetter": Access("read"),
    "redriveDeadLetter": Access("operate"),
    "redriveDeadLetters": Access("operate"),
    "dismissDeadLetter": Access("operate"),
    "dismissDeadLetters": Access("operate"),
    "enableDestination": Access("operate"),
    "reloadConfiguration": Access("operate"),
    "listInstances": Access("read"),
    "listRuntimes": Access("read"),
    "listCapabilities": Access("read"),
    "getHealth": Access(None),
    "getReadiness": Access(None),
    "getMetrics": Access("read", page="metrics"),
    "getVersion": Access("read", page="version"),
    "getOpenapi": Access("read", page="openapi"),
    "listProblems": Access(None),
    "getProblem": Access(None),
}
"""What each operation needs; `eraseSession` is `closeSession` with `erase=true`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request; `name` is for logs."""

    name: str
    scopes: frozenset[str]


ANYBODY = Caller("-", frozenset())
CALLBACK = Caller("callback", frozenset({"answer"}))
LOCAL = Caller("local", frozenset(SCOPES))
"""The caller where no keys are configured: everything on this machine."""


class Keyring:
    """The configured keys as digests, so that looking one up takes the same time whatever is given."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._entries = tuple(
            (hashlib.sha256(key.key.get_secret_value().encode()).digest(), Caller(key.name, frozenset(key.scopes)))
            for key in keys
        )

    def __bool__(self) -> bool:
        return bool(self._entries)

    def find(self, given: bytes) -> Caller | None:
        """Find whose key this is; every entry is compared, in constant time."""
        digest = hashlib.sha256(given).digest()
        found: Caller | None = None
        for known, caller in self._entries:
            if hmac.compare_digest(digest, known):
                found = caller
        return found


class Authenticator:
    """Lets requests in, or says why not."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._api: Api | None = None
        self._keyring = Keyring(())

    def admit(self, request: Request, operation: str) -> None:
        """Find out who is calling and check the operation's needs; the caller is kept in `request.state.caller`.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        request.state.caller = caller = self._caller(request, ACCESS[operation])
        if caller is not ANYBODY:
            require(request, operation)

    def _caller(self, request: Request, access: Access) -> Caller:
        if access.scope is None:
            return ANYBODY
        api = self._gateway.settings.api
        if api is not self._api:
            self._api, self._keyring = api, Keyring(api.keys)
        if access.token and self._holds_token(request):
            return CALLBACK
        if not self._keyring:
            _refuse_foreign(request)
            return LOCAL
        given = _key_of(request)
        if given is None:
            if access.page in api.open:
                return ANYBODY
            raise Unauthorized("no API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`")
        caller = self._keyring.find(given)
        if caller is None:
            raise Unauthorized("the API key is not known")
        return caller

    def _holds_token(self, request: Request) -> bool:
        token = request.query_params.get("token")
        if token is None:
            return False
        if self._gateway.callback_allowed(CallId(request.path_params["call_id"]), token):
            return True
        if _key_of(request) is not None:
            return False
        raise Unauthorized("the callback token does not belong to this call")


def require(request: Request, operation: str) -> None:
    """Check that the caller has an operation's scope.

    Raises:
        Refused: naming the scope.
    """
    caller: Caller = request.state.caller
    scope = ACCESS[operation].scope
    if scope is not None and scope not in caller.scopes:
        raise Refused("forbidden", f"the key {caller.name!r} lacks the scope {scope!r}", scope=scope)


def _key_of(request: Request) -> bytes | None:
    key: bytes | None = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, given = value.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not given.strip():
                raise Unauthorized("the Authorization header must read `Bearer KEY`")
            return bytes(given.strip())
        if name == b"x-api-key" and key is None:
            key = bytes(value.strip())
    return key


def _refuse_foreign(request: Request) -> None:
    # Without keys the only wall is the loopback address, and a browser on this machine is inside it: a page may
    # point its own name at 127.0.0.1 (DNS rebinding, seen by Host) or post a form across (seen by Origin).
    hosts = request.headers.getlist("host")
    if not hosts or not all(_is_loopback(host) for host in hosts):
        raise Refused("foreign-origin", "without API keys, only a loopback Host such as 127.0.0.1 is answered")
    origins = request.headers.getlist("origin")
    if any(origin.partition("://")[2] != hosts[0] for origin in origins):
        raise Refused("foreign-origin", "without API keys, requests of other web pages are not answered")


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False
