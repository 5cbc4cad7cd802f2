"""`python -m tests.bench`: measures the gateway beside hand-written floors; one table and one JSON come out.

To compare two checkouts while you work, in two minutes: `python -m tests.bench.ab OLD [NEW]`.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from tests.bench import bench, machine
from tests.bench.bench import QUICK, THOROUGH, TINY, Effort, tell
from tests.bench.processes import ROOT, BenchProblem
from tests.bench.report import Report
from tests.bench.scenarios import SCENARIOS


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 1 where the benchmark could not go on or a call went wrong."""
    asked = _parser().parse_args(arguments)
    names = [name for name in (asked.only or ",".join(SCENARIOS)).split(",") if name]
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}\n")
        return 2
    effort: Effort = TINY if asked.tiny else QUICK if asked.quick else THOROUGH
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        report = asyncio.run(_run(names, effort, asked.folder))
    except BenchProblem as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    report.show()
    if asked.json is not None:
        report.write(asked.json)
    return 1 if report.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="T1,T4", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repetitions")
    parser.add_argument("--tiny", action="store_true", help="only try whether the benchmark works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", default=ROOT / ".cache", help="where databases lie; a local disk"
    )
    return parser


async def _run(names: list[str], effort: Effort, folder: Path) -> Report:
    machine.raise_file_limit()
    cores = machine.share_cores()
    report = Report(machine.describe(cores, sync=machine.measure_sync(folder)))
    async with bench.opened(folder, cores=cores, effort=effort) as running:
        for name in names:
            tell(f"{name}: {SCENARIOS[name].__doc__}")
            await SCENARIOS[name](running, report)
        for series in running.series.values():
            report.add_series(series)
        report.notes.extend(f"{name} was left out: {why}" for name, why in running.absent.items())
    report.measured_sync_again(machine.measure_sync(folder))
    return report


if __name__ == "__main__":
    sys.exit(main())
