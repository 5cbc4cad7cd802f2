"""Durations in YAML: `20s`, `500ms`, `2m`, `7d`, or a number of seconds. Pure."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 100 * 365 * 86400.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def _read_duration(given: object) -> object:
    if isinstance(given, bool):
        raise ValueError("write a duration such as 20s, 500ms, 2m or 7d")
    if isinstance(given, int | float):
        return _span(given)
    if isinstance(given, str):
        parts = _DURATION.findall(given)
        if not parts or "".join(a + b for a, b in parts) != given.replace(" ", ""):
            raise ValueError(f"{given!r} is not a duration; write 20s, 500ms, 2m or 7d")
        return _span(sum(float(number) * _UNITS[unit] for number, unit in parts))
    return given


def _span(seconds: float) -> timedelta:
    # Python would raise an OverflowError, which a validator must not raise; NaN compares false.
    if not abs(seconds) <= _LONGEST:
        raise ValueError("longer than 100 years; write a duration such as 20s, 500ms, 2m or 7d")
    return timedelta(seconds=seconds)


Duration = Annotated[
    timedelta,
    BeforeValidator(_read_duration),
    Field(ge=timedelta(0)),
    PlainSerializer(lambda value: f"{value.total_seconds():g}s", return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d) ?)+$",
                    "examples": ["20s", "500ms"],
                },
                {"type": "number", "minimum": 0},
            ]
        }
    ),
]
