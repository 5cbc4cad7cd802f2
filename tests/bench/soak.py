"""`python -m tests.bench.soak`: a steady load for minutes or hours, with links that break; says what grows."""

import argparse
import asyncio
import json
import os
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.bench import bench as benches, machine
from tests.bench.bench import QUICK, Bench, tell
from tests.bench.figures import KIB
from tests.bench.plot import Axis, Panel, draw
from tests.bench.processes import ROOT, BenchProblem
from tests.bench.report import Report
from tests.bench.subjects import Subject, configure
from tests.bench.usage import cpu_seconds, resident_bytes

AGENTS = 8
RATE = 200.0
DROP_EVERY = 20.0
"""Seconds between broken links; a different agent's each time."""
DELAYS = (*(0.0,) * 9, 1.0)
"""Seconds an executor takes, in turn: one call in ten is at work while a link breaks."""
RETENTION = {"open_events": 2_000, "closed_age": "60s"}
"""Little, so that rows come to a halt within minutes; a sweep comes every minute."""
WARMUP = 0.35
"""Share of the time that is left out of the judgement."""
LONG_ENOUGH = 300.0
"""Seconds; a shorter soak cannot tell growth from warming up."""

_ALLOWED: dict[str, tuple[float, float]] = {
    "rss_mib": (0.03, 2.0),
    # One stall of the machine opens as many connections to the webhook as its executor may have.
    "sockets": (0.2, 64.0),
    "files": (0.2, 64.0),
    "threads": (0.2, 2.0),
    # A task for each call at work and each connection to the webhook.
    "tasks": (0.2, 64.0),
    # A sweep each minute makes rows rise and fall like a saw.
    "events": (0.25, 0.0),
}
"""What may grow by which share, or else by how much, and still counts as flat."""

_TABLES = ("events", "calls", "outbound")
_GAUGE = re.compile(r"^(dragoman_(?:outbox_oldest_seconds|queue_bytes|tasks))(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


async def soak(bench: Bench, *, seconds: float, every: float, drop_every: float = DROP_EVERY) -> dict[str, Any]:
    """Load a gateway for a time; returns its samples and what became of all calls."""
    folder = bench.new_folder()
    # The limits that are shipped, unlike in the benchmarks.
    shipped = configure(folder, bench.peers, agent="")["executors"]
    del shipped["cards"]["concurrency"]
    more: dict[str, Any] = {"limits": {}, "executors": shipped, "retention": RETENTION, "api": {"open": ["metrics"]}}
    async with bench.gateway(sessions=AGENTS, folder=folder, **more) as subject:
        ask = bench.peers.ask
        await ask("begin", agents=subject.agents, rate=RATE, size=200, delays=list(DELAYS))
        samples = await _watch(bench, subject, seconds=seconds, every=every, drop_every=drop_every)
        last = await ask("stop", within=120)
        last["lost_calls"] = _find_rows(subject, last["lost_calls"])
    return {"seconds": seconds, "samples": samples, "calls": last, "verdict": judge(samples, seconds)}


def _find_rows(subject: Subject, calls: list[str]) -> dict[str, list[str]]:
    """Say what the gateway has on record of calls: nothing means that it never got them, or has forgotten them."""
    with closing(_open(subject)) as connection:
        return {
            call: [row[0] for row in connection.execute("SELECT state FROM calls WHERE native_call_id = ?", (call,))]
            for call in calls
        }


def _open(subject: Subject) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{subject.database}?mode=ro", uri=True, timeout=5)


async def _watch(
    bench: Bench, subject: Subject, *, seconds: float, every: float, drop_every: float
) -> list[dict[str, Any]]:
    begun = time.perf_counter()
    samples: list[dict[str, Any]] = []
    drops = 0
    async with httpx.AsyncClient(base_url=subject.url, trust_env=False, timeout=10) as http:
        while (answered := time.perf_counter() - begun) < seconds:
            if answered > (drops + 1) * min(drop_every, seconds / 3):
                await bench.peers.ask("drop", agent=subject.agents[drops % AGENTS])
                drops += 1
            counts = await bench.peers.ask("look")
            sample = {"at": answered, **_look(subject), **_gauges((await http.get("/metrics")).text), **counts}
            samples.append(sample)
            tell(
                f"{answered:.0f} of {seconds:.0f} s: {sample['made']:,} calls, RSS {sample['rss_mib']:.1f} MiB,"
                f" {sample['sockets']} sockets, {sample['events']:,} events, repeated {sample['repeated']},"
                f" doubled {sample['doubled']}, different {sample['different']}, overdue {sample['overdue']}"
            )
            await asyncio.sleep(min(every, max(0.0, seconds - (time.perf_counter() - begun))))
    return samples


def _look(subject: Subject) -> dict[str, Any]:
    folder = Path(f"/proc/{subject.pid}")
    handles = [_target(handle) for handle in (folder / "fd").iterdir()]
    database = subject.database
    assert database is not None
    sizes = {suffix: _size(database.with_name(database.name + suffix)) for suffix in ("", "-wal")}
    with closing(_open(subject)) as connection:
        # Names of our own, not a caller's.
        rows = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in _TABLES}  # noqa: S608
    return {
        "rss_mib": resident_bytes(subject.pid) / KIB**2,
        "cpu_s": cpu_seconds(subject.pid),
        "files": len(handles),
        "sockets": sum(target.startswith("socket:") for target in handles),
        "threads": sum(1 for _ in (folder / "task").iterdir()),
        "database_mib": sizes[""] / KIB**2,
        "log_mib": sizes["-wal"] / KIB**2,
        **rows,
    }


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except FileNotFoundError:
        # Closed since it was listed.
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _gauges(page: str) -> dict[str, float]:
    return {name.removeprefix("dragoman_"): float(value) for name, value in _GAUGE.findall(page)}


