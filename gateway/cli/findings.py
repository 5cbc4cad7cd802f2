"""Writes the findings about a configuration for programs: as JSON, or as annotations of a GitHub workflow. Pure."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from gateway.errors import Problem


class Format(StrEnum):
    """How findings are written."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def as_report(file: Path, problems: Sequence[Problem], *, ok: bool) -> dict[str, Any]:
    """Say everything as one JSON object."""
    found = [
        {"line": one.line or 1, "path": one.path, "severity": one.severity, "message": one.message} for one in problems
    ]
    return {"file": str(file), "ok": ok, "problems": found}


def as_annotations(file: Path, problems: Sequence[Problem]) -> Iterator[str]:
    """Say each problem as a workflow command, which GitHub shows at its line."""
    for one in problems:
        place = f"file={_property(str(file))},line={one.line or 1},title={_property(one.path or '(top)')}"
        yield f"::{one.severity} {place}::{_text(one.message)}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
