"""A machine that sleeps outlives its lease; nothing leaves for a runtime before a lease runs again."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from gateway.adapter.port import Adapter, Connector, Frame, Link, Receipt, Receiver
from gateway.plugins import installed_adapters
from gateway.runtime.system_clock import SystemClock
from tests.scenarios.environment import Scene
from tests.scenarios.replicas import cluster
from tests.scenarios.test_replicas import silent


class SleepingClock(SystemClock):
    """The clock of a machine that sleeps: the time of day goes on, and timers stand still."""

    def __init__(self) -> None:
        super().__init__()
        self._awake, self._asleep = self._steady, 0.0
        self._steady = lambda: self._awake() + self._asleep

    def sleep(self, seconds: float) -> None:
        self._asleep += seconds


class SleepyLink:
    """A link that calls `after_next` of its adapter once its next event has left."""

    def __init__(self, inner: Link, adapter: "SleepyAdapter") -> None:
        self._inner, self._adapter = inner, adapter
        self.prove, self.wait_closed = inner.prove, inner.wait_closed

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        receipt = await self._inner.send_all(frames)
        after, self._adapter.after_next = self._adapter.after_next, None
        if after is not None:
            after()
        return receipt


class SleepyAdapter:
    """An adapter with such links."""

    def __init__(self, inner: Adapter) -> None:
        self._inner = inner
        self.after_next: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Connector]:
        async with self._inner.connector(options) as connector:
            yield cast("Connector", SleepyConnector(connector, self))


class SleepyConnector:
    def __init__(self, inner: Connector, adapter: SleepyAdapter) -> None:
        self._inner, self._adapter = inner, adapter
        self.create = inner.create

    @asynccontextmanager
    async def connect(self, native_id: str, receiver: Receiver, **more: Any) -> AsyncGenerator[Link]:
        async with self._inner.connect(native_id, receiver, **more) as link:
            yield SleepyLink(link, self._adapter)


async def test_an_event_that_waits_behind_another_leaves_only_while_a_lease_runs(newer: Scene) -> None:
    clock, store = SleepingClock(), cluster(newer)
    adapter = SleepyAdapter(installed_adapters()["huma-0.2"])
    store.adapters, store.clock = {"huma-0.2": cast("Adapter", adapter)}, clock
    async with store.replica() as one:
        await one.wait_link("up")

        def sleep() -> None:
            one.faults.cut_off = True
            clock.sleep(60)

        adapter.after_next = sleep
        path = f"/v1/sessions/{await one.session()}/events"
        messages = [{"kind": "message.posted", "content": text} for text in ("one", "two")]
        await one.post(path, {"events": messages}, status=202)
        await newer.agent.wait_for(_tells("one"))
        await silent(one)
        assert not any(_tells("two")(frame.payload) for frame in newer.agent.received)
        one.faults.cut_off = False
        await newer.agent.wait_for(_tells("two"))


def _tells(text: str) -> Callable[[Any], bool]:
    return lambda payload: f"{text!r}" in str(payload)
