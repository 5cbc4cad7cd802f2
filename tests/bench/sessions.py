"""T9, T15 and T22: the memory of many idle sessions, and the seconds of a start with many sessions and with none."""

import sys
import time

from tests.bench.bench import Bench, tell
from tests.bench.figures import KIB, Spread
from tests.bench.processes import ROOT, running
from tests.bench.report import Report
from tests.bench.subjects import configure, floor, open_sessions, serving, settle, write
from tests.bench.targets import ONE
from tests.bench.usage import resident_bytes

_PATIENCE = 300.0
_LONG = 180.0
"""Seconds after which no further turn begins."""
_COMPILE = {"PYTHONDONTWRITEBYTECODE": ""}
"""As an installation does, which compiles all modules."""
_IMPORTS = "import fastapi, uvicorn, pydantic, aiohttp"


async def weigh_sessions(bench: Bench, report: Report) -> None:
    """memory per idle runtime session, and of a gateway with 2,000 of them"""
    count = bench.effort.sessions
    async with bench.gateway() as subject:
        before = resident_bytes(subject.pid)
        prefix = subject.agents[0].removesuffix("-0")
        agents = [f"{prefix}-{number}" for number in range(count)]
        await open_sessions(subject.url, agents[1:])
        await bench.peers.ask("connected", agents=agents, patience=120, within=125)
        await settle(subject)
        after = resident_bytes(subject.pid)
    report.judge("T9", "kib_per_session", [(after - before) / (count - 1) / KIB])
    report.judge("T9", "rss_mib", [after / KIB**2])
    report.note_value("T9", "rss_mib_of_one", what="MiB of memory with one idle session", value=before / KIB**2)
    one, many = [await _weigh_clients(bench, number) for number in (2, count)]
    what = "KiB per idle python-socketio client, nothing else"
    report.note_value("T9", "kib_per_client", what=what, value=(many - one) / (count - 2) / KIB)


async def _weigh_clients(bench: Bench, count: int) -> int:
    run = floor("best", bench.peers, cores=bench.cores.subject, folder=bench.folder, count=count)
    async with run as subject:
        await settle(subject)
        return resident_bytes(subject.pid)


async def restart(bench: Bench, report: Report) -> None:
    """restart with 5,000 open sessions: seconds until ready, and until all links are up"""
    count, folder = bench.effort.restarted, bench.new_folder()
    agents = [f"{folder.name}-{number}" for number in range(count)]
    config = write(configure(folder, bench.peers, agent=agents[0]), folder)
    ready: list[float] = []
    links: list[float] = []
    stops: list[float] = []
    begun = time.perf_counter()
    async with serving("gateway", config, cores=bench.cores.subject) as subject:
        await open_sessions(subject.url, agents[1:])
        await bench.peers.ask("connected", agents=agents, patience=_PATIENCE, within=_PATIENCE + 5)
        tell(f"{count:,} sessions were opened in {time.perf_counter() - begun:.1f} s")
    begun = time.perf_counter()
    while len(ready) < bench.effort.repetitions and time.perf_counter() - begun < _LONG:
        await bench.peers.ask("left", agents=agents, patience=_PATIENCE, within=_PATIENCE + 5)
        started = time.perf_counter()
        async with serving("gateway", config, cores=bench.cores.subject, patience=_PATIENCE):
            ready.append(time.perf_counter() - started)
            await bench.peers.ask("connected", agents=agents, patience=_PATIENCE, within=_PATIENCE + 5)
            links.append(time.perf_counter() - started)
            stopping = time.perf_counter()
        stops.append(time.perf_counter() - stopping)
        tell(
            f"restart {len(ready)}: ready after {ready[-1]:.1f} s, all links after {links[-1]:.1f} s,"
            f" stopped in {stops[-1]:.1f} s"
        )
    report.judge("T15", "ready", ready)
    report.judge("T15", "links", links)
    report.note_value("T15", "stop", what=f"seconds to stop with {count:,} sessions", value=Spread.of(stops))
    started = time.perf_counter()
    async with floor("raw", bench.peers, cores=bench.cores.subject, folder=bench.folder, count=count):
        took = time.perf_counter() - started
    report.note_value(
        "T15", "raw", what=f"seconds to start and open {count:,} bare links one after the other", value=took
    )


async def start(bench: Bench, report: Report) -> None:
    """start with an empty database until ready, beside the import of the libraries alone"""
    checkouts = {ONE: ROOT, **bench.old}
    ready: dict[str, list[float]] = {name: [] for name in checkouts}
    imports: list[float] = []
    log, cores = bench.folder / "imports.log", bench.cores.subject
    for _ in range(bench.effort.repetitions + 1):
        for name, checkout in checkouts.items():
            folder = bench.new_folder()
            config = write({"engine": {"path": str(folder / "dragoman.db")}}, folder)
            started = time.perf_counter()
            async with serving(name, config, cores=cores, env=_COMPILE, checkout=checkout):
                ready[name].append(time.perf_counter() - started)
        started = time.perf_counter()
        async with running(sys.executable, "-c", _IMPORTS, cores=cores, log=log, env=_COMPILE) as process:
            await process.wait()
            imports.append(time.perf_counter() - started)
    # The first turn compiles.
    del imports[0]
    ratios = {name: [one / floor for one, floor in zip(took[1:], imports, strict=True)] for name, took in ready.items()}
    report.judge("T22", "ready", ratios.pop(ONE), ratios)
    report.note_value("T22", "seconds", what="seconds from start to ready", value=Spread.of(ready[ONE][1:]))
    report.note_value("T22", "imports", what="seconds to import the libraries", value=Spread.of(imports))
