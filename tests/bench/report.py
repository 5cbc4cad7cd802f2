"""What a benchmark found: judged ratios, figures of all kinds, faults; as tables and as JSON."""

import json
from pathlib import Path
from typing import Any

from tests.bench.figures import Series, Spread, digits
from tests.bench.table import Table, show
from tests.bench.targets import Goal

_TEXT = frozenset({"#", "of what", "goal (stretch)", "", "workload", "subject", "what"})


class Report:
    """Filled while the benchmark runs."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self.notes: list[str] = []
        self.faults = 0
        self._machine = machine
        self._values: dict[str, dict[str, Any]] = {}
        self._ranges: dict[str, dict[str, list[float]]] = {}
        self._rows: list[dict[str, Any]] = []
        self._judged = Table("Goals", ("#", "of what", "value (low-high)", "goal (stretch)", ""), _TEXT)
        self._found = Table("Other figures", ("#", "what", "value"), _TEXT)
        self._loads = Table(
            "Loads (medians of repetitions)",
            ("workload", "subject", "calls/s", "p50 ms", "p99 ms", "CPU/call µs", "core", "peers", "RSS MiB", "wrong"),
            _TEXT,
        )

    def judge(self, name: str, key: str, *, what: str, value: Spread | float, goal: Goal) -> None:
        """Take note of a figure that has a goal."""
        median = value.median if isinstance(value, Spread) else value
        self._keep(name, key, value)
        shown = str(value) if isinstance(value, Spread) else digits(value)
        self._judged.add(name, f"{key}: {what}", shown, goal, goal.judge(median))

    def note_value(self, name: str, key: str, *, what: str, value: Spread | float) -> None:
        """Take note of a figure that has none."""
        self._keep(name, key, value)
        self._found.add(name, f"{key}: {what}", value if isinstance(value, Spread) else digits(value))

    def _keep(self, name: str, key: str, value: Spread | float) -> None:
        median = value.median if isinstance(value, Spread) else value
        self._values.setdefault(name, {})[key] = round(median, 4)
        if isinstance(value, Spread):
            self._ranges.setdefault(name, {})[key] = [round(value.low, 4), round(value.high, 4)]

    def add_series(self, series: Series) -> None:
        """Take over all figures of one workload."""
        self.faults += series.faults
        for subject in series.taken:
            said = series.summary(subject)
            self._rows.append(said)
            wrong = said["lost"] + said["doubled"] + said["different"] + abs(said["repeated_requests"])
            self._loads.add(
                series.workload.name,
                subject,
                digits(said["calls_per_s"]),
                digits(said["p50_ms"]),
                digits(said["p99_ms"]),
                digits(said["cpu_us_per_call"]),
                f"{said['busy']:.0%}",
                f"{said['peers_busy']:.0%}",
                digits(said["rss_mib"]),
                wrong,
            )

    def measured_sync_again(self, sync: float) -> None:
        """Take note of how fast the disk was in the end."""
        self._machine["fdatasync_p50_ms_after"] = round(sync * 1000, 4)

    def show(self) -> None:
        """Print everything."""
        machine = self._machine
        pinned = "subject and peers pinned apart" if machine["pinned"] else "nothing pinned"
        summary = (
            f"{machine['cores']} cores, {pinned}; Python {machine['python']}, SQLite {machine['sqlite']};"
            f" fdatasync p50 {machine['fdatasync_p50_ms']:.3f} ms before and"
            f" {machine['fdatasync_p50_ms_after']:.3f} ms after; load before {machine['load_before']:g}."
        )
        verdict = (
            f"WRONG: {self.faults} calls were lost, doubled, different or asked for twice; trust no figure above."
            if self.faults
            else "Lost, doubled, different or repeated calls: 0."
        )
        show((self._loads, self._found, self._judged), (summary, *self.notes, verdict))

    def write(self, path: Path) -> None:
        """Write the JSON."""
        document = {
            **self._values,
            "machine": self._machine,
            "ranges": self._ranges,
            "figures": self._rows,
            "notes": self.notes,
            "faults": self.faults,
        }
        path.write_text(json.dumps(document, indent=1) + "\n")
