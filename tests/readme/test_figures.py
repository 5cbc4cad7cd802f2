"""The defaults that pages name are those of the configuration."""

import re
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.adapter.port import RuntimeOptions
from gateway.settings.model import Api, Backoff, DestinationSpec, InstanceSpec, Limits, Retention, WebhookSpec
from tests.readme.pages import text_of

SECTIONS: dict[str, type[BaseModel]] = {
    "api": Api,
    "executors.*": WebhookSpec,
    "destinations.*": DestinationSpec,
    "instance": InstanceSpec,
    "limits": Limits,
    "retention": Retention,
    "backoff": Backoff,
}
BARE: tuple[type[BaseModel], ...] = (WebhookSpec, RuntimeOptions)
"""Whose options are named without their section, where a page is about them."""

_UNITS: dict[str, int] = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "s": 1, "min": 60, "h": 3600}
_FIGURE = re.compile(
    r"`([a-z_.*]+)`(?: \(|, | of | )(\d[\d,.]*\d|\d)(?: (KiB|MiB|GiB|s|min|h)\b)?(?=[\s);,.|]|$)", re.MULTILINE
)


def _default(name: str) -> Any:
    section, _, option = name.rpartition(".")
    models = (SECTIONS[section],) if section in SECTIONS else BARE if not section else ()
    for model in models:
        if option in model.model_fields:
            return model.model_fields[option].get_default(call_default_factory=True)
    return None


def _figures(page: str) -> list[tuple[str, float, Any]]:
    found: list[tuple[str, float, Any]] = []
    for name, number, unit in _FIGURE.findall(text_of(page)):
        default = _default(name)
        if isinstance(default, timedelta):
            default = default.total_seconds()
        if isinstance(default, int | float):
            found.append((name, float(number.replace(",", "")) * _UNITS[unit], default))
    return found


@pytest.mark.parametrize(("page", "least"), [("config/README.md", 18), ("gateway/executors/README.md", 10)])
def test_a_default_that_a_page_names_is_the_default(page: str, least: int) -> None:
    figures = _figures(page)
    assert len(figures) >= least, figures
    assert [(name, said, default) for name, said, default in figures if said != default] == []
