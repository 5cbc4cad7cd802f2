"""What a benchmark found: judged rows, figures of all kinds, faults; as tables and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.bench.figures import Series, Spread, digits
from tests.bench.table import Table, show
from tests.bench.targets import COMPARED, OTHER_GOALS, ROWS, Goal, Row

_BUSY = 1.0
"""Load of the machine, before the benchmark begins, that says that others are at work."""
_TEXT = frozenset({"#", "of what", "", "workload", "subject", "what", "met"})


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of what is to be reached."""

    name: str
    key: str
    what: str
    goal: Goal | None
    value: Spread
    turns: int
    old: Mapping[str, Spread]
    """The same of earlier commits."""

    @property
    def met(self) -> str:
        """Say whether it is reached."""
        return "" if self.goal is None else self.goal.judge(self.value.median)

    @property
    def bounds(self) -> tuple[str, str]:
        """Write what is to be reached."""
        return ("", "") if self.goal is None else self.goal.bounds


class Report:
    """Filled while the benchmark runs."""

    def __init__(self, machine: dict[str, Any], commits: Sequence[str] = ()) -> None:
        self.commits = commits
        """Which earlier commits are measured as well."""
        self.notes: list[str] = []
        self.faults = 0
        self.failed: list[str] = []
        """What could not be measured, and why."""
        self.machine = machine
        self.judged: list[Judged] = []
        self.found: list[tuple[str, str, str, Spread]] = []
        """Name, key, what it is and the figure of what has no goal."""
        self.rows: list[dict[str, Any]] = []
        """Everything of each subject under each workload."""

    def judge_loads(self, series: Series, rows: Sequence[Row]) -> None:
        """Take note of these rows, as far as their subjects were run."""
        for row in rows:
            value = row.value(series)
            if value is not None:
                turns = len(series.taken[row.above])
                commits = self.commits if row.name in COMPARED else ()
                old = {commit: said for commit in commits if (said := row.value(series, commit)) is not None}
                self.judged.append(Judged(row.name, row.key, row.what, row.goal, value, turns, old))

    def judge(self, name: str, key: str, values: list[float], old: Mapping[str, list[float]] | None = None) -> None:
        """Take note of a figure that is measured otherwise than by loads, and has a goal."""
        what, goal = OTHER_GOALS[name, key]
        beside = {commit: Spread.of(said) for commit, said in (old or {}).items()}
        self.judged.append(Judged(name, key, what, goal, Spread.of(values), len(values), beside))

    def note_value(self, name: str, key: str, *, what: str, value: Spread | float) -> None:
        """Take note of a figure that has none."""
        self.found.append((name, key, what, value if isinstance(value, Spread) else Spread(value, value, value)))

    def add_series(self, series: Series) -> None:
        """Take over all figures of one workload."""
        self.faults += series.faults
        self.rows += [series.summary(subject) for subject in series.taken]

    @property
    def complete(self) -> bool:
        """Whether every row was measured."""
        every = {(row.name, row.key) for row in ROWS} | OTHER_GOALS.keys()
        return every == {(row.name, row.key) for row in self.judged}

    def measured_again(self, *, sync: float, stalled: float) -> None:
        """Take note of how fast the disk was in the end, and how much of a core's time was lost."""
        self.machine["fdatasync_p50_ms_after"] = round(sync * 1000, 4)
        self.machine["stalled_after"] = round(stalled, 4)

    def show(self) -> None:
        """Print everything."""
        loads = Table(
            "Loads (medians of the turns)",
            (
                "workload", "subject", "CPU/call µs", "calls/s", "p50 ms", "p99 ms", "bytes/call", "pages/call",
                "core", "peers", "RSS MiB", "wrong",
            ),
            _TEXT,
        )  # fmt: skip
        for said in self.rows:
            wrong = said["lost"] + said["doubled"] + said["different"] + abs(said["repeated_requests"])
            names = ("cpu_us_per_call", "calls_per_s", "p50_ms", "p99_ms", "bytes_written_per_call", "writes_per_call")
            loads.add(
                said["workload"]["name"], said["subject"], *(digits(said[name]) for name in names),
                f"{said['busy']:.0%}", f"{said['peers_busy']:.0%}", digits(said["rss_mib"]), wrong,
            )  # fmt: skip
        found = Table("Other figures", ("#", "what", "value"), _TEXT)
        for name, key, what, value in self.found:
            found.add(name, f"{key}: {what}", value)
        goals = Table(
            "Goals: medians (least-most) of the turns",
            ("#", "of what", "must", "stretch", "is", "turns", "met", *self.commits),
            _TEXT,
        )
        for row in self.judged:
            old = [row.old.get(commit, "") for commit in self.commits]
            goals.add(row.name, f"{row.key}: {row.what}", *row.bounds, row.value, row.turns, row.met, *old)
        verdict = (
            f"WRONG: {self.faults} calls were lost, doubled, different or asked for twice; trust no figure above."
            if self.faults
            else "Lost, doubled, different or repeated calls: 0."
        )
        show((loads, found, goals), (describe(self.machine), *self.notes, *self.failed, verdict))

    def document(self) -> dict[str, Any]:
        """Everything as one JSON object: the medians by T and key, and where they come from."""
        values = dict[str, dict[str, Any]]()
        ranges = dict[str, dict[str, list[float]]]()
        taken = [(row.name, row.key, row.value) for row in self.judged]
        taken += [(name, key, value) for name, key, _, value in self.found]
        for name, key, value in taken:
            values.setdefault(name, {})[key] = round(value.median, 4)
            ranges.setdefault(name, {})[key] = [round(value.low, 4), round(value.high, 4)]
        old: dict[str, dict[str, dict[str, float]]] = {commit: {} for commit in self.commits}
        for row in self.judged:
            for commit, value in row.old.items():
                old[commit].setdefault(row.name, {})[row.key] = round(value.median, 4)
        return {
            **values,
            "old": old,
            "machine": self.machine,
            "ranges": ranges,
            "judged": [asdict(row) | {"met": row.met} for row in self.judged],
            "figures": self.rows,
            "notes": self.notes,
            "failed": self.failed,
            "faults": self.faults,
        }

    def write(self, path: Path) -> None:
        """Write the JSON."""
        path.write_text(json.dumps(self.document(), indent=1, ensure_ascii=False) + "\n")


def describe(machine: dict[str, Any]) -> str:
    """Say in a sentence on what machine it was measured."""
    pinned = "subject and peers pinned apart" if machine["pinned"] else "nothing pinned"
    busy = (
        " The machine was busy, which swells the figures and most of all those of time."
        if machine["load_before"] > _BUSY
        else ""
    )
    return (
        f"{machine['cores']} cores, {pinned}; Python {machine['python']}, SQLite {machine['sqlite']};"
        f" fdatasync p50 {machine['fdatasync_p50_ms']:.3f} ms before and"
        f" {machine['fdatasync_p50_ms_after']:.3f} ms after; load before {machine['load_before']:g};"
        f" stalls of an idle core {machine['stalled_before']:.1%} of the time before and"
        f" {machine['stalled_after']:.1%} after.{busy}"
    )
