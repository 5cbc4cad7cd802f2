"""`python -m tests.bench.ab OLD [NEW]`: the CPU, the latency and the bytes of a call in two checkouts, in turn.

A checkout is a folder with a `.venv` of its own; NEW is this one unless said. Both serve on the same core and take
turns, so that a busy machine slows both down; CPU and bytes hardly move with its load, latency does.

    python -m tests.bench.ab ../dragoman-0.2.0
    python -m tests.bench.ab ../dragoman-0.2.0 --only T5,T5m --turns 9
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import accumulate
from math import comb
from pathlib import Path
from statistics import median

from tests.bench import bench as benches, figures, machine
from tests.bench.bench import QUICK, Bench
from tests.bench.figures import Metric, Series, Spread, Workload
from tests.bench.processes import ROOT, BenchProblem
from tests.bench.table import Table, show
from tests.bench.targets import C1, C64, HALF, TEN_KB

_LOADS: dict[str, tuple[Workload, int]] = {
    "T5": (C64, 1),
    "T5m": (C64, 256),
    "T4": (C1, 1),
    "T7": (TEN_KB, 1),
    "T18": (HALF, 16),
}
"""Workload and sessions, by the name of the target that they belong to; T13 are the bytes of T5 and T4."""
_ODDS = 0.025
_FIGURES: tuple[tuple[str, Metric, float], ...] = (
    ("CPU per call, µs", figures.cpu, 1e6),
    ("p50, ms", figures.p50, 1e3),
    ("p99, ms", figures.p99, 1e3),
    ("bytes to disk per call", figures.written, 1),
    ("pages written per call", figures.writes, 1),
)


def main(arguments: list[str] | None = None) -> int:
    """Compare; 1 where the comparison could not go on or a call went wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.ab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW", nargs="?", default=ROOT)
    parser.add_argument("--only", metavar="T5,T4", default="T5,T5m,T4", help=f"of {', '.join(_LOADS)}")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.8, help="of one turn")
    parser.add_argument("--folder", type=Path, metavar="DIR", default=ROOT / ".cache", help="where databases lie")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.only.split(",") if name not in _LOADS]
    if unknown:
        parser.error(f"there are {', '.join(_LOADS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    checkouts = {"old": asked.old.resolve(), "new": asked.new.resolve()}
    try:
        return asyncio.run(_compare(checkouts, asked))
    except BenchProblem as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


async def _compare(checkouts: dict[str, Path], asked: argparse.Namespace) -> int:
    machine.raise_file_limit()
    effort = replace(QUICK, repetitions=asked.turns, seconds=asked.seconds, open_seconds=asked.seconds, alone=False)
    async with benches.opened(asked.folder, cores=machine.share_cores(), effort=effort) as bench:
        loads = [_LOADS[name] for name in asked.only.split(",")]
        taken = [await _take(bench, *load, checkouts) for load in loads]
    table = Table(
        f"{asked.turns} turns each; medians, and in brackets where the true one lies in 95 of 100 cases",
        ("workload", "what", "old", "new", "new / old"),
        frozenset({"workload", "what"}),
    )
    for series in taken:
        for what, metric, unit in _FIGURES:
            old, new = ([metric(one) * unit for one in series.taken[name]] for name in checkouts)
            ratios = [after / before for before, after in zip(old, new, strict=True)]
            table.add(series.workload.name, what, *(surely(values) for values in (old, new, ratios)))
    wrong = sum(series.faults for series in taken)
    show([table], [f"Lost, doubled, different or repeated calls: {wrong}.{' TRUST NO FIGURE.' if wrong else ''}"])
    return 1 if wrong else 0


def surely(values: Sequence[float]) -> Spread:
    """The median, and between which values the median of ever more turns lies in 95 of 100 cases."""
    ordered, count = sorted(values), len(values)
    # Each value lies below the true median as often as a coin shows heads.
    chances = accumulate(comb(count, heads) / 2**count for heads in range(count))
    left_out = sum(chance <= _ODDS for chance in chances)
    return Spread(median(ordered), ordered[max(0, left_out - 1)], ordered[min(count - 1, count - left_out)])


async def _take(bench: Bench, workload: Workload, sessions: int, checkouts: dict[str, Path]) -> Series:
    async with AsyncExitStack() as stack:
        subjects = [
            await stack.enter_async_context(bench.gateway(sessions=sessions, name=name, checkout=checkout))
            for name, checkout in checkouts.items()
        ]
        load = replace(workload, name=f"{workload.name} over {sessions} sessions") if sessions > 1 else workload
        return await bench.take_turns(load, subjects)


if __name__ == "__main__":
    sys.exit(main())
