"""What decisions about the sessions of one runtime rest on: its protocol, its options, the configuration. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gateway.adapter.port import Capabilities, Codec, RuntimeOptions
from gateway.core import calls as life
from gateway.core.routing import Routes


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says about calls; replaced as a whole on reload."""

    routes: Routes = field(default_factory=Routes)
    executors: Mapping[str, life.RetryPolicy] = field(default_factory=dict[str, life.RetryPolicy])
    check_arguments: Callable[[str, Mapping[str, Any]], str | None] = lambda _tool, _arguments: None
    """Says in one text for the agent what is wrong with a call's arguments, or None."""
    declared: frozenset[str] = frozenset()
    cancel_grace: timedelta = timedelta(seconds=10)
    interaction_timeout: timedelta = timedelta(seconds=300)
    open_calls: int = 1_000
    """Calls of a session that may be open at once; the next is answered with a failure."""
    open_bytes: int = 32 * 1024 * 1024
    progress: int = 4 * 1024 * 1024
    """What their arguments may take together."""
    outbound: int = 10_000
    """Events that may wait to be delivered to a runtime; a client's next is refused."""


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The knowledge of one runtime that every decision about its sessions is given."""

    adapter: str
    protocol: str
    name: str
    capabilities: Capabilities
    codec: Codec
    options: RuntimeOptions
    policy: Policy
