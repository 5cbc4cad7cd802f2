"""Who may do what: one table of operations and scopes, API keys and callback tokens."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from pydantic import SecretStr
from starlette.requests import Request

from gateway.adapter.options import McpClient
from gateway.adapter.port import RuntimeOptions
from gateway.core.callers import is_own
from gateway.core.own_actions import TICKET
from gateway.errors import NotFound, Unauthorized
from gateway.events import CallId, SessionId
from gateway.http.errors import Refused
from gateway.http.web_pages import check_host, check_origin
from gateway.runtime.app import Gateway
from gateway.runtime.calls.tickets import Ticket
from gateway.runtime.calls.tool_tokens import FORM, KINDS, START, TokenKind
from gateway.settings.model import Api, ApiKey

Scope = Literal["read", "drive", "operate", "answer"]
Page = Literal["metrics", "version", "openapi"]
Holder = TypeVar("Holder")
_TOOL_TOKEN = START.encode()
_ENDED = "a tool token calls the tools of its one session and handles its calls, until it is rotated, and nothing else"

SCOPES: dict[Scope, str] = {
    "read": "Look at everything.",
    "drive": "Open and close sessions, post events, call tools.",
    "answer": "Answer calls and interactions.",
    "operate": "Cancel, redrive, redeliver, erase, switch destinations on, reload.",
}


@dataclass(frozen=True, slots=True)
class Access:
    """What one operation asks of its caller; without a scope it is open to everybody."""

    scope: Scope | None
    token: bool = False
    """A valid callback token of the call will do as well."""
    tools: bool = False
    """The tool token of the session will do as well; for an operation on a call, only the token that made it."""
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
    "getToolAccess": Access("drive"),
    "rotateToolAccess": Access("drive"),
    "callTool": Access("drive", tools=True),
    "listCalls": Access("read"),
    "getCall": Access("read", tools=True),
    "settleCall": Access("answer", token=True),
    "progressCall": Access("answer", token=True),
    "cancelCall": Access("operate", tools=True),
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
    digest: bytes | None = field(default=None, repr=False)
    """Of the key, where it is one of the configuration."""


ANYBODY = Caller("-", frozenset())
CALLBACK = Caller("callback", frozenset({"answer"}))
_OF_TOOLS = frozenset({"drive", "read", "operate"})
"""The scopes of the operations that take a tool token, which is let into no others."""
TOOLS: dict[TokenKind, Caller] = {kind: Caller(kind, _OF_TOOLS) for kind in KINDS}
"""Whoever may ask for the tools of one session."""
LOCAL = Caller("local", frozenset(SCOPES))
"""The caller where no keys are configured: everything on this machine."""


class Keyring(Generic[Holder]):
    """The configured keys as digests, so that looking one up takes the same time whatever is given."""

    def __init__(self, keys: Iterable[tuple[SecretStr, Holder]]) -> None:
        self._entries = tuple((_digest(key.get_secret_value().encode()), holder) for key, holder in keys)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def find(self, given: bytes) -> Holder | None:
        """Find whose key this is; every entry is compared, in constant time."""
        return self.holder_of(_digest(given))

    def holder_of(self, digest: bytes) -> Holder | None:
        """Find whose key has a digest."""
        found: Holder | None = None
        for known, holder in self._entries:
            if hmac.compare_digest(digest, known):
                found = holder
        return found


class Authenticator:
    """Lets requests in, or says why not."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._api: Api | None = None
        self._keyring = Keyring[Caller](())
        self._clients: dict[str, tuple[RuntimeOptions, Keyring[McpClient]]] = {}

    async def admit(self, request: Request, operation: str) -> None:
        """Find out who is calling and check the operation's needs; the caller is kept in `request.state.caller`.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        request.state.caller = caller = await self._caller(request, ACCESS[operation])
        if caller is not ANYBODY:
            require(request, operation)

    async def _caller(self, request: Request, access: Access) -> Caller:
        if access.scope is None:
            return ANYBODY
        api = self._learn_keys()
        check_origin(request, self._gateway.settings)
        if access.token and self._holds_token(request):
            return CALLBACK
        if not self._keyring:
            check_host(request)
        given = _key_of(request, strict=bool(self._keyring)) if self._keyring or access.tools else None
        caller = None if given is None else self._keyring.find(given)
        if caller is None and given is not None:
            if access.tools and "call_id" in request.path_params and self._is_tool_token(given):
                return await self._maker(CallId(request.path_params["call_id"]), given)
            if given.startswith(_TOOL_TOKEN):
                return await self._caller_of_tools(request, access, given)
        if not self._keyring:
            return LOCAL
        if given is None:
            if access.page in api.open:
                return ANYBODY
            raise Unauthorized("no API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`")
        if caller is None:
            raise Unauthorized("the API key is not known")
        return caller

    def still_admits(self, caller: Caller, operation: str) -> bool:
        """Whether a caller who came with an API key, or with none, would still be let in: by name, key and scope."""
        self._learn_keys()
        if caller.digest is None:
            return caller is not LOCAL or not self._keyring
        known = self._keyring.holder_of(caller.digest)
        return known is not None and known.name == caller.name and ACCESS[operation].scope in known.scopes

    def _learn_keys(self) -> Api:
        api = self._gateway.settings.api
        if api is not self._api:
            callers = ((one.key, _caller_by(one)) for one in api.keys)
            self._api, self._keyring = api, Keyring(callers)
        return api

    async def admit_caller(self, request: Request, session_id: SessionId) -> Caller:
        """Let a program in that calls the tools of a session; only its tool token will do.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        given = self._given(request)
        kind = None if given is None else await self._gateway.tool_tokens.kind_of(session_id, given)
        if kind is None:
            raise Unauthorized("send the session's tool token: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[kind]
        return TOOLS[kind]

    async def admit_client(self, request: Request, runtime: str) -> McpClient:
        """Let a client in that comes to a runtime with a token of its own; the log names it `RUNTIME/CLIENT`.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        given, keyring = self._given(request), self._keyring_of(runtime)
        client = None if given is None or keyring is None else keyring.find(given)
        if client is None:
            raise Unauthorized("send a token that the runtime's `clients` have: `Authorization: Bearer TOKEN`")
        request.state.caller = Caller(f"{runtime}/{client.name}", frozenset())
        return client

    async def admit_ticket(self, request: Request, ticket_id: str) -> Ticket:
        """Let a native session in that we have created.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        given = self._given(request)
        ticket = None if given is None else await self._gateway.tickets.find(ticket_id, given)
        if ticket is None:
            raise Unauthorized("send the ticket that this address was told with: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[TICKET]
        return ticket

    async def admit_shared(self, request: Request, runtime: str) -> None:
        """Let the agents of a runtime in whose own settings name the tools.

        Raises:
            Unauthorized, Refused: with what is missing.
        """
        given, options = self._given(request), self._gateway.settings.runtimes.get(runtime)
        shares = options is not None and options.shares_tools
        if given is None or not shares or not await self._gateway.tickets.opens_shared(runtime, given):
            raise Unauthorized("send the ticket of this runtime's settings: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[TICKET]

    def _given(self, request: Request) -> bytes | None:
        """Read the key that an MCP client has sent, unless a foreign web page has sent the request."""
        settings = self._gateway.settings
        check_origin(request, settings)
        if not settings.api.keys:
            check_host(request)
        return _key_of(request)

    def _keyring_of(self, runtime: str) -> Keyring[McpClient] | None:
        options = self._gateway.settings.runtimes.get(runtime)
        if options is None or options.mcp_clients is None:
            return None
        known = self._clients.get(runtime)
        if known is None or known[0] is not options:
            known = self._clients[runtime] = options, Keyring((client.token, client) for client in options.mcp_clients)
        return known[1]

    async def _caller_of_tools(self, request: Request, access: Access, given: bytes) -> Caller:
        session_id = request.path_params.get("session_id") if access.tools else None
        kind = None if session_id is None else await self._gateway.tool_tokens.kind_of(SessionId(session_id), given)
        if kind is None:
            raise Unauthorized(_ENDED)
        return TOOLS[kind]

    def _is_tool_token(self, given: bytes) -> bool:
        """Check whether something looks like a tool token or ticket, or is the token of an MCP client."""
        keyrings = [self._keyring_of(runtime) for runtime in self._gateway.settings.runtimes]
        clients = [keyring.find(given) for keyring in keyrings if keyring is not None]
        return FORM.fullmatch(given) is not None or any(client is not None for client in clients)

    async def _maker(self, call_id: CallId, given: bytes) -> Caller:
        """Let in the caller that made a call, by the token that it made it with.

        Raises:
            NotFound: the token made no such call, whether or not somebody else did.
            Unauthorized: the token was rotated; its holder must not take the call for gone.
        """
        try:
            call = await self._gateway.calls.one(call_id)
        except NotFound:
            call = None
        if call is not None:
            kind, caller = await self._holder(call.session_id, given)
            if kind is not None and is_own(call, kind):
                return caller
            if kind is None and await self._gateway.tool_tokens.is_ended(call.session_id, given):
                raise Unauthorized(_ENDED)
        raise NotFound(f"no call {call_id!r} was made with this token")

    async def _holder(self, session_id: SessionId, given: bytes) -> tuple[TokenKind | None, Caller]:
        """Find out who calls the tools of a session by what is given: a tool token, a ticket, or a client's token."""
        kind = await self._gateway.tool_tokens.kind_of(session_id, given)
        if kind is None and await self._gateway.tickets.opens(session_id, given):
            kind = TICKET
        if kind is not None:
            return kind, TOOLS[kind]
        session = await self._gateway.opening.find(session_id)
        keyring = self._keyring_of(session.runtime)
        client = None if keyring is None else keyring.find(given)
        if client is None or client.name != session.native_id:
            return None, ANYBODY
        return "mcp client", Caller(f"{session.runtime}/{client.name}", _OF_TOOLS)

    def _holds_token(self, request: Request) -> bool:
        token = request.query_params.get("token")
        if token is None:
            return False
        if self._gateway.calls.callback_allowed(CallId(request.path_params["call_id"]), token):
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


def _caller_by(key: ApiKey) -> Caller:
    return Caller(key.name, frozenset(key.scopes), _digest(key.key.get_secret_value().encode()))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _key_of(request: Request, *, strict: bool = True) -> bytes | None:
    key: bytes | None = None
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            scheme, _, given = value.strip().partition(b" ")
            if scheme.lower() != b"bearer" or not given.strip():
                if not strict:
                    return None
                raise Unauthorized("the Authorization header must read `Bearer KEY`")
            return bytes(given.strip())
        if name == b"x-api-key" and key is None:
            key = bytes(value.strip())
    return key
