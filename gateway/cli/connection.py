"""Connects a command to a running gateway, and explains errors with what to do about them."""

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
"""Letters of an ID that are enough; a shorter text may be a number that a prompt has shown."""
_LONGEST = 1_000
_MOST_NAMED = 10
_NAMES = "give its ID or RUNTIME/NATIVE_ID, as `dragoman sessions` shows them"
_MENDS = {
    "not-found": "`dragoman sessions`, `calls`, `inbox` and `dead-letters list` list what exists",
    "invalid-request": "`--help` of the command lists its options",
    "invalid-event": "`dragoman openapi` prints the forms of all kinds",
    "unauthorized": "give a key of `api.keys` with --key, or in DRAGOMAN_KEY",
}
"""What to do in a terminal, if the gateway's own advice is for callers of its API."""


class GatewayConnection:
    """One gateway: a context manager that owns its client and runs the client's coroutines."""

    def __init__(self, url: str, key: str | None, *, timeout: float = 30.0) -> None:
        try:
            self.client = Client(url, key or None, timeout=timeout, retries=0)
        except ValueError as exc:
            raise Misused(str(exc)) from exc
        self._runner = asyncio.Runner()

    def __enter__(self) -> "GatewayConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._runner:
            self._runner.run(self.client.aclose())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def take(self, rows: AsyncGenerator[T], limit: int) -> tuple[list[T], bool]:
        """Read at most `limit` rows of a list, and tell whether there are more."""

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
            Misused, Refusal: the text is no name of a session, or no session has it.
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
            mend = f"there are: {names}" if names else "`dragoman sessions` lists all; POST /v1/sessions opens one"
            raise Refusal(f"no session {given!r}", mend)
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
    """Connect to a gateway, and report every error of the command."""
    with report_errors():
        try:
            with GatewayConnection(url, key) as gateway:
                yield gateway
        except ClientError as exc:
            raise explain_error(exc, url) from exc
        except UnicodeEncodeError as exc:
            raise Refusal("the text is not valid Unicode, so it cannot be sent") from exc


def explain_error(exc: ClientError, url: str) -> Refusal:
    """Say what went wrong and what to do about it."""
    if isinstance(exc, GatewayUnreachable):
        mend = "start one with `dragoman serve`, or name another with --url or DRAGOMAN_URL"
        return Refusal(clean(exc, _LONGEST), "try again" if exc.may_have_arrived else mend)
    if not isinstance(exc, RequestRefused):
        return Refusal(clean(exc, _LONGEST), "check --url, or DRAGOMAN_URL")
    from gateway.http.errors import PROBLEMS

    kind, text = PROBLEMS.get(exc.type), describe_refusal(exc)
    if exc.type == "unknown-path" or "unknown parameter" in text:
        # This release sends only what a gateway of this release knows.
        text = f"{url} is a gateway of an older release, which does not know this ({text})"
        return Refusal(text, f"upgrade it, or use the command of its release: {url}/version shows it")
    return Refusal(text, _MENDS.get(exc.type, kind.mend if kind else ""))


def describe_refusal(exc: RequestRefused) -> str:
    """Say in one line why the gateway refused."""
    problem = exc.problem
    where = f" (at {problem.pointer})" if problem.pointer and problem.pointer not in problem.detail else ""
    return clean(f"{problem.detail or problem.title}{where}", _LONGEST)


def name_session(session: Session) -> str:
    """Name a session as commands take it."""
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
            f"{given!r} is too short: give at least the first {SHORTEST} letters of an ID, as `{listing}` shows them"
        )
    found = [(one, text) for one, text in known() if one.startswith(begins or given)]
    if not found:
        raise Refusal(f"no {noun} begins with {clean(given, 80)!r}", f"`{listing}` lists them")
    if len(found) > 1:
        named = [f"{clean(one)}  {clean(text, 80)}" for one, text in found[:_MOST_NAMED]]
        if len(found) > _MOST_NAMED:
            named.append(f"and {len(found) - _MOST_NAMED} more")
        raise Refusal(f"{len(found)} {noun}s begin with {given!r}: give more letters", "\n  ".join(named))
    return found[0][0]
