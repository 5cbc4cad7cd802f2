"""The commands that check or reload a configuration, and print its schema and the OpenAPI document."""

import json
import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.config_file import SHOWN_DEFAULT, choose
from gateway.cli.errors import report_errors
from gateway.cli.help import examples
from gateway.cli.lines import clean
from gateway.cli.options import KEY, URL, JsonOption, argument, flag, option
from gateway.cli.terminal import count_problems, note, plural, show_problems

if TYPE_CHECKING:
    from gateway.cli.call_tables import CallTable
    from gateway.errors import Problem
    from gateway.settings.load import Loaded

commands = typer.Typer()


class Format(StrEnum):
    """The formats of a report."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


@commands.command(
    epilog=examples(
        "dragoman check",
        "dragoman check config/gateway.yaml --strict",
        "dragoman check --format github      annotates the lines of a pull request",
        "dragoman check --format json | jq .problems",
        "dragoman check --calls calls.yaml",
        more="Exit code 0: the file is usable; it may have warnings and notes. 1: it has errors.\n\n"
        "The table of --calls is a YAML list, or .jsonl, of {tool, arguments, expect: run | ask | deny | fail}; a row\n"
        "may also have `runtime` and `labels`. Exit code 1: a call does not do what its row expects.",
    )
)
def check(
    # The loader reports unreadable files with a better text than click.
    file: Path | None = argument(
        "FILE",
        "The configuration file.",
        default=None,
        envvar="DRAGOMAN_CONFIG",
        show_default=SHOWN_DEFAULT,
        readable=False,
    ),
    *,
    calls: Path | None = option("--calls", "FILE", "Also decide about the calls of a table.", readable=False),
    strict: bool = flag("--strict", "Also fail on warnings, not on notes."),
    format: Format = typer.Option(  # noqa: A002 -- the name of the option
        Format.TEXT, "--format", help="text for people, json for programs, github for workflows."
    ),
    as_json: bool = flag("--json", "The same as --format json."),
) -> None:
    """Validate a configuration file."""
    from gateway.errors import InvalidConfiguration
    from gateway.plugins import load_configuration

    with report_errors():
        path, loaded = choose(file), None
        try:
            loaded = load_configuration(path, os.environ)
            problems = loaded.problems
        except InvalidConfiguration as exc:
            problems = exc.problems
        failed = loaded is None or (strict and any(one.severity == "warning" for one in problems))
        table = _decide(loaded, calls) if loaded is not None and calls is not None else None
        failed = failed or (table is not None and not table.ok)
        match Format.JSON if as_json else format:
            case Format.JSON:
                report = {"file": str(path), "ok": not failed, "problems": list_problems(problems)}
                if table is not None:
                    report["calls"] = table.rows()
                typer.echo(json.dumps(report, ensure_ascii=False))
            case Format.GITHUB:
                for line in _write_annotations(path, problems):
                    typer.echo(line)
                if table is not None:
                    for line in _write_annotations(table.file, table.problems()):
                        typer.echo(line)
            case Format.TEXT:
                show_problems(str(path), problems)
                if loaded is not None:
                    typer.echo(f"{path}: {_summarize(loaded)}")
                if table is not None:
                    table.show()
    if failed:
        raise typer.Exit(1)


@commands.command(
    epilog=examples(
        "dragoman reload --dry-run",
        "dragoman reload",
        "dragoman reload --force",
        more="A runtime reconnects if its block changed. HUMA cannot replay: messages that its agents send in the\n"
        "meantime are lost, so reconnecting it requires --force.",
    )
)
def reload(
    *,
    dry_run: bool = flag("--dry-run", "Only show the changes."),
    force: bool = flag("--force", "Also restart runtimes that cannot replay."),
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Make a running gateway reload its configuration."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        query = {"dry_run": dry_run, "force": force}
        result = gateway.run(gateway.client.request("POST", "/v1/reload", query=query))
        if as_json:
            typer.echo(json.dumps(result))
            return
        changed, restarted = (", ".join(map(clean, result[name])) for name in ("changed", "restarted"))
        typer.echo(f"{'would change' if dry_run else 'changed'}: {changed or 'nothing'}")
        if restarted:
            typer.echo(f"{'would restart' if dry_run else 'restarted'}: {restarted}")


@commands.command(epilog=examples("dragoman schema > gateway.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from gateway.plugins import broken_adapters, installed_adapters
    from gateway.settings.schema import build_schema

    with report_errors():
        for text in broken_adapters().values():
            note(f"left out: {text}")
        typer.echo(json.dumps(build_schema(installed_adapters()), indent=2, ensure_ascii=False))


@commands.command(epilog=examples("dragoman openapi > openapi.json     the same as /openapi.json"))
def openapi() -> None:
    """Print the OpenAPI document, for client generators."""
    from gateway.cli.version import release
    from gateway.http.app import describe

    with report_errors():
        typer.echo(json.dumps(describe(release()).openapi(), indent=2, ensure_ascii=False))


def _decide(loaded: "Loaded", calls: Path) -> "CallTable":
    from gateway.cli.call_tables import read_table, run_table
    from gateway.plugins import installed_adapters

    return run_table(calls, read_table(calls), loaded, installed_adapters())


def list_problems(problems: "Sequence[Problem]") -> list[dict[str, Any]]:
    """Convert problems to JSON values."""
    return [
        {"line": one.line or 1, "path": one.path, "severity": one.severity, "message": one.message} for one in problems
    ]


def _write_annotations(file: Path, problems: "Sequence[Problem]") -> Iterator[str]:
    """Write each problem as a workflow command, which GitHub shows at its line."""

    def escape(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    def escape_property(text: str) -> str:
        return escape(text).replace(":", "%3A").replace(",", "%2C")

    for one in problems:
        title = escape_property(one.path or "(top)")
        place = f"file={escape_property(str(file))},line={one.line or 1},title={title}"
        yield f"::{'notice' if one.severity == 'note' else one.severity} {place}::{escape(one.message)}"


def _summarize(loaded: "Loaded") -> str:
    settings = loaded.settings
    counts = (
        plural(len(settings.runtimes), "runtime"),
        plural(len(settings.tools), "tool"),
        plural(len(settings.executors), "executor"),
        plural(len(settings.destinations), "destination"),
        plural(len(settings.routes), "route"),
    )
    doubts = f" ({count_problems(loaded.problems)})" if loaded.problems else ""
    keeping = [name for name, tool in settings.tools.items() if tool.nulls == "keep"]
    nulls = f"; null arguments are kept for {', '.join(keeping)} (nulls: keep)" if keeping else ""
    return f"ok{doubts}: {', '.join(filter(None, counts)) or 'nothing configured'}{nulls}"
