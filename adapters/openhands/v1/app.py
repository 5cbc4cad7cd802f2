"""The app server of OpenHands: its sandboxes contain the agent-servers (OV64, OV72 to OV93)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from adapters.openhands.v1.newest import Newest
from adapters.openhands.v1.options import AppOptions, is_conversation_id, with_dashes
from adapters.openhands.v1.server import rest_client
from adapters.openhands.v1.tuning import V1Tuning
from adapters.openhands.v1.wire import conversation_path
from adapters.openhands.wire import KEY_HEADER
from gateway.errors import LinkLost, LinkRefused
from gateway.events.frozen import frozen
from gateway.links.masking import Mask
from gateway.links.rest import MAX_ANSWER, MAX_SHORT, RestAnswer, RestClient, refusal

_SANDBOXES = "/api/v1/sandboxes"
_CONVERSATIONS = "/api/v1/app-conversations"
_TASKS = f"{_CONVERSATIONS}/start-tasks"
_LOCAL = frozenset({"localhost", "127.0.0.1"})
_MOST_IDS = 50
"""Ids in one query; the length of a URL is limited."""
_GONE = "NO_SANDBOX"
_CREATION = timedelta(seconds=120)
"""Time limit for a sandbox; the app server itself gives up then (OV76)."""


@frozen
class Sandbox:
    """The agent-server of a sandbox; neither address nor key is stored, because a resume may change both (OV90)."""

    sandbox_id: str
    url: str
    key: str


@asynccontextmanager
async def open_app(options: AppOptions, within: timedelta, tuning: V1Tuning) -> AsyncGenerator["AppServer"]:
    """Open a client of an app server."""
    key = options.api_key.get_secret_value() if options.api_key is not None else ""
    headers = {KEY_HEADER: key} if key else {}
    async with RestClient(options.url, headers=headers, mask=Mask((key,))) as rest:
        yield AppServer(options, rest, within, tuning)


class AppServer:
    """Creates conversations and finds the agent-servers of existing ones."""

    def __init__(self, options: AppOptions, rest: RestClient, within: timedelta, tuning: V1Tuning) -> None:
        self._options = options
        self._rest = rest
        self._within = within
        self._pace = pace = _Pace(tuning.poll)
        self._sandboxes = _Query(rest, _SANDBOXES, "id", pace, within)
        self._conversations = _Query(rest, _CONVERSATIONS, "ids", pace, within)
        self._tasks = _Query(rest, _TASKS, "ids", pace, within)
        self._sandbox_of: Newest[str] = Newest()
        """The sandboxes of conversations that this process has created or found."""
        self._last: Newest[Sandbox] = Newest()
        """The last known address of each sandbox: an idle one is shown without (OV81)."""
        self._unused: list[str] = []
        """Sandboxes that were started for conversations whose creation failed."""

    def note(self, native_id: str, sandbox_id: str) -> None:
        """Remember the sandbox of a conversation."""
        self._sandbox_of.put(_plain(native_id), sandbox_id)

    async def find(self, native_id: str) -> Sandbox:
        """Find the agent-server of a conversation, and resume its sandbox if the options allow.

        Raises:
            LinkRefused: the conversation or its sandbox is gone, or paused.
            LinkLost: the app server cannot tell now.
        """
        sandbox_id = self._sandbox_of.get(_plain(native_id))
        if sandbox_id is None:
            match await self._conversations.read(native_id):
                case {"sandbox_id": str(sandbox_id)} if sandbox_id:
                    pass
                case _:
                    sandbox_id = await self._search(native_id)
            self.note(native_id, sandbox_id)
        return await self._wait_running(sandbox_id, may_resume=self._options.resume)

    async def _search(self, native_id: str) -> str:
        """Find the sandbox of a conversation that the app server does not list, as it learns of ours late (OV85).

        Raises:
            LinkRefused: no sandbox has the conversation; `terminal` if each of them could tell.
            LinkLost: the app server or a sandbox cannot tell now.
        """
        reason = f"the app server has no conversation {native_id}; it may be deleted"
        async with self._in_time(f"{reason}, or in a sandbox that cannot be asked"):
            while True:
                silent: set[str] = set()
                for sandbox_id, status, found in await self._list_sandboxes():
                    sandbox = self._read(sandbox_id, found) or self._last.get(sandbox_id)
                    has = None if sandbox is None else await self._has(sandbox, native_id)
                    if has:
                        return sandbox_id
                    if has is None:
                        silent.add(status)
                # An idle sandbox may be shown as starting (OV81). A paused one stays so.
                if not silent & {"RUNNING", "STARTING", "ERROR"}:
                    raise LinkRefused("NO_CONVERSATION", reason, terminal="PAUSED" not in silent)

    async def _list_sandboxes(self) -> list[tuple[str, str, Any]]:
        """List the sandboxes, each with its id and its status."""
        async with self._pace.turn:
            await self._pace.wait()
            answer = await self._rest.get(f"{_SANDBOXES}/search", {"limit": "100"}, within=self._within, most=MAX_SHORT)
        if answer.status != HTTPStatus.OK:
            raise _refusal(answer, self._rest.mask)
        listed: list[tuple[str, str, Any]] = []
        items: object = answer.read_object(self._rest.mask).get("items")
        for item in cast("list[Any]", items) if isinstance(items, list) else ():
            match item:
                case {"id": str(sandbox_id), "status": str(status)}:
                    listed.append((sandbox_id, status, item))
                case _:
                    pass
        return listed

    async def _has(self, sandbox: Sandbox, native_id: str) -> bool | None:
        """Ask the agent-server of a sandbox for a conversation; None if it cannot tell now."""
        try:
            async with rest_client(sandbox.url, sandbox.key) as rest:
                answer = await rest.get(conversation_path(native_id), {}, within=self._within, most=MAX_ANSWER)
        except (LinkLost, LinkRefused):
            return None
        known: dict[int, bool] = {HTTPStatus.OK: True, HTTPStatus.NOT_FOUND: False}
        return known.get(answer.status)

    @asynccontextmanager
    async def sandbox(self) -> AsyncGenerator[Sandbox]:
        """Provide a sandbox for a new conversation: a creation in one that exists may be repeated (OV77).

        If the creation fails, the next one takes the same sandbox: the app server pauses the oldest of six (OV91).

        Raises:
            LinkLost, LinkRefused: on entering; none was started, or it does not run in time.
        """
        sandbox_id = self._unused.pop() if self._unused else await self._start_sandbox()
        try:
            yield await self._wait_running(sandbox_id, may_resume=True)
        except (LinkLost, LinkRefused) as exc:
            if not (isinstance(exc, LinkRefused) and exc.code == _GONE):
                self._unused.append(sandbox_id)
            raise

    async def _start_sandbox(self) -> str:
        match await self._post(_SANDBOXES, {}, within=_CREATION):
            case {"id": str(sandbox_id)} if sandbox_id:
                return sandbox_id
            case _:
                raise LinkLost("the response to the new sandbox has no id")

    async def create(self) -> str:
        """Create a conversation with the settings of the app server; return its id.

        Raises:
            LinkLost, LinkRefused: it was not created, or it is not known whether it was.
        """
        async with self.sandbox() as sandbox:
            body = {"sandbox_id": sandbox.sandbox_id}
            try:
                made = await self._post(_CONVERSATIONS, body, within=_CREATION)
            except LinkLost:
                # A repeat in the same sandbox gives the same conversation (OV77).
                made = await self._post(_CONVERSATIONS, body, within=_CREATION)
            task = made.get("id")
            if not isinstance(task, str) or not task:
                raise LinkLost("the response to the new conversation has no start task")
            native_id = await self._wait_ready(task)
            self.note(native_id, sandbox.sandbox_id)
            return native_id

    async def _wait_ready(self, task: str) -> str:
        async with self._in_time("the conversation did not start"):
            while True:
                match await self._poll(self._tasks, task):
                    case {"status": "READY", "app_conversation_id": str(name)} if is_conversation_id(name):
                        return with_dashes(name)
                    case {"status": "ERROR"}:
                        reason = "the app server could not start the conversation; its log has the reason"
                        raise LinkRefused("START_FAILED", reason)
                    case _:
                        pass

    async def _wait_running(self, sandbox_id: str, *, may_resume: bool) -> Sandbox:
        """Wait until a sandbox runs; resume it once if it is paused."""
        is_resumed = False
        async with self._in_time("the sandbox did not start"):
            while True:
                found = await self._poll(self._sandboxes, sandbox_id)
                match found:
                    case {"status": "RUNNING"} if (sandbox := self._read(sandbox_id, found)) is not None:
                        self._last.put(sandbox_id, sandbox)
                        return sandbox
                    case {"status": "STARTING" | "ERROR"} if (known := self._last.get(sandbox_id)) is not None:
                        return known
                    case {"status": "PAUSED"} if may_resume and not is_resumed:
                        is_resumed = True
                        await self._post(f"{_SANDBOXES}/{sandbox_id}/resume", {}, within=_CREATION)
                    case {"status": "PAUSED"} if not may_resume:
                        raise LinkRefused("PAUSED", "the sandbox of the conversation is paused")
                    case {"status": "MISSING"} | None:
                        self._last.take(sandbox_id)
                        raise LinkRefused(_GONE, "the sandbox of the conversation is gone", terminal=True)
                    case _:
                        pass

    @asynccontextmanager
    async def _in_time(self, otherwise: str) -> AsyncGenerator[None]:
        seconds = self._options.start_timeout.total_seconds()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise LinkLost(f"{otherwise} within {seconds:g} s") from exc

    async def _poll(self, query: "_Query", name: str) -> Any:
        """Read one entry; a failure that may pass gives an empty one."""
        try:
            return await query.read(name)
        except LinkLost:
            return {}

    def _read(self, sandbox_id: str, found: Any) -> Sandbox | None:
        match found:
            case {"exposed_urls": list()}:
                for exposed in found["exposed_urls"]:
                    match exposed:
                        case {"name": "AGENT_SERVER", "url": str(url)} if url.startswith(("http://", "https://")):
                            key = found.get("session_api_key")
                            return Sandbox(sandbox_id, self._reachable(url), key if isinstance(key, str) else "")
                        case _:
                            pass
            case _:
                pass
        return None

    def _reachable(self, url: str) -> str:
        """Replace the host of Docker's addresses, which only the app server's machine reaches (OV80)."""
        parts = urlsplit(url)
        if self._options.host is not None and parts.hostname in _LOCAL:
            port = "" if parts.port is None else f":{parts.port}"
            parts = parts._replace(netloc=f"{self._options.host}{port}")
        return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))

    async def _post(self, path: str, body: object, *, within: timedelta) -> dict[str, Any]:
        answer = await self._rest.post(path, body, within=within, most=MAX_SHORT)
        if not 200 <= answer.status < 300:
            raise _refusal(answer, self._rest.mask)
        return answer.read_object(self._rest.mask)


class _Pace:
    """One request at a time, at an interval: the server limits the requests of an address (OV74)."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.turn = asyncio.Lock()
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until a request is allowed; only within a turn."""
        now = asyncio.get_running_loop().time()
        # The rest of the interval.
        await asyncio.sleep(max(0.0, self._next - now))
        self._next = asyncio.get_running_loop().time() + self._interval


class _Query:
    """Reads entries of one list by id: one request at a time, for all that wait (OV74)."""

    def __init__(self, rest: RestClient, path: str, parameter: str, pace: "_Pace", within: timedelta) -> None:
        self._rest = rest
        self._path = path
        self._parameter = parameter
        self._pace = pace
        self._within = within
        self._wanted: Counter[str] = Counter()
        self._number = 0
        self._found: dict[str, Any] = {}

    async def read(self, name: str) -> Any:
        """Return the entry with this id; None if the server has none.

        Raises:
            LinkLost, LinkRefused: the query failed.
        """
        number = self._number
        self._wanted[name] += 1
        try:
            async with self._pace.turn:
                if self._number == number or name not in self._found:
                    await self._pace.wait()
                    self._number += 1
                    names = [name, *(one for one in self._wanted if one != name)][:_MOST_IDS]
                    self._found = await self._request(names)
                return self._found[name]
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name]

    async def _request(self, names: list[str]) -> dict[str, Any]:
        answer = await self._rest.get(self._path, {self._parameter: names}, within=self._within, most=MAX_SHORT)
        if answer.status != 200:
            raise _refusal(answer, self._rest.mask)
        entries: object = answer.body
        if not isinstance(entries, list):
            raise LinkLost(f"{answer.where}, but the response is not a list")
        found: dict[str, Any] = dict.fromkeys(names)
        by_id = {_plain(name): name for name in names}
        for entry in cast("list[Any]", entries):
            match entry:
                case {"id": str(given)} if _plain(given) in by_id:
                    found[by_id[_plain(given)]] = entry
                case _:
                    pass
        return found


def _refusal(answer: RestAnswer, mask: Mask) -> LinkLost | LinkRefused:
    """Convert an error without the server's words, which may contain the keys of sandboxes."""
    return refusal(RestAnswer(answer.status, None, answer.retry_after, answer.request), mask)


def _plain(name: str) -> str:
    """Return an id without dashes, as some answers have it (OV75)."""
    return name.replace("-", "").lower()
