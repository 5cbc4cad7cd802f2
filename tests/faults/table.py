"""Runs what `make test` leaves out, and writes the table in this folder's README from what the fault tests observed.

A run of all of it also writes anew the tests and seconds of each folder in the list of tests/README.md.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pace import QUIET

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = HERE / "README.md"
LIST = HERE.parent / "README.md"
FIGURES = ROOT / ".cache" / "faults.json"
TIMED = ROOT / ".cache" / "timed.json"
TURNS = 3
"""Turns of a timed test: it fails if it exceeds its bound in each, because a shared machine is slow for seconds."""

_TOP = """\
<!-- Written by `make faults`; the words are in table.py. -->

# Fault tests

Real gateway processes on real databases run between simulated runtimes and an executor. After each fault a
[judge](judge.py) compares the ledger with the records of these peers. Each request, response and result carries its own
number, so a mix-up is detected.

- **fault**: the link leads to the tests of its row and of the rows below without one.
- **gateways on**: SQLite or PostgreSQL, both in turn, or two replicas on PostgreSQL. Where SQLite is *simulated*, the
  [simulation](../simulation/README.md) proves the row there; the link leads to a fault that makes it fail.
- **calls**: 30 or more are a load that runs during the fault.
- **lost**: calls without a record, without an outcome, or with an outcome that never reached the runtime.
- **different outcomes**: calls with a second outcome, or with another one than the executor's.
- **lost on the wire**: n of m calls that the agent sent over a dead link, while the gateway stood still, or up to a
  second before, did not arrive or were not committed: HUMA has no acknowledgement. Agents repeat calls only in rows
  that say so. A missing call counts as lost if its link was up for another second.
- **repeats**: repeated results and requests, identical to the byte.
- **ran twice**: calls that ran again because a client repeated them without a key.
- **not as allowed**: requests of calls that a person must allow, sent without an approval, or with other arguments than
  those in `approval.given`; the binding is computed anew.
"""
_HEAD = (
    (
        "| fault | gateways on | calls | lost | different outcomes | lost on the wire "
        "| repeats | ran twice | not as allowed | longest wait |"
    ),
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)
_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, over all tests that try it."""

    fault: str
    file: str
    stores: tuple[str, ...]
    calls: int
    lost: int
    different: int
    wire: int
    at_risk: int
    repeats: int
    twice: int
    longest: float
    unapproved: int | None = None
    simulated: str = ""
    """The known fault that shows how the simulation proves the row on SQLite."""

    def line(self) -> str:
        """Write the row; the fault leads to the tests."""
        stores = (
            "both" if self.stores == tuple(_NAMES) else "; ".join(_NAMES.get(store, store) for store in self.stores)
        )
        if self.simulated:
            stores += f"; SQLite [simulated](../simulation/faults/{self.simulated}.patch)"
        numbers = (self.calls, self.lost, self.different)
        cells = [
            f"[{self.fault}]({self.file})",
            stores,
            *(f"{number:,}" if self.calls else "" for number in numbers),
            f"{self.wire:,} of {self.at_risk:,}" if self.at_risk else "",
            f"{self.repeats:,}" if self.calls else "",
            f"{self.twice:,}" if self.calls else "",
            "" if self.unapproved is None else f"{self.unapproved:,}",
            f"{self.longest:.1f} s" if self.longest else "",
        ]
        return f"| {' | '.join(cells)} |"


