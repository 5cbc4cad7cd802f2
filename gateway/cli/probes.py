"""Probes of the network and the disk, each within two seconds."""

import shutil
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

PATIENCE = 2.0
MAX_PROBES = 64


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A host and port that should accept connections."""

    label: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of one probe; `fault` is None if a connection was accepted."""

    target: ProbeTarget
    fault: str | None
    fix: str = ""


def target_of(label: str, url: str) -> ProbeTarget | None:
    """Return the host and port of a URL; None if it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    except ValueError:
        return None
    return ProbeTarget(label, parts.hostname, port) if parts.hostname else None


def probe(targets: Sequence[ProbeTarget]) -> tuple[Reached, ...]:
    """Probe all targets at once; return the results in their order."""
    late = f"no answer within {PATIENCE:g} s"
    found = {one: Reached(one, late, "check for a firewall or a slow name server") for one in targets[:MAX_PROBES]}
    # Name resolution cannot be interrupted, but daemon threads do not keep the process alive.
    threads = [threading.Thread(target=_run_probe, args=(one, found), daemon=True) for one in list(found)]
    for thread in threads:
        thread.start()
    end = monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(end - monotonic(), 0))
    return tuple(found[target] for target in targets[:MAX_PROBES])


def _run_probe(target: ProbeTarget, found: dict[ProbeTarget, Reached]) -> None:
    found[target] = _connect(target)


def _connect(target: ProbeTarget) -> Reached:
    try:
        with socket.create_connection((target.host, target.port), timeout=PATIENCE):
            return Reached(target, None)
    except socket.gaierror as exc:
        return Reached(
            target, f"the name does not resolve ({exc.strerror})", "check the host name and the DNS of this machine"
        )
    except ConnectionRefusedError:
        return Reached(target, "connection refused", "check that it is running, and the port")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a host name"
        return Reached(target, f"cannot connect ({reason or exc})", "check the address and the network")


def free_bytes(folder: Path) -> int | None:
    """Return the free space of a folder's disk; None if it is unknown."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def write_bytes(number: float) -> str:
    """Format a size with a binary unit."""
    amount = number
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
