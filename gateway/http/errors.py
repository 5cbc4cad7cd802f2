"""The table of the API's problem types: exception, status, title, meaning, fix and log level."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from starlette.exceptions import HTTPException

from gateway import errors
from gateway.http.reply import Reply

Level = Literal["info", "warning", "error"]
_LONGEST_DETAIL = 1_000
_PLACE_OF_ARGUMENT = re.compile(r"Invalid arguments for '[^']*'…?: at (the top|/[^\s:…\\]*): ")
"""The first place in the text; a place that was cut or rewritten is not a pointer."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One problem type: the source of responses, log lines, the OpenAPI document and `/problems/NAME`."""

    name: str
    status: int
    title: str
    meaning: str
    mend: str
    level: Level = "info"
    retry_after: int | None = None
    """Seconds for the Retry-After header, if a retry can succeed."""
    detail: str | None = None
    """A fixed text that replaces the exception's own, which may contain internals."""

    @property
    def type(self) -> str:
        """The URI reference that names this problem."""
        return f"/problems/{self.name}"


_ROWS = (
    ProblemKind(
        "invalid-request",
        400,
        "Invalid request",
        "A parameter or a member of the body is missing, unknown or has an invalid value.",
        "`pointer` (RFC 6901) or `errors` names the place; /openapi.json describes the operation.",
    ),
    ProblemKind(
        "binding-required",
        400,
        "Binding required",
        "An approval of a held call must name what it allows.",
        "Send the `binding` of the interaction that you have shown to a person.",
    ),
    ProblemKind(
        "invalid-json",
        400,
        "Invalid JSON",
        "The body is empty, is not JSON in UTF-8, nests deeper than 64 levels, or contains NaN, Infinity, a lone "
        "surrogate or an integer beyond 64 bits.",
        "Send one JSON value in UTF-8; write numbers that need more than 64 bits as strings.",
    ),
    ProblemKind(
        "invalid-event",
        400,
        "Invalid event",
        "The kind is unknown, or the event's members do not match its kind. Nothing was recorded.",
        "`pointer` names the member; /openapi.json describes all kinds.",
    ),
    ProblemKind(
        "unauthorized",
        401,
        "Missing or invalid credentials",
        "The request has no API key, its key is not configured, or its callback token belongs to another call.",
        "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`; use callback URLs unchanged.",
    ),
    ProblemKind(
        "forbidden",
        403,
        "The API key lacks a scope",
        "The key is valid, but its `scopes` do not allow this operation; `scope` names the required one.",
        "Use another key, or add the scope under `api.keys` and reload.",
    ),
    ProblemKind(
        "own-call",
        403,
        "Not your own call",
        "A held call is answered neither by the key that made it nor by the executor that would run it, also under "
        "another name with the same address.",
        "Let another key answer.",
    ),
    ProblemKind(
        "not-approver",
        403,
        "Not named by the rule",
        "The route that holds the call lists in `approve.by` who may answer, and this key is not among them.",
        "Let a key answer that the route names; GET /v1/interactions/{interaction_id} has its place in `rule`.",
    ),
    ProblemKind(
        "foreign-origin",
        403,
        "Web page or host not allowed",
        "The `Origin` of the request is neither a loopback page, nor the page at `public_url`, nor listed in "
        "`api.origins`; or the gateway has no API keys, and the `Host` is not a loopback host or another page on this "
        "machine sent the request. Such a request could be an attack through a user's browser.",
        "List the page in `api.origins`, or let the proxy in front remove `Origin`. Without API keys, use "
        "http://127.0.0.1 or http://localhost.",
    ),
    ProblemKind(
        "not-found",
        404,
        "Not found",
        "No session, call, interaction, destination, runtime or problem has this id or name.",
        "List the existing ones, for example with GET /v1/sessions or GET /v1/calls.",
    ),
    ProblemKind(
        "unknown-tool",
        404,
        "Unknown tool",
        "The configuration declares no tool with this name, or no route of this session leads to an executor for it.",
        "Check `tools` and `routes` in the configuration.",
    ),
    ProblemKind(
        "unknown-path",
        404,
        "Unknown path",
        "The API has no such path; paths have no trailing slash.",
        "See /openapi.json for all paths.",
    ),
    ProblemKind(
        "method-not-allowed",
        405,
        "Method not allowed",
        "The path exists, but not with this method.",
        "Use a method from the `Allow` header.",
    ),
    ProblemKind(
        "request-timeout",
        408,
        "Request body timeout",
        "The body was not complete within 30 seconds after the headers.",
        "Send the request again; check the network between client and gateway.",
    ),
    ProblemKind(
        "conflict",
        409,
        "Conflict with the current state",
        "The call already has another outcome, the interaction is already answered, or the same request is still in "
        "progress.",
        "Read the current state, then decide. A late outcome is recorded as `outcome.ignored`.",
    ),
    ProblemKind(
        "approval-stale",
        409,
        "Something else is asked now",
        "The binding is not that of the interaction: it belongs to another call, or the arguments or the rule have "
        "changed. Nothing was allowed.",
        "Show the interaction again to a person, and send the binding that it has now.",
    ),
    ProblemKind(
        "held",
        409,
        "The call waits for a person",
        "The call was not sent, so it has neither an outcome nor progress.",
        "Wait: the executor gets the call if a person allows it.",
    ),
    ProblemKind(
        "use-interaction",
        409,
        "Answer the interaction",
        "The approval is that of a held call, which an event does not answer. Nothing was recorded.",
        "POST /v1/interactions/{interaction_id}/answer, with the binding and the scope `approve`.",
    ),
    ProblemKind(
        "call-differs",
        409,
        "Key used for another call",
        "A recorded call with this key has another tool or other arguments. Nothing was called.",
        "Use a new key for each call; a repeat must have the same tool and arguments.",
    ),
    ProblemKind(
        "idempotency-busy",
        409,
        "Request with this Idempotency-Key in progress",
        "Another request with the same key is in progress, here or at another instance, and did not end in time.",
        "Repeat the request with the same key; it gets the first request's response.",
        retry_after=2,
    ),
    ProblemKind(
        "call-over",
        410,
        "Callback URL expired",
        "The callback URLs of a call expire ten minutes after its end.",
        "Nothing to do: the call has its outcome, see `GET /v1/calls/{call_id}`.",
    ),
    ProblemKind(
        "gone",
        410,
        "No history at this position",
        "Retention removed the events after the requested position, or the store was restored since, so that other "
        "rows are there.",
        "Continue at `first_sequence`: set `after` to one less. Without it, list again from the first page.",
    ),
    ProblemKind(
        "too-large",
        413,
        "Request too large",
        "The body exceeds `api.max_body`, or a value exceeds its documented limit.",
        "Send less, or raise `api.max_body`.",
    ),
    ProblemKind(
        "unsupported-media-type",
        415,
        "Unsupported media type",
        "The Content-Type is not application/json in UTF-8, or the body is compressed.",
        "Send `Content-Type: application/json` without Content-Encoding.",
    ),
    ProblemKind(
        "invalid-arguments",
        422,
        "Invalid tool arguments",
        "The arguments do not match the tool's schema in the configuration. Nothing was called.",
        "`detail` names each place in the text that agents get; `pointer` is the first one, if it can be expressed.",
    ),
    ProblemKind(
        "denied",
        422,
        "Denied by a route",
        "A route with `deny` matches the changed arguments. Nothing was allowed.",
        "`detail` has the text of the route. Change the arguments again, or deny the call.",
    ),
    ProblemKind(
        "inexpressible",
        422,
        "Not supported by the runtime",
        "The event is valid, but the runtime's protocol has no equivalent, a value exceeds a limit of the protocol, or "
        "clients may not post this kind. Nothing was recorded.",
        "GET /v1/capabilities lists what the runtime accepts; send outcomes to POST /v1/calls/{call_id}/outcome.",
    ),
    ProblemKind(
        "idempotency-conflict",
        422,
        "Idempotency-Key used for another request",
        "Within the last 24 hours, a request with the same key had another body.",
        "Use a new key for a new request, and the same body for a repeat.",
    ),
    ProblemKind(
        "invalid-configuration",
        422,
        "Invalid configuration",
        "The file has errors, or changes an option that requires a restart. The old configuration stays active.",
        "`errors` lists the line, path and fix of each; validate the file with `dragoman check FILE`.",
        level="warning",
    ),
    ProblemKind(
        "internal",
        500,
        "Internal error",
        "An unexpected error occurred; the gateway's log has the details.",
        "Report it with the log lines of that time. A write may be repeated with the same Idempotency-Key.",
        level="error",
        detail="unexpected error; see the gateway's log",
    ),
    ProblemKind(
        "runtime-refused",
        502,
        "Refused by the runtime",
        "The agent runtime refused the gateway, for example because of a wrong key or an unknown agent.",
        "Check the runtime's options in the YAML; `dragoman doctor` tests the connection.",
        level="warning",
    ),
    ProblemKind(
        "runtime-unreachable",
        502,
        "Runtime unreachable",
        "The connection to the agent runtime failed or broke.",
        "Check that the runtime is up and its `url` is correct, then try again.",
        level="warning",
        retry_after=5,
    ),
    ProblemKind(
        "unavailable",
        503,
        "Store unavailable",
        "The gateway cannot read or write its store, so it accepts nothing that it could lose.",
        "Try again later; GET /readyz shows the cause, often a full disk.",
        level="error",
        retry_after=5,
        detail="the store is unavailable",
    ),
    ProblemKind(
        "session-owner-unavailable",
        503,
        "Session owner unavailable",
        "No live instance owns the session, its owner is unreachable or refused the forwarded request, or the owner "
        "changed during the request. "
        "`detail` names the cause, and whether the request may be on record.",
        "Try again in a few seconds with the same Idempotency-Key; GET /v1/instances lists the live instances.",
        level="warning",
        retry_after=2,
    ),
    ProblemKind(
        "starting",
        503,
        "The gateway is starting",
        "The process opens its store or loads sessions. Nothing was recorded.",
        "Send the request again after `Retry-After` seconds; GET /readyz names the current step.",
        retry_after=2,
    ),
    ProblemKind(
        "draining",
        503,
        "The gateway is stopping",
        "The process finishes its current work and accepts no new sessions, messages or calls. Nothing was recorded, "
        "unless `detail` says otherwise.",
        "Send the request again after `Retry-After` seconds; the next process or another replica accepts it.",
        retry_after=2,
    ),
    ProblemKind(
        "overloaded",
        503,
        "Overloaded",
        "A queue or limit is full; `detail` names it.",
        "Try again later, at a lower rate.",
        level="warning",
        retry_after=1,
    ),
    ProblemKind(
        "busy",
        503,
        "Session busy",
        "Concurrent requests kept changing the session. Nothing was recorded.",
        "Try again.",
        level="warning",
        retry_after=1,
        detail="the session kept changing; try again",
    ),
)

