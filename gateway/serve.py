"""Creates and connects the concrete parts; only this module names them."""

import asyncio
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path

import structlog

from gateway.clock import Clock
from gateway.errors import DragomanError, OperatorError, install_line
from gateway.executors.port import Executor
from gateway.executors.python import PythonExecutor
from gateway.executors.static import StaticExecutor
from gateway.executors.webhook.destination import WebhookDestination
from gateway.executors.webhook.executor import WebhookExecutor
from gateway.guard import Tasks, guard, guard_call, spawn
from gateway.http.app import build_app
from gateway.http.prefix import prefix_of
from gateway.http.server import make_server, most_connections
from gateway.http.starting import StartingApp
from gateway.plugins import installed_adapters, load_configuration
from gateway.runtime import log as log_setup
from gateway.runtime.app import Gateway, Parts
from gateway.runtime.masking import mask_text
from gateway.runtime.metrics import Metrics
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.runtime.tuning import Tuning
from gateway.settings.load import COLLECTOR_VARIABLES, Loaded, can_export_traces
from gateway.settings.model import (
    ExecutorSpec,
    Limits,
    MemoryStore,
    PostgresStore,
    PythonSpec,
    Settings,
    SqliteStore,
    StaticSpec,
    Store,
    TracesSpec,
    WebhookSpec,
)
from gateway.store.port import Engine, Report, report_nothing
from gateway.store.sqlite import SqliteEngine, TemporaryEngine
from gateway.traces.queue import Traces

log = structlog.get_logger(__name__)

VERSION = version("dragoman")
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080

SWITCH_INTERVAL = 0.0003
"""Seconds after which threads take turns; with Python's default, one waits 5 ms after every disk access."""
_OWN_FILES = 1_000
"""Files and sockets besides requests and links: the store, executors, destinations."""
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 256 * 1024

_ALONE = frozenset({"sqlite", "memory"})
"""Stores of a single process."""

_DISABLE_TRACES = (("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true"))

_SHUTDOWN = timedelta(seconds=7)
"""Time limit of the shutdown after the drain; with the default drain below `stop_grace_period` of compose."""


async def serve(
    config: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    stopping: Callable[[timedelta], object] = lambda _: None,
    tuning: Tuning | None = None,
) -> int:
    """Run the gateway until SIGTERM or SIGINT, which also end its start; SIGHUP reloads the configuration.

    `stopping` is called at the signal with the time limit of the shutdown.

    Raises:
        OperatorError: the configuration, the address or the store cannot be used; nothing was started.
    """
    hung_up = _catch_hang_ups()
    loaded = read_configuration(config)
    settings = loaded.settings
    log_setup.configure(level=settings.logging.level, format=settings.logging.format)
    for problem in loaded.problems:
        write = log.info if problem.severity == "note" else log.warning
        write("configuration", path=problem.path, line=problem.line, problem=problem.message)
    _allow_files(settings.limits)
    listener = _listen(host or DEFAULT_HOST, DEFAULT_PORT if port is None else port, guarded=bool(settings.api.keys))
    sys.setswitchinterval(SWITCH_INTERVAL)
    _return_blocks()
    with listener:
        url = own_url(settings, listener)
        app = StartingApp(prefix_of(settings))
        server = make_server(app, settings.limits, settings.http)
        parts = parts_for(settings, reread=partial(_reread, config), file=config, url=url, report=app.report)
        parts = replace(parts, local_url=_local_url(listener), tuning=tuning or parts.tuning)
        start, patience = asyncio.timeout(None), settings.limits.drain
        async with Tasks() as tasks, AsyncExitStack() as stack:
            # Before the server answers: a supervisor may stop a process that it sees alive.
            stop = _handle_stops(lambda: _end_start(start, app, lambda: stopping(patience + _SHUTDOWN)))
            # Before the gateway, so that its supervisor sees that the process is alive.
            serving = spawn("server", server.serve(sockets=[listener]), tasks)
            try:
                async with start:
                    gateway = await stack.enter_async_context(Gateway.running(settings, parts))
            except TimeoutError:
                if not start.expired():
                    raise
                log.info("gateway stopped", reason="it was told to stop before its start was complete")
                server.stop(within=timedelta(0))
                await serving
                return 0
            app.app = build_app(gateway)

            def fit(settings: Settings) -> None:
                _allow_files(settings.limits)
                server.fit(settings)

            gateway.call_when_reloaded(fit)
            # In the context of the gateway, which counts their faults.
            reloads = await stack.enter_async_context(Tasks())
            _handle_hang_ups(gateway, reloads, hung_up, stop)
            # Classes and configuration live as long as the process: collecting them again and again takes a tenth
            # of the CPU of a busy gateway, and causes most of its slowest calls.
            gc.freeze()
            where, at = listener.getsockname()[:2]
            log.info("listening", url=f"http://{f'[{where}]' if ':' in where else where}:{at}", pid=os.getpid())
            await asyncio.wait({serving, spawn("server", stop.wait(), tasks)}, return_when=asyncio.FIRST_COMPLETED)
            patience, began = gateway.settings.limits.drain, parts.clock.monotonic()
            stopping(patience + _SHUTDOWN)
            # The port stays open: callbacks, results and answers complete the work in flight.
            await gateway.drain()
            server.stop(within=patience - timedelta(seconds=parts.clock.monotonic() - began))
            await serving
            await reloads.close()
            await tasks.close()
    return 0


