"""Gateway processes on one store, of this release or the one before: started, killed, cut off from their database."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import yaml

from gateway.runtime.app import Gateway
from tests.engines.postgres_server import drop_schema, dsn, new_schema
from tests.faults.process import Forked, Process, end, run_command
from tests.faults.proxy import Proxy
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, Running, Scene, merge, plain_http, until
from tests.scenarios.fleet import Environment
from tests.scenarios.releases import THIS, Release

START = PATIENCE


@dataclass
class Serving(Running):
    """One gateway process; `gateway` is not at hand."""

    process: Process | None = None
    log: Path = field(default_factory=Path)
    wire: Proxy | None = None
    """What its connections to the database go through, where it was asked for."""

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    async def ended(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(START):
            return await self.process.wait()

    async def carries(self, session_id: str) -> bool:
        links = [link for one in (await self.get("/v1/runtimes"))["data"] for link in one["links"]]
        return any(link["session_id"] == session_id and link["state"] == "up" for link in links)

    async def wait_carries(self, session_id: str, *, within: float = START) -> None:
        await until(lambda: self.carries(session_id), within=within)

    async def wait_log(self, words: str, *, within: float = START) -> None:
        async def look() -> bool:
            return words in self.log.read_text()

        await until(look, within=within)


@dataclass
class Fleet:
    """A store of its own and the processes on it."""

    scene: Scene | Environment
    engine: Mapping[str, Any]
    stack: AsyncExitStack
    lease: str

    async def serve(
        self,
        name: str,
        *,
        through_wire: bool = False,
        release: Release = THIS,
        port: int | None = None,
        **settings: Any,
    ) -> Serving:
        """Start a process, on a free port unless one is named, and wait until it is ready."""
        engine, wire = dict(self.engine), None
        if through_wire:
            at = urlsplit(str(engine["dsn"]))
            wire = await self.stack.enter_async_context(Proxy((at.hostname or "127.0.0.1", at.port or 5432)))
            engine["dsn"] = at._replace(netloc=f"{at.username}@127.0.0.1:{wire.port}").geturl()
        port = port or free_port()
        config = self.scene.folder / f"{name}.yaml"
        written = {**self.scene.settings, "engine": engine, "instance": {"lease": self.lease}}
        config.write_text(yaml.safe_dump(merge(written, settings)))
        log = self.scene.folder / f"{name}.log"
        log.write_bytes(b"")
        words = ("serve", "--config", str(config), "--port", str(port))
        process = Forked(log, run_command, *words) if release is THIS else await _execute(release, log, *words)
        http = await self.stack.enter_async_context(plain_http())
        http.base_url, http.headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {API_KEY}"}
        # The gateway itself is in another process.
        made = Serving(cast("Gateway", None), str(http.base_url), http, process=process, log=log, wire=wire)
        self.stack.push_async_callback(_end, made)

        async def ready() -> bool:
            assert process.returncode is None, log.read_text()
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)):
                    return False
            try:
                return (await http.get("/readyz")).status_code == 200
            except httpx.TransportError:
                # It may be ending; then the next look says why.
                return False

        await until(ready, within=START)
        return made

    async def doctor(self, name: str) -> str:
        """Run `dragoman doctor` with the configuration of a process."""
        config = str(self.scene.folder / f"{name}.yaml")
        process = await asyncio.create_subprocess_exec(
            *(*THIS.command, "doctor", "--config", config),
            stdout=asyncio.subprocess.PIPE,
            cwd=THIS.folder,
            env=os.environ | {"COLUMNS": "400"},
        )
        async with asyncio.timeout(START):
            out, _ = await process.communicate()
        return out.decode()


@asynccontextmanager
async def fleet(
    scene: Scene | Environment, *, lease: str = "2s", engine: Mapping[str, Any] | None = None
) -> AsyncGenerator[Fleet]:
    """Make an empty schema, or use the store that is given; all processes are gone at the end."""
    schema = None if engine else new_schema()
    scene.configure({"public_url": "http://127.0.0.1:9"})
    try:
        async with AsyncExitStack() as stack:
            used = engine or {"type": "postgres", "dsn": dsn(), "schema": schema}
            yield Fleet(scene, used, stack, lease)
    finally:
        if schema:
            await drop_schema(schema)


async def _execute(release: Release, log: Path, *words: str) -> Process:
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *(*release.command, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=release.folder,
            start_new_session=True,
        )


async def _end(one: Serving) -> None:
    assert one.process is not None
    await end(one.process)
