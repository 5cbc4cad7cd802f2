"""The adapter for Herm, a host of Hermes agents with an API of REST and server-sent events.

May import `adapter`, `errors`, `events`, `guard`, `links`, `strict_json`.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.herm.options import HermOptions
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector


@dataclass(frozen=True, slots=True)
class HermAdapter:
    """The adapter for the second generation of Herm's API: agents, sessions, events."""

    name: str = "herm"
    protocol: str = "herm/2"
    ports: int = PORTS_VERSION
    options: type[HermOptions] = HermOptions

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of Herm."""
        from adapters.herm.capabilities import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it has no options."""
        from adapters.herm.codec import HermCodec

        del options
        return HermCodec()

    def connector(self, options: HermOptions) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.herm.connector import open_connector

        return open_connector(options)


ADAPTER = HermAdapter()
