"""T20: lists of calls with filters that match nothing, over a database that holds many calls."""

import time

import httpx

from tests.bench.bench import Bench
from tests.bench.figures import Spread
from tests.bench.processes import START, BenchProblem
from tests.bench.report import Report
from tests.bench.targets import STORED

_TIMES = 9
_FILTERS = (
    {"state": "canceled"},
    {"state": "queued,accepted"},
    {"state": "failed", "unknown": "true"},
    {"unknown": "true"},
    {"tool": "no-such-tool"},
    {"runtime": "no-such-runtime"},
    {"session_id": "no-such-session"},
    {"tool": "no-such-tool", "state": "succeeded"},
)


async def measure_lists(bench: Bench, report: Report) -> None:
    """lists of calls with each filter, matching nothing"""
    found: dict[str, Spread] = {}
    async with (
        bench.variant(STORED) as subject,
        httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=START) as http,
    ):
        for wanted in _FILTERS:
            took: list[float] = []
            for _ in range(_TIMES):
                begun = time.perf_counter()
                answer = await http.get("/v1/calls", params=wanted)
                took.append((time.perf_counter() - begun) * 1000)
                if answer.status_code != 200 or answer.json()["data"]:
                    raise BenchProblem(f"a list of calls with {wanted} is {answer.status_code}: {answer.text[:200]}")
            name = ", ".join(f"{key}={value}" for key, value in wanted.items())
            found[name] = Spread.of(took)
    slowest = max(found, key=lambda name: found[name].median)
    report.judge("T20", "lists", [found[slowest].low, found[slowest].median, found[slowest].high])
    for name, spread in found.items():
        report.note_value("T20", name, what=f"ms for `GET /v1/calls?{name}`", value=spread)
