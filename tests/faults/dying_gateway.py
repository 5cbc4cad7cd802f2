"""A real gateway process that ends itself with SIGKILL at a point that is named; run it with `python -m`.

Points are `before-WHAT` and `after-WHAT`. WHAT is a commit that holds the first record of a call (`accept`), the
question about a held one (`hold`), the answer that allows it (`allow`), a claim (`claim`), a promised outcome
(`promise`), an outcome (`outcome`), a delivery (`delivered`), an agent's message (`message`), its confirmation
(`confirmation`), a client's event (`post`) or the mark of a delivered copy (`copied`); or it is a request to an
executor (`request`), a result sent to the runtime (`emit`), or a copy (`copy`).
Without `--die-at` it is an ordinary gateway.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from gateway.adapter.port import Adapter, Connector, Frame, Link, Receipt, Receiver
from gateway.events import ContextUpdated, MessageConfirmed, MessagePosted
from gateway.executors.port import Answer, Copied, Destination, Executor, Request
from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.runtime.app import Gateway, Parts
from gateway.runtime.log import configure
from gateway.serve import own_url, parts_for, read_configuration
from gateway.settings.model import DestinationSpec, ExecutorSpec
from gateway.store.call import Accept, Approve, CallChange, Claim, Hold, Open, Settle
from gateway.store.port import Engine
from gateway.store.step import RUNTIME, Committed, Step
from tests.ports import listen_on
from tests.submits import SubmitsByCommit


class Death:
    """Kills this process at the n-th passage of one point."""

    def __init__(self, point: str | None, nth: int) -> None:
        self._point = point
        self._left = nth

    def passes(self, point: str) -> None:
        """Live on, or not."""
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalEngine(SubmitsByCommit):
    """An engine that may not live through a commit."""

    def __init__(self, inner: Engine, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, step: Step) -> Committed:
        for what in _purposes(step):
            self._death.passes(f"before-{what}")
        committed = await self._inner.commit(step)
        for what in _purposes(step):
            self._death.passes(f"after-{what}")
        return committed

    async def __aenter__(self) -> "MortalEngine":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)


_PURPOSES: Mapping[type[CallChange], str] = {
    Open: "accept", Hold: "hold", Approve: "allow", Claim: "claim", Accept: "promise", Settle: "outcome"
}  # fmt: skip
"""What a commit is called that changes a call."""


def _purposes(step: Step) -> Iterator[str]:
    for change in step.calls:
        if type(change) in _PURPOSES:
            yield _PURPOSES[type(change)]
        if isinstance(change, Open) and change.call.state == "held":
            yield "hold"
    for new in step.events:
        match new.event:
            case MessagePosted() if new.direction == "from_runtime":
                yield "message"
            case MessageConfirmed():
                yield "confirmation"
            case MessagePosted() | ContextUpdated(call_id=None):
                yield "post"
            case _:
                pass
    for change in step.send_changes:
        if change.state == "delivered":
            yield "delivered" if change.target == RUNTIME else "copied"


class MortalExecutor:
    """An executor that may not live through a request."""

    def __init__(self, inner: Executor, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def execute(self, request: Request) -> Answer:
        self._death.passes("before-request")
        answer = await self._inner.execute(request)
        self._death.passes("after-request")
        return answer

    async def __aenter__(self) -> "MortalExecutor":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)


class MortalDestination:
    """A destination that may not live through a copy."""

    def __init__(self, inner: Destination, death: Death) -> None:
        self._inner = inner
        self._death = death

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        self._death.passes("before-copy")
        copied = await self._inner.copy(key=key, kind=kind, at=at, data=data, attempt=attempt)
        self._death.passes("after-copy")
        return copied

    async def __aenter__(self) -> "MortalDestination":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)


class MortalLink:
    """A link that may not live through the sending of a result."""

    def __init__(self, inner: Link, death: Death) -> None:
        self._inner = inner
        self._death = death

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        results = [frame for frame in frames if "tool-result" in str(frame.payload)]
        for _ in results:
            self._death.passes("before-emit")
        receipt = await self._inner.send_all(frames)
        for _ in results:
            self._death.passes("after-emit")
        return receipt

    def prove(self) -> Awaitable[None]:
        return self._inner.prove()

    def wait_closed(self) -> Awaitable[str]:
        return self._inner.wait_closed()


class MortalConnector:
    """A connector of such links."""

    def __init__(self, inner: Connector, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AsyncGenerator[Link]:
        async with self._inner.connect(native_id, receiver, resume_after=resume_after) as link:
            yield MortalLink(link, self._death)


class MortalAdapter:
    """An adapter of such connectors."""

    def __init__(self, inner: Adapter, death: Death) -> None:
        self._inner = inner
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connector(self, options: Any) -> AbstractAsyncContextManager[Connector]:
        return self._wrapped(options)

    @asynccontextmanager
    async def _wrapped(self, options: Any) -> AsyncGenerator[Connector]:
        async with self._inner.connector(options) as connector:
            yield cast("Connector", MortalConnector(connector, self._death))


def mortal(parts: Parts, death: Death) -> Parts:
    """Put death around every part that acts."""

    def executor(spec: ExecutorSpec) -> Executor:
        return cast("Executor", MortalExecutor(parts.make_executor(spec), death))

    def destination(spec: DestinationSpec) -> Destination:
        return MortalDestination(parts.make_destination(spec), death)

    return replace(
        parts,
        engine=cast("Engine", MortalEngine(parts.engine, death)),
        adapters={name: cast("Adapter", MortalAdapter(adapter, death)) for name, adapter in parts.adapters.items()},
        make_executor=executor,
        make_destination=destination,
    )


async def serve(config: Path, port: int, death: Death) -> None:
    """Serve until SIGTERM, as bootstrap does, or until death comes."""
    settings = read_configuration(config).settings
    configure(level=settings.logging.level, format="json")
    listener = listen_on(port)
    url = own_url(settings, listener)
    parts = mortal(parts_for(settings, reread=lambda: read_configuration(config).settings, url=url), death)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Gateway.running(settings, parts) as gateway:
        server = make_server(build_app(gateway), settings.limits)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        await gateway.drain()
        server.should_exit = True
        await serving
        waiting.cancel()


def run(config: Path, port: int, die_at: str | None = None, nth: int = 1) -> None:
    """Serve in this process."""
    asyncio.run(serve(config, port, Death(die_at, nth)))


def main() -> None:
    """Serve until SIGTERM or death."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--die-at")
    parser.add_argument("--nth", type=int, default=1)
    given = parser.parse_args()
    run(given.config, given.port, given.die_at, given.nth)


if __name__ == "__main__":
    main()
