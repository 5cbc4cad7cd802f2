"""`serve` loads no module that serves no call."""

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from time import monotonic

import httpx
import pytest

from tests.pace import PATIENCE
from tests.ports import free_port

OTHER_COMMANDS = (
    "bulk", "calls", "configuration", "connection", "dead_letters", "doctor", "explain", "inbox", "init", "ping",
    "send", "sessions", "storage", "stores", "tail", "tools",
)  # fmt: skip
NEEDLESS = (
    *(f"gateway.cli.{name}" for name in OTHER_COMMANDS),
    "gateway.http.webhooks", "gateway.testing", "gateway.traces.otlp", "gateway.store.postgres",
    "dragoman.client", "dragoman.kit", "dragoman.models.webhooks",
    "asyncpg", "httpx", "jinja2", "mcp", "opentelemetry.exporter", "opentelemetry.sdk",
)  # fmt: skip
"""Other commands, the models of documents, and what this configuration does not use; each with its submodules."""
FOR_TERMINALS = ("pygments", "rich")
LOADED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
"""
"""Makes a program print its modules when it ends."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, port = tmp_path_factory.mktemp("start"), free_port()
    (folder / "gateway.yaml").write_text("engine: {path: dragoman.db}\n")
    log, run = folder / "gateway.log", f"{LOADED}from gateway.cli import main\nmain()"
    words = [sys.executable, "-c", run, "serve", "--port", str(port)]
    with (
        log.open("w") as stderr,
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        try:
            wait_until_ready(process, port, log)
            process.send_signal(signal.SIGTERM)
            modules, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    return sorted(modules.split())


def wait_until_ready(process: subprocess.Popen[str], port: int, log: Path) -> None:
    end = monotonic() + PATIENCE
    while process.poll() is None and monotonic() < end:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE).status_code == 200:
                return
        except httpx.TransportError:
            pass
        # Nothing tells another process that this one is ready.
        Event().wait(0.05)
    pytest.fail(log.read_text()[-2000:])


def test_serve_loads_nothing_that_serves_no_call(loaded: list[str]) -> None:
    assert {"gateway.cli.serve", "gateway.serve", "gateway.http.app"} <= set(loaded)
    assert [name for name in loaded if any(f"{name}.".startswith(f"{one}.") for one in NEEDLESS)] == []


def test_serve_loads_of_the_libraries_for_terminals_only_what_structlog_loads(loaded: list[str]) -> None:
    look = [sys.executable, "-c", f"{LOADED}import structlog"]
    done = subprocess.run(look, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
    others = set(loaded) - set(done.stdout.split())
    assert [name for name in sorted(others) if name.partition(".")[0] in FOR_TERMINALS] == []
