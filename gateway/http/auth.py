"""Authentication and authorization: API keys, callback tokens, tool tokens, and the scope of each operation."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar, cast

import structlog
from pydantic import SecretStr
from starlette.requests import Request

from gateway.adapter.options import McpClient
from gateway.adapter.port import RuntimeOptions
from gateway.core.callers import is_own
from gateway.core.own_actions import TICKET
from gateway.errors import Elsewhere, NotFound, Unauthorized
from gateway.events import CallId, SessionId
from gateway.http.errors import Refused
from gateway.http.web_pages import check_host, check_origin
from gateway.log_limit import limited
from gateway.runtime.app import Gateway
from gateway.runtime.calls.tickets import Ticket
from gateway.runtime.calls.tool_tokens import FORM, KINDS, START, TokenKind
from gateway.runtime.cluster.hops import HEADER, Hop, HopRefused, check_body
from gateway.settings.model import Api, ApiKey

Scope = Literal["read", "drive", "operate", "answer", "approve"]
Page = Literal["metrics", "version", "openapi"]
Holder = TypeVar("Holder")
LINK = "link"
"""The state of a request in this process whose caller holds a link."""
FORWARDED = "forwarded"
"""The state of a request that is set if another instance has signed and forwarded it."""
_TOOL_TOKEN = START.encode()
_ENDED = "invalid tool token: it was rotated, or does not allow this operation"

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SCOPES: dict[Scope, str] = {
    "read": "Read everything.",
    "drive": "Open and close sessions, post events, call tools.",
    "answer": "Answer interactions that the runtimes open, post outcomes and progress of calls.",
    "approve": "Allow or deny calls that the gateway holds.",
    "operate": "Cancel, redrive, dismiss, redeliver, erase, enable destinations, reload.",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The requirements of one operation; without a scope it needs no credentials."""

    scope: Scope | None
    instead: Scope | None = None
    """Another scope that will do; the operation checks which one its subject needs."""
    token: bool = False
    """Whether it also accepts a callback token of the call."""
    tools: bool = False
    """Whether it also accepts the session's tool token; for an operation on a call, the token that made the call."""
    page: Page | None = None
    """Needs no credentials if `api.open` lists this page."""


ACCESS: dict[str, Access] = {
    "openSession": Access("drive"),
    "listSessions": Access("read"),
    "getSession": Access("read"),
    "getContext": Access("read"),
    "closeSession": Access("drive"),
    "eraseSession": Access("operate"),
    "postEvents": Access("drive"),
    "listEvents": Access("read"),
    "listNativeEvents": Access("operate"),
    "streamEvents": Access("read"),
    "streamAllEvents": Access("read"),
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
    "getInteraction": Access("read"),
    "listApprovals": Access("read"),
    "answerInteraction": Access("answer", instead="approve"),
    "listDeadLetters": Access("read"),
    "getDeadLetter": Access("read"),
    "redriveDeadLetter": Access("operate"),
    "redriveDeadLetters": Access("operate"),
    "dismissDeadLetter": Access("operate"),
    "dismissDeadLetters": Access("operate"),
    "enableDestination": Access("operate"),
    "rotateLinks": Access("operate"),
    "reloadConfiguration": Access("operate"),
    "listInstances": Access("read"),
    "getActivity": Access("read"),
    "listRuntimes": Access("read"),
    "listCapabilities": Access("read"),
    "getHealth": Access(None),
    "getReadiness": Access(None),
    "getMetrics": Access("read", page="metrics"),
    "getVersion": Access("read", page="version"),
    "getOpenapi": Access("read", page="openapi"),
    "getLlms": Access(None),
    "listProblems": Access(None),
    "getProblem": Access(None),
}
"""The requirements by operation; `eraseSession` is `closeSession` with `erase=true`, and `listNativeEvents` is
`listEvents` with `native=true`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request; `name` is for logs."""

    name: str
    scopes: frozenset[str]
    digest: bytes | None = field(default=None, repr=False)
    """The digest of the API key, if it is a configured one."""

    @property
    def has_tool_token(self) -> bool:
        """Whether a tool token, ticket or client token authenticates it, so that it cancels only calls of its own."""
        return self.digest is None and self.scopes is _OF_TOOLS


