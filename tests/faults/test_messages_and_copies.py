"""kill -9 between an agent's message and its confirmation, around a client's event, and around an event copy."""

import json
from pathlib import Path

import httpx
import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.scene import Scene

pytestmark = pytest.mark.faults

MESSAGE = pytest.mark.fault("SIGKILL between an agent's message and its confirmation")


@MESSAGE
@pytest.mark.parametrize("point", ["after-message", "after-request", "after-confirmation"])
async def test_a_message_is_confirmed_by_the_next_process_where_delivering_twice_does_no_harm(
    tmp_path: Path, point: str, store: str
) -> None:
    async with Scene(tmp_path, "0.2", store=store) as scene:
        await scene.run(point)
        saying = await scene.say(["one", "two"])
        await scene.dead()
        await scene.run()
        confirmations = await saying
        assert [(c.index, c.success, c.assumed) for c in confirmations] == [(0, True, False), (1, True, False)]
        asked = [seen.key for seen in scene.backend.seen]
        assert len(set(asked)) == 2
        assert len(asked) == (3 if point == "after-request" else 2)
        await scene.settled()
        assert scene.agent.violations == []
        await scene.stop()
        await scene.verify_journal()


@MESSAGE
@pytest.mark.parametrize("point", ["after-message", "after-request"])
async def test_a_message_that_may_not_be_delivered_twice_is_confirmed_as_unknown(
    tmp_path: Path, point: str, store: str
) -> None:
    async with Scene(tmp_path, "0.2", store=store, idempotent_chat=False) as scene:
        await scene.run(point)
        saying = await scene.say(["one", "two"])
        await scene.dead()
        await scene.run()
        (confirmation,) = await saying
        assert not confirmation.success
        assert "restarted" in str(confirmation.payload)
        assert len(scene.backend.seen) == (0 if point == "after-message" else 1)
        await scene.settled()
        assert scene.agent.violations == []


@pytest.mark.fault("SIGKILL after a client's event, before its 202", simulated="repeated-write-is-written-again")
@pytest.mark.parametrize(("dialect", "store", "arrives"), [("0.1", "postgres", False), ("0.2", "postgres", True)])
async def test_a_message_of_a_client_is_on_record_even_if_the_client_never_heard_so(
    tmp_path: Path, dialect: Dialect, store: str, *, arrives: bool
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run("after-post")
        # A result that was told shows that the link takes events, so the message is sent at once.
        await (await scene.call("again")).result()
        session_id = await scene.session_id()
        event = {"kind": "message.posted", "content": "Hello, Finn"}
        with pytest.raises(httpx.TransportError):
            await scene.http.post(f"/v1/sessions/{session_id}/events", json=event)
        await scene.dead()
        await scene.run()
        await scene.settled()
        posted = [
            e for e in await scene.rows(f"/v1/sessions/{session_id}/events") if e["event"]["kind"] == event["kind"]
        ]
        assert len(posted) == 1
        told = [frame for frame in scene.agent.received if "Hello, Finn" in json.dumps(frame.payload)]
        letters = await scene.rows("/v1/dead-letters")
        if arrives:
            # The whole context is sent again, which says nothing twice.
            assert any(frame.payload.get("triggering") for frame in told)
            assert letters == []
        else:
            # A plain message would count as a new one, so the operator decides.
            assert told == []
            assert [letter["state"] for letter in letters] == ["unknown"]


@pytest.mark.fault("SIGKILL around a copy to a destination")
@pytest.mark.parametrize("point", ["after-outcome", "after-copy", "after-copied"])
async def test_a_copy_is_sent_at_least_once_and_always_under_its_own_id(tmp_path: Path, point: str, store: str) -> None:
    async with Scene(tmp_path, "0.2", store=store, copies=True) as scene:
        await scene.run(point)
        call = await scene.call("once")
        await scene.dead()
        await scene.run()
        await call.result()
        await scene.settled()
        # Where the copy took its time, the update may be known to be delivered, and the result not yet.
        await scene.verify(strictly=False)
        events = await scene.rows(f"/v1/sessions/{await scene.session_id()}/events")
        (outcome,) = [event for event in events if event["event"]["kind"] == "tool.finished"]
        copies = [seen for seen in scene.backend.seen if seen.kind == "tool.finished"]
        assert {seen.key for seen in copies} == {outcome["event_id"]}
        assert all(seen.content == copies[0].content for seen in copies)
        assert len(copies) == (2 if point == "after-copy" else 1)
