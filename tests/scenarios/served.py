"""One gateway process on a port of its own."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.faults.process import Forked, Process, end, run_command
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import Scene, plain_http, until
from tests.scenarios.fleet import Environment

ROOT = Path(__file__).parents[2]
START = PATIENCE
GATEWAY = ("gateway",)


class Served:
    """A gateway process and its log."""

    def __init__(self, process: Process, log: Path, url: str) -> None:
        self.process, self.log, self.url = process, log, url

    async def ready(self) -> bool:
        assert self.process.returncode is None, self.log.read_text()
        try:
            async with plain_http() as http:
                return (await http.get(f"{self.url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(START):
            return await self.process.wait()

    async def wait_log(self, words: str) -> None:
        async def look() -> bool:
            return words in self.log.read_text()

        await until(look)


@asynccontextmanager
async def serving(
    scene: Scene | Environment,
    *options: str,
    environment: Mapping[str, str] | None = None,
    entry: tuple[str, ...] = GATEWAY,
    out: int | None = None,
    public: bool = True,
) -> AsyncGenerator[Served]:
    """Run `dragoman serve`, and end it in any case; it is not waited for.

    It is forked, unless it wants another environment, another module in place of `gateway`, or a place for its output.
    """
    if not scene.port:
        scene.port = free_port()
    url = f"http://127.0.0.1:{scene.port}"
    if public:
        scene.configure({"public_url": url})
    log = scene.folder / "gateway.log"
    log.write_bytes(b"")
    words = ("serve", "--config", str(scene.config), "--port", str(scene.port), *options)
    process: Process
    if environment is None and entry == GATEWAY and out is None:
        process = Forked(log, run_command, *words)
    else:
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *entry, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out or file,
                stderr=out or file,
                cwd=ROOT,
                start_new_session=True,
                env=os.environ | dict(environment or {}),
            )
    try:
        yield Served(process, log, url)
    finally:
        await end(process)
