"""The commands of `dragoman`: serve, check, schema, doctor, demo, version."""

import asyncio
import importlib
import json
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version as installed_version
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from typing import Annotated, Any

import typer

from gateway import bootstrap
from gateway.cli.doctor import examine
from gateway.cli.terminal import complain, count_problems, plural, show_problems
from gateway.errors import DownstreamError, InvalidConfiguration, OperatorError
from gateway.settings.load import Loaded, load
from gateway.settings.schema import build_schema

DEFAULT_FILES = (Path("gateway.yaml"), Path("config/gateway.yaml"))
"""Where a configuration is looked for when none is named."""
_SHOWN_DEFAULT = "gateway.yaml, else config/gateway.yaml"

# click wraps paragraphs; a line with only a backspace keeps the next one as it is.
_RAW = "\b\n"

app = typer.Typer(
    name="dragoman",
    help="A durable gateway between agent runtimes and the backend that serves them.",
    epilog=f"{_RAW}Examples:\n  dragoman demo\n  dragoman check config/gateway.yaml\n  dragoman serve",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="DRAGOMAN_CONFIG",
        help="The configuration file.",
        show_default=_SHOWN_DEFAULT,
    ),
]


def main() -> None:
    """Run the command line; the console script enters here."""
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
    epilog=f"{_RAW}Examples:\n  dragoman serve\n  dragoman serve --config my.yaml --host 0.0.0.0 --port 80\n"
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
    with _explained():
        path = _choose(config)
        code = _run(lambda: bootstrap.serve(path, host=host, port=port))
    raise typer.Exit(code)


@app.command(
    epilog=f"{_RAW}Examples:\n  dragoman check\n  dragoman check config/gateway.yaml --strict\n\n"
    "Exit code 0: the file can be used, though warnings may remain. 1: it cannot."
)
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", envvar="DRAGOMAN_CONFIG", help="The configuration file.", show_default=_SHOWN_DEFAULT
        ),
    ] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
) -> None:
    """Say what is wrong or doubtful in a configuration."""
    with _explained():
        loaded = load(_choose(file), adapters=bootstrap.installed_adapters(), env=os.environ)
    show_problems(str(loaded.source), loaded.problems)
    typer.echo(f"{loaded.source}: {_summary(loaded)}")
    if strict and loaded.problems:
        raise typer.Exit(1)


@app.command(epilog=f"{_RAW}Example:\n  dragoman schema > gateway.schema.json")
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    with _explained():
        built = build_schema(bootstrap.installed_adapters())
    typer.echo(json.dumps(built, indent=2, ensure_ascii=False))


@app.command(epilog=f"{_RAW}Examples:\n  dragoman doctor\n  dragoman doctor --config my.yaml")
def doctor(*, config: ConfigOption = None) -> None:
    """Look for what is broken, from Python to network."""
    found = config or next((path for path in DEFAULT_FILES if path.is_file()), None)
    raise typer.Exit(0 if examine(found, env=os.environ) else 1)


@app.command(epilog=f"{_RAW}Examples:\n  dragoman demo\n  dragoman demo --keep     stays up to be played with")
def demo(
    *, keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False
) -> None:
    """Play a scripted game through a real gateway."""
    # The simulators load slowly and no other command needs them.
    scripted = importlib.import_module("gateway.simulators.demo")
    with _explained():
        code = int(scripted.main(keep))
    raise typer.Exit(code)


@app.command(epilog=f"{_RAW}Example:\n  dragoman version")
def version() -> None:
    """Show the version."""
    typer.echo(_version())


def _version() -> str:
    try:
        own = installed_version("dragoman")
    except PackageNotFoundError:
        own = "(not installed; `dragoman doctor` says how to mend that)"
    return f"dragoman {own} on Python {python_version()}"


def _choose(given: Path | None) -> Path:
    if given is not None:
        return given
    for path in DEFAULT_FILES:
        if path.is_file():
            return path
    looked = " nor ".join(str(path) for path in DEFAULT_FILES)
    raise OperatorError(f"no configuration: there is neither {looked} here; name one, or set DRAGOMAN_CONFIG")


def _summary(loaded: Loaded) -> str:
    settings = loaded.settings
    counts = (
        plural(len(settings.runtimes), "runtime"),
        plural(len(settings.tools), "tool"),
        plural(len(settings.executors), "executor"),
        plural(len(settings.destinations), "destination"),
        plural(len(settings.routes), "route"),
    )
    doubts = f" ({count_problems(loaded.problems)})" if loaded.problems else ""
    return f"ok{doubts}: {', '.join(filter(None, counts)) or 'nothing configured'}"


def _run(begin: Callable[[], Coroutine[Any, Any, int]]) -> int:
    # uvloop exists for CPython outside Windows only.
    factory = importlib.import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(begin())


@contextmanager
def _explained() -> Generator[None]:
    """Turn what an operator must mend into lines on stderr and exit code 1."""
    try:
        yield
    except InvalidConfiguration as exc:
        show_problems(exc.file, exc.problems)
    except (OperatorError, DownstreamError) as exc:
        complain(str(exc))
    except OSError as exc:
        complain(f"{exc.strerror or exc}{f': {exc.filename}' if exc.filename else ''}")
    else:
        return
    raise typer.Exit(1)
