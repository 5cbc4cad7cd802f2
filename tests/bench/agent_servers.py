"""T23 and T24: idle sessions of OpenHands V1, and a call of its agents over MCP, beside clients written by hand."""

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.bench.bench import Bench, tell
from tests.bench.figures import KIB, Spread
from tests.bench.processes import START, BenchProblem, module, read_line, running
from tests.bench.report import Report
from tests.bench.subjects import RUNTIME, Subject, configure, open_sessions, serving, settle, write
from tests.bench.usage import resident_bytes
from tests.ports import free_port

_PATIENCE = 240.0
_AT_ONCE = 16
_CALLS = 20
"""Of each agent in a turn, for each second of it."""


async def weigh_agent_servers(bench: Bench, report: Report) -> None:
    """memory per idle session of openhands-v1, and per plain WebSocket of aiohttp"""
    count = bench.effort.sessions
    made = await bench.peers.ask("agents", conversations=count, within=_PATIENCE)
    url, ids = made["url"], made["ids"]
    async with _gateway(bench, url) as subject:
        await open_sessions(subject.url, ids[:1])
        await _followed(bench, ids[:1])
        await settle(subject)
        before = resident_bytes(subject.pid)
        await open_sessions(subject.url, ids[1:])
        await _followed(bench, ids)
        await settle(subject)
        each = (resident_bytes(subject.pid) - before) / (count - 1) / KIB
    one, many = [await _weigh_sockets(bench, url, some) for some in (ids[:1], ids)]
    plain = (many - one) / (count - 1) / KIB
    report.judge("T23", "session", [each])
    report.judge("T23", "socket", [plain])


async def _weigh_sockets(bench: Bench, url: str, ids: list[str]) -> int:
    async with _floor(bench, "sockets", url, ",".join(ids)) as (subject, _):
        await settle(subject)
        return resident_bytes(subject.pid)


async def compare_agent_servers(bench: Bench, report: Report) -> None:
    """a call of an OpenHands V1 agent over MCP / a client by websockets and httpx"""
    url = (await bench.peers.ask("agents", conversations=0))["url"]
    count, calls = min(_AT_ONCE, bench.effort.many), max(3, round(_CALLS * bench.effort.seconds))
    taken: dict[str, list[float]] = {"gateway": [], "by hand": []}
    async with (
        _gateway(bench, url) as subject,
        _floor(bench, "client", url, bench.peers.webhook, str(count)) as (floor, theirs),
    ):
        targets = (subject, await _create(subject, count)), (floor, theirs)
        for _, ids in targets:
            await _followed(bench, ids)
        # In the first turn the agents list their tools.
        for number in range(bench.effort.repetitions + 1):
            for name, (one, ids) in zip(taken, targets, strict=True):
                before = one.look().cpu
                report.faults += await bench.peers.ask("act", ids=ids, calls=calls, within=_PATIENCE)
                await settle(one)
                if number:
                    taken[name].append((one.look().cpu - before) / calls / count * 1e6)
                    tell(f"calls over MCP, {number}, {name}: {taken[name][-1]:.0f} µs CPU each")
    pairs = zip(taken["gateway"], taken["by hand"], strict=True)
    report.judge("T24", "call", [ours / theirs for ours, theirs in pairs])
    for name, values in taken.items():
        report.note_value("T24", f"{name}_us", what=f"µs of CPU of the {name} for a call", value=Spread.of(values))


async def _create(subject: Subject, count: int) -> list[str]:
    async with httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=START) as http:
        made = [await http.post("/v1/sessions", json={"runtime": RUNTIME}) for _ in range(count)]
    if wrong := [answer.text[:300] for answer in made if answer.status_code != 201]:
        raise BenchProblem(f"the gateway makes no conversation: {wrong[0]}")
    return [answer.json()["native_id"] for answer in made]


async def _followed(bench: Bench, ids: Collection[str]) -> None:
    await bench.peers.ask("followed", ids=ids, patience=_PATIENCE, within=_PATIENCE + 5)


@asynccontextmanager
async def _gateway(bench: Bench, url: str) -> AsyncGenerator[Subject]:
    """Run a gateway that has no session yet."""
    folder, port = bench.new_folder(), free_port()
    agent: dict[str, Any] = {"kind": "openhands", "llm": {"model": "simulated"}, "tools": []}
    runtime: dict[str, Any] = {"adapter": "openhands-v1", "url": url, "conversation": {"agent": agent}}
    settings: dict[str, Any] = configure(folder, bench.peers, agent="-") | {
        "public_url": f"http://127.0.0.1:{port}",
        "runtimes": {RUNTIME: runtime},
    }
    async with serving("gateway", write(settings, folder), cores=bench.cores.subject, port=port) as subject:
        yield subject


@asynccontextmanager
async def _floor(bench: Bench, *arguments: str) -> AsyncGenerator[tuple[Subject, list[str]]]:
    """Run a client written by hand; yield it with the conversations that it follows."""
    log = bench.folder / f"{arguments[0]}.log"
    command = module("tests.bench.agent_server_floors", *arguments)
    async with running(*command, cores=bench.cores.subject, log=log) as process:
        ids = (await read_line(process, log))["ids"]
        # A second socket of the same conversation is not seen there.
        yield Subject(arguments[0], process.pid, []), ids
