"""Writes the tables of this folder's README between two marks; the text around them is written by hand."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tests.bench.figures import digits
from tests.bench.report import Report, describe
from tests.bench.targets import place

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- Written by `make bench`, from here -->", "<!-- to here -->"
GOALS = ("#", "measure", "must", "stretch", "result (min to max)", "turns", "met")
LOADS = ("workload", "subject", "CPU per call, µs", "calls/s", "p50, ms", "p99, ms", "bytes written", "pages written")
_TEXT = {"#", "measure", "met", "workload", "subject"}

Cells = tuple[str, ...]


def write(report: Report) -> None:
    """Replace the tables of the page by those of a complete run."""
    PAGE.write_text(page_of(PAGE.read_text(), report))


def page_of(page: str, report: Report) -> str:
    """Return the page with the rows of a report."""
    before, begun, rest = page.partition(BEGIN)
    _, closed, after = rest.partition(END)
    assert begun, f"the page has no {BEGIN}"
    assert closed, f"the page has no {END}"
    judged = sorted(report.judged, key=lambda row: place(row.name))
    goals = [(row.name, row.what, *row.bounds, str(row.value), str(row.turns), row.met) for row in judged]
    parts = [_wrap(f"Measured: {describe(report.machine)}"), verdict(goals), _table(GOALS, goals)]
    if report.commits:
        old = [
            (row.name, row.what, *(str(row.old.get(commit, "")) for commit in report.commits), str(row.value))
            for row in judged
            if row.old
        ]
        parts += ["Beside earlier commits, in the same turns:", _table(("#", "measure", *report.commits, "now"), old)]
    loads = [_load(said) for said in report.rows]
    parts += ["Each subject under each workload, medians of the turns:", _table(LOADS, loads)]
    return "".join((before, BEGIN, "\n\n", "\n\n".join(parts), "\n\n", END, after))


def verdict(goals: Sequence[Cells]) -> str:
    """Count the targets that are met, and name the measures with missed ones."""
    met = sum(row[-1] in {"yes", "stretch"} for row in goals)
    missed = [row[0] for row in goals if row[-1] == "no"]
    others = f"; the others are in {', '.join(dict.fromkeys(missed))}" if missed else ""
    return _wrap(f"{met} of {met + len(missed)} targets are met{others}.")


def _wrap(words: str) -> str:
    return fill(words, 120, break_long_words=False, break_on_hyphens=False)


def rows_of(page: str, head: Cells) -> list[Cells]:
    """Read the rows of the table with this head."""
    rows: list[Cells] = []
    within = False
    for line in page.splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split(" | ")) if line.startswith("|") else ()
        within = cells == head or (within and bool(cells))
        if within and cells != head and not line.startswith("|-"):
            rows.append(cells)
    return rows


def _load(said: dict[str, Any]) -> Cells:
    names = ("cpu_us_per_call", "calls_per_s", "p50_ms", "p99_ms")
    disk = ("bytes_written_per_call", "writes_per_call") if said["writes_per_call"] > _NOTHING else ()
    figures = [digits(said[name]) for name in (*names, *disk)]
    return (said["workload"]["name"], said["subject"], *figures, *[""] * (6 - len(figures)))


_NOTHING = 0.05
"""Writes per call of who keeps nothing: what the interpreter itself writes now and then."""


def _table(head: Cells, rows: Sequence[Cells]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join('---' if name in _TEXT else '--:' for name in head)}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
