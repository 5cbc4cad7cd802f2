"""Loads a configuration file into settings, or lists all its errors.

The steps are: read, expand, validate (runtimes with their adapters, the rest with the model), lint. Each finding has a
line, a path and a fix.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from pydantic import ValidationError

from dragoman.postgres_dsn import files_of, needs_root_certificate
from gateway.adapter.port import Adapter, RuntimeOptions
from gateway.errors import InvalidConfiguration, OperatorError, Problem, install_line
from gateway.settings.expand import expand
from gateway.settings.explain import SettingFault, explain, faults
from gateway.settings.functions import find_function
from gateway.settings.lint import lint, lint_url
from gateway.settings.model import PostgresStore, PythonSpec, Settings
from gateway.settings.place import Finding, Place, overlap, report, suggest
from gateway.settings.schema import build_schema
from gateway.settings.secret_values import secrets_from_outside, secrets_in
from gateway.settings.source import read_source

COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that name a collector and enable the export of traces."""
_ROOT_CERTIFICATE = Path("~/.postgresql/root.crt")
_NONE: Mapping[str, str] = MappingProxyType({})
_NAMED = frozenset({"runtimes", "executors", "destinations"})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A usable configuration, its warnings and notes."""

    settings: Settings
    problems: tuple[Problem, ...]
    """Warnings and notes; errors raise."""
    source: Path
    secrets: tuple[str, ...] = field(repr=False)
    """Texts to mask in all output."""


@dataclass(frozen=True, slots=True)
class _Validated:
    settings: Settings | None
    findings: tuple[Finding, ...]
    faults: list[SettingFault]


def load(
    path: Path, *, adapters: Mapping[str, Adapter], env: Mapping[str, str], broken: Mapping[str, str] = _NONE
) -> Loaded:
    """Load a file; `env` provides the values of `${VAR}`, `broken` the faults of the adapters that cannot be used.

    Raises:
        InvalidConfiguration: contains all errors, not only the first.
    """
    source = read_source(path)
    expanded = expand(_without_extensions(source.values), env=env, folder=path.parent)
    early = [*source.findings, *expanded.findings]
    checked = _validate(expanded.values, adapters, broken)
    known = [*early, *checked.findings]
    # One message per cause: a value that could not be read or expanded is not reported as invalid too.
    fresh = [fault for fault in checked.faults if not any(overlap(fault.place, other.place) for other in known)]
    findings = known
    if fresh:
        findings = findings + explain(
            fresh,
            written=source.values,
            outside=expanded.outside,
            empty=expanded.empty,
            unexpanded=lambda: _validate(_without_extensions(source.values), adapters, broken).faults,
            # Building it takes longer than loading a file, and the texts of most faults need none.
            schema=cache(lambda: build_schema(adapters)),
        )
    settings = checked.settings or _salvage(expanded.values, adapters, [finding.place for finding in findings])
    if settings is not None:
        wrong = [finding.place for finding in findings]
        findings = findings + [
            finding
            for finding in (
                *lint(settings),
                *_libraries(settings),
                *_variables(settings, env),
                *_certificates(settings),
                *_functions(settings),
            )
            if not any(overlap(finding.place, place) for place in wrong)
        ]
    named = {finding.message for finding in findings}
    findings = findings + [Finding(("runtimes",), text, "warning") for text in broken.values() if text not in named]
    hidden = [Finding(finding.place, expanded.hide(finding.message), finding.severity) for finding in findings]
    problems = report(hidden, source.lines)
    if settings is None or any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(str(path), problems)
    secrets = (*secrets_in(settings), *secrets_from_outside(expanded.filled))
    return Loaded(settings, problems, path, tuple(dict.fromkeys(secrets)))


def _without_extensions(values: Any) -> Any:
    """Remove top-level keys that begin with `x-`, which users add, mostly for anchors."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in cast("dict[str, Any]", values).items() if not key.startswith("x-")}


def _validate(values: Any, adapters: Mapping[str, Adapter], broken: Mapping[str, str] = _NONE) -> _Validated:
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
            adapter = _choose(options, place, adapters, broken)
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


