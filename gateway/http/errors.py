"""One table of all problems the API can answer with: exception, status, type, title, meaning, mend and log level."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from starlette.exceptions import HTTPException

from gateway import errors
from gateway.http.reply import Reply

Level = Literal["info", "warning", "error"]
_LONGEST_DETAIL = 1_000
_PLACE_OF_ARGUMENT = re.compile(r"Invalid arguments for '[^']*'…?: at (the top|/[^\s:…\\]*): ")
"""The first place that the text names; one that it had to cut or to write otherwise is no pointer."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One problem type; the same row makes the answer, the log line, the documentation and `/problems/NAME`."""

    name: str
    status: int
    title: str
    meaning: str
    mend: str
    level: Level = "info"
    retry_after: int | None = None
    """Seconds for the Retry-After header, where trying again helps."""
    detail: str | None = None
    """A fixed text that is told instead of the exception's own, which may show inner workings."""

    @property
    def type(self) -> str:
        """The URI reference that names this problem."""
        return f"/problems/{self.name}"


_ROWS = (
    ProblemKind(
        "invalid-request",
        400,
        "The request is not of the documented form",
        "A parameter or a member of the body is missing, unknown, or has a value that is not allowed.",
        "`pointer` (RFC 6901) or `errors` name the place; compare with the operation in /openapi.json.",
    ),
    ProblemKind(
        "invalid-json",
        400,
        "The body is not usable JSON",
        "The body is empty, is not JSON in UTF-8, nests deeper than 64 levels, or holds NaN, Infinity, a lone "
        "surrogate or an integer beyond 64 bits.",
        "Send one JSON value in UTF-8; write numbers that need more than 64 bits as strings.",
    ),
    ProblemKind(
        "invalid-event",
        400,
        "The event is not of a canonical form",
        "The kind is not known, or the event's fields do not fit its kind. Nothing was recorded.",
        "`pointer` names the field; the forms of all kinds are in /openapi.json.",
    ),
    ProblemKind(
        "unauthorized",
        401,
        "An API key is needed",
        "No API key was given, it is not configured, or the callback token does not belong to the call.",
        "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`; use callback URLs exactly as they were given.",
    ),
    ProblemKind(
        "forbidden",
        403,
        "The API key lacks a scope",
        "The key is known, but its `scopes` do not allow this operation; `scope` names the one that is needed.",
        "Use another key, or add the scope under `api.keys` and reload.",
    ),
    ProblemKind(
        "foreign-origin",
        403,
        "Not allowed from this host or page",
        "The request has an `Origin` that is neither a loopback page, nor the page at `public_url`, nor listed in "
        "`api.origins`; or the gateway runs without API keys, and the `Host` is not a loopback one or the page is "
        "another one on this machine. Such a request could be an attack on the browser of a user.",
        "List the page in `api.origins`, or have the proxy in front remove `Origin`. Without API keys, use "
        "http://127.0.0.1 or http://localhost.",
    ),
    ProblemKind(
        "not-found",
        404,
        "There is no such thing",
        "No session, call, interaction, destination, runtime or problem has this id or name.",
        "List what exists, for instance with GET /v1/sessions or GET /v1/calls.",
    ),
    ProblemKind(
        "unknown-tool",
        404,
        "No such tool can be called here",
        "The configuration declares no tool of this name, or no route of this session leads to an executor for it.",
        "Compare with `tools` and `routes` of the configuration.",
    ),
    ProblemKind(
        "unknown-path",
        404,
        "There is no such path",
        "The path is none of the API's; paths have no trailing slash.",
        "See /openapi.json for all paths.",
    ),
    ProblemKind(
        "method-not-allowed",
        405,
        "The path does not take this method",
        "The path exists, with other methods.",
        "Use one of the methods in the `Allow` header.",
    ),
    ProblemKind(
        "request-timeout",
        408,
        "The body did not arrive in time",
        "The headers came, but the whole body did not follow within 30 seconds.",
        "Send the request again; look at the network between client and gateway.",
    ),
    ProblemKind(
        "conflict",
        409,
        "What is recorded contradicts the request",
        "The thing has moved on: the call already ended otherwise, the interaction is already answered, or the same "
        "request is still being worked on.",
        "Read its present state, then decide again. A late outcome is kept as `outcome.ignored`.",
    ),
    ProblemKind(
        "call-differs",
        409,
        "The key belongs to another call",
        "A call with this key is on record, and was for another tool or other arguments. Nothing was called.",
        "Give each call a key of its own; a repeat has the same tool and arguments.",
    ),
    ProblemKind(
        "idempotency-busy",
        409,
        "The first request with this Idempotency-Key is under way",
        "Another request with the same key is being carried out, here or at another instance, and did not end in time.",
        "Repeat the request with the same key; it gets the answer of the first one.",
        retry_after=2,
    ),
    ProblemKind(
        "call-over",
        410,
        "The call ended too long ago",
        "Ten minutes after its end, a call's callback addresses take nothing any more.",
        "Nothing is to be done: the call has its outcome, see `GET /v1/calls/{call_id}`.",
    ),
    ProblemKind(
        "gone",
        410,
        "The history does not go on there",
        "Retention removed the events right behind the sequence that was asked for, or the session ends before it, as "
        "it may after its store was restored.",
        "Begin at `first_sequence`, that is with `after` one below it.",
    ),
    ProblemKind(
        "too-large",
        413,
        "The body is too large",
        "The body is over `api.max_body`, or a value is over its documented limit.",
        "Send less, or raise `api.max_body`.",
    ),
    ProblemKind(
        "unsupported-media-type",
        415,
        "The body must be JSON",
        "The Content-Type is not application/json in UTF-8, or the body is compressed.",
        "Send `Content-Type: application/json` and no Content-Encoding.",
    ),
    ProblemKind(
        "invalid-arguments",
        422,
        "The arguments do not fit the tool",
        "The tool's schema, which the configuration declares, does not allow these arguments. Nothing was called.",
        "`detail` names each place, as an agent would be told; `pointer` is the first, where it can be written.",
    ),
    ProblemKind(
        "inexpressible",
        422,
        "The runtime cannot be told so",
        "The event is well-formed, but the session's runtime has no way to say it, a value breaks a limit of its "
        "protocol, or clients may not post its kind. Nothing was recorded.",
        "See what the runtime accepts in GET /v1/capabilities; outcomes go to POST /v1/calls/{call_id}/outcome.",
    ),
    ProblemKind(
        "idempotency-conflict",
        422,
        "The Idempotency-Key was used for another request",
        "A request with the same key but another body was answered within the last 24 hours.",
        "Use a new key for a new request, and the same body when repeating one.",
    ),
    ProblemKind(
        "invalid-configuration",
        422,
        "The configuration file cannot be used",
        "The file has errors, or changes what a reload may not change. The old configuration stays in force.",
        "`errors` lists line, path and mend of each; try the file with `dragoman check FILE`.",
        level="warning",
    ),
    ProblemKind(
        "internal",
        500,
        "The gateway made a mistake",
        "Something happened that should not; the details are in the gateway's log.",
        "Report it with the log lines of that moment. A write may be repeated with the same Idempotency-Key.",
        level="error",
        detail="an unexpected error; the log of the gateway tells more",
    ),
    ProblemKind(
        "runtime-refused",
        502,
        "The runtime said no",
        "The agent runtime turned the gateway away, for instance because of a wrong key or an unknown agent.",
        "Check the runtime's options in the YAML; `dragoman doctor` tries the connection.",
        level="warning",
    ),
    ProblemKind(
        "runtime-unreachable",
        502,
        "The runtime does not answer",
        "The connection to the agent runtime could not be made, or broke.",
        "Check that the runtime is up and its `url` is right, then try again.",
        level="warning",
        retry_after=5,
    ),
    ProblemKind(
        "unavailable",
        503,
        "The store cannot be used now",
        "The gateway cannot write or read its store, so it takes nothing it could lose.",
        "Try again later; GET /readyz tells the cause, mostly a full disk.",
        level="error",
        retry_after=5,
        detail="the store cannot be written or read now",
    ),
    ProblemKind(
        "elsewhere",
        503,
        "The session is changing hands",
        "No instance that lives carries the session, or the one that does cannot be reached, or it changed hands in "
        "the middle of the request: `detail` says which, and whether the request may be on record.",
        "Try again in some seconds, with the same Idempotency-Key; GET /v1/instances shows who lives.",
        level="warning",
        retry_after=2,
    ),
    ProblemKind(
        "draining",
        503,
        "The gateway is stopping",
        "The process finishes the work in flight and accepts no new sessions, messages or calls. Nothing was recorded.",
        "Send the request again after `Retry-After` seconds; the next process or another replica accepts it.",
        retry_after=2,
    ),
    ProblemKind(
        "overloaded",
        503,
        "Too much is waiting already",
        "A bounded queue or limit is full; `detail` says which.",
        "Try again later, and slower.",
        level="warning",
        retry_after=1,
    ),
    ProblemKind(
        "busy",
        503,
        "The session changed in the middle",
        "Others kept changing the session while the request was decided. Nothing was recorded.",
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
    errors.Unauthorized: "unauthorized",
    errors.Forbidden: "forbidden",
    errors.NotFound: "not-found",
    errors.Conflict: "conflict",
    errors.CallOver: "call-over",
    errors.Gone: "gone",
    errors.Truncated: "gone",
    errors.TooLarge: "too-large",
    errors.UnknownTool: "unknown-tool",
    errors.InvalidArguments: "invalid-arguments",
    errors.CallDiffers: "call-differs",
    errors.Inexpressible: "inexpressible",
    errors.CannotExpress: "inexpressible",
    errors.MalformedFrame: "invalid-request",
    errors.InvalidConfiguration: "invalid-configuration",
    errors.LinkRefused: "runtime-refused",
    errors.LinkLost: "runtime-unreachable",
    errors.EngineUnavailable: "unavailable",
    errors.Elsewhere: "elsewhere",
    errors.Draining: "draining",
    errors.Overloaded: "overloaded",
    errors.Stale: "busy",
}
"""Which problem an exception is told as; everything else is `internal`."""


class Refused(Exception):
    """A request that the HTTP face itself turns down; `problem` is a name of the table."""

    def __init__(self, problem: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.problem = problem
        self.members = members


def problem_of(exc: BaseException) -> ProblemKind:
    """Find the row of an exception; subclasses are told as their nearest listed parent."""
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
    """Tell an exception as application/problem+json (RFC 9457)."""
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
            # The engines name a query parameter plainly; only places in the body are pointers.
            in_body = not pointer or pointer.startswith("/")
            return {"pointer": pointer} if in_body else {"errors": [{"parameter": pointer, "detail": exc.args[0]}]}
        case errors.InvalidArguments() if place := _PLACE_OF_ARGUMENT.match(str(exc)):
            return {"pointer": "/arguments" + place[1].replace("the top", "")}
        case errors.CannotExpress(path=path) | errors.Inexpressible(path=path) if path:
            return {"pointer": path}
        case errors.Gone() | errors.Truncated():
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
