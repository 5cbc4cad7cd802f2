"""Draws a benchmark: throughput and processor time over calls in flight and over sessions, latency by its share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import QUANTILES
from tests.bench.plot import Axis, Panel, draw
from tests.bench.report import Report
from tests.bench.targets import C1, C64, MANY, ONE, SOME

_FLIGHT = (C1, C64)
_SESSIONS = {ONE: "1", SOME: "16", MANY: "256"}
_SHOWN = (ONE, "old", "httpx", "best")
_MEASURES: Sequence[tuple[str, str]] = (
    ("calls per second", "calls_per_s"),
    ("CPU per call, microseconds", "cpu_us_per_call"),
)


def draw_all(report: Report, folder: Path) -> list[Path]:
    """Draw what there are figures for, into `bench-*.png`."""
    found = {(said["workload"]["name"], said["subject"]): said for said in report.rows}
    drawn: list[Path] = []
    for name, paint in (("flight", _over_flight), ("sessions", _over_sessions), ("latency", _latency)):
        path = folder / f"bench-{name}.png"
        if paint(found, path):
            drawn.append(path)
    return drawn


Found = dict[tuple[str, str], dict[str, Any]]


def _over_flight(found: Found, path: Path) -> bool:
    flights = [load for load in _FLIGHT if (load.name, ONE) in found]
    names = [name for name in _SHOWN if all((load.name, name) in found for load in flights)]
    if len(flights) < 2:
        return False
    panels = [
        Panel(title, {name: [found[load.name, name][key] for load in flights] for name in names})
        for title, key in _MEASURES
    ]
    axis = Axis.steps([str(load.window) for load in flights])
    draw(path, panels, axis, title="One session; to the right: calls in flight")
    return True


def _over_sessions(found: Found, path: Path) -> bool:
    if any((C64.name, name) not in found for name in _SESSIONS):
        return False
    floors = [name for name in ("httpx", "best") if (C64.name, name) in found]
    panels: list[Panel] = []
    for title, key in _MEASURES:
        lines = {"gateway": [found[C64.name, name][key] for name in _SESSIONS]}
        lines |= {f"{name} over one": [found[C64.name, name][key]] * len(_SESSIONS) for name in floors}
        panels.append(Panel(title, lines))
    axis = Axis.steps(list(_SESSIONS.values()))
    draw(path, panels, axis, title="64 calls in flight; to the right: sessions that they are spread over")
    return True


def _latency(found: Found, path: Path) -> bool:
    kept = [place for place, at in enumerate(QUANTILES) if at <= _MOST]
    panels: list[Panel] = []
    for load in (C1, C64):
        lines = {
            name: [list(found[load.name, name]["latency_ms"].values())[place] for place in kept]
            for name in (*_SHOWN, MANY)
            if (load.name, name) in found
        }
        if lines:
            panels.append(Panel(f"{load.name}, ms", lines))
    if not panels:
        return False
    axis = Axis([QUANTILES[place] for place in kept], [(at, f"{at / 10:g} %") for at in range(0, _MOST, 100)])
    draw(path, panels, axis, title="Latency in ms; to the right: how many of all calls took at most as long")
    return True


_MOST = 990