PROBLEMS: dict[str, ProblemKind] = {row.name: row for row in _ROWS}
"""All problem types by name."""

EXCEPTIONS: dict[type[BaseException], str] = {
    errors.InvalidRequest: "invalid-request",
    errors.BindingRequired: "binding-required",
    errors.Unauthorized: "unauthorized",
    errors.Forbidden: "forbidden",
    errors.OwnCall: "own-call",
    errors.NotApprover: "not-approver",
    errors.NotFound: "not-found",
    errors.Conflict: "conflict",
    errors.ApprovalStale: "approval-stale",
    errors.CallHeld: "held",
    errors.UseInteraction: "use-interaction",
    errors.CallOver: "call-over",
    errors.Gone: "gone",
    errors.Truncated: "gone",
    errors.TooLarge: "too-large",
    errors.UnknownTool: "unknown-tool",
    errors.InvalidArguments: "invalid-arguments",
    errors.Denied: "denied",
    errors.CallDiffers: "call-differs",
    errors.Inexpressible: "inexpressible",
    errors.CannotExpress: "inexpressible",
    errors.MalformedFrame: "invalid-request",
    errors.InvalidConfiguration: "invalid-configuration",
    errors.LinkRefused: "runtime-refused",
    errors.LinkLost: "runtime-unreachable",
    errors.EngineUnavailable: "unavailable",
    errors.Elsewhere: "session-owner-unavailable",
    errors.Draining: "draining",
    errors.Overloaded: "overloaded",
    errors.Stale: "busy",
}
"""The problem of each exception; all others are `internal`."""