def judge(samples: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Say what grew after the warm-up: the last third beside the first third of what is judged."""
    judged = [sample for sample in samples if sample["at"] >= WARMUP * seconds]
    if not judged:
        return {"long_enough": False}
    part = max(1, len(judged) // 3)
    growth: dict[str, float] = {}
    grown: list[str] = []
    for name, (share, slack) in _ALLOWED.items():
        values = [float(sample[name]) for sample in judged]
        first, last = statistics.median(values[:part]), statistics.median(values[-part:])
        growth[name] = round(last / first - 1, 4) if first else last
        if last - first > max(share * first, slack):
            grown.append(name)
    return {"growth": growth, "grown": grown, "flat": not grown, "long_enough": seconds >= LONG_ENOUGH}


async def soak_briefly(bench: Bench, report: Report) -> None:
    """a short soak: lost and different outcomes while links break; `make soak` is for long ones"""
    minutes = bench.effort.soak_minutes
    found = await soak(bench, seconds=minutes * 60, every=2.0)
    calls = found["calls"]
    for name in ("lost", "different", "doubled"):
        report.judge("T12", name, [calls[name]])
        report.faults += calls[name]
    report.note_value("T12", "calls", what="calls while links broke", value=calls["made"])
    report.note_value("T12", "repeated", what="identical results repeated over a new link", value=calls["repeated"])
    grown = found["verdict"].get("growth", {})
    if grown:
        what = f"growth of RSS within {minutes:g} min (a long soak tells)"
        report.note_value("T12", "rss_growth", what=what, value=grown["rss_mib"])


PANELS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("RSS, MiB", ("rss_mib",)),
    ("open sockets, files and tasks", ("sockets", "files", "tasks")),
    ("rows", ("events", "calls", "outbound")),
    ("bytes on disk, MiB", ("database_mib", "log_mib")),
    ("latency, ms", ("p50_ms",)),
    ("lost for over a minute, doubled, different", ("overdue", "doubled", "different")),
)


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw a soak."""
    samples = found["samples"]
    times = [sample["at"] / 60 for sample in samples]
    read: Callable[[str], list[float]] = lambda name: [float(sample[name]) for sample in samples]  # noqa: E731
    panels = [Panel(title, {name: read(name) for name in names}) for title, names in PANELS]
    draw(path, panels, Axis.times(times, "min"), title=summary(found))


def summary(found: dict[str, Any]) -> str:
    """Say in a line how it went."""
    calls, verdict = found["calls"], found["verdict"]
    told = (
        f"{found['seconds'] / 60:g} min, {calls['made']:,} calls, {calls['drops']} broken links:"
        f" {calls['lost']} lost, {calls['doubled']} doubled, {calls['different']} different,"
        f" {calls['repeated']} repeated in the same words"
    )
    if not verdict.get("long_enough"):
        return f"{told}; too short to say whether it is flat"
    grown = ", ".join(f"{name} {value:+.1%}" for name, value in verdict["growth"].items())
    flat = "flat" if verdict["flat"] else f"NOT flat ({', '.join(verdict['grown'])})"
    return f"{told}; {flat} after warm-up ({grown})"


def main(arguments: list[str] | None = None) -> int:
    """Soak; 1 where a call went wrong, or something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, metavar="FILE", default=ROOT / ".cache" / "soak.json")
    parser.add_argument("--plot", type=Path, metavar="FILE", default=ROOT / ".cache" / "soak.png")
    parser.add_argument("--folder", type=Path, metavar="DIR", default=ROOT / ".cache", help="where the database lies")
    parser.add_argument("--drop-every", type=float, metavar="SECONDS", default=DROP_EVERY, help="between broken links")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        found = asyncio.run(_run(asked.minutes * 60, asked.folder, drop_every=asked.drop_every))
    except BenchProblem as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    asked.json.write_text(json.dumps(found, indent=1) + "\n")
    plot(found, asked.plot)
    sys.stdout.write(f"{summary(found)}\n{os.path.relpath(asked.json)}, {os.path.relpath(asked.plot)}\n")
    calls, verdict = found["calls"], found["verdict"]
    wrong = calls["lost"] + calls["doubled"] + calls["different"]
    return 1 if wrong or (verdict["long_enough"] and not verdict["flat"]) else 0


async def _run(seconds: float, folder: Path, *, drop_every: float) -> dict[str, Any]:
    machine.raise_file_limit()
    cores = machine.share_cores()
    described = machine.describe(cores, sync=machine.measure_sync(folder))
    async with benches.opened(folder, cores=cores, effort=QUICK) as bench:
        # Two hundred samples or one every two seconds, whichever is fewer.
        every = min(max(2.0, seconds / 200), seconds / 4)
        found = await soak(bench, seconds=seconds, every=every, drop_every=drop_every)
        return {"machine": described, **found}


if __name__ == "__main__":
    sys.exit(main())
