"""Examines everything a gateway needs and says, line by line, what is wrong and how to mend it."""

import fcntl
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gateway.adapter.port import PORTS_VERSION
from gateway.cli.checks import Check
from gateway.cli.findings import as_report
from gateway.cli.probes import ProbeTarget, free_bytes, probe, target_of, write_bytes
from gateway.cli.terminal import count_problems, say_json, show_check, show_heading, show_problems
from gateway.errors import InvalidConfiguration, OperatorError, Problem
from gateway.plugins import ADAPTER_GROUP, APART, FoundAdapter, find_adapters, find_intruders
from gateway.settings.load import Loaded, load
from gateway.settings.model import PostgresStore, Settings, SqliteStore, WebhookSpec
from gateway.store.sqlite.lock import check_place

LIBRARIES = (
    "aiohttp", "fastapi", "httptools", "httpx", "httpx-sse", "jsonschema-rs", "orjson", "prometheus-client",
    "pydantic", "python-socketio", "pyyaml", "rich", "structlog", "typer", "uvicorn",
)  # fmt: skip
LITTLE_ROOM = 1024**3
_REINSTALL = "run `make test` in a clone, or `python -m pip install .` (with -e while developing)"
Problems = tuple[str, Sequence[Problem]]
"""A file, and what was found in it."""
_SQLITE_HEADER = b"SQLite format 3\x00"


def examine(config: Path | None, *, env: Mapping[str, str], as_json: bool) -> bool:
    """Print all checks and say whether nothing is broken."""
    adapters, report = find_adapters(), _Report(as_json=as_json)
    report.show("Installation", _installation())
    report.show("Adapters", _adapters(adapters))
    loaded = _configuration(config, adapters, env, report)
    if loaded is not None:
        report.show("Store", _store(loaded.settings))
        report.show("Network", _network(loaded.settings))
        # Its libraries are a part of what a start costs.
        from gateway.cli.doctor_links import look_at_links

        report.show("Links", look_at_links(env))
    if not as_json:
        show_heading(
            "Everything needed is there." if report.well else "Something is broken: see the lines marked above."
        )
    return report.well


class _Report:
    """Prints checks under headings, or as JSON, and knows whether nothing was broken so far."""

    def __init__(self, *, as_json: bool) -> None:
        self.well = True
        self._as_json = as_json

    def show(self, about: str, checks: Iterable[Check], problems: Problems | None = None) -> None:
        """Print what was looked at about one thing, then the problems of a file."""
        if not self._as_json:
            show_heading(about)
        for check in checks:
            self.well &= check.state != "broken"
            if self._as_json:
                say_json({"about": about, **asdict(check)})
            else:
                show_check(check.state, check.text, check.mend)
        if problems is not None and not self._as_json:
            show_problems(*problems)
        elif problems is not None:
            for problem in as_report(Path(problems[0]), problems[1], ok=self.well)["problems"]:
                say_json({"about": about, **problem})


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _installation() -> Iterator[Check]:
    own = _installed("dragoman")
    if own is None:
        yield Check("broken", "dragoman is not installed, so its adapters cannot be found", _REINSTALL)
    else:
        yield Check("ok", f"dragoman {own}")
    for intruder in find_intruders():
        yield Check("broken", intruder, APART)
    system = f"{platform.system()} {platform.machine()}"
    yield Check(
        "ok", f"{platform.python_implementation()} {platform.python_version()} on {system}, {os.cpu_count()} CPUs"
    )
    found = {name: _installed(name) for name in LIBRARIES}
    yield Check("ok", ", ".join(f"{name} {number}" for name, number in found.items() if number))
    missing = [name for name, number in found.items() if number is None]
    if missing:
        yield Check("broken", f"missing libraries: {', '.join(missing)}", _REINSTALL)
    if find_spec("uvloop"):
        yield Check("ok", f"event loop: uvloop {_installed('uvloop') or ''}".rstrip())
    else:
        yield Check("note", "event loop: asyncio; uvloop would be faster", "python -m pip install uvloop")


