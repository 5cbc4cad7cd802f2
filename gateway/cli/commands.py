"""The command line, and the commands of a gateway of one's own: serve, check, schema, openapi, doctor, demo."""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version as installed_version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.cli import completing, dead_letters, explain, init, looking, storage, talking
from gateway.cli.config_file import DEFAULT_FILES, SHOWN_DEFAULT, ConfigOption, choose
from gateway.cli.env_file import read_env_file
from gateway.cli.explained import RAW, explained
from gateway.cli.findings import Format, as_annotations, as_report
from gateway.cli.options import JsonOption, RowsOption
from gateway.cli.terminal import count_problems, plural, say_json, show_problems

if TYPE_CHECKING:
    from gateway.settings.load import Loaded


class _Commands(TyperGroup):
    """The commands; what a wrong choice is told as begins with no word of the library that found it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = exc.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="dragoman",
    cls=_Commands,
    help="A durable gateway between agent runtimes and the backend that serves them.",
    epilog=f"{RAW}Examples:\n  dragoman demo\n  dragoman init cards\n  dragoman check\n  dragoman serve\n"
    "  dragoman sessions\n  dragoman tail finn/agent-7\n\n"
    "Exit code 0: done. 1: it failed, or was refused; stderr says why, and what to do. 2: wrong usage.\n130: Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; the console script enters here."""
    read_env_file()
    if completing.COMPLETE_VARIABLE in os.environ:
        completing.prepare()
    app(prog_name="dragoman")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(_version())
        raise typer.Exit


@app.callback()
def _top(  # pyright: ignore[reportUnusedFunction] -- Typer keeps it
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


@app.command(
    epilog=f"{RAW}Examples:\n  dragoman serve\n  dragoman serve --config my.yaml --host 0.0.0.0 --port 80\n"
    "  kill -HUP PID       reads the configuration again\n  kill -TERM PID      finishes calls in flight, then leaves"
)
def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; beyond loopback only with API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
) -> None:
    """Run the gateway until it is told to stop."""
    # SIGHUP would end the process; what it asks for comes by itself, since the configuration is read behind this.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from gateway import serve

    with explained():
        path = choose(config)
        code = _run(lambda: serve.serve(path, host=host, port=port, stopping=_leave_within))
    raise typer.Exit(code)


