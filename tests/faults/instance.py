"""One gateway of a scene: a configuration, an address and a log, and processes one after the other."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import yaml

from tests.faults.judge import Span
from tests.faults.process import Forked, Process, end, run_command, run_mortal
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
START = 30.0
BOUND = 60.0


class Instance:
    """Processes that follow each other on one port; at most one lives at a time."""

    def __init__(self, folder: Path, name: str = "gateway") -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # Nothing here is encrypted, and reading the machine's certificates takes long.
        self.http = httpx.AsyncClient(base_url=self.url, timeout=BOUND, trust_env=False, verify=False)  # noqa: S501
        self.process: Process | None = None
        self.environment: dict[str, str] = {}
        """What `serve` adds to the environment of its processes."""
        self._config = folder / f"{name}.yaml"
        self._log = folder / f"{name}.log"
        self._started: list[Process] = []
        self.faults: list[Span] = []
        """When its processes were ended, or frozen and thawed."""

    def configure(self, settings: dict[str, Any]) -> None:
        """Write the configuration file."""
        self._config.write_text(yaml.safe_dump(settings))

    def fork(self, die_at: str | None = None, *, nth: int = 1, broken: str | None = None) -> Process:
        """Start a gateway that dies at a point, or never by itself; one that is broken in a way of `broken.py`."""
        return self._keep(Forked(self._log, run_mortal, self._config, self.port, die_at, nth, broken))

    async def serve(self) -> Process:
        """Start `dragoman serve`, in a new interpreter if `environment` is set."""
        words = ("serve", "--config", str(self._config), "--port", str(self.port))
        if not self.environment:
            return self._keep(Forked(self._log, run_command, *words))
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway", *words),
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )
        return self._keep(process)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the gateway; what it does to it is written down."""
        now = monotonic()
        if number in {signal.SIGKILL, signal.SIGTERM}:
            self.faults.append(Span(now, now))
        elif number == signal.SIGSTOP:
            self.faults.append(Span(now))
        os.kill(self.pid, number)
        if number == signal.SIGCONT and self.faults:
            self.faults[-1] = Span(self.faults[-1].begin, monotonic())

    async def died(self) -> None:
        """Wait until the gateway was ended by SIGKILL."""
        assert await self._ended() == -signal.SIGKILL, self.log()

    async def stop(self) -> None:
        """End the gateway in the orderly way."""
        self.signal(signal.SIGTERM)
        assert await self._ended() == 0, self.log()

    async def close(self) -> None:
        """Make sure that no process is left."""
        for process in self._started:
            await end(process)
        await self.http.aclose()

    async def ready(self) -> bool:
        """Whether the gateway says it is ready."""
        assert self.alive, self.log()
        try:
            return (await self.http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def metrics(self) -> dict[str, float]:
        """Read all series, by name with labels."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        split = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in split}

    def log(self) -> str:
        """The end of what its gateways have logged."""
        return self.whole_log()[-4000:]

    def whole_log(self) -> str:
        """All that its gateways have logged."""
        return self._log.read_text() if self._log.exists() else ""

    def _keep(self, process: Process) -> Process:
        self.process = process
        self._started.append(process)
        return process

    async def _ended(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(BOUND):
            return await self.process.wait()
