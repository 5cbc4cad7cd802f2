"""The installed adapters with their faults, and conflicts of our package names with other distributions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from re import search
from typing import Any, cast

from gateway.adapter.port import PORTS_VERSION, Adapter, RuntimeOptions
from gateway.settings.load import Loaded, load

ADAPTER_GROUP = "dragoman.adapters"

OWN_DISTRIBUTIONS = frozenset({"dragoman", "dragoman-sdk"})
OWN_PACKAGES = ("gateway", "adapters", "dragoman")

_MOVED = {
    "gateway.ports.adapter": "gateway.adapter.port",
    "gateway.ports.duration": "gateway.adapter.duration",
    "gateway.ports.values": "gateway.strict_json",
    "gateway.envelope": "gateway.events",
    "gateway.transports": "gateway.links",
}
"""Modules that an adapter of ports 1 imports, and their names in ports 3."""
_CHANGED = (
    "`def connector(self, options)` for `def connector(self, options, tools)`, and"
    " `async def create(self, order)` for `async def create(self, labels)`: the order has `labels`, `tools`, `name`,"
    " `instructions` and `mcp`, and `tools` and `losses` of the result account for them; add"
    " `async def declared(self, native_id)`, which returns None if the runtime has no query for its tools, and"
    " `takes_tools` to the capabilities"
)
_SEND_ALL = (
    "`async def send_all(self, frames)` for `async def send(self, frame)` in links: it sends the frames of one event in"
    " order and returns one receipt"
)
_REPLACED = {
    "abandons_actions": "set it on the draft of the state that ends open actions",
    "confirms_messages": "return a `ConfirmationRule` with `within` from `confirmation` of the options",
    "delegates": "return it from `delegates` of the options",
    "hydrates": "set the default of the option `hydrate`",
    "linked": "if False, return the clients from `mcp_clients` of the options",
    "mcp_action": "set `reports_mcp_calls` and implement `mcp_call` in the codec",
    "mcp_session_header": "return it from `mcp_session_header` of the options",
    "names_awaited": "not replaced",
    "silent_gates": "not replaced",
    "slow_sends": "not replaced",
    "starts_at_message": "not replaced",
    "starts_deaf": "pass `starting=None` to `caught_up` if the link cannot tell",
}
"""Members that `Capabilities` had in earlier releases, and what replaces them."""
_CAPABILITIES = "remove these members of `Capabilities`: " + ", ".join(
    f"`{old}` ({new})" for old, new in _REPLACED.items()
)
_PORTS_1 = (
    f"it is written for ports 1, but this gateway has ports {PORTS_VERSION}: write "
    + ", ".join(f"`{new}` for `{old}`" for old, new in _MOVED.items())
    + f", {_CHANGED}; and {_SEND_ALL}; {_CAPABILITIES}"
)
_PORTS_2 = (
    f"it is written for ports 2, but this gateway has ports {PORTS_VERSION}: write {_SEND_ALL}, without `cork` and"
    f" `uncork`; {_CAPABILITIES}"
)
_WRONG_CAPABILITIES = f"it sets capabilities that ports {PORTS_VERSION} does not have: {_CAPABILITIES}"
_WRONG_CONNECTOR = (
    f"it declares ports {PORTS_VERSION}, but its `connector` does not accept the options alone: write {_CHANGED}"
)

APART = "install Dragoman in its own environment (python -m venv), or use its image"


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """One entry point of the group, loaded or not."""

    name: str
    distribution: str
    version: str
    line: str
    """The entry-point line, e.g. `huma-0.2 = adapters.huma:HUMA_0_2`."""
    adapter: Adapter | None
    fault: str | None = None
    """The problem and its fix, if any."""


def find_adapters() -> tuple[FoundAdapter, ...]:
    """Return every installed adapter by name, including broken ones."""
    found = sorted(_load_all(), key=lambda one: (one.name, one.distribution))
    seen: dict[str, str] = {}
    checked: list[FoundAdapter] = []
    for one in found:
        if one.name in seen and one.fault is None:
            fault = f"{seen[one.name]} already provides {one.name!r}; uninstall one of the two"
            checked.append(FoundAdapter(one.name, one.distribution, one.version, one.line, None, fault))
        else:
            checked.append(one)
        seen.setdefault(one.name, one.distribution)
    return tuple(checked)


@cache
def found_at_start() -> tuple[FoundAdapter, ...]:
    """A process keeps the adapters of its first call: a running gateway cannot use one that is installed later."""
    return find_adapters()


def installed_adapters() -> Mapping[str, Adapter]:
    """Return every usable adapter, by the name that `adapter:` in the YAML uses."""
    broken = broken_adapters()
    return {one.name: one.adapter for one in found_at_start() if one.adapter is not None and one.name not in broken}


def broken_adapters() -> Mapping[str, str]:
    """Return the fault and the fix of each installed adapter that no runtime can use, by name."""
    found = {
        one.name: f"adapter {one.name!r} cannot be used: {one.fault} (installed by {one.distribution} {one.version},"
        f" line `{one.line}` in [{ADAPTER_GROUP}])"
        for one in found_at_start()
        if one.fault is not None
    }
    also = "".join(f"; {one}; {APART}" for one in find_intruders()) if found else ""
    return {name: text + also for name, text in found.items()}


def load_configuration(path: Path, env: Mapping[str, str]) -> Loaded:
    """Load a configuration with the adapters of this environment.

    Raises:
        InvalidConfiguration: contains all errors, among them each runtime of a broken adapter.
    """
    return load(path, adapters=installed_adapters(), broken=broken_adapters(), env=env)


def find_intruders() -> tuple[str, ...]:
    """List conflicts of our package names, which are not rare, with other distributions."""
    found: list[str] = []
    here = Path(__file__).resolve().parent.parent
    for name in ("gateway", "adapters"):
        spec = find_spec(name)
        place = Path(spec.origin).resolve().parent if spec is not None and spec.origin is not None else None
        if place != here / name:
            found.append(f"`import {name}` finds {place or 'no package'} instead of {here / name}")
    for one in distributions():
        if one.name in OWN_DISTRIBUTIONS:
            continue
        # Search the text of the record: parsing each line would take a tenth of a second.
        record = "\n" + (one.read_text("RECORD") or "")
        shared = [name for name in OWN_PACKAGES if f"\n{name}/" in record]
        if shared:
            found.append(f"{one.name} {one.version} installs files in the packages of Dragoman: {' and '.join(shared)}")
    return tuple(found)


def _load_all() -> Iterator[FoundAdapter]:
    seen: set[tuple[str, str, str]] = set()
    for point in entry_points(group=ADAPTER_GROUP):
        distribution = point.dist.name if point.dist else "an unknown distribution"
        version = point.dist.version if point.dist else "?"
        # One installation can be listed twice, e.g. by an editable install and its source folder.
        if (point.name, point.value, distribution) in seen:
            continue
        seen.add((point.name, point.value, distribution))
        adapter, fault = _load(point, distribution)
        yield FoundAdapter(point.name, distribution, version, f"{point.name} = {point.value}", adapter, fault)


def _load(point: EntryPoint, distribution: str) -> tuple[Adapter | None, str | None]:
    try:
        loaded = point.load()
        fault = _fault_of(loaded, point.name)
        if distribution not in OWN_DISTRIBUTIONS and fault is None:
            # Ours may load modules that only a link requires.
            _ = loaded.capabilities
    # The import runs a foreign module, which may raise anything, and the operator must see any bug of it.
    except (Exception, SystemExit) as exc:  # noqa: BLE001
        if isinstance(exc, ModuleNotFoundError) and _has_moved(exc.name or ""):
            return None, f"{_PORTS_1}; upgrade or uninstall {distribution}"
        if _sets_removed(exc):
            return None, f"{_WRONG_CAPABILITIES}; upgrade or uninstall {distribution}"
        reason = f"{type(exc).__name__}: {exc}".splitlines()[0][:300]
        return None, f"loading it failed with {reason}; reinstall or uninstall {distribution}"
    return (None, f"{fault}; upgrade or uninstall {distribution}") if fault else (cast("Adapter", loaded), None)


def _has_moved(module: str) -> bool:
    # The missing module is the folder itself or, if an empty one remains, a module in it.
    return ".".join(module.split(".")[:2]) in {".".join(old.split(".")[:2]) for old in _MOVED}


def _sets_removed(exc: BaseException) -> bool:
    named = search(r"(?:keyword argument|no field|import name) '(\w+)'", str(exc))
    # The value of `mcp_action` was a `McpAction`.
    return named is not None and named[1] in {*_REPLACED, "McpAction"}


def _fault_of(loaded: Any, name: str) -> str | None:
    kind = cast("type[object]", type(loaded))
    missing = [part for part in ("name", "protocol", "ports", "options", "capabilities", "codec", "connector")
               # Do not compute properties of the class: they may load modules that only a link requires.
               if not hasattr(kind, part) and not hasattr(loaded, part)]  # fmt: skip
    if missing:
        return f"{type(loaded).__name__} is not an adapter, it lacks {', '.join(missing)}"
    if loaded.ports == 1:
        return _PORTS_1
    if loaded.ports == 2:
        return _PORTS_2
    if loaded.ports != PORTS_VERSION:
        return f"it is written for ports {loaded.ports!r}, but this gateway has ports {PORTS_VERSION}"
    if not (isinstance(loaded.options, type) and issubclass(loaded.options, RuntimeOptions)):
        return "its `options` is not a subclass of gateway.adapter.port.RuntimeOptions"
    if loaded.name != name:
        return f"its name is {loaded.name!r}, but its entry point {name!r}"
    return None if _accepts_options(loaded.connector) else _WRONG_CONNECTOR


def _accepts_options(connector: object) -> bool:
    """Whether it accepts the options alone; True if that is unknown."""
    if not callable(connector):
        return True
    try:
        signature(connector).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