ANONYMOUS = Caller("-", frozenset())
CALLBACK = Caller("callback", frozenset({"answer"}))
_OF_TOOLS = frozenset({"drive", "read", "operate"})
"""The scopes of the operations that accept a tool token; no other operation admits it."""
TOOLS: dict[TokenKind, Caller] = {kind: Caller(kind, _OF_TOOLS) for kind in KINDS}
"""The callers of tools, by kind of token."""
LOCAL = Caller("local", frozenset(SCOPES))
"""The caller if no keys are configured: any program on this machine."""


class Keyring(Generic[Holder]):
    """The configured keys as digests; a lookup takes constant time."""

    def __init__(self, keys: Iterable[tuple[SecretStr, Holder]]) -> None:
        self._entries = tuple((_digest(key.get_secret_value().encode()), holder) for key, holder in keys)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def holders(self) -> list[Holder]:
        """The holders of all keys."""
        return [holder for _, holder in self._entries]

    def find(self, given: bytes) -> Holder | None:
        """Return the holder of a key; compares every entry in constant time."""
        return self.holder_of(_digest(given))

    def holder_of(self, digest: bytes) -> Holder | None:
        """Return the holder of the key with a digest."""
        found: Holder | None = None
        for known, holder in self._entries:
            if hmac.compare_digest(digest, known):
                found = holder
        return found


