"""All exceptions of Dragoman, sorted by who must act.

DragomanError
├── PeerError                a runtime or an API client said something wrong
│   ├── MalformedFrame       a native message cannot be read
│   ├── CannotExpress        a protocol has no words for an event
│   ├── InvalidRequest       an API request is wrong (400)
│   ├── Unauthorized         no key, or an unknown one (401)
│   ├── Forbidden            the key lacks a scope (403)
│   ├── NotFound             no such session, call, ... (404)
│   ├── Conflict             the thing has moved on, e.g. a call already ended (409)
│   │   └── Unconfigured     the session's runtime is not in the YAML, so nobody carries it
│   ├── CallOver             the call ended too long ago for its callback address (410)
│   ├── Gone                 history below the retained part (410)
│   ├── TooLarge             a body or a value over its limit (413)
│   ├── UnknownTool          no such tool, or nobody answers it here (404)
│   ├── InvalidArguments     they do not fit the tool's schema (422)
│   ├── CallDiffers          a caller's key was used for another request (409)
│   └── Inexpressible        understood, but this runtime cannot be told so (422)
├── OperatorError            configuration or surroundings must be mended
│   ├── InvalidConfiguration the YAML is wrong; carries every problem found
│   ├── EngineLocked         another process holds the database
│   ├── EngineUnusable       the database cannot be opened or read as it stands
│   └── SchemaTooNew         the database has the schema of a newer release
├── DownstreamError          something we depend on fails; trying again later may help
│   ├── LinkLost             a connection to a runtime broke
│   ├── LinkRefused          a runtime turned us away
│   ├── EngineUnavailable    the store cannot be written or read now
│   ├── Elsewhere            another instance carries the session, or none yet
│   ├── Draining             this process is stopping and accepts no new work
│   └── Overloaded           a queue or limit is full
├── Stale                    a step's expectation failed: decide again on fresh state
│   ├── Repeated             events of a step are on record already: decide again without them
│   └── Fenced               another instance owns the session by now: stop speaking for it
└── Truncated                a reader asked for events that retention removed
"""

from collections.abc import Iterable
from dataclasses import dataclass


class DragomanError(Exception):
    """The root of the tree; never raised itself."""


class PeerError(DragomanError):
    """The other side must change what it sends."""


class MalformedFrame(PeerError):
    """A native message of a known type has the wrong insides.

    `path` is an RFC 6901 pointer into the payload. The text never quotes a whole payload.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{reason} (at {path or 'the top'})")
        self.reason = reason
        self.path = path


class CannotExpress(PeerError):
    """A protocol cannot say an event; `reason` tells an API client why."""

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


class InvalidRequest(PeerError):
    """A request is not of the documented form; `pointer` names the place in the body."""

    def __init__(self, detail: str, *, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.pointer = pointer


class Unauthorized(PeerError):
    """No API key was given, or one that is not configured."""


class Forbidden(PeerError):
    """The API key is known but lacks the scope."""


class NotFound(PeerError):
    """Nothing has this id."""


class Conflict(PeerError):
    """The request contradicts what is already recorded."""


class Unconfigured(Conflict):
    """An open session that nobody carries, and nobody will before its runtime is in the configuration again."""


class Gone(PeerError):
    """The events asked for were removed by retention; `first_sequence` is the oldest left."""

    def __init__(self, detail: str, *, first_sequence: int) -> None:
        super().__init__(detail)
        self.first_sequence = first_sequence


class CallOver(PeerError):
    """A call ended so long ago that its callback address takes nothing any more."""


class TooLarge(PeerError):
    """A body or value is over its documented limit."""


class UnknownTool(PeerError):
    """The catalog has no such tool, or no route of the session leads to somebody who answers it."""


class InvalidArguments(PeerError):
    """A caller's arguments do not fit the schema of the tool; the text is what an agent would be told."""


class CallDiffers(PeerError):
    """A caller uses the key of an earlier call for another tool or other arguments."""


class Inexpressible(PeerError):
    """The request is well-formed but the session's runtime has no way to be told.

    `path` is the RFC 6901 pointer into the event, and `place` the event's place among those of the request.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.place = 0


class OperatorError(DragomanError):
    """A person who runs the gateway must act."""


@dataclass(frozen=True)
class Problem:
    """One finding about a configuration file."""

    path: str
    """Where in the YAML, e.g. `routes[2].match.tool`."""
    message: str
    """What is wrong, and what would be right."""
    line: int | None = None
    severity: str = "error"
    """`error` or `warning`."""


class InvalidConfiguration(OperatorError):
    """A configuration cannot be used; `problems` lists everything that was found."""

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        lines = [f"{file}:{p.line or 1}: {p.path or '(top)'}: {p.message}" for p in problems]
        super().__init__("\n".join(lines))
        self.file = file
        self.problems = problems


class EngineLocked(OperatorError):
    """Another process uses the same database file."""


class EngineUnusable(OperatorError):
    """The database cannot be opened or read as it stands; the text says what to mend."""


class SchemaTooNew(OperatorError):
    """The database has the schema of a newer release: run that release, or restore the backup from before."""


class DownstreamError(DragomanError):
    """A dependency fails for now."""


class LinkLost(DownstreamError):
    """A connection to a runtime broke, or could not be made.

    `unsent` means that what was being sent has certainly not been taken, so that it may be said again.
    """

    def __init__(self, reason: str = "", *, unsent: bool = False) -> None:
        super().__init__(reason)
        self.unsent = unsent


class LinkRefused(DownstreamError):
    """A runtime answered that it will not talk to us.

    `terminal` means that trying again without a change elsewhere cannot help
    (wrong key, unknown agent); the supervisor then waits long between tries.
    `until_reload` means that the address may be at fault, or a proxy answers in place of the
    runtime: the supervisor retries with back-off, and only after ten minutes of the same
    answer waits for a reload.
    """

    def __init__(self, code: str, detail: str = "", *, terminal: bool = False, until_reload: bool = False) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.terminal = terminal
        self.until_reload = until_reload


class LinkCrowded(DownstreamError):
    """A runtime has ended a session to make room for another one; coming back at once would only end the next."""


class EngineUnavailable(DownstreamError):
    """The store cannot be written or read now (disk full, server away)."""


class Elsewhere(DownstreamError):
    """The session is not carried here.

    `unsure` means that it changed hands while the request was decided, so that it may be on record already.
    """

    def __init__(self, session_id: str, detail: str, *, unsure: bool = False) -> None:
        super().__init__(detail)
        self.session_id = session_id
        self.unsure = unsure


class Draining(DownstreamError):
    """This process is stopping and accepts no new work; nothing was recorded."""


class Overloaded(DownstreamError):
    """A bounded queue or limit is full; the text says which."""


class Stale(DragomanError):
    """A step's expectation did not hold, so nothing of it was written."""


class Repeated(Stale):
    """Events of a step are on record already, or twice in the step; a decision without them has to be made."""

    def __init__(self, session_id: str, keys: Iterable[str]) -> None:
        self.keys = frozenset(keys)
        super().__init__(f"session {session_id!r} has {len(self.keys)} of the step's events already")


class Fenced(Stale):
    """The session has changed hands, so that nothing may be said or written for it here any more."""


class Truncated(DragomanError):
    """A reader asked for events that retention has removed."""

    def __init__(self, first_sequence: int) -> None:
        super().__init__(f"history begins at sequence {first_sequence}")
        self.first_sequence = first_sequence
