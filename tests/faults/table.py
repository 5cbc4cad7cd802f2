"""Runs the fault tests and writes the table of the README from what they observed; run it with `python -m`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIGURES = ROOT / ".cache" / "faults.json"
BEGIN, END = "<!-- faults: written by `make faults` -->", "<!-- end of faults -->"

_HEAD = (
    "| what was done | to gateways on | calls | lost | different outcomes | repeats | longest wait |",
    "|---|---|--:|--:|--:|--:|--:|",
)
_NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, over all tests that try it."""

    fault: str
    files: tuple[str, ...]
    stores: tuple[str, ...]
    calls: int
    lost: int
    different: int
    repeats: int
    longest: float

    def line(self) -> str:
        """Write the row; the fault leads to the tests."""
        stores = "; ".join(_NAMES.get(store, store) for store in self.stores)
        longest = f"{self.longest:.1f} s" if self.longest else ""
        figures = (f"{number:,}" if self.calls else "" for number in (self.calls, self.lost, self.different))
        repeats = f"{self.repeats:,}" if self.calls else ""
        return f"| [{self.fault}]({self.files[0]}) | {stores} | {' | '.join(figures)} | {repeats} | {longest} |"


def rows_of(seen: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Add up what tests of one fault have seen, in the order of their files."""
    by_fault: dict[str, list[Mapping[str, Any]]] = {}
    for one in sorted(seen, key=lambda one: (_rank(one["file"]), one["file"])):
        by_fault.setdefault(one["fault"], []).append(one)
    return [
        Row(
            fault,
            tuple(dict.fromkeys(one["file"] for one in tests)),
            tuple(sorted({one["store"] for one in tests}, key=lambda store: (store != "sqlite", store.lower()))),
            sum(one["calls"] for one in tests),
            sum(one["lost"] for one in tests),
            sum(one["different"] for one in tests),
            sum(one["repeats"] for one in tests),
            max(one["longest"] for one in tests),
        )
        for fault, tests in by_fault.items()
    ]


def _rank(file: str) -> int:
    order = (
        "points", "promises", "messages", "under_load", "pauses", "replicas", "bells", "followers", "postgres",
        "checkpoint", "disk",
    )  # fmt: skip
    return next((place for place, part in enumerate(order) if part in file), len(order))


def table_of(seen: Iterable[Mapping[str, Any]]) -> str:
    """Write the table between its marks."""
    return "\n".join([BEGIN, "", *_HEAD, *(row.line() for row in rows_of(seen)), "", END])


def insert(readme: str, table: str) -> str:
    """Put the table where the marks are.

    Raises:
        ValueError: they are not there.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no {BEGIN} ... {END}")
    return before + table + after


def main() -> int:
    """Run the tests, unless their figures are to be used as they are, and write the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help=f"use the figures in {FIGURES.relative_to(ROOT)}")
    if not parser.parse_args().keep:
        # The table is not yet what its own test wants.
        rest = ["--ignore", "tests/faults/test_table.py", "--faults", str(FIGURES)]
        command = [sys.executable, "-m", "pytest", "tests/faults", "-q", "-n", "2", *rest]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return code
    README.write_text(insert(README.read_text(), table_of(json.loads(FIGURES.read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
