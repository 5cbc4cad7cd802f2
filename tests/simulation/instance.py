"""One gateway of the world: a process that starts, serves requests, drains, and can be killed."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, cast

from gateway.errors import InvalidConfiguration
from gateway.http.app import build_app
from gateway.runtime.app import Gateway
from gateway.runtime.system_clock import SystemIds
from gateway.serve import parts_for, read_configuration
from gateway.settings.model import Settings
from gateway.store.port import Engine
from gateway.store.sqlite.lock import SIDES
from tests.simulation.clock import SimClock
from tests.simulation.loop import Process, acts
from tests.simulation.network import Network
from tests.simulation.servers import HttpConn
from tests.simulation.store import Disk, SimEngine
from tests.simulation.store_server import RemoteEngine, StoreServer

FIRST_PORT = 8080


class Exchange:
    """One HTTP request in progress; its response arrives in pieces."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.over = False
        self.broken = False
        self.changed = asyncio.Event()
        self.gone = asyncio.Event()
        """Set when the client closes."""

    def note(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def whole(self) -> "Exchange":
        while not self.over:
            await self.changed.wait()
        return self


@lru_cache(maxsize=16)
def _read(config: Path, _text: str) -> Settings:
    """Read a configuration, of which most starts have the text of the last one."""
    return read_configuration(config).settings


class Instance:
    """The current process of a gateway, and the files that survive it.

    With a `server`, it shares the store of that server with others.
    """

    def __init__(
        self,
        net: Network,
        random: Random,
        path: Path,
        write: Callable[[], str],
        *,
        disk: Disk,
        number: int = 0,
        server: StoreServer | None = None,
    ) -> None:
        self._net, self._loop, self._random = net, net.loop, random
        self._config, self._write = path.with_name("gateway.yaml"), write
        self._disk, self._server = disk, server
        self.name = "the gateway" if server is None else f"replica {number}"
        self._port = FIRST_PORT + number
        self._started = self._copies = 0
        self.path = path
        self.process: Process | None = None
        self.gateway: Gateway | None = None
        self._app: Any = None
        self.engine: SimEngine | RemoteEngine | None = None
        self._stop: asyncio.Event | None = None
        self.misconfigured: Callable[[BaseException], None] = lambda _: None
        """Takes the refusal of a configuration."""
        self.exited: Callable[[Process], None] = lambda _: None
        """Takes a process that ends although nobody stopped it; `failure` is the reason."""
        self.main: asyncio.Task[None] | None = None
        self._processes: list[Process] = []
        """All so far: what a dead process refers to must not be collected while the world exists."""
        self._exchanges: dict[Exchange, None] = {}
        self.failure: BaseException | None = None

    @property
    def up(self) -> bool:
        return self.gateway is not None

    def start(self) -> None:
        """Start a process on the files of the one before."""
        assert self.process is None
        self._started += 1
        self._config.write_text(self._write())
        self.process = Process(f"{self.name}-{self._started}")
        self._processes.append(self.process)
        self.main = self._loop.create_task(self._run(self.process), context=self.process.context)

    def rewrite(self) -> None:
        """Write the configuration that the world has now."""
        self._config.write_text(self._write())

    async def _run(self, process: Process) -> None:
        self._stop = stop = asyncio.Event()
        clock, config = SimClock(self._loop, process), self._config
        try:
            try:
                settings = _read(config, config.read_text())
            except InvalidConfiguration as exc:
                self.misconfigured(exc)
                return
            if self._server is None:
                self.engine = SimEngine(self.path, clock, loop=self._loop, disk=self._disk)
            else:
                self.engine = RemoteEngine(self._server, clock)
            parts = parts_for(
                settings,
                reread=lambda: _read(config, config.read_text()),
                clock=clock,
                file=config,
                url=f"http://127.0.0.1:{self._port}",
            )
            parts = replace(
                parts,
                engine=cast("Engine", self.engine),
                ids=SystemIds(clock, Random(self._random.random())),
                shared=self._server is not None,
            )
            async with Gateway.running(settings, parts) as gateway:
                self.gateway = gateway
                self._net.listeners[self._port] = lambda: HttpConn(self._take)
                await stop.wait()
                await gateway.drain()
        except Exception as exc:  # noqa: BLE001 - the world judges it
            self.failure = exc
        finally:
            if not process.dead:
                self._forget(process)
                if not stop.is_set():
                    self._loop.call_soon(self.exited, process, context=self._net.world)

    def _forget(self, process: Process) -> None:
        if self.process is process:
            self.process = self.gateway = self._app = self.engine = None
            self._net.listeners.pop(self._port, None)

    def drain(self) -> None:
        """Send SIGTERM."""
        if self._stop is not None and self.process is not None:
            self.process.drains_since = self._loop.now
            self._loop.call_soon(self._stop.set, context=self.process.context)

    def kill(self) -> None:
        """End the process as `kill -9` does, and keep what the disk has."""
        process, engine = self.process, self.engine
        if process is None:
            return
        process.dead = True
        self._net.cut_of(process)
        if isinstance(engine, RemoteEngine):
            engine.die()
        elif engine is not None:
            # A batch in flight is on the disk, or not.
            writes = self._random.random() < 0.5
            process.context.run(engine.die, writes=writes)
            self._keep_files()
        for exchange in self._exchanges:
            exchange.broken = exchange.over = True
            self._loop.call_soon(exchange.note, context=self._net.world)
        self._exchanges.clear()
        self._forget(process)

    def _keep_files(self) -> None:
        before = self.path
        self._copies += 1
        self.path = before.with_name(f"{self._copies}.db")
        for side in ("", *SIDES):
            found = Path(f"{before}{side}")
            if found.exists():
                shutil.copy(found, f"{self.path}{side}")

    # Requests

    def _take(self, conn: HttpConn, url: str, headers: dict[str, str], body: bytes) -> None:
        """Serve a request that came over the network."""
        exchange = self.request(conn.method, url, body, headers)
        if exchange is None:
            conn.reset()
            return

        async def respond() -> None:
            await exchange.whole()
            if exchange.status is None or exchange.broken:
                conn.reset()
            else:
                conn.respond(exchange.status, exchange.body, **exchange.headers)

        self._loop.create_task(respond(), context=self._net.world)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Exchange | None:
        """Begin a request; None if no process listens."""
        if self.gateway is None or self.process is None:
            return None
        if self._app is None:
            # Half of the CPU of a short run.
            self._app = build_app(self.gateway)
        exchange = Exchange()
        self._exchanges[exchange] = None
        self._loop.create_task(
            self._serve(self._app, exchange, method, path, body, headers or {}), context=self.process.context
        )
        return exchange

    async def _serve(
        self, app: Any, exchange: Exchange, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> None:
        local, _, query = path.partition("?")
        named = {"host": f"127.0.0.1:{self._port}", "content-length": str(len(body)), **headers}
        if body:
            named.setdefault("content-type", "application/json")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": local, "raw_path": local.encode(), "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 9), "server": ("127.0.0.1", self._port), "state": {},
        }  # fmt: skip
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": body, "more_body": False}
            await exchange.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if not acts():
                return
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                exchange.body += message.get("body", b"")
                if not message.get("more_body"):
                    exchange.over = True
            self._loop.call_soon(exchange.note, context=self._net.world)
            await asyncio.sleep(0)

        try:
            await app(scope, receive, send)
        finally:
            exchange.broken = exchange.broken or not exchange.over
            exchange.over = True
            self._exchanges.pop(exchange, None)
            self._loop.call_soon(exchange.note, context=self._net.world)
