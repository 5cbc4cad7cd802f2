"""`dragoman serve` and `dragoman demo`."""

import gc
import importlib
import os
import signal
import sys
import threading
from datetime import timedelta
from importlib.util import find_spec

import typer

from gateway.cli.choices import ExtraChoice
from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.errors import report_errors
from gateway.cli.help import examples
from gateway.cli.options import flag, option
from gateway.cli.version import find_sdk_fault
from gateway.errors import OperatorError, install_line

_HERE = "127.0.0.1"
_EXTRA = typer.Option([], "--with", help="A further runtime; may be repeated.")

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman serve",
        "dragoman serve --config my.yaml --host 0.0.0.0 --port 80",
        "kill -HUP PID       reloads the configuration",
        "kill -TERM PID      finishes calls in flight, then exits",
    )
)
def serve(
    *,
    config: ConfigOption = None,
    host: str = option("--host", "HOST", "Address to listen on; non-loopback requires API keys.", default=_HERE),
    port: int = option("--port", "PORT", "Port; 0 selects a free one.", default=8080, min=0, max=65535),
) -> None:
    """Run the gateway."""
    # Until the server handles SIGHUP, it would end the process. No reload is lost: the configuration is read later.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    import asyncio

    with report_errors():
        if (fault := find_sdk_fault()) is not None:
            raise OperatorError("; ".join(fault))
        # The modules contain no garbage, and looking for it takes a twentieth of the start.
        gc.disable()
        from gateway import serve

        gc.freeze()
        gc.enable()
        path = choose(config)
        # uvloop exists for CPython outside Windows only.
        factory = importlib.import_module("uvloop").new_event_loop if find_spec("uvloop") else None
        with asyncio.Runner(loop_factory=factory) as runner:
            code = runner.run(serve.serve(path, host=host, port=port, stopping=_limit_stop))
    raise typer.Exit(code)


@commands.command(
    epilog=examples(
        "dragoman demo",
        "dragoman demo --keep                 keeps everything running",
        "dragoman demo --keep --port 8090     with fixed ports",
        "dragoman demo --with openhands-v1    with a further runtime",
    )
)
def demo(
    *,
    keep: bool = flag("--keep", "Keep everything running until Ctrl-C."),
    verbose: bool = flag("--verbose", "Show every step, and one call in each protocol."),
    as_json: bool = flag("--json", "Print one JSON object per line, with every message."),
    host: str = option("--host", "HOST", "Address to listen on.", default=_HERE),
    port: int = option(
        "--port",
        "PORT",
        "The gateway's port; the other ports count up from it. 0 selects free ones.",
        default=0,
        min=0,
        max=65_530,
    ),
    extra: list[ExtraChoice] = _EXTRA,
) -> None:
    """Play a scripted game through a real gateway."""
    from gateway.cli.init import DEMO_LIBRARIES

    with report_errors():
        if not all(map(find_spec, DEMO_LIBRARIES)):
            raise OperatorError(f"the demo needs extra libraries; {install_line('demo')}")
        from gateway.testing.demo import game

        show = "json" if as_json else "verbose" if verbose else "brief"
        code = int(game.main(keep, show=show, host=host, port=port, extra=frozenset(map(str, extra))))
    raise typer.Exit(code)


def _limit_stop(span: timedelta) -> None:
    """Exit after this time: a thread that waits for a hanging disk would keep the process alive forever."""
    watch = threading.Timer(span.total_seconds(), _give_up)
    watch.daemon = True
    watch.start()


def _give_up() -> None:
    import structlog

    structlog.get_logger(__name__).critical(
        "shutdown timed out; exiting at once",
        reason="a component did not stop in time, probably the store or its disk",
        consequence="no acknowledged input is lost; the next process continues it",
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
