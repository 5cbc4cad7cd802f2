"""T10: a burst of events to many followers, beside the stream that people would write by hand."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from tests.bench.bench import Bench, tell
from tests.bench.figures import Spread
from tests.bench.followers import KIND
from tests.bench.processes import START, BenchProblem, module, running, tail
from tests.bench.report import Report
from tests.bench.subjects import Subject, settle
from tests.ports import free_port

_AT_ONCE = 100
_PATIENCE = 120.0


async def compare_streams(bench: Bench, report: Report) -> None:
    """a burst of events to 1,000 followers / one queue per follower"""
    taken: dict[str, list[dict[str, Any]]] = {"gateway": [], "queues": []}
    async with bench.gateway() as subject, _queues(bench) as floor:
        for number in range(bench.effort.repetitions):
            for name, one, (stream, post) in (
                ("gateway", subject, await _paths(subject)),
                ("queues", floor, ("/stream", "/events")),
            ):
                said = await _burst(bench, one, stream=stream, post=post)
                taken[name].append(said)
                report.faults += said["wrong"]
                tell(f"burst, {number + 1} of {bench.effort.repetitions}, {name}: {_summary(said)}")
                await settle(one)
    pairs = zip(taken["gateway"], taken["queues"], strict=True)
    report.judge("T10", "burst", [ours["deliveries_per_s"] / theirs["deliveries_per_s"] for ours, theirs in pairs])
    for name, said in taken.items():
        rate = Spread.of([one["deliveries_per_s"] for one in said])
        report.note_value("T10", f"{name}_per_s", what=f"{name}: deliveries/s", value=rate)
        cost = Spread.of([one["cpu_us_per_delivery"] for one in said])
        report.note_value("T10", f"{name}_cpu_us", what=f"{name}: µs CPU per delivery", value=cost)
        load = Spread.of([one["peers_busy"] for one in said])
        report.note_value("T10", f"{name}_peers_busy", what=f"{name}: of a core used by the followers", value=load)


def _summary(said: dict[str, Any]) -> str:
    wrong = f", {said['wrong']} WRONG" if said["wrong"] else ""
    return f"{said['deliveries_per_s']:,.0f} deliveries/s, {said['cpu_us_per_delivery']:.2f} µs CPU each{wrong}"


async def _burst(bench: Bench, subject: Subject, *, stream: str, post: str) -> dict[str, Any]:
    events = [
        {"kind": KIND, "name": "table", "context": {"turn": number, "note": "x" * 200}, "description": "A card."}
        for number in range(bench.effort.burst)
    ]
    bodies = [
        orjson.dumps({"events": events[start : start + _AT_ONCE]}).decode() for start in range(0, len(events), _AT_ONCE)
    ]
    said: dict[str, Any] = await bench.peers.ask(
        "burst",
        within=_PATIENCE + 10,
        port=urlsplit(subject.url).port,
        stream=stream,
        post=post,
        bodies=bodies,
        events=len(events),
        followers=bench.effort.followers,
        pid=subject.pid,
        patience=_PATIENCE,
    )
    return said


async def _paths(subject: Subject) -> tuple[str, str]:
    async with httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=START) as http:
        (session,) = (await http.get("/v1/sessions")).json()["data"]
    path = f"/v1/sessions/{session['session_id']}/events"
    # From a sequence on, so that nobody depends on when exactly its stream began.
    return f"{path}/stream?after={session['last_sequence']}", path


@asynccontextmanager
async def _queues(bench: Bench) -> AsyncGenerator[Subject]:
    port = free_port()
    log, url = bench.folder / "queues.log", f"http://127.0.0.1:{port}"
    async with running(*module("tests.bench.sse_floor", str(port)), cores=bench.cores.subject, log=log) as process:
        async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(START):
            while True:
                try:
                    await http.get(f"{url}/openapi.json")
                    break
                except httpx.TransportError as exc:
                    if process.returncode is not None:
                        raise BenchProblem(f"the queues do not start:\n{tail(log)}") from exc
                    await asyncio.sleep(0.05)
        yield Subject("queues", process.pid, [], url)
