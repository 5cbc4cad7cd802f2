"""Connects a command to a running gateway, and turns its errors into messages with a fix."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from dragoman.client import Client, ClientError, GatewayUnreachable, RequestRefused, Session
from gateway.cli.errors import Misused, Refusal, report_errors
from gateway.cli.lines import clean

T = TypeVar("T")
SHORTEST = 4
"""The shortest accepted prefix of an ID; a shorter text may be the number of a choice."""
_LONGEST = 1_000
_MOST_NAMED = 10
_NAMES = "pass its ID or RUNTIME/NATIVE_ID; `dragoman sessions` lists them"
_FIXES = {
    **dict.fromkeys(
        ("foreign-origin", "method-not-allowed", "unsupported-media-type"),
        "check --url or DRAGOMAN_URL: a proxy in front changes the requests, or it is not a gateway of this release",
    ),
    "not-found": "list them with `dragoman sessions`, `calls`, `inbox` or `dead-letters list`",
    "invalid-request": "see the options with `--help`",
    "invalid-event": "see the schema of each kind with `dragoman openapi`",
    "invalid-configuration": "fix the lines above, then run `dragoman reload` again; nothing was changed",
    "conflict": "",
    "denied": "change the arguments again, or deny the call with `dragoman answer ID --deny`",
    "own-call": "let another key answer",
    "not-approver": "let a key answer that the rule names; `dragoman inbox` shows the rule",
    "use-interaction": "answer it with `dragoman answer`",
    "call-over": "the call has its outcome: `dragoman calls show ID`",
    "gone": "start later, with a larger --after",
    "inexpressible": "see what this runtime accepts with `dragoman explain`, or send another kind of event",
    "invalid-arguments": "compare the arguments with the tool's `parameters` in the configuration",
    "unavailable": "try again later; `dragoman doctor` checks the store",
    "session-owner-unavailable": "try again in a few seconds",
    "starting": "try again in a few seconds: this gateway is starting",
    "draining": "try again in a few seconds: this gateway is stopping",
    "internal": "report it with the lines of the gateway's log of that time",
    "unauthorized": "pass a key from `api.keys` with --key or DRAGOMAN_KEY",
}
"""Fixes for a terminal, by problem type; the gateway's own fixes address callers of its API."""


class GatewayConnection:
    """One gateway: a context manager that owns its client and runs the client's coroutines."""

    def __init__(self, url: str, key: str | None, *, timeout: float = 30.0) -> None:
        try:
            self.client = Client(url, key or None, timeout=timeout, retries=0)
        except ValueError as exc:
            raise Misused(str(exc)) from exc
        self.url = url.rstrip("/")
        self._runner = asyncio.Runner()

    def __enter__(self) -> "GatewayConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner:
            self._runner.run(self.client.aclose())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine until it returns."""
        return self._runner.run(work)

    def take(self, rows: AsyncGenerator[T], limit: int) -> tuple[list[T], bool]:
        """Read at most `limit` rows of a list; return also whether there are more."""

        async def read() -> tuple[list[T], bool]:
            taken: list[T] = []
            async for row in rows:
                if len(taken) == limit:
                    return taken, True
                taken.append(row)
            return taken, False

        return self.run(read())

    def find_session(self, given: str) -> Session:
        """Find a session by its ID, or by RUNTIME/NATIVE_ID.

        Raises:
            Misused, Refusal: the text has another form, or there is no session of this name.
        """
        runtime, slash, native = given.partition("/")
        if slash and not (runtime and native):
            raise Misused(f"{given!r} is not RUNTIME/NATIVE_ID")
        if slash:
            found, _ = self.take(self.client.sessions(runtime=runtime, native_id=native), 1)
            if found:
                return found[0]
            others, _ = self.take(self.client.sessions(runtime=runtime, newest_first=True), 5)
            names = ", ".join(clean(name_session(one), 80) for one in others)
            fix = f"available: {names}" if names else "list all with `dragoman sessions`; open one: POST /v1/sessions"
            raise Refusal(f"no session {given!r}", fix)
        if not given.strip("."):
            raise Refusal(f"no session {given!r}", _NAMES)
        try:
            return self.run(self.client.session(given))
        except RequestRefused as exc:
            if exc.type == "not-found":
                raise Refusal(clean(exc.problem.detail, _LONGEST), _NAMES) from exc
            raise


@contextmanager
def connect(url: str, key: str | None) -> Generator[GatewayConnection]:
    """Connect to a gateway, and report the errors of the command."""
    with report_errors():
        try:
            with GatewayConnection(url, key) as gateway:
                yield gateway
        except ClientError as exc:
            raise explain_error(exc, url) from exc
        except UnicodeEncodeError as exc:
            raise Refusal("the text is not valid Unicode, so it cannot be sent") from exc


def explain_error(exc: ClientError, url: str) -> Refusal:
    """Convert a client error to a message with a fix."""
    if isinstance(exc, GatewayUnreachable):
        fix = "start one with `dragoman serve`, or select another with --url or DRAGOMAN_URL"
        return Refusal(clean(exc, _LONGEST), "try again" if exc.may_have_arrived else fix)
    if not isinstance(exc, RequestRefused):
        return Refusal(clean(exc, _LONGEST), "check --url or DRAGOMAN_URL")
    from gateway.http.errors import PROBLEMS

    kind, text = PROBLEMS.get(exc.type), describe_refusal(exc)
    if exc.type == "unknown-path" or "unknown parameter" in text:
        # A gateway of this release knows every path and parameter that this command sends.
        text = f"{url} is a gateway of an older release, which does not support this ({text})"
        return Refusal(text, f"upgrade it, or use the command of its release ({url}/version)")
    return Refusal(text, _FIXES.get(exc.type, kind.mend if kind else ""))


def describe_refusal(exc: RequestRefused) -> str:
    """Write the gateway's reason on one line."""
    problem = exc.problem
    at = f" (at {problem.pointer})" if problem.pointer and problem.pointer not in problem.detail else ""
    return clean(f"{problem.detail or problem.title}{at}", _LONGEST)


def name_session(session: Session) -> str:
    """Write the name of a session as commands accept it."""
    return f"{session.runtime}/{session.native_id}"


def match_id(
    given: str, known: Callable[[], Iterable[tuple[str, str]]], *, noun: str, listing: str, begins: str = ""
) -> str:
    """Return the one ID that begins with `given` (or with `begins`); `known` lists IDs, each with a description.

    Raises:
        Misused: the text is too short. Refusal: no ID begins with it, or several do.
    """
    if len(given) < SHORTEST:
        raise Misused(
            f"{given!r} is too short: pass at least the first {SHORTEST} characters of an ID; `{listing}` lists them"
        )
    found = [(one, text) for one, text in known() if one.startswith(begins or given)]
    if not found:
        raise Refusal(f"no {noun} begins with {clean(given, 80)!r}", f"`{listing}` lists them")
    if len(found) > 1:
        named = [f"{clean(one)}  {clean(text, 80)}" for one, text in found[:_MOST_NAMED]]
        if len(found) > _MOST_NAMED:
            named.append(f"and {len(found) - _MOST_NAMED} more")
        raise Refusal(f"{len(found)} {noun}s begin with {given!r}: pass more characters", "\n  ".join(named))
    return found[0][0]
