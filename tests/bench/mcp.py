"""T17: a call over MCP, beside the protocol's library with an empty handler on a bare uvicorn."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import httpx

from tests.bench.bench import Bench, tell
from tests.bench.figures import Spread
from tests.bench.processes import START, BenchProblem, module, running, tail
from tests.bench.report import Report
from tests.bench.runtime import TOOL
from tests.bench.subjects import Subject, settle
from tests.ports import free_port

_AT_ONCE = 16
_CALLS = 300
"""Of a turn, for each second of it."""
_ACCEPT = {"accept": "application/json, text/event-stream"}
_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": TOOL, "arguments": {"targetPlayer": "Bob", "rank": "7"}},
}


@dataclass(frozen=True, slots=True)
class _Target:
    subject: Subject
    path: str
    token: str


async def compare_mcp(bench: Bench, report: Report) -> None:
    """a call over MCP / the library with an empty handler"""
    taken: dict[str, list[float]] = {"gateway": [], "library": []}
    async with bench.gateway() as subject, _library(bench) as floor:
        targets = await _target(subject), _Target(floor, "/mcp", "-")
        for target in targets:
            await _play(bench, target, report)
        for number in range(bench.effort.repetitions):
            for name, target in zip(taken, targets, strict=True):
                taken[name].append(await _play(bench, target, report))
                tell(f"MCP, {number + 1} of {bench.effort.repetitions}, {name}: {taken[name][-1]:.0f} µs CPU per call")
    pairs = zip(taken["gateway"], taken["library"], strict=True)
    report.judge("T17", "call", [ours / theirs for ours, theirs in pairs])
    for name, values in taken.items():
        report.note_value("T17", f"{name}_us", what=f"µs of CPU of the {name} for a call", value=Spread.of(values))


async def _target(subject: Subject) -> _Target:
    async with httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=START) as http:
        (session,) = (await http.get("/v1/sessions")).json()["data"]
        access = (await http.get(f"/v1/sessions/{session['session_id']}/mcp")).json()
    return _Target(subject, f"/mcp/{session['session_id']}", access["token"])


async def _play(bench: Bench, target: _Target, report: Report) -> float:
    """Make the calls of a turn; returns the microseconds of CPU of each, with what is done behind it."""
    headers = {**_ACCEPT, "authorization": f"Bearer {target.token}"}
    left = iter(range(max(_AT_ONCE, round(_CALLS * bench.effort.seconds))))
    before, made = target.subject.look().cpu, 0

    async def work(http: aiohttp.ClientSession) -> None:
        nonlocal made
        for _ in left:
            async with http.post(target.subject.url + target.path, json=_CALL, headers=headers) as answer:
                told = await answer.json()
            report.faults += "result" not in told or bool(told["result"].get("isError"))
            made += 1

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work(http))
    await settle(target.subject)
    return (target.subject.look().cpu - before) / made * 1e6


@asynccontextmanager
async def _library(bench: Bench) -> AsyncGenerator[Subject]:
    port = free_port()
    log, url = bench.folder / "library.log", f"http://127.0.0.1:{port}"
    async with running(*module("tests.bench.mcp_floor", str(port)), cores=bench.cores.subject, log=log) as process:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http, asyncio.timeout(START):
            while True:
                try:
                    await http.post("/mcp", json=_CALL, headers=_ACCEPT)
                    break
                except httpx.TransportError:
                    if process.returncode is not None:
                        raise BenchProblem(f"the library's server has ended:\n{tail(log)}") from None
                    await asyncio.sleep(0.05)
        yield Subject("library", process.pid, [], url)
