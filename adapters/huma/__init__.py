"""The adapters for HUMA 0.1 (enveloped events) and 0.2.0 (flat events), both over Socket.IO.

May import `adapter`, `errors`, `events`, `links`, `strict_json`.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.huma.options import Huma01Options, Huma02Options
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector


@dataclass(frozen=True, slots=True)
class Huma01Adapter:
    """The adapter for HUMA 0.1."""

    name: str = "huma-0.1"
    protocol: str = "huma/0.1"
    ports: int = PORTS_VERSION
    options: type[Huma01Options] = Huma01Options

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of HUMA 0.1."""
        from adapters.huma.v0_1 import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it uses the options `max_frame` and `extensions`."""
        from adapters.huma.v0_1 import Huma01Codec

        if isinstance(options, Huma01Options):
            return Huma01Codec(options.max_frame, extensions=options.extensions)
        return Huma01Codec()

    def connector(self, options: Huma01Options) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.huma.connector import open_connector

        return open_connector(options)


@dataclass(frozen=True, slots=True)
class Huma02Adapter:
    """The adapter for HUMA 0.2.0."""

    name: str = "huma-0.2"
    protocol: str = "huma/0.2.0"
    ports: int = PORTS_VERSION
    options: type[Huma02Options] = Huma02Options

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of HUMA 0.2.0."""
        from adapters.huma.v0_2 import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it uses the option `message`."""
        from adapters.huma.v0_2 import Huma02Codec

        return Huma02Codec(options.message_key) if isinstance(options, Huma02Options) else Huma02Codec()

    def connector(self, options: Huma02Options) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.huma.connector import open_connector

        return open_connector(options)


HUMA_0_1 = Huma01Adapter()
HUMA_0_2 = Huma02Adapter()
