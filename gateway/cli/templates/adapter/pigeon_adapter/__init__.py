"""The adapter for the Pigeon protocol, which uses HTTP and server-sent events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector

from .capabilities import CAPABILITIES
from .options import PigeonOptions


@dataclass(frozen=True, slots=True)
class PigeonAdapter:
    """The adapter; the entry point in pyproject.toml refers to its instance."""

    name: str = "pigeon"
    protocol: str = "pigeon/1"
    ports: int = PORTS_VERSION
    options: type[PigeonOptions] = PigeonOptions
    capabilities: Capabilities = CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it has no options."""
        from .codec import PigeonCodec

        del options
        return PigeonCodec()

    def connector(self, options: PigeonOptions) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        # Imported here so that `dragoman check` loads no network library.
        from .connector import open_connector

        return open_connector(options)


ADAPTER = PigeonAdapter()
