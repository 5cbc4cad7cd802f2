"""`dragoman doctor`: checks installation, adapters, configuration, store, network and links; suggests fixes."""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.cli.config_file import DEFAULT_FILES, ConfigOption
from gateway.cli.configuration import list_problems
from gateway.cli.errors import report_errors
from gateway.cli.help import DEFAULT_URL, examples
from gateway.cli.options import RowsOption
from gateway.cli.probes import ProbeTarget, probe, target_of
from gateway.cli.terminal import Check, count_problems, say_json, show_check, show_heading, show_problems
from gateway.cli.version import find_sdk_fault, version_of

if TYPE_CHECKING:
    from gateway.errors import Problem
    from gateway.plugins import FoundAdapter
    from gateway.settings.load import Loaded
    from gateway.settings.model import Settings

LIBRARIES = (
    "aiohttp", "fastapi", "httptools", "httpx", "httpx-sse", "jsonschema-rs", "orjson", "prometheus-client",
    "pydantic", "python-socketio", "pyyaml", "rich", "structlog", "typer", "uvicorn",
)  # fmt: skip
_REINSTALL = "run `make test` in a clone, or `python -m pip install ./gateway/sdk .` (each with -e while developing)"

commands = typer.Typer()


@commands.command(epilog=examples("dragoman doctor", "dragoman doctor --config my.yaml"))
def doctor(*, config: ConfigOption = None, as_json: RowsOption = False) -> None:
    """Check everything, from Python to the network."""
    with report_errors():
        found = config or next((path for path in DEFAULT_FILES if path.is_file()), None)
        well = _run_checks(found, env=os.environ, as_json=as_json)
    raise typer.Exit(0 if well else 1)


def _run_checks(config: Path | None, *, env: Mapping[str, str], as_json: bool) -> bool:
    """Print all checks; return whether none is broken."""
    from gateway.plugins import find_adapters

    adapters, report = find_adapters(), _Report(as_json=as_json)
    report.show("Installation", _check_installation())
    report.show("Adapters", _check_adapters(adapters))
    loaded = _check_configuration(config, env, report)
    if loaded is not None:
        from gateway.cli.doctor_gateway import check_links, check_rules
        from gateway.cli.doctor_store import check_store

        report.show("Store", check_store(loaded.settings.engine))
        report.show("Network", _check_network(loaded.settings))
        own = loaded.settings.public_url
        url = str(own).rstrip("/") if own else DEFAULT_URL
        report.show("Links", check_links(env, url))
        if rules := list(check_rules(loaded.settings, env, url)):
            report.show("Rules", rules)
    if not as_json:
        show_heading(report.summary)
    return report.well


class _Report:
    """Prints checks under headings, or as JSON, and remembers whether one was broken."""

    def __init__(self, *, as_json: bool) -> None:
        self.well = True
        self._warned = False
        self._as_json = as_json

    @property
    def summary(self) -> str:
        if not self.well:
            return "Problems found: see the marked lines above."
        return "No errors, but warnings: see the marked lines above." if self._warned else "No problems found."

    def show(self, about: str, checks: Iterable[Check], file: str = "", problems: "Sequence[Problem]" = ()) -> None:
        """Print the checks of one section, then the problems of a file."""
        if not self._as_json:
            show_heading(about)
        for check in checks:
            self.well &= check.state != "broken"
            self._warned |= check.state == "warning"
            if self._as_json:
                say_json({"about": about, **asdict(check)})
            else:
                show_check(check)
        if not self._as_json:
            show_problems(file, problems)
            return
        for problem in list_problems(problems):
            say_json({"about": about, **problem})


def _check_installation() -> Iterator[Check]:
    from gateway.plugins import APART, find_intruders

    own = version_of("dragoman")
    if own is None:
        yield Check("broken", "dragoman is not installed, so its adapters cannot be found", _REINSTALL)
    else:
        yield Check("ok", f"dragoman {own}")
    if (fault := find_sdk_fault()) is not None:
        yield Check("broken", *fault)
    for intruder in find_intruders():
        yield Check("broken", intruder, APART)
    system = f"{platform.system()} {platform.machine()}"
    yield Check(
        "ok", f"{platform.python_implementation()} {platform.python_version()} on {system}, {os.cpu_count()} CPUs"
    )
    found = {name: version_of(name) for name in LIBRARIES}
    yield Check("ok", ", ".join(f"{name} {number}" for name, number in found.items() if number))
    missing = [name for name, number in found.items() if number is None]
    if missing:
        yield Check("broken", f"missing libraries: {', '.join(missing)}", _REINSTALL)
    if find_spec("uvloop"):
        yield Check("ok", f"event loop: uvloop {version_of('uvloop') or ''}".rstrip())
    else:
        yield Check("note", "event loop: asyncio; uvloop would be faster", "python -m pip install uvloop")


def _check_adapters(found: "tuple[FoundAdapter, ...]") -> Iterator[Check]:
    from gateway.adapter.port import PORTS_VERSION
    from gateway.plugins import ADAPTER_GROUP

    if not found:
        group = f"no adapter is installed: no entry point in [{ADAPTER_GROUP}]"
        yield Check("broken", group, f"entry points exist only for an installed project: {_REINSTALL}")
    for one in found:
        origin = f"from {one.distribution} {one.version}"
        if one.adapter is None:
            # The configuration is refused if a runtime names it.
            yield Check("warning", f"{one.name} {origin}, line `{one.line}`", one.fault or "")
        else:
            yield Check("ok", f"{one.name} speaks {one.adapter.protocol}, ports {PORTS_VERSION}, {origin}")


def _check_configuration(config: Path | None, env: Mapping[str, str], report: _Report) -> "Loaded | None":
    from gateway.errors import InvalidConfiguration
    from gateway.plugins import load_configuration

    about = "Configuration"
    if config is None:
        report.show(about, [Check("note", "no configuration was named or found", "dragoman doctor --config FILE")])
        return None
    try:
        loaded = load_configuration(config, env)
    except InvalidConfiguration as exc:
        summary = Check("broken", f"{config}: {count_problems(exc.problems)}", "see the lines below")
        report.show(about, [summary], exc.file, exc.problems)
        return None
    state = "warning" if any(one.severity == "warning" for one in loaded.problems) else "ok"
    summary = Check(state, f"{config}: usable{f', {count_problems(loaded.problems)}' if loaded.problems else ''}")
    report.show(about, [summary], str(config), loaded.problems)
    return loaded


def _check_network(settings: "Settings") -> Iterator[Check]:
    from gateway.settings.model import WebhookSpec

    webhooks = {name: one for name, one in settings.executors.items() if isinstance(one, WebhookSpec)}
    urls = [
        *((f"runtime {name}", options.url) for name, options in settings.runtimes.items()),
        *((f"executor {name}", str(one.url)) for name, one in webhooks.items()),
        *((f"destination {name}", str(one.url)) for name, one in settings.destinations.items()),
    ]
    targets: list[ProbeTarget] = [target for label, url in urls if (target := target_of(label, url)) is not None]
    if not targets:
        yield Check("note", "nothing to connect to")
    for reached in probe(targets):
        name = f"{reached.target.label} at {reached.target.host}:{reached.target.port}"
        if reached.fault is None:
            yield Check("ok", f"{name} accepts connections")
        else:
            yield Check("broken", f"{name}: {reached.fault}", reached.fix)