def _adapters(found: tuple[FoundAdapter, ...]) -> Iterator[Check]:
    if not found:
        group = f"no adapter is installed: no entry point in [{ADAPTER_GROUP}]"
        yield Check("broken", group, f"entry points exist only for an installed project: {_REINSTALL}")
    for one in found:
        origin = f"from {one.distribution} {one.version}"
        if one.adapter is None:
            yield Check("broken", f"{one.name} {origin}, line `{one.line}`", one.fault or "")
        else:
            yield Check("ok", f"{one.name} speaks {one.adapter.protocol}, ports {PORTS_VERSION}, {origin}")


def _configuration(
    config: Path | None, found: tuple[FoundAdapter, ...], env: Mapping[str, str], report: _Report
) -> Loaded | None:
    about = "Configuration"
    if config is None:
        report.show(about, [Check("note", "no configuration was named or found", "dragoman doctor --config FILE")])
        return None
    usable = {one.name: one.adapter for one in found if one.adapter is not None}
    try:
        loaded = load(config, adapters=usable, env=env)
    except InvalidConfiguration as exc:
        told = Check("broken", f"{config}: {count_problems(exc.problems)}", "see the lines below")
        report.show(about, [told], (exc.file, exc.problems))
        return None
    state = "warning" if loaded.problems else "ok"
    told = Check(state, f"{config}: can be used{', see the warnings below' if loaded.problems else ''}")
    report.show(about, [told], (str(config), loaded.problems))
    return loaded


def _store(settings: Settings) -> Iterator[Check]:
    if isinstance(settings.engine, PostgresStore):
        from gateway.cli.doctor_postgres import look_at_postgres

        yield from look_at_postgres(settings.engine)
        return
    if not isinstance(settings.engine, SqliteStore):
        yield Check("warning", "memory: nothing survives a restart", "engine: {type: sqlite, path: …} keeps everything")
        return
    path = settings.engine.path.absolute()
    try:
        check_place(path)
    except OperatorError as exc:
        yield Check("broken", f"sqlite {path}", str(exc))
        return
    yield _file(path)
    yield _lock(path.with_name(path.name + ".lock"))
    free = free_bytes(path.parent)
    if free is None:
        yield Check("warning", f"the free space of {path.parent} is not known")
    elif free < LITTLE_ROOM:
        yield Check(
            "warning", f"only {write_bytes(free)} free in {path.parent}", "make room, or lower retention.max_bytes"
        )
    else:
        yield Check("ok", f"{write_bytes(free)} free in {path.parent}")


def _file(path: Path) -> Check:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return Check("broken", f"{path.parent} cannot be written", "give the gateway's user the right to write there")
    if not path.exists():
        return Check("ok", f"sqlite {path}: will be made at the first start")
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE_HEADER))
        size = path.stat().st_size
    except OSError as exc:
        return Check("broken", f"{path} cannot be read ({exc.strerror})", "check its owner and rights")
    if start and start != _SQLITE_HEADER:
        return Check("broken", f"{path} is not a SQLite database", "move it away, or change engine.path")
    if not os.access(path, os.W_OK):
        return Check("broken", f"{path} cannot be written", "check its owner and rights")
    return Check("ok", f"sqlite {path}: {write_bytes(size)}")


def _lock(path: Path) -> Check:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = file.read(20).strip()
                return Check("note", f"in use by {f'process {holder}' if holder.isdigit() else 'a running gateway'}")
    except FileNotFoundError:
        pass
    except OSError as exc:
        return Check("warning", f"the lock {path} cannot be looked at ({exc.strerror})")
    return Check("ok", "no other process holds it")


def _network(settings: Settings) -> Iterator[Check]:
    wanted = [
        *(target_of(f"runtime {name}", options.url) for name, options in settings.runtimes.items()),
        *(
            target_of(f"executor {name}", str(spec.url))
            for name, spec in settings.executors.items()
            if isinstance(spec, WebhookSpec)
        ),
        *(target_of(f"destination {name}", str(spec.url)) for name, spec in settings.destinations.items()),
    ]
    targets: list[ProbeTarget] = [target for target in wanted if target is not None]
    if not targets:
        yield Check("note", "nothing to connect to")
    for reached in probe(targets):
        where = f"{reached.target.label} at {reached.target.host}:{reached.target.port}"
        if reached.fault is None:
            yield Check("ok", f"{where} accepts connections")
        else:
            yield Check("broken", f"{where}: {reached.fault}", reached.mend)
