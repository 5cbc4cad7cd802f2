"""Loads a configuration file into settings, or says everything that is wrong with it.

Read, expand, validate runtimes by their adapters and the rest by the model, then lint. Each finding
has a line, a path and what would be right.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from dragoman.postgres_dsn import files_of, needs_root_certificate
from gateway.adapter.port import Adapter, RuntimeOptions
from gateway.errors import InvalidConfiguration, OperatorError, Problem
from gateway.settings.expand import expand
from gateway.settings.explain import SettingFault, explain, faults
from gateway.settings.functions import find_function
from gateway.settings.lint import lint
from gateway.settings.model import PostgresStore, PythonSpec, Settings
from gateway.settings.place import Finding, Place, overlap, report, suggest
from gateway.settings.schema import build_schema
from gateway.settings.secret_values import secrets_from_outside, secrets_in
from gateway.settings.source import read_source

_ROOT_CERTIFICATE = Path("~/.postgresql/root.crt")
_NAMED = frozenset({"runtimes", "executors", "destinations"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that can be used, and what is doubtful about it."""

    settings: Settings
    problems: tuple[Problem, ...]
    """Warnings only; errors raise."""
    source: Path
    secrets: tuple[str, ...] = field(repr=False)
    """What is shown nowhere."""


@dataclass(frozen=True, slots=True)
class _Validated:
    settings: Settings | None
    findings: tuple[Finding, ...]
    faults: list[SettingFault]


def load(path: Path, *, adapters: Mapping[str, Adapter], env: Mapping[str, str]) -> Loaded:
    """Load a file; `env` is where `${VAR}` looks.

    Raises:
        InvalidConfiguration: with every error that was found, not only the first.
    """
    source = read_source(path)
    expanded = expand(_without_extensions(source.values), env=env, folder=path.parent)
    early = [*source.findings, *expanded.findings]
    checked = _validate(expanded.values, adapters)
    known = [*early, *checked.findings]
    # One cause, one message: what could not be read or filled in is not also reported as a wrong value.
    fresh = [fault for fault in checked.faults if not any(overlap(fault.place, other.place) for other in known)]
    findings = known
    if fresh:
        findings = findings + explain(
            fresh,
            written=source.values,
            outside=expanded.outside,
            empty=expanded.empty,
            unexpanded=lambda: _validate(_without_extensions(source.values), adapters).faults,
            schema=build_schema(adapters),
        )
    settings = checked.settings or _salvage(expanded.values, adapters, [finding.place for finding in findings])
    if settings is not None:
        wrong = [finding.place for finding in findings]
        findings = findings + [
            finding
            for finding in (*lint(settings), *_libraries(settings), *_certificates(settings), *_functions(settings))
            if not any(overlap(finding.place, place) for place in wrong)
        ]
    hidden = [Finding(finding.place, expanded.hide(finding.message), finding.severity) for finding in findings]
    problems = report(hidden, source.lines)
    if settings is None or any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(str(path), problems)
    secrets = (*secrets_in(settings), *secrets_from_outside(expanded.filled))
    return Loaded(settings, problems, path, tuple(dict.fromkeys(secrets)))


