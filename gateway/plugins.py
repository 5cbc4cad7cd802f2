"""The adapters that are installed: found by entry points, each with what is wrong with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from gateway.adapter.port import PORTS_VERSION, Adapter, RuntimeOptions
from gateway.errors import OperatorError

ADAPTER_GROUP = "dragoman.adapters"

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
                f"adapter {one.name!r} cannot be used: {one.fault} (installed by {one.distribution} {one.version}, line"
                f" `{one.line}` in [{ADAPTER_GROUP}])"
                for one in broken
            )
        )
    return {one.name: one.adapter for one in found if one.adapter is not None}


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
        reason = f"{type(exc).__name__}: {exc}".splitlines()[0][:300]
        return None, f"loading it failed with {reason}; reinstall or uninstall {distribution}"
    fault = _fault_of(loaded, point.name)
    return (None, f"{fault}; upgrade or uninstall {distribution}") if fault else (cast("Adapter", loaded), None)


def _fault_of(loaded: Any, name: str) -> str | None:
    kind = cast("type[object]", type(loaded))
    lacking = [part for part in ("name", "protocol", "ports", "options", "capabilities", "codec", "connector")
               # What its class has is not computed here: it may load modules that only a link needs.
               if not hasattr(kind, part) and not hasattr(loaded, part)]  # fmt: skip
    if lacking:
        return f"{type(loaded).__name__} is not an adapter, it lacks {', '.join(lacking)}"
    if loaded.ports != PORTS_VERSION:
        return f"it is made for ports version {loaded.ports!r}, this gateway has {PORTS_VERSION}"
    if not (isinstance(loaded.options, type) and issubclass(loaded.options, RuntimeOptions)):
        return "its `options` is not a subclass of gateway.adapter.port.RuntimeOptions"
    if loaded.name != name:
        return f"it calls itself {loaded.name!r}, its entry point {name!r}"
    return None
