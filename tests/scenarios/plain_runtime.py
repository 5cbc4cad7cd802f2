"""A runtime whose protocol is the canonical words themselves, in memory: it can be told and can ask everything."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import ValidationError

from gateway.adapter.port import (
    PORTS_VERSION,
    Capabilities,
    Codec,
    Connector,
    Created,
    Encoded,
    Frame,
    Link,
    Order,
    Receipt,
    Receiver,
    RuntimeOptions,
    Tool,
)
from gateway.errors import MalformedFrame
from gateway.events import CLIENT_KINDS, EVENT, KINDS, Draft, Envelope, Event, Loss, SecretSupplied, dump_event
from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.runtime.app import Gateway
from gateway.runtime.tuning import Tuning
from gateway.serve import parts_for
from gateway.settings.load import load
from gateway.testing.change import Change
from tests.pace import PATIENCE
from tests.ports import listen_on
from tests.scenarios.environment import API_KEY, Running


class PlainOptions(RuntimeOptions):
    """Which session to attach to."""

    session: str

    @property
    def native_id(self) -> str:
        return self.session


class PlainCodec:
    """Frames are events, whose native ids stand behind the channel; encoding a kind has the `losses` given for it."""

    def __init__(self, losses: Mapping[str, tuple[Loss, ...]] | None = None) -> None:
        self._losses: Mapping[str, tuple[Loss, ...]] = {} if losses is None else losses

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        try:
            event = EVENT.validate_python(frame.payload)
        except ValidationError as exc:
            raise MalformedFrame("not an event") from exc
        native_id = frame.channel.partition("/")[2] or None
        return (Draft(event, native_id=native_id, live=event.kind in {"typing.changed", "message.streamed"}),)

    def encode(self, item: Draft | Envelope) -> Encoded:
        payload = dump_event(item.event)
        if isinstance(item.event, SecretSupplied):
            payload["value"] = item.event.reveal()
        return Encoded((Frame("event", payload),), self._losses.get(item.event.kind, ()))


_ABLE = Capabilities(
    accepts=CLIENT_KINDS | {"tool.finished"},
    emits=frozenset(KINDS),
    turns="signalled",
    delivery="response",
    approvals="by_id",
)


@dataclass
class PlainRuntime:
    """The agent's side, and the adapter that leads to it."""

    heard: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    change: Change = field(default_factory=Change)
    encoding_losses: dict[str, tuple[Loss, ...]] = field(default_factory=dict[str, tuple[Loss, ...]])
    """What encoding an event of a kind loses."""
    name: str = "plain"
    protocol: str = "plain/1"
    ports: int = PORTS_VERSION
    options: type[RuntimeOptions] = PlainOptions
    capabilities: Capabilities = _ABLE
    _receiver: Receiver | None = None

    def codec(self, options: Any = None) -> Codec:
        del options
        return PlainCodec(self.encoding_losses)

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Connector]:
        del options
        yield self

    async def create(self, order: Order) -> Created:
        raise NotImplementedError

    async def declared(self, native_id: str) -> tuple[Tool, ...] | None:
        del native_id
        return None

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        del native_id, resume_after
        return self._connect(receiver)

    @asynccontextmanager
    async def _connect(self, receiver: Receiver) -> AsyncGenerator[Link]:
        self._receiver = receiver
        yield self

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        self.heard.extend(frame.payload for frame in frames)
        self.change.tell()
        return Receipt("delivered")

    async def prove(self) -> None:
        return

    async def wait_closed(self) -> str:
        await asyncio.Event().wait()
        return "never"

    # What tests do ---------------------------------------------------------------------------------------

    def say(self, event: Event, native_id: str = "") -> None:
        """Say something; what is said without a pause is decided in one step."""
        assert self._receiver is not None
        self._receiver.frame(Frame(f"event/{native_id}", dump_event(event)))

    async def hears(self, kind: str) -> dict[str, Any]:
        """Wait for the first event of a kind."""

        def look() -> dict[str, Any] | None:
            return next((one for one in self.heard if one["kind"] == kind), None)

        return await self.change.until(look, PATIENCE, what=lambda: kind)


@asynccontextmanager
async def plain_gateway(
    folder: Path,
    *,
    port: int = 0,
    settings: Mapping[str, Any] | None = None,
    tuning: Tuning | None = None,
    runtime: PlainRuntime | None = None,
    parts: Mapping[str, Any] | None = None,
    linked: bool = True,
) -> AsyncGenerator[tuple[Running, PlainRuntime]]:
    """Run a gateway with one such runtime, `finn`, on real sockets and a real file; `parts` replaces some of it."""
    runtime = runtime or PlainRuntime()
    config = folder / "plain.yaml"
    written: dict[str, Any] = {
        "api": {"keys": [{"name": "backend", "key": API_KEY}]},
        "engine": {"type": "sqlite", "path": str(folder / "plain.db")},
        "runtimes": {"finn": {"adapter": "plain", "url": "http://plain.invalid", "session": "room-7"}},
        "limits": {"drain": "1s"},
        **(settings or {}),
    }
    config.write_text(yaml.safe_dump(written))
    loaded = load(config, adapters={"plain": runtime}, env={}).settings
    made = replace(parts_for(loaded, reread=lambda: loaded), adapters={"plain": runtime}, tuning=tuning or Tuning())
    with listen_on(port) as listener:
        async with Gateway.running(loaded, replace(made, **(parts or {}))) as gateway:
            server = make_server(build_app(gateway), loaded.limits)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            # Nothing here is encrypted, and reading the machine's certificates takes long.
            http = httpx.AsyncClient(
                base_url=url,
                headers={"authorization": f"Bearer {API_KEY}"},
                timeout=PATIENCE,
                trust_env=False,
                verify=False,  # noqa: S501
            )
            async with http:
                try:
                    running = Running(gateway, url, http)
                    async with asyncio.timeout(PATIENCE):
                        # Uvicorn has no event for it.
                        while not server.started:  # noqa: ASYNC110
                            await asyncio.sleep(0)
                    if linked:
                        await running.wait_link("up")
                    yield running, runtime
                finally:
                    await gateway.drain()
                    server.should_exit = True
                    async with asyncio.timeout(PATIENCE):
                        await serving
