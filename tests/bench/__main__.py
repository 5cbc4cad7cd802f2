"""`python -m tests.bench`: measures the gateway beside hand-written floors; tables and one JSON come out.

To compare two checkouts while you work, in two minutes: `python -m tests.bench.ab OLD [NEW]`.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bench import bench, machine, page
from tests.bench.bench import QUICK, THOROUGH, TINY, Bench, Effort, tell
from tests.bench.processes import ROOT, BenchProblem
from tests.bench.report import Report
from tests.bench.scenarios import SCENARIOS
from tests.bench.targets import COMPARED, FLOORS, ROWS, VARIANTS, of_commit, place

NAMES = tuple(sorted({row.name for row in ROWS} | SCENARIOS.keys(), key=place))
_COMPARED = ",".join(name for name in NAMES if name in COMPARED)


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 where the benchmark could not go on or a call went wrong."""
    asked = _parser().parse_args(arguments)
    names = [name for name in (asked.only or ",".join(NAMES)).split(",") if name]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}\n")
        return 2
    old = {path.resolve().name: path.resolve() for path in asked.old}
    if missing := [
        str(path) for path in old.values() if path != ROOT and not (path / ".venv" / "bin" / "python").exists()
    ]:
        sys.stderr.write(f"without a .venv: {', '.join(missing)}\n")
        return 2
    effort: Effort = TINY if asked.tiny else QUICK if asked.quick else THOROUGH
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        report = asyncio.run(_run(names, effort, asked.folder, old=old))
    except BenchProblem as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    report.show()
    if asked.json is not None:
        report.write(asked.json)
    if asked.page and effort is THOROUGH and not report.faults and report.complete:
        page.write(report)
    return 1 if report.faults or report.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="T1,T4", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument(
        "--old",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help=f"the checkout of an earlier commit, named as it and with a .venv, beside which {_COMPARED} are measured;"
        " may be given several times",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter turns")
    parser.add_argument("--tiny", action="store_true", help="only try whether the benchmark works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--page", action="store_true", help="write the tables of README.md, after a complete run only")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", default=ROOT / ".cache", help="where databases lie; a local disk"
    )
    return parser


async def _run(names: Sequence[str], effort: Effort, folder: Path, *, old: Mapping[str, Path]) -> Report:
    machine.raise_file_limit()
    cores = machine.share_cores()
    if cores.pinned:
        os.sched_setaffinity(0, cores.peers)
    report = Report(machine.describe(cores, sync=machine.measure_sync(folder)), tuple(old))
    async with bench.opened(folder, cores=cores, effort=effort, old=old) as running:
        await _load(running, report, names)
        for name in names:
            if name in SCENARIOS:
                tell(f"{name}: {SCENARIOS[name].__doc__}")
                with _tried(name, report):
                    await SCENARIOS[name](running, report)
        for series in running.series.values():
            report.add_series(series)
        report.notes.extend(f"{name} was left out: {why}" for name, why in running.absent.items())
    report.measured_again(sync=machine.measure_sync(folder), stalled=machine.measure_stalls())
    return report


async def _load(running: Bench, report: Report, names: Sequence[str]) -> None:
    """Measure every workload of these rows once, with all subjects that any of them needs."""
    rows = [row for row in ROWS if row.name in names]
    order = [of for name in VARIANTS for of in (name, *(of_commit(name, commit) for commit in running.old))]
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload]
        wanted = {name for row in own for name in row.subjects}
        compared = {name for row in own if row.name in COMPARED for name in row.subjects}
        wanted |= {of_commit(name, commit) for name in compared for commit in running.old}
        tell(f"{workload.name}: {'; '.join(row.what for row in own)}")
        with _tried(workload.name, report):
            series = await running.compare(workload, [name for name in (*order, *FLOORS) if name in wanted])
            report.judge_loads(series, own)


@contextmanager
def _tried(name: str, report: Report) -> Generator[None]:
    """Go on with the rest where one thing cannot be measured."""
    try:
        yield
    except BenchProblem as exc:
        report.failed.append(f"{name} was not measured: {exc}")
        tell(report.failed[-1])


if __name__ == "__main__":
    sys.exit(main())
