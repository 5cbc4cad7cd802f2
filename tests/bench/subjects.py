"""What is measured: the gateway as a real process, and the floors beside it."""

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from tests.bench.processes import ROOT, START, BenchProblem, Peers, module, running, tail
from tests.bench.runtime import TOOL, floor_agents
from tests.bench.usage import Usage, cpu_seconds, look
from tests.ports import free_port

SECRET = "whsec_YmVuY2htYXJrLXNlY3JldC1vZi0yNC1ieXRlcw=="
RUNTIME = "finn"
_OPENING = 32
_BEHIND = 0.7
"""Seconds for which a gateway has something to do behind the last result, but for what waits longer by design."""
_PUT_OFF = 2.0
"""Seconds for which a gateway may put off what its record needs no more."""
_MARKED = 120.0
_CONNECTED = 120.0
_UNMARKED = "SELECT count(*) FROM outbound WHERE state = 'pending'"


@dataclass(frozen=True, slots=True)
class Subject:
    """One process under load and the agents it serves."""

    name: str
    pid: int
    agents: list[str]
    url: str = ""
    """Its HTTP API, where it has one."""
    database: Path | None = None
    """Its file, where it keeps one."""

    def look(self) -> Usage:
        """Read what its process has used."""
        return look(self.pid)


def configure(folder: Path, peers: Peers, *, agent: str, **options: Any) -> dict[str, Any]:
    """Write a gateway's settings: one HUMA 0.2.0 runtime with these options, one signed webhook, one declared tool."""
    return {
        "engine": {"type": "sqlite", "path": str(folder / "dragoman.db")},
        "tools": {
            TOOL: {
                "description": "Ask another player for all cards of one rank.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "targetPlayer": {"type": "string"},
                        "rank": {"type": "string", "enum": [*"A23456789JQK", "10"]},
                        "note": {"type": "string"},
                        "hands": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["targetPlayer", "rank"],
                    "additionalProperties": False,
                },
            }
        },
        "runtimes": {
            RUNTIME: {
                "adapter": "huma-0.2",
                "url": peers.runtime,
                "api_key": "key-of-the-benchmark",
                "agent_id": agent,
            }
            | options
        },
        "executors": {
            "cards": {
                "type": "webhook",
                "url": peers.webhook,
                "secret": SECRET,
                "idempotent": True,
                "concurrency": 4096,
            }
        },
        "routes": [{"match": {"tool": "*"}, "to": "cards"}],
        "limits": {"session_concurrency": 4096, "inbound_frames": 10_000, "inbound_bytes": "64MiB"},
    }


@asynccontextmanager
async def gateway(
    name: str,
    settings: dict[str, Any],
    folder: Path,
    peers: Peers,
    *,
    cores: Collection[int],
    agents: list[str],
    env: dict[str, str] | None = None,
    checkout: Path = ROOT,
) -> AsyncGenerator[Subject]:
    """Run `python -m gateway serve` of a checkout, with a session for each agent and its link up."""
    async with serving(name, write(settings, folder), cores=cores, env=env, checkout=checkout) as subject:
        # The first agent stands in the configuration.
        await open_sessions(subject.url, agents[1:])
        await peers.ask("connected", agents=agents, patience=START - 5)
        yield replace(subject, agents=agents)


@asynccontextmanager
async def serving(
    name: str,
    config: Path,
    *,
    cores: Collection[int],
    env: dict[str, str] | None = None,
    checkout: Path = ROOT,
    patience: float = START,
    port: int | None = None,
) -> AsyncGenerator[Subject]:
    """Run `python -m gateway serve` until the end of the block; it begins as soon as it is ready."""
    folder, port = config.parent, port or free_port()
    log, url = folder / "gateway.log", f"http://127.0.0.1:{port}"
    own = checkout / ".venv" / "bin" / "python"
    python = sys.executable
    if checkout != ROOT:
        # It imports nothing of this one.
        python, env = str(own) if own.exists() else python, (env or {}) | {"PYTHONPATH": ""}
    command = (python, "-m", "gateway", "serve", "--config", str(config), "--port", str(port))
    async with running(*command, cores=cores, log=log, env=env, cwd=checkout) as process:
        await _until_ready(process, url, log, patience=patience)
        database = folder / "dragoman.db"
        yield Subject(name, process.pid, [], url, database if database.exists() else None)


def write(settings: dict[str, Any], folder: Path) -> Path:
    """Write a configuration into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "gateway.yaml"
    # JSON is YAML.
    config.write_text(json.dumps(settings))
    return config


async def _until_ready(process: asyncio.subprocess.Process, url: str, log: Path, *, patience: float) -> None:
    until = time.monotonic() + patience
    async with httpx.AsyncClient(trust_env=False) as http:
        while process.returncode is None and time.monotonic() < until:
            try:
                if (await http.get(f"{url}/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)
    raise BenchProblem(f"the gateway does not start:\n{tail(log)}")


async def open_sessions(url: str, agents: list[str]) -> None:
    """Attach the gateway's runtime to these agents, through the API."""
    slots = asyncio.Semaphore(_OPENING)

    async def attach(http: httpx.AsyncClient, agent: str) -> None:
        async with slots:
            answer = await http.post(f"{url}/v1/sessions", json={"runtime": RUNTIME, "native_id": agent})
        if answer.status_code not in {200, 201}:
            raise BenchProblem(f"the gateway does not open a session: {answer.text[:300]}")

    async with httpx.AsyncClient(trust_env=False, timeout=START) as http, asyncio.TaskGroup() as group:
        for agent in agents:
            group.create_task(attach(http, agent))


@asynccontextmanager
async def floor(
    name: str,
    peers: Peers,
    *,
    cores: Collection[int],
    folder: Path,
    command: tuple[str, ...] = (),
    count: int = 1,
) -> AsyncGenerator[Subject]:
    """Run one of the hand-written integrations, for one agent or more."""
    command = (*(command or module("tests.bench.floors", name)), peers.runtime, peers.webhook, str(count))
    agents = floor_agents(name, count)
    async with running(*command, cores=cores, log=folder / f"{name}.log") as process:
        try:
            await peers.ask("connected", agents=agents, patience=_CONNECTED, within=_CONNECTED + 5)
        except BenchProblem as exc:
            raise BenchProblem(f"{exc}\n{tail(folder / f'{name}.log')}") from exc
        yield Subject(name, process.pid, agents)


async def settle(subject: Subject) -> None:
    """Wait until a subject has done what it does behind the last result, so that the next one has the core alone."""
    if subject.url:
        await asyncio.sleep(_BEHIND)
    before, still = cpu_seconds(subject.pid), 0
    for _ in range(100):
        await asyncio.sleep(0.05)
        now = cpu_seconds(subject.pid)
        still = still + 1 if now - before < 0.011 else 0
        before = now
        if still == 3:
            return


async def settle_wholly(subjects: Collection[Subject]) -> None:
    """Wait until subjects have done also what they put off, and every result is marked delivered."""
    await asyncio.sleep(_PUT_OFF)
    for subject in subjects:
        if subject.database is None:
            continue
        with closing(sqlite3.connect(f"file:{subject.database}?mode=ro", uri=True, timeout=5)) as connection:
            until = time.monotonic() + _MARKED
            while left := connection.execute(_UNMARKED).fetchone()[0]:
                if time.monotonic() > until:
                    raise BenchProblem(f"{subject.name} has {left} results that are not marked delivered")
                await asyncio.sleep(0.1)
