"""A session that is taken up from a snapshot remembers what one remembers that was read from its beginning."""

from gateway.core.fold import fold
from gateway.core.snapshots import to_snapshot
from gateway.core.state import Remembered
from gateway.events import SessionId
from gateway.runtime.session.load import load_view
from gateway.runtime.system_clock import SystemClock
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Step
from tests.scenarios.environment import GOOD, Scene, ended
from tests.scenarios.hooks import success


async def test_a_snapshot_stands_for_all_events_up_to_its_own_and_for_none_behind_it(both: Scene) -> None:
    both.hooks.scripts["ask"] = success("7")
    async with both.running() as gateway:
        session_id = SessionId(await gateway.session())
        for text in ("one", "two"):
            event = {"kind": "message.posted", "content": text}
            await gateway.post(f"/v1/sessions/{session_id}/events", event, status=202)
            await ended(await both.agent.call("ask", GOOD))
            await both.agent.say([f"{text}, said the agent"])
        await gateway.wait_events("message.posted", 4)
    async with SqliteEngine(both.folder / "dragoman.db", SystemClock()) as engine:
        events = await engine.read(session_id)
        whole = await load_view(engine, session_id)
        assert {"message.posted", "tool.requested", "tool.finished"} <= {one.event.kind for one in events}
        memory = Remembered()
        for envelope in events:
            memory = fold(memory, envelope)
            snapshot = to_snapshot(envelope.sequence, memory)
            await engine.commit(Step(session_id, snapshot=snapshot))
            assert (await load_view(engine, session_id)).memory == whole.memory, envelope
        assert memory == whole.memory