def rows_of(seen: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Add up what tests of one fault have seen."""
    by_fault: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(seen, key=lambda one: one["file"]):
        by_fault.setdefault(one["fault"], []).append(one)

    def total(tests: list[Mapping[str, Any]], name: str) -> int:
        return sum(one[name] for one in tests)

    return [
        Row(
            fault,
            Path(tests[0]["file"]).name,
            tuple(sorted({one["store"] for one in tests}, key=lambda store: (store != "sqlite", store.lower()))),
            *(total(tests, name) for name in ("calls", "lost", "different", "wire", "at_risk", "repeats", "twice")),
            longest=max(one["longest"] for one in tests),
            unapproved=None if tests[0].get("unapproved") is None else total(tests, "unapproved"),
            simulated=tests[0].get("simulated", ""),
        )
        for fault, tests in by_fault.items()
    ]


def fault_of(line: str) -> tuple[str, str] | None:
    """Read the fault of a table's line, and the file that it leads to; None where the line is none of them."""
    found = re.match(r"\| \[(.+?)\]\((\S+?)\) \|", line)
    return None if found is None else (found[1], found[2])


def lines_of(page: str) -> dict[str, str]:
    """The lines of a page's table, by fault; each with the link that the page has only in the first line of a file."""
    lines: dict[str, str] = {}
    file = ""
    for line in page.partition(_HEAD[1])[2].splitlines():
        found = re.match(r"\| (?:\[(.+?)\]\((\S+?)\)|(.+?)) \|", line)
        if found is not None:
            fault, file = found[1] or found[3], found[2] or file
            lines[fault] = f"| [{fault}]({file}) |{line[found.end() :]}"
    return lines


def page_of(lines: Mapping[str, str]) -> str:
    """Write the page, in the order of the faults' files."""

    def place(line: str) -> tuple[int, str]:
        found = fault_of(line)
        assert found is not None
        order = (
            "points", "held", "callers", "promises", "mortal", "messages", "under_load", "asking_again", "pauses",
            "replicas", "notifications", "followers", "postgres", "checkpoint", "disk", "taken", "host",
        )  # fmt: skip
        rank = next((number for number, part in enumerate(order) if part in found[1]), len(order))
        return rank, found[1]

    shown: list[str] = []
    last = ""
    for line in sorted(lines.values(), key=place):
        fault, file = fault_of(line) or ("", "")
        shown.append(line.replace(f"[{fault}]({file})", fault, 1) if file == last else line)
        last = file
    return "\n".join([_TOP, *_HEAD, *shown, ""])


def list_of(page: str, files: Iterable[tuple[str, tuple[int, float]]]) -> str:
    """Write a page's list of what is moved with the tests and seconds that were counted; other rows stay."""
    found: dict[str, tuple[int, float]] = {}
    for file, (tests, seconds) in files:
        name = file.split("/")[1] + "/"
        so_far = found.get(name, (0, 0.0))
        found[name] = so_far[0] + tests, so_far[1] + seconds

    def row(old: re.Match[str]) -> str:
        tests, seconds = found.get(old[1], (0, 0.0))
        return f"| `{old[1]}` | {tests} | {max(1, round(seconds))} |" if tests else old[0]

    return re.sub(r"(?m)^\| `(\S+)` \| \d+ \| \d+ \|$", row, page)


def main() -> int:
    """Run the tests, and write down also what is wrong; returns 1 where a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help=f"use the figures in {FIGURES.relative_to(ROOT)}")
    parser.add_argument("--all", action="store_true", help="run the fast tests as well")
    parser.add_argument("tests", nargs="*", help="only these tests; other rows stay as they are")
    given = parser.parse_args()
    code = 0 if given.keep else _run(given.tests, marks="" if given.all else "(faults or slow) and ")
    figures = json.loads(FIGURES.read_text())
    rows = {row.fault: row.line() for row in rows_of(figures["faults"])}
    before = lines_of(PAGE.read_text()) if given.tests and PAGE.exists() else {}
    PAGE.write_text(page_of(before | rows))
    if not given.tests:
        timed = json.loads(TIMED.read_text())
        LIST.write_text(list_of(LIST.read_text(), [*timed["files"].items(), *figures["files"].items()]))
    return code


def _run(tests: list[str], *, marks: str) -> int:
    def pytest(*options: str, files: Iterable[str] = ("tests",), **more: str) -> int:
        command = [sys.executable, "-m", "pytest", "-q", *(tests or files), "-p", "tests.faults.plugin", *options]
        code = subprocess.run(command, cwd=ROOT, check=False, env=os.environ | more).returncode
        # 5: no test fits the marks, which is fine where only some were asked for.
        return 0 if code == 5 and tests else code

    parallel = ["-n", "6", "--dist", "worksteal", "--durations", "5"]
    code = pytest("-m", f"{marks}not timing", *parallel, "--faults", str(FIGURES))
    # Timed tests run alone. Collecting only their files saves eight seconds.
    timed = sorted(str(file) for file in (ROOT / "tests").rglob("test_*.py") if "mark.timing" in file.read_text())
    measured = pytest("-m", "timing", "--faults", str(TIMED), files=timed, **{QUIET: "1"})
    for _ in range(TURNS - 1):
        if measured == 1:
            measured = pytest("-m", "timing", "--last-failed", files=timed, **{QUIET: "1"})
    return measured or code


if __name__ == "__main__":
    sys.exit(main())
