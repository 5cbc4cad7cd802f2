"""Runs a table of calls against a configuration: whether each runs, waits for a human, is denied, or fails."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import typer

from gateway.adapter.port import Adapter
from gateway.cli.lines import clean, compact
from gateway.cli.rulings import Outcome, Verdict, decide
from gateway.cli.terminal import Check, show_check
from gateway.core.routing import Ruling
from gateway.core.session import Policy
from gateway.errors import InvalidConfiguration, OperatorError, Problem
from gateway.runtime.policy import policy_of
from gateway.settings.load import Loaded
from gateway.settings.model import Settings
from gateway.settings.place import Finding, Place, line_of, report, suggest
from gateway.settings.source import read_source
from gateway.strict_json import Unreadable, read_strictly

_KEYS = ("tool", "arguments", "expect", "runtime", "labels")
_LONGEST = 200
_MOST_BYTES = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """One row of a table: a call and what must happen to it."""

    tool: str
    expect: Outcome
    line: int
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    runtime: str | None = None
    """The runtime of the agent; None: each of the configuration."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Labels of the session, besides those of its runtime."""


@dataclass(frozen=True, slots=True)
class Result:
    """What happens to a row's call; of several runtimes, the first where it is not what the row expects."""

    row: ExpectedCall
    verdict: Verdict
    runtime: str | None
    """The runtime of the agent; None if none is configured."""

    @property
    def ok(self) -> bool:
        return self.verdict.outcome == self.row.expect


def read_table(path: Path) -> list[ExpectedCall]:
    """Read a YAML list, or a file `.jsonl` with one JSON object per line.

    Raises:
        InvalidConfiguration: a row has a fault; it lists all of them.
        OperatorError: the table has no row.
    """
    lines: Mapping[Place, int]
    findings: list[Finding] = []
    if path.suffix in (".jsonl", ".ndjson"):
        values, lines = _read_lines(path)
    else:
        source = read_source(path)
        values, lines, findings = source.values, source.lines, [*source.findings]
    if not isinstance(values, list):
        raise OperatorError(f"{path}: the table must be a list of calls: lines that begin with `- tool: …`")
    rows: list[ExpectedCall] = []
    for index, given in enumerate(cast("list[Any]", values)):
        faults = list(_faults(given, (index,)))
        findings += faults
        if not faults:
            rows.append(ExpectedCall(**given, line=line_of((index,), lines)))
    if findings:
        raise InvalidConfiguration(str(path), report(findings, lines))
    if not rows:
        raise OperatorError(f"{path}: the table has no call")
    return rows


def _read_lines(path: Path) -> tuple[list[Any], dict[Place, int]]:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OperatorError(f"{path}: more than {_MOST_BYTES:,} bytes")
    values: list[Any] = []
    lines: dict[Place, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            lines[len(values),] = number
            try:
                values.append(read_strictly(line))
            except Unreadable as exc:
                problem = Problem(path="", message=f"not JSON: {exc}", line=number)
                raise InvalidConfiguration(str(path), (problem,)) from exc
    return values, lines


def _faults(given: Any, place: Place) -> Iterator[Finding]:
    if not isinstance(given, dict):
        yield Finding(place, "a call must be a mapping: {tool: …, arguments: {…}, expect: run | ask | deny | fail}")
        return
    row = cast("dict[str, Any]", given)
    for key in row:
        if key not in _KEYS:
            yield Finding((*place, key), f"unknown key; {suggest(key, _KEYS)}")
    for key in ("tool", "expect"):
        if key not in row:
            yield Finding(place, f"{key!r} is missing")
    if "tool" in row and not isinstance(row["tool"], str):
        yield Finding((*place, "tool"), "must be a text")
    if "expect" in row and row["expect"] not in get_args(Outcome):
        yield Finding((*place, "expect"), f"must be one of: {', '.join(get_args(Outcome))}")
    if not isinstance(row.get("arguments", {}), dict):
        yield Finding((*place, "arguments"), "must be a mapping")
    if not isinstance(row.get("runtime", ""), str):
        yield Finding((*place, "runtime"), "must be the name of a runtime")
    labels = row.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in cast("dict[str, Any]", labels).values()):
        yield Finding((*place, "labels"), "must be a mapping of texts")


