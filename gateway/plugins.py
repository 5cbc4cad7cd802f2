"""What is installed: adapters by entry point, each with what is wrong with it, and who else owns our packages."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions, entry_points
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, cast

from gateway.adapter.port import PORTS_VERSION, Adapter, RuntimeOptions
from gateway.errors import OperatorError

ADAPTER_GROUP = "dragoman.adapters"

OWN_DISTRIBUTION = "dragoman"
OWN_PACKAGES = ("gateway", "adapters")

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
    " `instructions` and `mcp`, and what it answers says in `told` and `losses` what became of them; add"
    " `async def declared(self, native_id)`, which answers None where the runtime cannot be asked for its tools, and"
    " `takes_tools` to the capabilities"
)
_SEND_ALL = (
    "`async def send_all(self, frames)` for `async def send(self, frame)` in links: it sends the frames of one event in"
    " order and returns one receipt"
)
_PORTS_1 = (
    f"it is made for ports 1, this gateway has ports {PORTS_VERSION}: write "
    + ", ".join(f"`{new}` for `{old}`" for old, new in _MOVED.items())
    + f", {_CHANGED}; and {_SEND_ALL}"
)
_PORTS_2 = (
    f"it is made for ports 2, this gateway has ports {PORTS_VERSION}: write {_SEND_ALL}, without `cork` and `uncork`"
)
_HALF_MENDED = (
    f"it says ports {PORTS_VERSION}, but its `connector` cannot be called with the options alone: write {_CHANGED}"
)

APART = "give Dragoman an environment of its own (python -m venv), or use its image"

# What importing somebody else's module can raise; a bug of any kind in a plug-in is the operator's to see.
_IMPORT_FAULTS = (
    ImportError, AttributeError, SyntaxError, TypeError, ValueError, NameError, LookupError, RuntimeError, OSError,
    AssertionError, ArithmeticError,
)  # fmt: skip


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
    """What is wrong with it, and the mend."""


def find_adapters() -> tuple[FoundAdapter, ...]:
    """Look at every installed adapter, broken ones included, by name."""
    found = sorted(_look(), key=lambda one: (one.name, one.distribution))
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


def installed_adapters() -> Mapping[str, Adapter]:
    """Load every installed adapter, by the name that `adapter:` in the YAML uses.

    Raises:
        OperatorError: at least one is broken; the text names its distribution, its line and the mend.
    """
    found = find_adapters()
    broken = [one for one in found if one.fault is not None]
    if broken:
        raise OperatorError(
            "\n".join(
                (
                    *(
                        f"adapter {one.name!r} cannot be used: {one.fault} (installed by {one.distribution}"
                        f" {one.version}, line `{one.line}` in [{ADAPTER_GROUP}])"
                        for one in broken
                    ),
                    *(f"{one}; {APART}" for one in find_intruders()),
                )
            )
        )
    return {one.name: one.adapter for one in found if one.adapter is not None}


def find_intruders() -> tuple[str, ...]:
    """Say which of our two packages are, or may be, somebody else's: their names are not rare."""
    found: list[str] = []
    here = Path(__file__).resolve().parent.parent
    for name in OWN_PACKAGES:
        spec = find_spec(name)
        place = Path(spec.origin).resolve().parent if spec is not None and spec.origin is not None else None
        if place != here / name:
            found.append(f"`import {name}` finds {place or 'no package'}, Dragoman's is {here / name}")
    for one in distributions():
        if one.name == OWN_DISTRIBUTION:
            continue
        # The text of the record: taking each line apart would cost a tenth of a second.
        record = "\n" + (one.read_text("RECORD") or "")
        taken = [name for name in OWN_PACKAGES if f"\n{name}/" in record]
        if taken:
            found.append(f"{one.name} {one.version} puts files into the packages of Dragoman: {' and '.join(taken)}")
    return tuple(found)


def _look() -> Iterator[FoundAdapter]:
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
    except _IMPORT_FAULTS as exc:
        if isinstance(exc, ModuleNotFoundError) and _has_moved(exc.name or ""):
            return None, f"{_PORTS_1}; upgrade or uninstall {distribution}"
        reason = f"{type(exc).__name__}: {exc}".splitlines()[0][:300]
        return None, f"loading it failed with {reason}; reinstall or uninstall {distribution}"
    fault = _fault_of(loaded, point.name)
    return (None, f"{fault}; upgrade or uninstall {distribution}") if fault else (cast("Adapter", loaded), None)


def _has_moved(module: str) -> bool:
    # Whatever is missing, the folder itself or, where an empty one was left behind, what is in it.
    return ".".join(module.split(".")[:2]) in {".".join(old.split(".")[:2]) for old in _MOVED}


def _fault_of(loaded: Any, name: str) -> str | None:
    kind = cast("type[object]", type(loaded))
    lacking = [part for part in ("name", "protocol", "ports", "options", "capabilities", "codec", "connector")
               # What its class has is not computed here: it may load modules that only a link needs.
               if not hasattr(kind, part) and not hasattr(loaded, part)]  # fmt: skip
    if lacking:
        return f"{type(loaded).__name__} is not an adapter, it lacks {', '.join(lacking)}"
    if loaded.ports == 1:
        return _PORTS_1
    if loaded.ports == 2:
        return _PORTS_2
    if loaded.ports != PORTS_VERSION:
        return f"it is made for ports version {loaded.ports!r}, this gateway has {PORTS_VERSION}"
    if not (isinstance(loaded.options, type) and issubclass(loaded.options, RuntimeOptions)):
        return "its `options` is not a subclass of gateway.adapter.port.RuntimeOptions"
    if loaded.name != name:
        return f"it calls itself {loaded.name!r}, its entry point {name!r}"
    return None if _takes_options(loaded.connector) else _HALF_MENDED


def _takes_options(connector: object) -> bool:
    """Whether it can be called with the options alone; what is no function, or does not tell, is let through."""
    if not callable(connector):
        return True
    try:
        signature(connector).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
