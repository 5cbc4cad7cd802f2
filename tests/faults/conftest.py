"""Collects what the fault tests have observed; `--faults FILE` writes it down for the table in the README."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.faults.observed import begin

_PROPERTY = "fault"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=Path, metavar="FILE", help="write what the fault tests observed to FILE")


def pytest_configure(config: pytest.Config) -> None:
    file = cast("Path | None", config.getoption("--faults", default=None))
    # Workers send their reports to the one process that writes.
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(file))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    """The kind of store that a gateway is tried on."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _observe(request: pytest.FixtureRequest) -> Iterator[None]:
    figures = begin()
    yield
    node = cast("pytest.Item", request.node)
    mark = node.get_closest_marker("fault")
    if mark is None:
        return
    callspec: Any = getattr(node, "callspec", None)
    store = str(callspec.params.get("store", "sqlite")) if callspec else "sqlite"
    file, _, name = node.nodeid.partition("::")
    seen = {
        "fault": mark.args[0],
        "store": mark.kwargs.get("on", store),
        "file": file,
        "test": name.partition("[")[0],
        **figures.as_json(),
    }
    node.user_properties.append((_PROPERTY, json.dumps(seen)))


class _Writer:
    """Writes the figures of all tests that passed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: list[dict[str, Any]] = []
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            self._seen += [json.loads(str(value)) for name, value in report.user_properties if name == _PROPERTY]

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._seen, indent=1))