@dataclass(frozen=True, slots=True)
class CallTable:
    """The results of all rows, and the routes that decide about none of them."""

    file: Path
    config: Path
    results: list[Result]
    lines: Mapping[Place, int]
    """The lines of the configuration."""
    untested: list[int]
    """The routes with `deny` or `approve` that decide about no row."""

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    def rows(self) -> list[dict[str, Any]]:
        """Convert the results to JSON values."""
        return [
            {
                "line": result.row.line,
                "tool": result.row.tool,
                "expect": result.row.expect,
                "got": result.verdict.outcome,
                "ok": result.ok,
                "route": _route(result.verdict),
                "runtime": result.runtime,
                "text": result.verdict.text or None,
            }
            for result in self.results
        ]

    def problems(self) -> list[Problem]:
        """List the rows whose call does something else."""
        return [
            Problem(path=clean(result.row.tool), message=self._explain(result), line=result.row.line)
            for result in self.results
            if not result.ok
        ]

    def show(self) -> None:
        """Print each row, the untested routes, and the count."""
        for result in self.results:
            row = result.row
            arguments = compact(row.arguments, _LONGEST)
            text = f"{self.file}:{row.line}: {clean(row.tool)} {arguments}: {result.verdict.outcome}"
            show_check(Check("ok", text) if result.ok else Check("broken", text, self._explain(result)))
        for index in self.untested:
            text = f"{self._place(index)} decides about none of these calls; add one"
            show_check(Check("note", text))
        failed = sum(not result.ok for result in self.results)
        passed = len(self.results) - failed
        typer.echo(f"{self.file}: {passed} passed{f', {failed} failed' if failed else ''}")

    def _explain(self, result: Result) -> str:
        index, verdict = _route(result.verdict), result.verdict
        by = f" by {self._place(index)}" if index is not None else ""
        agent = f", for an agent of {result.runtime}" if result.runtime is not None else ""
        text = f": {clean(verdict.text)}" if verdict.text else ""
        return f"expected {result.row.expect}, got {verdict.outcome}{by}{agent}{text}"

    def _place(self, index: int) -> str:
        return f"routes[{index}] ({self.config}:{line_of(('routes', index), self.lines)})"


def run_table(file: Path, rows: list[ExpectedCall], loaded: Loaded, adapters: Mapping[str, Adapter]) -> CallTable:
    """Decide about each call.

    Raises:
        OperatorError: a row names an unknown runtime.
    """
    policy = policy_of(loaded.settings)
    results = [_run(row, loaded.settings, policy, adapters) for row in rows]
    tested = {_route(result.verdict) for result in results}
    untested = [
        index
        for index, route in enumerate(loaded.settings.routes)
        if (route.deny is not None or route.approve is not None) and index not in tested
    ]
    return CallTable(file, loaded.source, results, read_source(loaded.source).lines, untested)


def _route(verdict: Verdict) -> int | None:
    """Return the position of the route that decides; None if the call fails before."""
    return verdict.ruling.index if isinstance(verdict.ruling, Ruling) and verdict.outcome != "fail" else None


def _run(row: ExpectedCall, settings: Settings, policy: Policy, adapters: Mapping[str, Adapter]) -> Result:
    if row.runtime is not None and row.runtime not in settings.runtimes:
        fix = suggest(row.runtime, settings.runtimes)
        raise OperatorError(f"line {row.line}: there is no runtime {row.runtime!r}; {fix}")
    names = [row.runtime] if row.runtime is not None else [*settings.runtimes]
    results = [_decide(row, settings, policy, adapters, name) for name in names or [None]]
    return next((result for result in results if not result.ok), results[0])


def _decide(
    row: ExpectedCall, settings: Settings, policy: Policy, adapters: Mapping[str, Adapter], runtime: str | None
) -> Result:
    options = None if runtime is None else settings.runtimes[runtime]
    labels = {**({} if options is None else options.labels), **row.labels}
    verdict = decide(policy, runtime=runtime or "", tool=row.tool, labels=labels, arguments=row.arguments)
    if options is not None and row.tool not in policy.declared and _is_offered_tools(adapters[options.adapter]):
        verdict = Verdict("fail", verdict.fitted, verdict.ruling, "The tool is not declared, so it is not offered.")
    return Result(row, verdict, runtime)


def _is_offered_tools(adapter: Adapter) -> bool:
    """Whether agents of a runtime call our tools over MCP, where they see the declared ones only."""
    return "tool.finished" not in adapter.capabilities.accepts