class Refused(Exception):
    """A request that the HTTP layer itself refuses; `problem` is a name of the table."""

    def __init__(self, problem: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.problem = problem
        self.members = members


def problem_of(exc: BaseException) -> ProblemKind:
    """Return the problem of an exception; a subclass has that of its nearest listed parent."""
    if isinstance(exc, Refused):
        return PROBLEMS[exc.problem]
    for ancestor in type(exc).__mro__:
        if ancestor in EXCEPTIONS:
            return PROBLEMS[EXCEPTIONS[ancestor]]
    if isinstance(exc, HTTPException):
        return {404: PROBLEMS["unknown-path"], 405: PROBLEMS["method-not-allowed"]}.get(
            exc.status_code, PROBLEMS["internal"]
        )
    return PROBLEMS["internal"]


def problem_reply(exc: BaseException) -> Reply:
    """Return the application/problem+json response of an exception (RFC 9457)."""
    kind = problem_of(exc)
    body: dict[str, Any] = {
        "type": kind.type,
        "title": kind.title,
        "status": kind.status,
        "detail": kind.detail or _detail(exc) or kind.meaning,
        **_members(exc),
    }
    headers: dict[str, str] = {}
    if kind.retry_after is not None:
        headers["retry-after"] = str(kind.retry_after)
    if kind.status == 401:
        headers["www-authenticate"] = 'Bearer realm="dragoman"'
    return Reply(body, kind.status, headers, "application/problem+json")


def _detail(exc: BaseException) -> str:
    if isinstance(exc, HTTPException):
        return ""
    text = str(exc)
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"


def _members(exc: BaseException) -> dict[str, Any]:
    match exc:
        case Refused():
            return exc.members
        case errors.InvalidRequest(pointer=str(pointer)):
            # The engines name a query parameter; only places in the body are pointers.
            in_body = not pointer or pointer.startswith("/")
            return {"pointer": pointer} if in_body else {"errors": [{"parameter": pointer, "detail": exc.args[0]}]}
        case errors.InvalidArguments() if place := _PLACE_OF_ARGUMENT.match(str(exc)):
            return {"pointer": "/arguments" + place[1].replace("the top", "")}
        case errors.CannotExpress(path=path) | errors.Inexpressible(path=path) if path:
            return {"pointer": path}
        case errors.Gone(first_sequence=int()) | errors.Truncated():
            return {"first_sequence": exc.first_sequence}
        case errors.InvalidConfiguration():
            return {
                "errors": [
                    {"path": found.path, "line": found.line, "detail": found.message, "severity": found.severity}
                    for found in exc.problems
                ]
            }
        case _:
            return {}
