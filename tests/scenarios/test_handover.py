"""What an instance has heard and may not write any more is decided about by the one that carries the session."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from adapters.huma.v0_2 import Huma02Codec
from gateway.adapter.port import Adapter, Connector, Frame, Link, Receiver
from gateway.errors import LinkLost
from gateway.events import SessionId
from gateway.plugins import installed_adapters
from gateway.runtime.cluster.handover import KEPT, Handover, worth_handing_over
from gateway.runtime.notifications import Notifications
from gateway.runtime.session.inbox import Inbox, PendingInputs
from gateway.runtime.signals import FrameArrived, Signal
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.rows import Rows, Send
from gateway.store.sqlite import TemporaryEngine
from gateway.store.step import HANDOVER, Committed, Step
from gateway.testing.conformance.engine_words import ALICE, FakeClock, close_session, open_session
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, Scene, ended, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.replicas import Replica, cluster, owner_and_other

STATUS: dict[str, Any] = {"type": "status", "status": "idle"}


def word(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "messaging", "event": "message_sent", "message": text, **more}


def tool_call(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool-call", "toolCallId": call_id, "toolName": "free", "arguments": arguments}


def heard(payload: Any, channel: str = "event", **more: Any) -> FrameArrived:
    return FrameArrived(Frame(channel, payload), None, 10, **more)


def left(signals: Sequence[Signal], *, under_way: Sequence[Signal] = (), unsure: bool = False) -> PendingInputs:
    waiting, before = ((signal, 0) for signal in signals), ((signal, 0) for signal in under_way)
    return PendingInputs(0, tuple(before), tuple(waiting), unsure=unsure, codec=Huma02Codec())


async def unheard(scene: Scene, count: int) -> list[dict[str, Any]]:
    """Calls that the agent makes while no gateway is there, as a stranger may hear them."""
    calls = [await scene.agent.call("free", {"n": n}, f"far-{n}") for n in range(count)]
    return [tool_call(call.call_id, n=n) for n, call in enumerate(calls)]


def stranger(engine: Engine, clock: Any = None) -> Handover:
    """An instance that has lost a session."""
    clock = clock or SystemClock()
    return Handover(engine, clock, SystemIds(clock), Notifications(engine))


async def steal(one: Replica, session_id: SessionId) -> None:
    """Let others take a session over, without a word to its owner."""
    owner = await one.owner(session_id)
    assert owner is not None
    await PostgresEngine.release(one.faults, owner, [session_id])


async def test_what_an_owner_hears_while_it_is_cut_off_is_decided_about_by_the_next_one(newer: Scene) -> None:
    agent = newer.agent
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = SessionId(await a.session())
        one, other = await owner_and_other(session_id, [a, b])
        one.faults.cut_off = True
        alone = [await agent.call("free", {"n": n}) for n in range(3)]
        withdrawn = await agent.call("free", {"n": "withdrawn"})
        await agent.cancel(withdrawn, "never mind")
        await agent.emit("event", word("Only once!"))
        await agent.emit("event", STATUS)

        async def is_heard() -> bool:
            return (await one.metrics()).get('dragoman_frames_total{direction="from_runtime",runtime="finn"}', 0) >= 7

        await until(is_heard)
        await steal(one, session_id)
        await other.wait_carries(session_id)
        # Both have a link now, and hear this one.
        both = await agent.call("ask", GOOD)
        assert (await ended(both)).outcome == "success"
        assert not any(call.results for call in alone)
        one.faults.cut_off = False
        assert [(await ended(call)).outcome for call in alone] == ["success"] * 3
        assert (await ended(withdrawn)).outcome == "canceled"
        assert (await other.wait_call(withdrawn.call_id, "canceled"))["state"] == "canceled"
        await until(lambda: _settled(other, session_id))
        assert [text_of(event) for event in await other.events(session_id, kind="message.posted")] == ["Only once!"]
        rows = (await other.get("/v1/calls"))["data"]
        assert len(rows) == len({row["native_call_id"] for row in rows}) == 5
        keys = [asked.key for asked in newer.hooks.asked if asked.kind == "tool.requested"]
        assert len(keys) == len(set(keys))
        moved = [event["event"] for event in await other.events(session_id, kind="session.moved")]
        assert not any(event.get("native_state") == STATUS["status"] for event in moved)
        numbers = [event["sequence"] for event in await other.events(session_id)]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_an_answer_that_arrives_after_a_takeover_is_dropped_and_logged(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["free"] = gate.answering(success("too late"))
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = SessionId(await a.session())
        one, other = await owner_and_other(session_id, [a, b])
        call = await newer.agent.call("free", {})
        await newer.hooks.wait_for()
        one.faults.cut_off = True
        gate.open()
        await steal(one, session_id)
        await other.wait_carries(session_id)
        with capture_logs() as lines:
            one.faults.cut_off = False
            assert (await ended(call)).outcome == "success"

            async def is_logged() -> bool:
                return any(line["event"] == "executor answers dropped" for line in lines)

            await until(is_logged)
        [row] = (await other.get("/v1/calls"))["data"]
        [dropped] = [line for line in lines if line["event"] == "executor answers dropped"]
        assert (dropped["call_ids"], dropped["count"], dropped["log_level"]) == ([row["call_id"]], 1, "warning")


async def test_what_a_session_had_before_it_that_failed_and_goes_on_elsewhere_is_handed_over(newer: Scene) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = SessionId(await a.session())
        one, other = await owner_and_other(session_id, [a, b])
        among = (await other.get("/v1/instances"))["data"]
        [instance] = [each["instance_id"] for each in among if each["url"] == other.url]
        taken = None
        async with asyncio.timeout(PATIENCE):
            # The owner may take the session again before the other one does.
            while taken is None:
                await steal(one, session_id)
                taken = await PostgresEngine.take(other.faults, instance, session_id)
        one.faults.broken = True
        call = await newer.agent.call("free", {"n": 1})
        connections = newer.agent.connections
        # It fails, and finds that the session is not its own any more; only then the other one makes its link.
        await until(lambda: _let_go(newer))
        PostgresEngine.notify(one.faults, f"orphans:{session_id}")
        await newer.agent.wait_connections(connections + 1)
        assert not call.results
        one.faults.broken = False
        assert (await ended(call)).outcome == "success"


class Unanswered:
    """A link to a peer that hears all it is told, and answers no question whether it is there."""

    def __init__(self, inner: Link) -> None:
        self.over = asyncio.Event()
        self.asked = asyncio.Event()
        self.send_all, self.wait_closed = inner.send_all, inner.wait_closed

    async def prove(self) -> None:
        self.asked.set()
        await self.over.wait()
        raise LinkLost("the link is closed")


class UnansweredAdapter:
    """An adapter whose links are like that."""

    def __init__(self, inner: Adapter) -> None:
        self._inner = inner
        self.links: list[Unanswered] = []

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
                        outer.links.append(Unanswered(link))
                        try:
                            yield outer.links[-1]
                        finally:
                            outer.links[-1].over.set()

            yield cast("Connector", Within())


async def test_a_session_is_handed_over_whose_last_send_nobody_has_confirmed(newer: Scene) -> None:
    adapter = UnansweredAdapter(installed_adapters()["huma-0.2"])
    store = cluster(newer)
    store.adapters = {"huma-0.2": cast("Adapter", adapter)}
    async with store.replica(limits={"drain": "60s"}) as a, store.replica(limits={"drain": "60s"}) as b:
        session_id = SessionId(await a.session())
        one, other = await owner_and_other(session_id, [a, b])
        assert (await ended(await newer.agent.call("free", {"n": 1}))).outcome == "success"
        async with asyncio.timeout(PATIENCE):
            await adapter.links[0].asked.wait()
            await one.gateway.drain()
        await other.wait_carries(session_id)


async def _let_go(scene: Scene) -> bool:
    return not scene.agent.connected


def text_of(event: dict[str, Any]) -> str:
    return event["event"]["content"][0]["text"]


async def _settled(one: Replica, session_id: SessionId) -> bool:
    handed = await one.faults.pending_sends(target=HANDOVER)
    return not handed and bool(await one.events(session_id, kind="opaque"))


async def test_a_follower_sees_what_was_handed_over(newer: Scene) -> None:
    [payload] = await unheard(newer, 1)
    async with cluster(newer).replica() as one:
        session_id = SessionId(await one.session())
        await one.wait_carries(session_id)
        async with one.stream(session_id) as stream:
            await stranger(one.faults).leave(session_id, left([heard(payload)]))
            shown = await stream.until("tool.requested")
        assert "opaque" in [item["event"] for item in shown]


async def test_two_that_have_heard_the_same_hand_it_over_and_it_is_done_once(newer: Scene) -> None:
    signals = [heard(payload) for payload in await unheard(newer, 120)]
    async with cluster(newer).replica() as one:
        session_id = SessionId(await one.session())
        await one.wait_carries(session_id)
        first, second = stranger(one.faults), stranger(one.faults)
        await asyncio.gather(first.leave(session_id, left(signals)), second.leave(session_id, left(signals)))
        for call in list(newer.agent.calls.values()):
            assert (await ended(call)).outcome == "success"
        await until(lambda: _settled(one, session_id))
        asked = [each.key for each in newer.hooks.asked]
        assert len(asked) == len(set(asked)) == len(signals)
        assert len(await one.events(session_id, kind="tool.requested")) == len(signals)


async def test_what_was_beyond_the_bounds_of_an_inbox_is_told_overloaded_by_the_next_owner(newer: Scene) -> None:
    payloads = await unheard(newer, 3)
    async with cluster(newer).replica() as one:
        session_id = SessionId(await one.session())
        await one.wait_carries(session_id)
        inbox = Inbox(
            frames=2, size=10_000, resumes=False, is_live=lambda _: False, overflow=print, filled=lambda: None
        )
        for payload in payloads:
            inbox.put_frame(Frame("event", payload), None)
        await stranger(one.faults).leave(session_id, left(inbox.take_all()))
        states = [(await one.wait_call(f"far-{n}", "succeeded", "failed"))["state"] for n in range(3)]
        assert states == ["succeeded", "succeeded", "failed"]
        assert "overloaded" in (await one.call_of("far-2"))["error"]


async def test_frames_for_a_session_that_was_closed_are_dropped_and_nothing_breaks(newer: Scene) -> None:
    async with cluster(newer).replica() as one:
        session_id = SessionId(await one.session())
        await one.wait_carries(session_id)
        assert (await one.http.delete(f"/v1/sessions/{session_id}", params={"erase": "true"})).status_code == 204
        before = await one.events(session_id)
        with capture_logs() as logs:
            await stranger(one.faults).leave(session_id, left([heard(tool_call("far"))]))
        assert [(entry["event"], entry["reason"]) for entry in logs] == [
            ("unrecorded frames dropped", "the session was closed meanwhile")
        ]
        assert await one.events(session_id) == before
        newer.huma.agent("gill")
        opened = await one.post("/v1/sessions", {"runtime": "finn", "native_id": "gill"}, status=201)
        await one.wait_carries(opened["session_id"])


@asynccontextmanager
async def looking(engine: Engine, clock: FakeClock) -> AsyncGenerator[None]:
    """An instance that carries nothing, and looks for what was left."""
    looker = stranger(engine, clock)
    looker.wake()
    task = asyncio.create_task(looker.keep_looking(dict, shared=False))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


class LookedAt(TemporaryEngine):
    """A store that tells when somebody has looked for what was left."""

    looked: asyncio.Event

    async def pending_sends(self, **which: Any) -> Rows[Send]:
        found = await super().pending_sends(**which)
        self.looked.set()
        return found


async def _nothing_pending(engine: Engine, session_id: SessionId | None = None) -> bool:
    return not await engine.pending_sends(session_id=session_id, target=HANDOVER)


@pytest.mark.parametrize("end", ["closed", "erased", "late"])
async def test_what_nobody_takes_up_goes_with_the_session_or_in_time(end: str) -> None:
    clock = FakeClock()
    async with LookedAt(SystemClock()) as engine:
        engine.looked = asyncio.Event()
        await open_session(engine)
        await stranger(engine, clock).leave(ALICE, left([heard(tool_call("far")), heard(tool_call("further"))]))
        async with looking(engine, clock):
            async with asyncio.timeout(PATIENCE):
                await engine.looked.wait()
            # A store in memory would have been written to in the turns behind that.
            for _ in range(20):
                await asyncio.sleep(0)
        assert len(await engine.pending_sends(target=HANDOVER)) == 2
        if end == "late":
            clock.turn(KEPT + timedelta(seconds=1))
        else:
            await close_session(engine)
        if end == "erased":
            await engine.erase(ALICE)
        with capture_logs() as logs:
            async with looking(engine, clock):
                await until(lambda: _nothing_pending(engine))
        [dropped] = [entry for entry in logs if entry["event"] == "frames of another instance dropped"]
        assert dropped["count"] == 2
        states = [row.state for sequence in (2, 3) for row in await engine.sends_of(ALICE, sequence)]
        assert states == ["moot", "moot"]


class FaultyFor(TemporaryEngine):
    """A store that takes no word about what was left for one session."""

    session_id: SessionId

    async def commit(self, step: Step) -> Committed:
        if step.session_id == self.session_id and step.send_changes:
            raise RuntimeError("nobody foresees it")
        return await super().commit(step)


async def test_what_one_session_fails_on_keeps_no_other_from_what_was_left_for_it() -> None:
    clock, other = FakeClock(), SessionId("bob")
    async with FaultyFor(SystemClock()) as engine:
        engine.session_id = ALICE
        for session_id in (ALICE, other):
            await open_session(engine, session_id, native_id=session_id)
            await stranger(engine, clock).leave(session_id, left([heard(tool_call("far"))]))
        clock.turn(KEPT + timedelta(seconds=1))
        async with looking(engine, clock):
            await until(lambda: _nothing_pending(engine, other))
        assert not await _nothing_pending(engine, ALICE)


def test_what_may_not_come_twice_is_handed_over_only_where_nobody_else_can_have_it() -> None:
    burst = word("one", toolCallId="burst", messageIndex=0, messageCount=1)
    cancel: dict[str, Any] = {"type": "cancel-tool-call", "toolCallId": "c"}
    typing: dict[str, Any] = {"type": "messaging", "event": "typing_start"}
    report: dict[str, Any] = {"type": "error", "message": "no"}
    all_kinds = [tool_call("c"), cancel, burst, word("plain"), {"type": "news"}, typing, STATUS, report, {"type": 1}]

    def chosen(found: PendingInputs) -> list[str]:
        return [one.text for one in worth_handing_over(found, Huma02Codec())]

    texts = chosen(left([heard(payload) for payload in all_kinds]))
    assert [text[:14] for text in texts] == ['{"type": "tool', '{"type": "canc', '{"type": "mess']
    alone = [heard(payload, alone=True) for payload in all_kinds]
    assert len(chosen(left(alone))) == len(chosen(left([], under_way=alone))) == 5
    assert chosen(left([], under_way=alone, unsure=True)) == texts
    assert len(chosen(left([heard(tool_call("c", text="\ud800"))]))) == 1
