"""What leaves for a runtime in one turn leaves in one write, and only while the lease still runs."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, cast

from gateway.adapter.port import Adapter, Connector, Frame, Link, Receipt, Receiver
from gateway.links.socketio.client import SocketLink
from gateway.plugins import installed_adapters
from gateway.runtime.system_clock import SystemClock
from tests.scenarios.environment import GOOD, Scene, ended
from tests.scenarios.replicas import cluster


class SleepingClock(SystemClock):
    """The clock of a machine that sleeps: time goes on, and what spans are measured with stands."""

    def __init__(self) -> None:
        super().__init__()
        self._awake, self._asleep = self._steady, 0.0
        self._steady = lambda: self._awake() + self._asleep

    def sleep(self, seconds: float) -> None:
        self._asleep += seconds


class Slow:
    """A link with which the machine sleeps between the first thing that is sent and its leaving."""

    def __init__(self, inner: SocketLink, clock: SleepingClock) -> None:
        self._inner, self._clock = inner, clock
        self.prove, self.wait_closed = inner.prove, inner.wait_closed
        self.cork, self.uncork = inner.cork, inner.uncork
        self.slow = True

    def send(self, frame: Frame) -> Awaitable[Receipt]:
        if self.slow:
            self.slow = False
            self._clock.sleep(60)
        return self._inner.send(frame)


class SlowAdapter:
    """An adapter of which the first link is like that."""

    def __init__(self, inner: Adapter, clock: SleepingClock) -> None:
        self._inner, self._clock = inner, clock
        self.links = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Connector]:
        async with self._inner.connector(options) as connector:
            outer = self

            class Within:
                create = connector.create

                @asynccontextmanager
                async def connect(self, native_id: str, receiver: Receiver, **more: Any) -> AsyncGenerator[Link]:
                    async with connector.connect(native_id, receiver, **more) as link:
                        outer.links += 1
                        yield Slow(cast("SocketLink", link), outer._clock) if outer.links == 1 else link

            yield cast("Connector", Within())


async def test_what_a_lease_has_let_go_does_not_leave_once_it_has_run_out(newer: Scene) -> None:
    clock, store = SleepingClock(), cluster(newer)
    adapter = SlowAdapter(installed_adapters()["huma-0.2"], clock)
    store.adapters, store.clock = {"huma-0.2": cast("Adapter", adapter)}, clock
    async with store.replica() as one:
        await one.wait_link("up")
        call = await newer.agent.call("ask", GOOD)
        assert (await ended(call)).outcome == "success"
        assert len(call.results) == 1
        # It was told by the second link, when a lease ran again.
        assert newer.agent.connections == adapter.links == 2
