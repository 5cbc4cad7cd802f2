"""`dragoman tools`: what a backend made with `gateway.kit` declares, as the YAML wants it."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml

from gateway.cli.faults import Misused, Refusal
from gateway.errors import Problem
from gateway.settings.lint_models import refusals
from gateway.settings.place import Finding, report


def declared_by(place: str) -> str:
    """Import `module:attribute` from here, and write the section `tools` of what it declares.

    Raises:
        Misused: the place is no such pair. Refusal: there is nothing that declares tools, or it cannot be imported.
    """
    module_name, colon, attribute = place.partition(":")
    if not (colon and attribute and module_name.replace(".", "").isidentifier() and attribute.isidentifier()):
        raise Misused("write MODULE:NAME, as for uvicorn: backend:tools")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:
        raise Refusal(
            f"{module_name} cannot be imported: {type(exc).__name__}: {exc}",
            "call it from the folder that your server starts in, with the environment that it has there",
        ) from exc
    found = getattr(module, attribute, None)
    declarations = getattr(found, "declarations", None)
    if not callable(declarations):
        raise Refusal(
            f"{module_name} has no Tools of gateway.kit called {attribute}", "name what `Tools(…)` is kept as"
        )
    section = {"tools": cast("dict[str, Any]", declarations())}
    return yaml.safe_dump(section, sort_keys=False, allow_unicode=True, width=110)


def model_warnings(section: str) -> list[Problem]:
    """List what model APIs refuse in a written section `tools`; it is in no file yet, so no problem has a line."""
    found = [
        Finding(("tools", name, *refusal.place), refusal.describe(), "warning")
        for name, tool in yaml.safe_load(section)["tools"].items()
        for refusal in refusals(name, tool["parameters"])
    ]
    return [replace(one, message=f"{one.path}: {one.message}", line=None) for one in report(found, {})]
