"""All exceptions of Dragoman, grouped by the party that must act.

DragomanError
├── PeerError                a runtime or an API client sent something invalid
│   ├── MalformedFrame       a native message cannot be read
│   ├── CannotExpress        a protocol has no equivalent of an event
│   ├── InvalidRequest       an API request is invalid (400)
│   │   └── BindingRequired  an approval without the binding of what is allowed
│   ├── Unauthorized         no key, or an unknown one (401)
│   ├── Forbidden            the key lacks a scope (403)
│   │   ├── OwnCall          a held call is answered by its maker or its executor
│   │   └── NotApprover      a held call is answered by somebody whom its rule does not name
│   ├── NotFound             no such session, call, ... (404)
│   ├── Conflict             the current state contradicts, e.g. a call has ended (409)
│   │   ├── Unconfigured     the session's runtime is not in the YAML
│   │   ├── ApprovalStale    an approval allows something else than what is asked now
│   │   ├── CallHeld         the call waits for a person
│   │   └── UseInteraction   a held call is answered in another way
│   ├── CallOver             the call ended too long ago for a callback (410)
│   ├── Gone                 retention removed this history (410)
│   ├── TooLarge             a body or a value exceeds its limit (413)
│   ├── UnknownTool          no such tool, or no executor for it (404)
│   ├── InvalidArguments     arguments do not match the tool's schema (422)
│   ├── Denied               a route denies the arguments (422)
│   ├── CallDiffers          a caller's key belongs to another request (409)
│   └── Inexpressible        the runtime has no equivalent of a valid request (422)
├── OperatorError            the operator must fix the configuration or environment
│   ├── InvalidConfiguration the YAML is invalid; lists every problem
│   ├── EngineLocked         another process holds the database
│   ├── EngineUnusable       the database cannot be opened or read
│   └── SchemaTooNew         the database has the schema of a newer release
├── DownstreamError          a dependency fails; a later retry may succeed
│   ├── LinkLost             a connection to a runtime broke
│   ├── LinkRefused          a runtime refused us
│   ├── EngineUnavailable    the store is unavailable
│   ├── Elsewhere            another instance runs the session, or none yet
│   ├── Draining             this process is stopping and accepts no new work
│   └── Overloaded           a queue or limit is full
├── Stale                    a step's expectation failed: decide again on new state
│   ├── Repeated             events of a step are already recorded: decide again without them
│   └── Fenced               another instance owns the session: stop acting for it
└── Truncated                a reader requested events that retention removed
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


def install_line(extra: str) -> str:
    """Return how to install the libraries of an extra. It names no distribution of ours: no index has a release."""
    return f"in a clone of Dragoman, run pip install ./gateway/sdk '.[{extra}]'"


class DragomanError(Exception):
    """The root of the tree; only subclasses are raised."""


class PeerError(DragomanError):
    """The peer must change its messages."""


class MalformedFrame(PeerError):
    """A native message of a known type has invalid content.

    `path` is an RFC 6901 pointer into the payload. The text never quotes a whole payload.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{reason} (at {path or 'the top'})")
        self.reason = reason
        self.path = path


class CannotExpress(PeerError):
    """A protocol has no equivalent of an event; `reason` is for API clients."""

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class InvalidRequest(PeerError):
    """A request does not have the documented form; `pointer` is the place in the body."""

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.pointer = pointer


class BindingRequired(InvalidRequest):
    """A person allows a held call without the binding of what they saw."""


class Unauthorized(PeerError):
    """The API key is missing or unknown."""


class Forbidden(PeerError):
    """The API key lacks the scope."""


class OwnCall(Forbidden):
    """The key that made a held call, or the executor that would run it, answers its approval."""


class NotApprover(Forbidden):
    """The rule that holds a call names others who may answer."""


class NotFound(PeerError):
    """The id is unknown."""


class Conflict(PeerError):
    """The request contradicts the recorded state."""


class Unconfigured(Conflict):
    """An open session cannot run until its runtime is in the configuration again."""


class ApprovalStale(Conflict):
    """The binding belongs to another call, or to what was asked before."""


class CallHeld(Conflict):
    """The call waits for a person, and was not sent."""


class UseInteraction(Conflict):
    """An event does not answer the approval of a held call."""


