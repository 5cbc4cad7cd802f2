"""Talks to a running gateway over its HTTP API, and says in one line what went wrong and how to mend it."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError

from gateway.cli.faults import Misused, Refusal
from gateway.cli.lines import clean
from gateway.http.errors import PROBLEMS

MOST_BYTES = 64 * 1024**2
"""A larger answer than this is none of a gateway."""

_PATIENCE = httpx.Timeout(30.0, connect=10.0)
_STREAM_PATIENCE = httpx.Timeout(10.0, read=90.0)
_IDLE = 1.0
"""Seconds that an idle connection may be reused."""
_PAGE = 500
_MOST_PAGES = 200
_LONGEST = 1_000
_NAMES = "give its id or RUNTIME/NATIVE_ID, as `dragoman sessions` shows them"
_MENDS = {
    "not-found": "`dragoman sessions`, `calls`, `inbox` and `dead-letters list` list what there is",
    "invalid-request": "`--help` of the command says what it takes",
    "invalid-event": "`dragoman openapi` prints the forms of all kinds",
    "unauthorized": "give a key of `api.keys` with --key, or in DRAGOMAN_KEY",
}
"""What to do in a terminal, where the gateway's own advice is for who calls its API."""
_OTHERS = 5
"""How many sessions are named where another one was meant."""


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One server-sent event; `sequence` is None for what is only live."""

    kind: str
    data: dict[str, Any]
    sequence: int | None


class ApiClient:
    """One gateway; a context manager that owns its connections."""

    def __init__(self, url: str, key: str | None, *, patience: float | None = None) -> None:
        self.url = url.strip().rstrip("/")
        headers = {"accept": "application/json", "user-agent": "dragoman-cli"}
        if key and key.strip():
            headers["authorization"] = f"Bearer {key.strip()}"
        # A proxy of the environment knows nothing of this machine's own addresses, and only TLS needs certificates.
        here = _is_here(self.url)
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=patience or _PATIENCE,
            trust_env=not here,
            verify=self.url.lower().startswith("https:"),
            limits=httpx.Limits(keepalive_expiry=_IDLE),
        )

    def __enter__(self) -> "ApiClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Read something.

        Raises:
            Refusal: as all methods do.
        """
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """Write something."""
        try:
            content = json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as exc:
            raise Refusal("the text is not valid Unicode, so it cannot be sent") from exc
        return self._ask("POST", path, content=content, headers={"content-type": "application/json"})

    def pages(self, path: str, *, page: int = _PAGE, **query: Any) -> Iterator[dict[str, Any]]:
        """Read a list to its end, so many rows at once."""
        after: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            found = self.get(path, limit=page, **query, **after)
            yield from found["data"]
            if found["next"] is None:
                return
            after = {"after": found["next"]}

    def session(self, given: str) -> dict[str, Any]:
        """Find a session by its id, or by `runtime/native_id`."""
        runtime, slash, native = given.partition("/")
        if not slash:
            if not given.strip("."):
                # A path would take it for a folder.
                raise Refusal(f"no session {given!r}", _NAMES)
            try:
                return self.get(f"/v1/sessions/{quote(given, safe='')}")
            except Refusal as exc:
                if exc.problem == "not-found":
                    exc.mend = _NAMES
                raise
        if not (runtime and native):
            raise Misused(f"{given!r} is not RUNTIME/NATIVE_ID")
        found = self.get("/v1/sessions", runtime=runtime, native_id=native)["data"]
        if found:
            return found[0]
        others = self.get("/v1/sessions", runtime=runtime, order="newest", limit=_OTHERS)["data"]
        names = ", ".join(clean(name_of(one), 80) for one in others)
        mend = f"there are: {names}" if names else "`dragoman sessions` lists all; POST /v1/sessions opens one"
        raise Refusal(f"no session {given!r}", mend)

    def newest(self) -> dict[str, Any]:
        """Find the session that was opened last, of those that are not closed.

        Raises:
            Refusal: there is none.
        """
        found = self.get("/v1/sessions", open="true", order="newest", limit=1)["data"]
        if not found:
            raise Refusal(
                "no session is open", "POST /v1/sessions opens one; `dragoman sessions` lists the closed ones"
            )
        return found[0]

    def follow(self, path: str, *, after: int | None = None) -> Iterator[StreamItem]:
        """Read a stream until it ends."""
        headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
        with (
            self._told(),
            self._http.stream("GET", path, headers=headers, timeout=_STREAM_PATIENCE) as answer,
        ):
            if not answer.is_success:
                self._read(answer)
            for event in EventSource(answer).iter_sse():
                # What only tells how long to wait before a reconnect has no data.
                if event.data:
                    yield _item(event)

    def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        with self._told(), self._http.stream(method, path, **more) as answer:
            return self._read(answer)

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        raw = bytearray()
        for chunk in answer.iter_bytes():
            raw += chunk
            if len(raw) > MOST_BYTES:
                raise self._stranger(answer)
        try:
            body: Any = json.loads(raw)
        except ValueError as exc:
            raise self._stranger(answer) from exc
        if not isinstance(body, dict):
            raise self._stranger(answer)
        told = cast("dict[str, Any]", body)
        if answer.is_success:
            return told
        raise self._refusal(answer, told)

    def _refusal(self, answer: httpx.Response, told: dict[str, Any]) -> Refusal:
        if not str(told.get("type", "")).startswith("/problems/"):
            return self._stranger(answer)
        text = str(told.get("detail") or told.get("title") or answer.status_code)
        pointer = told.get("pointer")
        if pointer and pointer not in text:
            text += f" (at {pointer})"
        name = told["type"].removeprefix("/problems/")
        kind = PROBLEMS.get(name)
        mend = _MENDS.get(name, kind.mend if kind else "")
        if name == "unknown-path" or (answer.request.method == "GET" and "unknown parameter" in text):
            # What this release asks for is right for a gateway of this release.
            text = f"{self.url} is a gateway of an older release, which does not know this ({text})"
            mend = f"upgrade it, or use the command of its release: {self.url}/version says which it is"
        return Refusal(clean(text, _LONGEST), mend, passing=answer.status_code >= 500, problem=name)

    def _stranger(self, answer: httpx.Response) -> Refusal:
        text = f"{self.url} answers like no Dragoman gateway ({answer.status_code} {answer.reason_phrase})"
        return Refusal(clean(text), "check --url, or DRAGOMAN_URL", passing=answer.status_code >= 500)

    @contextmanager
    def _told(self) -> Generator[None]:
        try:
            yield
        except httpx.ConnectError as exc:
            mend = "start one with `dragoman serve`, or name another with --url or DRAGOMAN_URL"
            raise Refusal(f"no gateway answers at {self.url} ({exc})", mend, passing=True) from exc
        except httpx.TimeoutException as exc:
            raise Refusal(f"{self.url} did not answer in time", "try again", passing=True) from exc
        except httpx.TransportError as exc:
            raise Refusal(f"the connection to {self.url} broke ({exc})", "try again", passing=True) from exc
        except (SSEError, httpx.DecodingError, ValueError) as exc:
            raise Refusal(f"{self.url} answers like no Dragoman gateway", "check --url, or DRAGOMAN_URL") from exc


def name_of(session: dict[str, Any]) -> str:
    """Name a session as commands take it."""
    return f"{session['runtime']}/{session['native_id']}"


def _item(event: ServerSentEvent) -> StreamItem:
    value: Any = json.loads(event.data)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    data = cast("dict[str, Any]", value)
    # The library repeats the last id on events that have none of their own.
    numbered = event.id.isascii() and event.id.isdigit() and not data.get("live") and event.event != "gap"
    return StreamItem(event.event, data, int(event.id) if numbered else None)


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False
