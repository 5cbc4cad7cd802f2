"""A whole gateway on real sockets inside the test's process: simulated agent, backend, SQLite file, HTTP face."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import yaml

from gateway.clock import Clock
from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.runtime.app import Gateway
from gateway.runtime.tuning import Tuning
from gateway.serve import parts_for, read_configuration
from gateway.store.port import Engine
from gateway.testing.runtimes.huma.agent import SimAgent
from gateway.testing.runtimes.huma.calls import SimCall
from gateway.testing.runtimes.huma.rules import Dialect, ResultFrame
from gateway.testing.runtimes.huma.server import HumaServer, Manners
from tests.pace import PATIENCE
from tests.ports import listen_on
from tests.scenarios.hooks import SECRET, Hooks

API_KEY = "api-key-canary-5XyT"
AGENT_KEY = "ak_agent-canary-9QwE"
Found = TypeVar("Found")
QUICK = Tuning(link_first=0.02, link_longest=0.05, link_refused=0.05)
"""A link that was cut is made again at once; everything else is as in production."""

_ASK = {
    "description": "Ask for cards.",
    "parameters": {
        "type": "object",
        "properties": {"player": {"type": "string"}, "rank": {"type": "string", "enum": ["7", "8", "9"]}},
        "required": ["player", "rank"],
    },
}
GOOD = {"player": "Victoria", "rank": "7"}


def merge(base: Any, over: Any) -> Any:
    """Lay one configuration over another, mapping by mapping; None takes a key away."""
    match base, over:
        case dict(), dict():
            merged = dict(cast("dict[str, Any]", base))
            for name, value in cast("dict[str, Any]", over).items():
                merged[name] = merge(merged.get(name), value)
            return {name: value for name, value in merged.items() if value is not None}
        case _:
            return over


async def until(look: Callable[[], Awaitable[Found | None]], *, within: float = PATIENCE) -> Found:
    """Ask again until there is something to find; for what tells nobody when it changes, such as an HTTP page."""
    last: Found | None = None
    async with asyncio.timeout(within):
        # The other side of a socket has no event to wait for.
        while not (last := await look()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return last


async def ended(call: SimCall, within: float = PATIENCE) -> ResultFrame:
    """Wait for a call's result and read it in either dialect."""
    await call.result(within)
    assert call.reading is not None
    return call.reading


def plain_http() -> httpx.AsyncClient:
    """Make a client without a key."""
    # Nothing here is encrypted, and reading the machine's certificates takes long.
    return httpx.AsyncClient(timeout=PATIENCE, trust_env=False, verify=False)  # noqa: S501