def _choose(
    options: Any, place: Place, adapters: Mapping[str, Adapter], broken: Mapping[str, str]
) -> Adapter | Finding:
    if not isinstance(options, dict):
        return Finding(place, "a runtime must be a mapping with at least `adapter:` and `url:`")
    given = cast("dict[str, Any]", options)
    name = given.get("adapter")
    if isinstance(name, str) and name in broken:
        return Finding((*place, "adapter"), broken[name])
    if not adapters:
        return Finding(place, "no adapter is installed; `dragoman doctor` shows how to fix that")
    if name is None:
        misspelt = next((key for key in given if suggest(key, ["adapter"]).startswith("did you mean")), None)
        if misspelt is not None:
            return Finding((*place, misspelt), f"unknown key; {suggest(misspelt, ['adapter'])}")
        return Finding(place, f"'adapter' is missing; write one of: {', '.join(sorted(adapters))}")
    if not isinstance(name, str) or name not in adapters:
        words = suggest(str(name), adapters)
        known = "" if words.startswith("known") else f"; known: {', '.join(sorted(adapters))}"
        return Finding((*place, "adapter"), f"no adapter is called {str(name)[:60]!r}; {words}{known}")
    return adapters[name]


def _libraries(settings: Settings) -> Iterator[Finding]:
    """Check the optional libraries of the PostgreSQL store, of traces and of MCP."""
    if isinstance(settings.engine, PostgresStore) and find_spec("asyncpg") is None:
        yield Finding(("engine", "type"), f"its library is not installed; {install_line('postgres')}")
    if settings.traces is not None and not can_export_traces():
        yield Finding(("traces",), f"its libraries are not installed; {install_line('otel')}")
    if "mcp" in settings.model_fields_set and find_spec("mcp") is None:
        text = f"no MCP client can be served: its library is not installed; {install_line('mcp')}"
        yield Finding(("mcp",), text, "warning")
    for name, options in settings.runtimes.items():
        if options.mcp_clients is not None and find_spec("mcp") is None:
            yield Finding(("runtimes", name), f"its library is not installed; {install_line('mcp')}")
        if options.takes_mcp and settings.tools and find_spec("mcp") is None:
            text = f"its sessions get no tools: the library is not installed; {install_line('mcp')}"
            yield Finding(("runtimes", name), text, "warning")


def _variables(settings: Settings, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the collector that the environment names by the rules of `traces.endpoint`."""
    if settings.traces is not None and settings.traces.endpoint is not None:
        return
    for name in COLLECTOR_VARIABLES:
        if url := env.get(name):
            yield from lint_url(("traces",), url, of=f"{name}: ")


def can_export_traces() -> bool:
    """Return whether the libraries of `traces` are installed."""
    try:
        return (
            find_spec("opentelemetry.sdk") is not None
            and find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        )
    except ModuleNotFoundError:
        return False


def _certificates(settings: Settings) -> Iterator[Finding]:
    """Check the files that a connection to PostgreSQL needs."""
    if not isinstance(settings.engine, PostgresStore):
        return
    for name, secret in (("dsn", settings.engine.dsn), ("direct_dsn", settings.engine.direct_dsn)):
        dsn = "" if secret is None else secret.get_secret_value()
        for parameter, path in files_of(dsn):
            if not Path(path).is_file():
                yield Finding(("engine", name), f"the file of {parameter} does not exist; check the path")
        if needs_root_certificate(dsn) and not (os.getenv("PGSSLROOTCERT") or _ROOT_CERTIFICATE.expanduser().is_file()):
            fix = "add sslrootcert=system (the certificates of this system) or sslrootcert=FILE"
            yield Finding(("engine", name), f"sslmode verifies the server, but there is no root certificate; {fix}")


def _functions(settings: Settings) -> Iterator[Finding]:
    """Import the functions of python executors; not part of `lint`, because it runs their modules."""
    for name, spec in settings.executors.items():
        if isinstance(spec, PythonSpec):
            try:
                find_function(spec.call)
            except OperatorError as exc:
                yield Finding(("executors", name, "call"), str(exc))


def _salvage(values: Any, adapters: Mapping[str, Adapter], wrong: list[Place]) -> Settings | None:
    """Remove invalid settings, so that the rest can be linted too.

    Returns None if that would remove a whole runtime, executor or destination, because valid settings may refer to it,
    or the arguments of a route, which would then match more.
    """
    if any((len(place) == 2 and place[0] in _NAMED) or "arguments" in place[2:4] for place in wrong):
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
