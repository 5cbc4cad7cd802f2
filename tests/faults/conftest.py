"""Collects what the fault tests observe, for the table in this folder's README."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.faults.observed import begin
from tests.faults.plugin import PROPERTY


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
        "simulated": mark.kwargs.get("simulated", ""),
        "file": file,
        "test": name.partition("[")[0],
        **figures.as_json(),
    }
    node.user_properties.append((PROPERTY, json.dumps(seen)))
