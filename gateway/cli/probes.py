"""Asks the network and the disk simple questions, each within two seconds."""

import queue
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
    """What became of one probe; `fault` is None where a connection was accepted."""

    target: ProbeTarget
    fault: str | None
    mend: str = ""


def target_of(label: str, url: str) -> ProbeTarget | None:
    """Read host and port out of a URL; None where it has no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    except ValueError:
        return None
    return ProbeTarget(label, parts.hostname, port) if parts.hostname else None


def probe(targets: Sequence[ProbeTarget]) -> tuple[Reached, ...]:
    """Try all targets at once and report in their order."""
    answers: queue.SimpleQueue[Reached] = queue.SimpleQueue()
    asked = targets[:MAX_PROBES]
    for target in asked:
        # Name resolution cannot be interrupted; a daemon thread at least keeps nobody waiting for it.
        threading.Thread(target=_ask, args=(target, answers), daemon=True).start()
    found: dict[ProbeTarget, Reached] = {}
    end = monotonic() + PATIENCE
    try:
        while len(found) < len(set(asked)):
            reached = answers.get(timeout=max(end - monotonic(), 0.001))
            found[reached.target] = reached
    except queue.Empty:
        pass
    late = f"no answer within {PATIENCE:g} s"
    return tuple(
        found.get(target) or Reached(target, late, "is a firewall or a slow name server in between?")
        for target in asked
    )


def _ask(target: ProbeTarget, answers: "queue.SimpleQueue[Reached]") -> None:
    answers.put(_knock(target))


def _knock(target: ProbeTarget) -> Reached:
    try:
        with socket.create_connection((target.host, target.port), timeout=PATIENCE):
            return Reached(target, None)
    except socket.gaierror as exc:
        return Reached(
            target, f"the name does not resolve ({exc.strerror})", "check the host name and the DNS of this machine"
        )
    except ConnectionRefusedError:
        return Reached(target, "the connection is refused", "is it running, and is the port right?")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not a host name"
        return Reached(target, f"cannot connect ({reason or exc})", "check the address and the network")


def free_bytes(folder: Path) -> int | None:
    """Say how much room a folder's disk has; None where that cannot be known."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def write_bytes(number: float) -> str:
    """Write a size as people read it."""
    amount = number
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