def read_configuration(config: Path) -> Loaded:
    """Load a configuration with this machine's adapters and environment, and mask its secrets in the log."""
    loaded = load_configuration(config, os.environ)
    for secret in loaded.secrets:
        log_setup.register_secret(secret)
    return loaded


def parts_for(
    settings: Settings,
    *,
    reread: Callable[[], Settings],
    file: Path | None = None,
    url: str = "http://127.0.0.1",
    clock: Clock | None = None,
    report: Report = report_nothing,
) -> Parts:
    """Create the parts of a configuration; `url` is this instance's address for other instances."""
    clock, metrics = clock or SystemClock(), Metrics(version=VERSION)
    return Parts(
        engine=make_engine(settings.engine, clock, report),
        adapters=installed_adapters(),
        make_executor=lambda spec: make_executor(spec, clock),
        make_destination=lambda spec: WebhookDestination(spec, clock=clock),
        clock=clock,
        ids=SystemIds(clock),
        metrics=metrics,
        reread=reread,
        file=file,
        version=VERSION,
        url=url,
        shared=settings.engine.type not in _ALONE,
        report=report,
        traces=make_traces(settings.traces, url, metrics.spans_dropped),
    )


def _reread(config: Path) -> Settings:
    return read_configuration(config).settings


def make_traces(spec: TracesSpec | None, instance: str, dropped: Counter[str]) -> Traces | None:
    """Start the export of spans if the configuration or the environment enables it, and no variable disables it."""
    if spec is None and not any(os.environ.get(name) for name in COLLECTOR_VARIABLES):
        return None
    for name, off in _DISABLE_TRACES:
        if os.environ.get(name, "").strip().lower() == off:
            log.info("traces are off", reason=f"{name}={off}")
            return None
    if not can_export_traces():
        log.warning("traces are off: their libraries are not installed", fix=install_line("otel"))
        return None
    from gateway.traces.otlp import OtlpExporter

    spec = spec or TracesSpec()
    exporter = OtlpExporter(
        endpoint=None if spec.endpoint is None else f"{str(spec.endpoint).rstrip('/')}/v1/traces",
        headers={name: value.get_secret_value() for name, value in spec.headers.items()},
        version=VERSION,
        instance=instance,
    )
    return Traces(exporter.export, exporter.shutdown, content=spec.content, mask=mask_text, dropped=dropped)


def make_engine(spec: Store, clock: Clock, report: Report = report_nothing) -> Engine:
    """Make the store."""
    match spec:
        case SqliteStore(path=path):
            return SqliteEngine(path, clock, report=report)
        case PostgresStore():
            from gateway.store.postgres import PostgresEngine

            engine = PostgresEngine(
                spec.dsn.get_secret_value(),
                clock,
                direct_dsn=spec.direct_dsn.get_secret_value() if spec.direct_dsn else None,
                schema=spec.schema_name,
                connections=spec.connections,
            )
            engine.report = report
            return engine
        case MemoryStore():
            return TemporaryEngine(clock)