@app.command(
    epilog=f"{RAW}Examples:\n  dragoman check\n  dragoman check config/gateway.yaml --strict\n"
    "  dragoman check --format github      marks the lines of a pull request\n"
    "  dragoman check --format json | jq .problems\n\n"
    "Exit code 0: the file can be used, though warnings may remain. 1: it cannot."
)
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            envvar="DRAGOMAN_CONFIG",
            help="The configuration file.",
            show_default=SHOWN_DEFAULT,
            # Whoever reads it says better what is wrong.
            readable=False,
        ),
    ] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    format: Annotated[  # noqa: A002 -- the name of the option
        Format, typer.Option("--format", help="text for people, json for programs, github for workflows.")
    ] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Say what is wrong or doubtful in a configuration."""
    from gateway.errors import InvalidConfiguration
    from gateway.plugins import installed_adapters
    from gateway.settings.load import load

    with explained():
        path, loaded = choose(file), None
        try:
            loaded = load(path, adapters=installed_adapters(), env=os.environ)
            problems = loaded.problems
        except InvalidConfiguration as exc:
            problems = exc.problems
        failed = loaded is None or (strict and bool(problems))
        match Format.JSON if as_json else format:
            case Format.JSON:
                typer.echo(json.dumps(as_report(path, problems, ok=not failed), ensure_ascii=False))
            case Format.GITHUB:
                for line in as_annotations(path, problems):
                    typer.echo(line)
            case Format.TEXT:
                show_problems(str(path), problems)
                if loaded is not None:
                    typer.echo(f"{path}: {_summary(loaded)}")
    if failed:
        raise typer.Exit(1)


@app.command(epilog=f"{RAW}Example:\n  dragoman schema > gateway.schema.json")
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from gateway.plugins import installed_adapters
    from gateway.settings.schema import build_schema

    with explained():
        typer.echo(json.dumps(build_schema(installed_adapters()), indent=2, ensure_ascii=False))


@app.command(
    epilog=f"{RAW}Examples:\n  dragoman tools --from backend:tools\n"
    "  dragoman tools --from backend:tools > tools.yaml     to go into gateway.yaml"
)
def tools(
    source: Annotated[
        str, typer.Option("--from", metavar="MODULE:NAME", help="Where the Tools of gateway.kit are, as for uvicorn.")
    ],
) -> None:
    """Write the YAML's tools from a backend's models."""
    from gateway.cli.declared import declared_by, model_warnings

    with explained():
        section = declared_by(source)
        typer.echo(section, nl=False)
        show_problems(source, model_warnings(section))


@app.command(epilog=f"{RAW}Example:\n  dragoman openapi > openapi.json     as it stands at /openapi.json")
def openapi() -> None:
    """Print the OpenAPI document, for generated clients."""
    from gateway.http.app import describe

    with explained():
        typer.echo(json.dumps(describe(_release()).openapi(), indent=2, ensure_ascii=False))


@app.command(epilog=f"{RAW}Examples:\n  dragoman doctor\n  dragoman doctor --config my.yaml")
def doctor(*, config: ConfigOption = None, as_json: RowsOption = False) -> None:
    """Look for what is broken, from Python to network."""
    from gateway.cli.doctor import examine

    with explained():
        found = config or next((path for path in DEFAULT_FILES if path.is_file()), None)
        well = examine(found, env=os.environ, as_json=as_json)
    raise typer.Exit(0 if well else 1)


@app.command(
    epilog=f"{RAW}Examples:\n  dragoman demo\n  dragoman demo --keep                 stays up to be played with\n"
    "  dragoman demo --keep --port 8090     on ports that stay the same"
)
def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with all that was sent.")] = False,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=0, max=65_530, help="The gateway's port; the others follow. 0 takes free ones."
        ),
    ] = 0,
) -> None:
    """Play a scripted game through a real gateway."""
    with explained():
        if not all(map(find_spec, init.DEMO_LIBRARIES)):
            from gateway.errors import OperatorError

            raise OperatorError("the demo wants libraries that a gateway does not: pip install 'dragoman[demo]'")
        from gateway.testing.demo import game as scripted

        code = int(scripted.main(keep, as_json=as_json, host=host, port=port))
    raise typer.Exit(code)


@app.command(epilog=f"{RAW}Example:\n  dragoman version")
def version(*, as_json: JsonOption = False) -> None:
    """Show the version."""
    if as_json:
        say_json({"dragoman": _release(), "python": python_version()})
    else:
        typer.echo(_version())


init.register(app)
looking.register(app)
talking.register(app)
explain.register(app)
storage.register(app)
app.add_typer(dead_letters.group)
completing.register(app)


def _version() -> str:
    return f"dragoman {_release()} on Python {python_version()}"


def _release() -> str:
    try:
        return installed_version("dragoman")
    except PackageNotFoundError:
        return "(not installed; `dragoman doctor` says how to mend that)"


def _summary(loaded: "Loaded") -> str:
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
    nulls = f"; null is no omitted argument for {', '.join(keeping)} (nulls: keep)" if keeping else ""
    return f"ok{doubts}: {', '.join(filter(None, counts)) or 'nothing configured'}{nulls}"


def _leave_within(span: timedelta) -> None:
    """End this process in any case: a thread that waits for a disk that hangs would keep it for ever."""
    watch = threading.Timer(span.total_seconds(), _give_up)
    watch.daemon = True
    watch.start()


def _give_up() -> None:
    import structlog

    structlog.get_logger(__name__).critical(
        "leaving as a crash would",
        reason="something did not end in time, probably the store or its disk",
        consequence="nothing that was acknowledged is lost; the next process takes it up",
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _run(begin: Callable[[], Coroutine[Any, Any, int]]) -> int:
    import asyncio

    # uvloop exists for CPython outside Windows only.
    factory = importlib.import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(begin())