class Authenticator:
    """Authenticates requests and checks their scopes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._api: Api | None = None
        self._keyring = Keyring[Caller](())
        self._clients: dict[str, tuple[RuntimeOptions, Keyring[McpClient]]] = {}

    async def admit(self, request: Request, operation: str) -> None:
        """Authenticate the caller, check its scope and store it in `request.state.caller`.

        Raises:
            Unauthorized, Refused: names the missing credential or scope.
        """
        request.state.caller = caller = await self._caller(request, ACCESS[operation])
        if caller is not ANONYMOUS:
            require(request, operation)

    async def _caller(self, request: Request, access: Access) -> Caller:
        if access.scope is None:
            return ANONYMOUS
        if HEADER in request.headers:
            return await self._forwarded_caller(request, access)
        if (holder := request.scope["state"].get(LINK)) is not None:
            return cast(Caller, holder)
        api = self._load_keys()
        check_origin(request, self._gateway.settings)
        if access.token and self._holds_token(request):
            return CALLBACK
        if not self._keyring:
            check_host(request)
        given = _key_of(request, strict=bool(self._keyring)) if self._keyring or access.tools else None
        caller = None if given is None else self._keyring.find(given)
        if caller is None and given is not None:
            if access.tools and "call_id" in request.path_params and self._is_tool_token(given):
                return await self._call_maker(CallId(request.path_params["call_id"]), given)
            if given.startswith(_TOOL_TOKEN):
                return await self._tool_caller(request, access, given)
        if not self._keyring:
            return LOCAL
        if given is None:
            if access.page in api.open:
                return ANONYMOUS
            raise Unauthorized("missing API key: send `Authorization: Bearer KEY` or `X-API-Key: KEY`")
        if caller is None:
            raise Unauthorized("invalid API key")
        return caller

    async def _forwarded_caller(self, request: Request, access: Access) -> Caller:
        """Authenticate a request that another instance has forwarded, by its signature.

        Raises:
            Elsewhere: the signature is not valid, so that the caller repeats the request.
            Unauthorized: the caller's key is not configured here with these scopes.
        """
        hops, instance = self._gateway.hops, self._gateway.forwarder.instance
        method, target = request.method, target_of(request)
        try:
            hop = hops.read(request.headers[HEADER], instance)
            setattr(request.state, FORWARDED, True)
            known = self._callers_of(hop, access)
            if not known:
                raise Unauthorized("the caller has no access at the instance that owns the session")
            caller = next((one for one in known if hops.is_signed(hop, method, target, one.digest)), None)
            if caller is None:
                raise HopRefused("its signature is invalid")
            # A known caller may send a larger body.
            request.state.caller = caller
            check_body(hop, await request.body())
            hops.spend(hop)
        except HopRefused as exc:
            limited(log.warning, "forwarded request refused", per=str(exc), reason=str(exc))
            text = f"the instance that owns the session refused the forwarded request: {exc}"
            raise Elsewhere(request.path_params.get("session_id", "-"), text) from exc
        return caller

    def _callers_of(self, hop: Hop, access: Access) -> list[Caller]:
        """Return the callers here that a forwarded request may come from."""
        self._load_keys()
        found = [
            replace(one, scopes=hop.scopes)
            for one in self._keyring.holders
            if one.name == hop.name and hop.scopes <= one.scopes
        ]
        others = [CALLBACK] if access.token else []
        if access.instead == "approve":
            notified = self._gateway.settings.approvals.notify
            others += [Caller(f"link {one.to}", frozenset({"approve"})) for one in notified]
        if access.tools:
            others += [*TOOLS.values(), *self._clients_of(hop.name)]
        if not self._keyring:
            others.append(LOCAL)
        return found + [one for one in others if (one.name, one.scopes) == (hop.name, hop.scopes)]

    def _clients_of(self, name: str) -> list[Caller]:
        runtime, _, client = name.partition("/")
        options = self._gateway.settings.runtimes.get(runtime)
        clients = () if options is None else options.mcp_clients or ()
        return [Caller(name, _OF_TOOLS) for one in clients if one.name == client]

    def still_admits(self, caller: Caller, operation: str) -> bool:
        """Check whether a caller with an API key, or without one, still has access: by name, key and scope."""
        self._load_keys()
        if caller.digest is None:
            return caller is not LOCAL or not self._keyring
        known = self._keyring.holder_of(caller.digest)
        return known is not None and known.name == caller.name and ACCESS[operation].scope in known.scopes

    def _load_keys(self) -> Api:
        api = self._gateway.settings.api
        if api is not self._api:
            callers = ((one.key, _caller_by(one)) for one in api.keys)
            self._api, self._keyring = api, Keyring(callers)
        return api

    async def admit_caller(self, request: Request, session_id: SessionId) -> Caller:
        """Authenticate a program that calls the tools of a session, by the session's tool token.

        Raises:
            Unauthorized, Refused: names the required credential.
        """
        if HEADER in request.headers:
            return await self._forwarded_caller(request, ACCESS["callTool"])
        given = self._given(request)
        kind = None if given is None else await self._gateway.tool_tokens.kind_of(session_id, given)
        if kind is None:
            raise Unauthorized("send the session's tool token: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[kind]
        return TOOLS[kind]

    async def admit_client(self, request: Request, runtime: str) -> McpClient:
        """Authenticate a client of a runtime by the client's own token; the log names it `RUNTIME/CLIENT`.

        Raises:
            Unauthorized, Refused: names the required credential.
        """
        given, keyring = self._given(request), self._keyring_of(runtime)
        client = None if given is None or keyring is None else keyring.find(given)
        if client is None:
            raise Unauthorized("send a token from the runtime's `clients`: `Authorization: Bearer TOKEN`")
        request.state.caller = Caller(f"{runtime}/{client.name}", frozenset())
        return client

    async def admit_ticket(self, request: Request, ticket_id: str) -> Ticket:
        """Authenticate a native session that the gateway created, by its ticket.

        Raises:
            Unauthorized, Refused: names the required credential.
        """
        given = self._given(request)
        ticket = None if given is None else await self._gateway.tickets.find(ticket_id, given)
        if ticket is None:
            raise Unauthorized("send the ticket of this address: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[TICKET]
        return ticket

    async def admit_shared(self, request: Request, runtime: str) -> None:
        """Authenticate an agent by the ticket in its runtime's settings.

        Raises:
            Unauthorized, Refused: names the required credential.
        """
        given = self._given(request)
        if given is None or not await self._is_shared(runtime, given):
            raise Unauthorized("send the ticket from this runtime's settings: `Authorization: Bearer dtt_…`")
        request.state.caller = TOOLS[TICKET]

    async def _is_shared(self, runtime: str, given: bytes) -> bool:
        options = self._gateway.settings.runtimes.get(runtime)
        return options is not None and options.shares_tools and await self._gateway.tickets.opens_shared(runtime, given)

    def _given(self, request: Request) -> bytes | None:
        """Return the key that an MCP client sent, after checking the request's origin and host."""
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

    async def _tool_caller(self, request: Request, access: Access, given: bytes) -> Caller:
        session_id = request.path_params.get("session_id") if access.tools else None
        kind = None if session_id is None else await self._gateway.tool_tokens.kind_of(SessionId(session_id), given)
        if kind is None:
            raise Unauthorized(_ENDED)
        return TOOLS[kind]

    def _is_tool_token(self, given: bytes) -> bool:
        """Check whether a key has the form of a tool token or ticket, or is the token of an MCP client."""
        keyrings = [self._keyring_of(runtime) for runtime in self._gateway.settings.runtimes]
        clients = [keyring.find(given) for keyring in keyrings if keyring is not None]
        return FORM.fullmatch(given) is not None or any(client is not None for client in clients)

    async def _call_maker(self, call_id: CallId, given: bytes) -> Caller:
        """Authenticate the maker of a call, by the token that made the call.

        Raises:
            NotFound: the token made no such call, even if another caller did.
            Unauthorized: the token was rotated; 404 would mean that the call is gone.
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
        raise NotFound(f"this token made no call {call_id!r}")

    async def _holder(self, session_id: SessionId, given: bytes) -> tuple[TokenKind | None, Caller]:
        """Identify a caller of a session's tools by its tool token, ticket or client token."""
        session = await self._gateway.opening.find(session_id)
        kind = await self._gateway.tool_tokens.kind_of(session_id, given)
        if kind is None and (
            await self._gateway.tickets.opens(session_id, given) or await self._is_shared(session.runtime, given)
        ):
            kind = TICKET
        if kind is not None:
            return kind, TOOLS[kind]
        keyring = self._keyring_of(session.runtime)
        client = None if keyring is None else keyring.find(given)
        if client is None or client.name != session.native_id:
            return None, ANONYMOUS
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


def is_forwarded(request: Request) -> bool:
    """Report whether another instance has signed and forwarded a request."""
    return getattr(request.state, FORWARDED, False)


def target_of(request: Request) -> str:
    """Return the path of a request with its query, without a callback token."""
    path = request.scope["raw_path"].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    # Operations that accept a callback token have no other parameter.
    return f"{path}?{query}" if query and "token" not in request.query_params else path


def require(request: Request, operation: str) -> None:
    """Check that the caller has an operation's scope.

    Raises:
        Refused: names the scope.
    """
    caller: Caller = request.state.caller
    access = ACCESS[operation]
    if access.scope is not None and access.instead not in caller.scopes:
        require_scope(caller, access.scope)


def require_scope(caller: Caller, scope: Scope) -> None:
    """Check that the caller has a scope.

    Raises:
        Refused: names the scope.
    """
    if scope not in caller.scopes:
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
                raise Unauthorized("the Authorization header must be `Bearer KEY`")
            return bytes(given.strip())
        if name == b"x-api-key" and key is None:
            key = bytes(value.strip())
    return key