class Gone(PeerError):
    """Nothing follows the requested position; a session's events continue at `first_sequence`."""

    def __init__(self, detail: str, *, first_sequence: int | None = None) -> None:
        super().__init__(detail)
        self.first_sequence = first_sequence


class CallOver(PeerError):
    """A call ended so long ago that its callback address has expired."""


class TooLarge(PeerError):
    """A body or value exceeds its documented limit."""


class UnknownTool(PeerError):
    """The catalog lacks the tool, or no route of the session leads to an executor for it."""


class InvalidArguments(PeerError):
    """A caller's arguments do not match the schema of the tool; agents receive the same text."""


class Denied(PeerError):
    """The schema or a route denies a call with these arguments."""


class CallDiffers(PeerError):
    """A caller uses the key of an earlier call for another tool or other arguments."""


class Inexpressible(PeerError):
    """The session's runtime has no equivalent of a valid request.

    `path` is the RFC 6901 pointer into the event, and `place` the index of the event in the request.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.place = 0


class OperatorError(DragomanError):
    """The operator must act."""


Severity = Literal["error", "warning", "note"]
"""A note informs, and the configuration has no fix for it."""


@dataclass(frozen=True)
class Problem:
    """One finding about a configuration file."""

    path: str
    """The place in the YAML, e.g. `routes[2].match.tool`."""
    message: str
    """The problem and its fix."""
    line: int | None = None
    severity: Severity = "error"


class InvalidConfiguration(OperatorError):
    """A configuration is invalid; `problems` lists every finding."""

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        lines = [f"{file}:{p.line or 1}: {p.path or '(top)'}: {p.message}" for p in problems]
        super().__init__("\n".join(lines))
        self.file = file
        self.problems = problems


class EngineLocked(OperatorError):
    """Another process uses the same database file."""


class EngineUnusable(OperatorError):
    """The database cannot be opened or read; the text names the fix."""


class SchemaTooNew(OperatorError):
    """The database has the schema of a newer release: run that release, or restore an earlier backup."""


class DownstreamError(DragomanError):
    """A dependency fails temporarily."""


class LinkLost(DownstreamError):
    """A connection to a runtime broke, or could not be established.

    `unsent` means that the runtime has not accepted the event in progress, so it may be sent again.
    """

    def __init__(self, reason: str = "", *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class LinkRefused(DownstreamError):
    """A runtime refused the connection.

    `terminal` means that a retry without a change elsewhere would fail (wrong key, unknown agent); the supervisor then
    waits longer between attempts. `until_reload` means that the address may be wrong, or that a proxy answers instead
    of the runtime: the supervisor retries with back-off, and waits for a reload after ten minutes of the same response.
    """

    def __init__(self, code: str, detail: str = "", *, terminal: bool = False, until_reload: bool = False) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.terminal = terminal
        self.until_reload = until_reload


class LinkCrowded(DownstreamError):
    """A runtime has evicted a session for another one; reconnecting at once would evict the next."""


class EngineUnavailable(DownstreamError):
    """The store cannot be written or read now (disk full, server unreachable)."""


class Elsewhere(DownstreamError):
    """This instance does not run the session.

    `unsure` means that its owner changed during the request, so the request may already be recorded.
    """

    def __init__(self, session_id: str, detail: str, *, unsure: bool = False) -> None:
        super().__init__(detail)
        self.session_id = session_id
        self.unsure = unsure


class Draining(DownstreamError):
    """This process is stopping and accepts no new work; nothing was recorded."""


class Overloaded(DownstreamError):
    """A bounded queue or limit is full; the text names it."""


class Stale(DragomanError):
    """A step's expectation failed, so nothing of it was written."""


class Repeated(Stale):
    """Events of a step are already recorded, or occur twice in it; decide again without them."""

    def __init__(self, session_id: str, keys: Iterable[str]) -> None:
        self.keys = frozenset(keys)
        super().__init__(f"session {session_id!r} already has {len(self.keys)} of the step's events")


class Fenced(Stale):
    """Another instance owns the session, so this one must not send or write for it."""


class Truncated(DragomanError):
    """A reader requested events that retention has removed."""

    def __init__(self, first_sequence: int) -> None:
        super().__init__(f"history begins at sequence {first_sequence}")
        self.first_sequence = first_sequence