@dataclass
class Running:
    """A gateway at work, and a client whose key may do everything."""

    gateway: Gateway
    url: str
    http: httpx.AsyncClient
    runtime: str = "finn"
    """The runtime that is meant where none is named."""

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, *, status: int, **headers: str) -> Any:
        answer = await self.http.post(path, json=body, headers=headers)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def session(self, runtime: str | None = None) -> str:
        """Return the id of a runtime's only open session."""

        async def look() -> str | None:
            found = (await self.get("/v1/sessions", runtime=runtime or self.runtime))["data"]
            return next((one["session_id"] for one in found if one["state"] != "closed"), None)

        return await until(look)

    async def events(self, session_id: str | None = None, kind: str | None = None) -> list[dict[str, Any]]:
        """Read a session's whole history, or its events of one kind."""
        session_id = session_id or await self.session()
        found: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = await self.get(f"/v1/sessions/{session_id}/events", after=after, limit=1000)
            found += page["data"]
            after = page["next"]
        return [one for one in found if kind is None or one["event"]["kind"] == kind]

    async def wait_events(self, kind: str, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Wait for events of a kind whose fields have these values."""

        async def look() -> list[dict[str, Any]] | None:
            found = [
                one for one in await self.events(kind=kind) if all(one["event"].get(n) == v for n, v in fields.items())
            ]
            return found if len(found) >= count else None

        return await until(look)

    async def call_of(self, native_call_id: str) -> dict[str, Any]:
        """Find the newest call with a native id."""

        async def look() -> dict[str, Any] | None:
            rows = (await self.get("/v1/calls", limit=500))["data"]
            return next((row for row in rows if row["native_call_id"] == native_call_id), None)

        return await until(look)

    async def wait_call(self, native_call_id: str, *states: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            row = await self.call_of(native_call_id)
            return row if row["state"] in states else None

        return await until(look)

    async def link(self, runtime: str | None = None) -> dict[str, Any] | None:
        """Return the state of a runtime's first link."""
        found = (await self.get("/v1/runtimes"))["data"]
        wanted = runtime or self.runtime
        return next((link for one in found if one["name"] == wanted for link in one["links"]), None)

    async def wait_link(self, state: str, *, within: float = PATIENCE) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            link = await self.link()
            return link if link is not None and link["state"] == state else None

        return await until(look, within=within)

    async def metrics(self) -> dict[str, float]:
        """Read all series, by name with labels."""
        text = (await self.http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def stream(self, session_id: str, *, after: int | None = None, last: int | None = None) -> "EventSource":
        return EventSource(self.http, session_id, after=after, last=last)


class EventSource:
    """A follower of one session's stream."""

    def __init__(self, http: httpx.AsyncClient, session_id: str, *, after: int | None, last: int | None) -> None:
        self._query = {} if after is None else {"after": str(after)}
        self._headers = {} if last is None else {"last-event-id": str(last)}
        self._http, self._session_id = http, session_id
        self._stack = AsyncExitStack()
        self._lines: AsyncIterator[str] | None = None

    async def __aenter__(self) -> "EventSource":
        path = f"/v1/sessions/{self._session_id}/events/stream"
        request = self._http.stream("GET", path, params=self._query, headers=self._headers)
        answer = await self._stack.enter_async_context(request)
        assert answer.status_code == 200
        self._lines = answer.aiter_lines()
        # The first line comes once the follower has joined.
        await anext(self._lines)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def next(self) -> dict[str, Any]:
        """Wait for the next event: its `id`, `event` and `data`."""
        assert self._lines is not None
        found: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if not line and found:
                    return found
                if name in {"id", "event", "data"}:
                    found[name] = json.loads(value) if name == "data" else value
        raise AssertionError("the stream has ended")

    async def until(self, event: str) -> list[dict[str, Any]]:
        """Collect events up to and with the first of a kind."""
        found = [await self.next()]
        while found[-1]["event"] != event:
            found.append(await self.next())
        return found


@asynccontextmanager
async def running(
    config: Path,
    listener: socket.socket,
    tuning: Tuning,
    *,
    clock: Clock | None = None,
    engine: Engine | None = None,
) -> AsyncGenerator[Running]:
    """Run a gateway over a configuration file, as `serve` does, without its signals."""
    settings = read_configuration(config).settings
    made = parts_for(settings, reread=lambda: read_configuration(config).settings, file=config, clock=clock)
    parts = replace(made, engine=engine or made.engine, tuning=tuning)
    async with Gateway.running(settings, parts) as gateway:
        server = make_server(build_app(gateway), settings.limits)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {API_KEY}"},
            timeout=PATIENCE,
            trust_env=False,
            # Nothing here is encrypted, and reading the machine's certificates takes long.
            verify=False,  # noqa: S501
        ) as http:
            try:
                async with asyncio.timeout(PATIENCE):
                    # Uvicorn has no event for it.
                    while not server.started:  # noqa: ASYNC110
                        await asyncio.sleep(0)
                yield Running(gateway, url, http)
            finally:
                await gateway.drain()
                server.should_exit = True
                async with asyncio.timeout(PATIENCE):
                    await serving


@dataclass
class Scene:
    """One simulated agent `finn`, one backend, and a gateway between them that can be started again."""

    folder: Path
    dialect: Dialect
    huma: HumaServer
    agent: SimAgent
    hooks: Hooks
    settings: dict[str, Any]
    port: int = 0
    tuning: Tuning = field(default_factory=Tuning)
    clock: Clock | None = None
    """Instead of the system's."""
    engine: Engine | None = None
    """Instead of the one that is configured."""

    @property
    def config(self) -> Path:
        return self.folder / "gateway.yaml"

    def configure(self, over: Mapping[str, Any]) -> None:
        """Lay something over the configuration, and write the file."""
        self.settings = merge(self.settings, over)
        self.config.write_text(yaml.safe_dump(self.settings, sort_keys=False))

    @asynccontextmanager
    async def running(self, *, linked: bool = True, public: bool = True) -> AsyncGenerator[Running]:
        """Run the gateway; on the same port each time, so that callback URLs stay good."""
        listener = listen_on(self.port)
        self.port = listener.getsockname()[1]
        if public:
            self.configure({"public_url": f"http://127.0.0.1:{self.port}"})
        started = datetime.now(UTC)
        with listener:
            made = running(self.config, listener, self.tuning, clock=self.clock, engine=self.engine)
            async with made as gateway:

                async def recorded() -> bool:
                    changes = await gateway.events(kind="link.changed")
                    return any(datetime.fromisoformat(one["recorded_at"]) >= started for one in changes)

                if linked:
                    await gateway.wait_link("up")
                    await until(recorded)
                yield gateway

    def is_clean(self) -> None:
        """No client has broken a rule of the protocol, and no request was unsigned."""
        assert self.agent.violations == []
        assert self.hooks.unsigned == 0

    def waking(self, frame: Any) -> bool | None:
        """Say whether a frame to the agent wakes it; 0.1 says so only for results."""
        if self.dialect == "0.2":
            return bool(frame["triggering"])
        return not frame["content"].get("skipImmediateProcessing", False)

    def updates(self) -> list[tuple[str, Any]]:
        """All context updates the agent has got, by name and context, in order."""
        found: list[tuple[str, Any]] = []
        for _, frame in self.agent.received:
            content = frame if self.dialect == "0.2" else frame["content"]
            if "context" in content and "name" in content:
                found.append((content["name"], content["context"]))
        return found


@asynccontextmanager
async def scene(folder: Path, dialect: Dialect = "0.2", *, manners: Manners | None = None) -> AsyncGenerator[Scene]:
    """Set a scene; the gateway itself is started by the test."""
    async with HumaServer(dialect, api_key=AGENT_KEY, manners=manners) as huma, Hooks() as hooks:
        settings = {
            "api": {"keys": [{"name": "backend", "key": API_KEY}]},
            "engine": {"type": "sqlite", "path": str(folder / "dragoman.db")},
            "tools": {"ask": _ASK, "free": {"description": "Takes anything."}},
            "runtimes": {
                "finn": {
                    "adapter": f"huma-{dialect}",
                    "url": huma.url,
                    "api_key": AGENT_KEY,
                    "agent_id": "finn",
                    "delivery_window": "200ms",
                    "refusal_grace": "20ms",
                },
            },
            "executors": {
                "cards": {
                    "type": "webhook",
                    "url": f"{hooks.url}/tools",
                    "secret": SECRET,
                    "timeout": "3s",
                    "idempotent": True,
                    "backoff": {"initial": "10ms", "maximum": "20ms"},
                },
            },
            "routes": [{"match": {"tool": "*"}, "to": "cards"}],
            "limits": {"drain": "2s"},
        }
        made = Scene(folder, dialect, huma, huma.agent("finn"), hooks, settings)
        yield made
