"""The Example protocol: agents that are reached over HTTP and server-sent events."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector

from .capabilities import CAPABILITIES
from .options import ExampleOptions


@dataclass(frozen=True, slots=True)
class ExampleAdapter:
    """The adapter, which the entry point in pyproject.toml names."""

    name: str = "example"
    protocol: str = "example/1"
    ports: int = PORTS_VERSION
    options: type[ExampleOptions] = ExampleOptions
    capabilities: Capabilities = CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; no option changes it."""
        from .codec import ExampleCodec

        del options
        return ExampleCodec()

    def connector(self, options: ExampleOptions) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        # Imported here, so that `dragoman check` loads no network library.
        from .connector import open_connector

        return open_connector(options)


ADAPTER = ExampleAdapter()