def _without_extensions(values: Any) -> Any:
    """Leave out top-level keys that begin with `x-`: they are the user's own, mostly to hold anchors."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in cast("dict[str, Any]", values).items() if not key.startswith("x-")}


def _validate(values: Any, adapters: Mapping[str, Adapter]) -> _Validated:
    if not isinstance(values, dict):
        wrong = "the file must be a mapping: lines of `key: value`, beginning with e.g. `runtimes:`"
        return _Validated(None, (Finding((), wrong),), [])
    given = cast("dict[str, Any]", values)
    findings: list[Finding] = []
    found: list[SettingFault] = []
    runtimes: dict[str, RuntimeOptions] = {}
    sections = dict(given)
    if isinstance(given.get("runtimes"), dict):
        for name, options in cast("dict[str, Any]", given["runtimes"]).items():
            place = ("runtimes", name)
            adapter = _choose(options, place, adapters)
            if isinstance(adapter, Finding):
                findings.append(adapter)
                continue
            try:
                runtimes[name] = adapter.options.model_validate(options)
            except ValidationError as exc:
                found += faults(exc, values, under=place)
        sections["runtimes"] = runtimes
    try:
        settings = Settings.model_validate(sections)
    except ValidationError as exc:
        return _Validated(None, tuple(findings), found + faults(exc, values))
    return _Validated(None if found or findings else settings, tuple(findings), found)


def _choose(options: Any, place: Place, adapters: Mapping[str, Adapter]) -> Adapter | Finding:
    if not isinstance(options, dict):
        return Finding(place, "a runtime must be a mapping with at least `adapter:` and `url:`")
    given = cast("dict[str, Any]", options)
    name = given.get("adapter")
    if not adapters:
        return Finding(place, "no adapter is installed; `dragoman doctor` says how to mend that")
    if name is None:
        meant = next((key for key in given if suggest(key, ["adapter"]).startswith("did you mean")), None)
        if meant is not None:
            return Finding((*place, meant), f"unknown key; {suggest(meant, ['adapter'])}")
        return Finding(place, f"'adapter' is missing; write one of: {', '.join(sorted(adapters))}")
    if not isinstance(name, str) or name not in adapters:
        words = suggest(str(name), adapters)
        known = "" if words.startswith("known") else f"; known: {', '.join(sorted(adapters))}"
        return Finding((*place, "adapter"), f"no adapter is called {str(name)[:60]!r}; {words}{known}")
    return adapters[name]


def _libraries(settings: Settings) -> Iterator[Finding]:
    """Look for what only one type of engine needs, or callers over MCP."""
    if isinstance(settings.engine, PostgresStore) and find_spec("asyncpg") is None:
        yield Finding(("engine", "type"), "its library is not installed: pip install 'dragoman[postgres]'")
    if "mcp" in settings.model_fields_set and find_spec("mcp") is None:
        mend = "no MCP client can be served: its library is not installed: pip install 'dragoman[mcp]'"
        yield Finding(("mcp",), mend, "warning")
    for name, options in settings.runtimes.items():
        if options.mcp_clients is not None and find_spec("mcp") is None:
            yield Finding(("runtimes", name), "its library is not installed: pip install 'dragoman[mcp]'")
        if options.takes_mcp and settings.tools and find_spec("mcp") is None:
            mend = "its sessions get no tools: the library is not installed: pip install 'dragoman[mcp]'"
            yield Finding(("runtimes", name), mend, "warning")


def _certificates(settings: Settings) -> Iterator[Finding]:
    """Look for the files that a connection to PostgreSQL needs."""
    if not isinstance(settings.engine, PostgresStore):
        return
    for name, secret in (("dsn", settings.engine.dsn), ("direct_dsn", settings.engine.direct_dsn)):
        dsn = "" if secret is None else secret.get_secret_value()
        for parameter, path in files_of(dsn):
            if not Path(path).is_file():
                yield Finding(("engine", name), f"the file of {parameter} does not exist; check the path")
        if needs_root_certificate(dsn) and not (os.getenv("PGSSLROOTCERT") or _ROOT_CERTIFICATE.expanduser().is_file()):
            mend = "add sslrootcert=system (the certificates of this system) or sslrootcert=FILE"
            yield Finding(("engine", name), f"sslmode verifies the server's certificate, but against none; {mend}")


def _functions(settings: Settings) -> Iterator[Finding]:
    """Import what python executors call; not part of `lint`, because that runs their modules."""
    for name, spec in settings.executors.items():
        if isinstance(spec, PythonSpec):
            try:
                find_function(spec.call)
            except OperatorError as exc:
                yield Finding(("executors", name, "call"), str(exc))


def _salvage(values: Any, adapters: Mapping[str, Adapter], wrong: list[Place]) -> Settings | None:
    """Leave out the settings that are wrong, so that the rest can be linted too.

    Gives up where that would leave out a whole named thing, which others may rightly refer to.
    """
    if any(len(place) == 2 and place[0] in _NAMED for place in wrong):
        return None
    for place in sorted(wrong, key=len, reverse=True):
        values = _leave_out(values, place)
    return _validate(values, adapters).settings if isinstance(values, dict) else None


def _leave_out(values: Any, place: Place) -> Any:
    match values:
        case dict() if place:
            given = cast("dict[str, Any]", values)
            key = str(place[0])
            if len(place) == 1:
                return {name: value for name, value in given.items() if name != key}
            return given | {key: _leave_out(given[key], place[1:])} if key in given else given
        case list() if len(place) > 1:
            items = cast("list[Any]", values)
            return [_leave_out(item, place[1:]) if index == place[0] else item for index, item in enumerate(items)]
        case _:
            return None
