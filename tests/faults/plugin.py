"""Writes down what the fault tests have observed, and how long what `make test` leaves out has taken.

Loaded with `-p tests.faults.plugin --faults FILE`.
"""

import json
from pathlib import Path
from typing import Any, cast

import pytest

PROPERTY = "fault"
"""The name under which a test's report carries what it has observed."""
MOVED = frozenset({"faults", "slow"})
"""Marks of what `make test` leaves out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=Path, metavar="FILE", help="write what the fault tests observed to FILE")


def pytest_configure(config: pytest.Config) -> None:
    file = cast("Path | None", config.getoption("--faults"))
    # Workers send their reports to the one process that writes.
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(file))


class _Writer:
    """Writes the figures of all tests, whether they passed, and how many of each file took how many seconds."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: list[dict[str, Any]] = []
        self._failed: set[str] = set()
        self._files: dict[str, tuple[int, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if MOVED & report.keywords.keys():
            file = report.nodeid.partition("::")[0]
            tests, seconds = self._files.get(file, (0, 0.0))
            ran = report.when == "call" and not report.skipped
            self._files[file] = tests + ran, seconds + report.duration
        if report.when == "teardown":
            answered = report.nodeid not in self._failed
            seen = (json.loads(str(value)) for name, value in report.user_properties if name == PROPERTY)
            self._seen += [{**one, "passed": answered} for one in seen]

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"faults": self._seen, "files": self._files}, indent=1))
