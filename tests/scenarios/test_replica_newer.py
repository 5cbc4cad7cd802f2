"""What a newer release writes beside this one costs no replica anything: followed, handed over, gone on with."""

from typing import Any

from gateway.events import Envelope, EventId, SessionId
from gateway.runtime.system_clock import SystemClock
from gateway.store.step import RUNTIME, Enqueue, Step
from gateway.testing.conformance.engine_newer import WEATHER, WeatherChanged
from tests.scenarios.environment import EventSource, Scene, ended
from tests.scenarios.replicas import cluster, owner_and_other


async def unknown(source: EventSource) -> None:
    """Read on until the event of the newer release is shown."""
    while True:
        item = await source.next()
        if item.get("event") == "opaque":
            assert item["data"]["event"] == {"kind": "opaque", "channel": "unknown-kind", "payload": WEATHER}
            return


async def test_an_unknown_kind_is_followed_elsewhere_and_its_session_is_taken_over(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica(lease=20) as a, store.replica(lease=20) as b:
        session_id = await a.session()
        one, other = await owner_and_other(session_id, [a, b])
        async with other.stream(session_id, after=0) as there:
            told: Any = WeatherChanged()
            event = Envelope(EventId("weather"), SessionId(session_id), 0, SystemClock().now(), "to_runtime", told)
            await one.faults.commit(Step(SessionId(session_id), (event,), sends=(Enqueue(0, RUNTIME, "new_work"),)))
            await unknown(there)
        await one.gateway.drain()
        await other.wait_carries(session_id)
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
        kinds = [item["event"]["kind"] for item in await other.events(session_id)]
        assert kinds.count("opaque") == 1
