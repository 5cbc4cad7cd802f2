"""The adapter for OpenHands V0 as of 0.62; its agents run their own tools and are controlled over Socket.IO.

May import `adapter`, `errors`, `events`, `links`, `strict_json`.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from adapters.openhands.options import OpenHandsOptions
from gateway.adapter.port import PORTS_VERSION, Capabilities, Codec, Connector


@dataclass(frozen=True, slots=True)
class OpenHandsAdapter:
    """The adapter for OpenHands."""

    name: str = "openhands"
    ports: int = PORTS_VERSION
    options: type[OpenHandsOptions] = OpenHandsOptions

    @property
    def protocol(self) -> str:
        """The protocol and its release."""
        from adapters.openhands.wire import PROTOCOL

        return PROTOCOL

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of OpenHands."""
        from adapters.openhands.capabilities import CAPABILITIES

        return CAPABILITIES

    def codec(self, options: Any = None) -> Codec:
        """Make the codec; it uses the options `action_event`, `keep_system_prompt` and `unsafe_orders`."""
        from adapters.openhands.codec import OpenHandsCodec

        if not isinstance(options, OpenHandsOptions):
            return OpenHandsCodec()
        return OpenHandsCodec(
            options.action_event, keep_prompt=options.keep_system_prompt, unsafe_orders=options.unsafe_orders
        )

    def connector(self, options: OpenHandsOptions) -> AbstractAsyncContextManager[Connector]:
        """Make the connector of one runtime."""
        from adapters.openhands.connector import open_connector

        return open_connector(options)


ADAPTER = OpenHandsAdapter()