def make_executor(spec: ExecutorSpec, clock: Clock) -> Executor:
    """Make an executor from the YAML."""
    match spec:
        case WebhookSpec():
            return WebhookExecutor(spec, clock=clock)
        case StaticSpec():
            return StaticExecutor(spec)
        case PythonSpec():
            return PythonExecutor(spec)


def _return_blocks() -> None:
    """Let glibc give large blocks back to the system at once.

    By default it soon keeps them in its heap: after lists and streams of events of 3.9 MB that are 150 MiB.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def _allow_files(limits: Limits) -> None:
    """Raise the limit of open files and sockets; shells and services start with only 1,024.

    Without free ones the gateway accepts no connections and reaches no executor.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = most_connections(limits) + _OWN_FILES, resource.RLIM_INFINITY
    most = needed + limits.sessions
    allowed = most if hard == unlimited else min(most, hard)
    if soft != unlimited and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        log.warning("limit of open files is too low", allowed=allowed, needed=needed, fix="raise `ulimit -Hn`")


def _listen(host: str, port: int, *, guarded: bool) -> socket.socket:
    """Bind before anything starts, so that a port in use gives one clear error."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as exc:
        raise OperatorError(f"the host {host!r} cannot be resolved: {exc.strerror}") from exc
    if not guarded and not ip_address(address[0]).is_loopback:
        raise OperatorError(
            f"{host} is not a loopback address, which is required without API keys;"
            " add `api: {keys: [...]}` to the configuration, or use --host 127.0.0.1"
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()
    except OSError as exc:
        listener.close()
        raise OperatorError(f"cannot listen on {host}:{port}: {exc.strerror}; choose another one with --port") from exc
    return listener


def own_url(settings: Settings, listener: socket.socket) -> str:
    """Return this instance's address for other instances: as configured, or its listener."""
    if settings.instance.url is not None:
        return str(settings.instance.url)
    where, port = listener.getsockname()[:2]
    host = socket.gethostname() if ip_address(where).is_unspecified else where
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _local_url(listener: socket.socket) -> str | None:
    """Return the URL of a listener on loopback; None if it also listens on other addresses."""
    host, port = listener.getsockname()[:2]
    if not ip_address(host).is_loopback:
        return None
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _catch_hang_ups() -> asyncio.Event:
    """Record a SIGHUP that arrives before the gateway can reload; by default it would end the process."""
    hung_up = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, guard_call("signal", hung_up.set))
    return hung_up


def _handle_stops(end_start: Callable[[], object]) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets; that signal also ends a start."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        if stop.is_set():
            log.warning("already stopping; SIGKILL ends the process at once")
            return
        stop.set()
        end_start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, guard_call("signal", end))
    return stop


def _end_start(start: asyncio.Timeout, app: StartingApp, stopping: Callable[[], object]) -> None:
    """Cancel a start that is not complete."""
    if app.app is None:
        log.info("stopping before the start is complete")
        stopping()
        start.reschedule(asyncio.get_running_loop().time())


def _handle_hang_ups(gateway: Gateway, tasks: Tasks, hung_up: asyncio.Event, stop: asyncio.Event) -> None:
    """Reload on SIGHUP; `hung_up` is an earlier one."""

    def reload() -> None:
        if stop.is_set():
            log.warning("configuration not reloaded", reason="the gateway is stopping")
        else:
            guard("reload", partial(_reload, gateway), tasks, again=False)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, guard_call("signal", reload))
    if hung_up.is_set():
        reload()


async def _reload(gateway: Gateway) -> None:
    before = gateway.settings
    try:
        await gateway.reload()
    except DragomanError as exc:
        # An operator's error needs no traceback; the reload has already logged the applied parts.
        if gateway.settings is before:
            log.error("configuration not reloaded", reason=str(exc))  # noqa: TRY400
