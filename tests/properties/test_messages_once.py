"""Each accepted message is delivered, or its send is on record; and none is delivered twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import pytest
import yaml
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gateway.adapter.port import Capabilities, Frame, Link, Receipt, Receiver
from gateway.errors import Conflict, DragomanError, Elsewhere, EngineUnavailable, LinkLost, NotFound
from gateway.events import KINDS, MessagePosted, SessionId, SessionMoved, Text, dump_event
from gateway.events.frozen import replace as changed
from gateway.runtime.app import Gateway
from gateway.runtime.system_clock import SystemClock
from gateway.serve import parts_for
from gateway.settings.load import load
from gateway.store.port import Engine
from gateway.store.postgres import PostgresEngine
from gateway.store.rows import Page, Send, SessionFilter
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import RUNTIME, Committed, Step
from gateway.testing.conformance.engine_words import journal
from tests.engines import postgres_server
from tests.pace import PATIENCE
from tests.scenarios.environment import until
from tests.scenarios.fleet import condition
from tests.scenarios.plain_runtime import PlainRuntime

Way = Literal["taken", "busy", "unsent", "broken", "silent"]
"""The result of a send: delivered, postponed, refused before the first byte, cut off after it, or no response."""

ANSWERS = Capabilities(
    accepts=frozenset({"message.posted", "turn.interrupted"}),
    emits=frozenset(KINDS),
    turns="signalled",
    delivery="response",
    approvals="by_id",
    one_message_per_turn=True,
)
SILENT = changed(ANSWERS, delivery="silence", one_message_per_turn=False)


class Peer(PlainRuntime):
    """A runtime with a link and a turn that a test moves; `texts` has its messages."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(capabilities=capabilities)
        self.up = True
        self.way: Way = "taken"
        self.commits_take = 0.0
        """Seconds before the store begins a commit."""
        self.texts: list[tuple[str, object]] = []
        """The received texts, each with its process."""
        self.running = False
        self.alive: set[object] = set()
        self.lost = asyncio.Event()
        self.back = asyncio.Event()

    def of(self, process: object) -> "Side":
        """The same runtime as one process sees it."""
        return Side(self, process)

    def lose(self) -> None:
        self.up = False
        self.lost.set()
        self.back = asyncio.Event()

    def come_back(self) -> None:
        if not self.up:
            self.up = True
            self.lost = asyncio.Event()
            self.back.set()


class Side(PlainRuntime):
    """A runtime as one gateway process reaches it; a process that was killed reaches nothing."""

    def __init__(self, peer: Peer, process: object) -> None:
        super().__init__(capabilities=peer.capabilities)
        self.peer = peer
        self.process = process
        self.receiver: Receiver | None = None

    @property
    def dead(self) -> bool:
        return self.process not in self.peer.alive

    @asynccontextmanager
    async def _connect(self, receiver: Receiver) -> AsyncGenerator[Link]:
        if self.dead or not self.peer.up:
            # As long as a refused connection takes.
            await asyncio.sleep(0.01)
            raise LinkLost("nobody is there")
        self.receiver = receiver
        self.moved()
        try:
            yield self
        finally:
            self.receiver = None

    def _tell(self, event: Any) -> None:
        if self.receiver is not None and not self.dead:
            self.receiver.frame(Frame("event", dump_event(event)))

    def moved(self) -> None:
        self._tell(SessionMoved(state="running" if self.peer.running else "idle"))

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        (frame,) = frames
        if frame.payload["kind"] != "message.posted":
            return Receipt("delivered")
        if self.dead or not self.peer.up or self.peer.way == "unsent":
            raise LinkLost("not connected", unsent=True)
        silent = self.capabilities.delivery == "silence"
        if self.peer.way == "busy" and not silent:
            return Receipt("busy")
        self.peer.texts.append((frame.payload["content"][0]["text"], self.process))
        if silent:
            return Receipt("sent")
        if self.peer.way == "broken":
            raise LinkLost("no answer")
        if self.peer.way == "silent":
            return self._wait_for_loss()
        if self.capabilities.one_message_per_turn:
            self.peer.running = True
            self.moved()
        return Receipt("delivered")

    async def _wait_for_loss(self) -> Receipt:
        await self.peer.lost.wait()
        raise LinkLost("no answer")

    async def wait_closed(self) -> str:
        await self.peer.lost.wait()
        return "gone"


class Mortal:
    """A store that takes nothing of a process that was killed; one that dies in a commit may find it written."""

    def __init__(self, inner: Engine, peer: Peer, process: object) -> None:
        self._inner, self._peer, self._process = inner, peer, process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, step: Step) -> Committed:
        if self._process not in self._peer.alive:
            raise EngineUnavailable("killed")
        # A slow store, so that sends, frames and links meet an unfinished commit.
        await asyncio.sleep(self._peer.commits_take)
        committed = await self._inner.commit(step)
        if self._process not in self._peer.alive:
            raise EngineUnavailable("killed")
        return committed

    async def __aenter__(self) -> "Mortal":
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._inner.__aexit__(*exc)


class Process:
    """A gateway that can be stopped or killed."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.side = world.peer.of(self)
        self._stack = AsyncExitStack()
        self.gateway: Gateway | None = None

    async def start(self) -> None:
        world = self.world
        world.peer.alive.add(self)
        config = world.folder / "plain.yaml"
        world.options["connect_timeout"] = f"{20 + world.reloads}s"
        written: dict[str, Any] = {
            "api": {"keys": [{"name": "backend", "key": "k" * 32}]},
            "engine": world.engine_settings(),
            "runtimes": {
                "finn": {"adapter": "plain", "url": "http://plain.invalid", "session": "room", **world.options}
            },
            "limits": {"drain": "1s"},
            "instance": {"lease": "2s"},
        }
        written["runtimes"]["finn"] |= world.options
        config.write_text(yaml.safe_dump(written))
        adapters = {"plain": self.side}

        def read() -> Any:
            return load(config, adapters=adapters, env={}).settings

        loaded = read()
        parts = parts_for(loaded, reread=read)
        self.engine: Any = Mortal(world.engine(), world.peer, self)
        parts = replace(parts, adapters=adapters, engine=self.engine, shared=world.postgres)
        self.gateway = await self._stack.enter_async_context(Gateway.running(loaded, parts))

    async def reload(self) -> None:
        """Reload with another block of the runtime, so that it begins anew."""
        assert self.gateway is not None
        self.world.reloads += 1
        config = self.world.folder / "plain.yaml"
        written = yaml.safe_load(config.read_text())
        written["runtimes"]["finn"]["connect_timeout"] = f"{20 + self.world.reloads}s"
        config.write_text(yaml.safe_dump(written))
        await self.gateway.reload(force=True)

    async def stop(self) -> None:
        assert self.gateway is not None
        await self.gateway.drain()
        await self._stack.aclose()
        self.world.peer.alive.discard(self)

    async def kill(self) -> None:
        """Let nothing of it reach the store or the runtime any more, and then clear it away."""
        self.world.peer.alive.discard(self)
        await self._stack.aclose()


class World:
    """One session over many processes."""

    def __init__(self, folder: Path, capabilities: Capabilities, schema: str | None) -> None:
        self.folder, self.schema = folder, schema
        self.peer = Peer(capabilities)
        self.options: dict[str, Any] = {"delivery_window": "100ms"}
        self.reloads = 0
        self.processes: list[Process] = []
        self.posted = 0
        self.accepted: set[str] = set()
        self.at_risk: set[str] = set()
        """Messages with a recorded start of their send at the end of their process."""

    @property
    def postgres(self) -> bool:
        return self.schema is not None

    def engine_settings(self) -> dict[str, Any]:
        if self.schema is None:
            return {"type": "sqlite", "path": str(self.folder / "plain.db")}
        return {"type": "postgres", "dsn": postgres_server.dsn(), "schema": self.schema}

    def engine(self) -> Engine:
        if self.schema is None:
            return SqliteEngine(self.folder / "plain.db", SystemClock())
        return PostgresEngine(postgres_server.dsn(), SystemClock(), schema=self.schema)

    async def start(self) -> None:
        process = Process(self)
        await process.start()
        self.processes.append(process)

    async def session_id(self) -> SessionId:
        rows, _ = await self.processes[0].engine.sessions(Page(1), SessionFilter())
        return rows[0].session_id

    async def post(self, count: int) -> None:
        """Post messages; one that is refused is not accepted."""
        session_id = await self.session_id()
        events = [MessagePosted(content=(Text(text=f"m{self.posted + place}"),)) for place in range(count)]
        self.posted += count
        for process in self.processes:
            assert process.gateway is not None
            try:
                await asyncio.wait_for(process.gateway.post(session_id, events, by="test"), PATIENCE)
            except (Elsewhere, NotFound, Conflict):
                continue
            except DragomanError:
                # It may be on record; if it is, the promise holds for it too.
                return
            self.accepted |= {event.content[0].text for event in events if isinstance(event.content[0], Text)}
            return

    def moved(self) -> None:
        for process in self.processes:
            process.side.moved()

    async def settle(self) -> None:
        """Let everything that is under way end, as far as it does."""
        for _ in range(20):
            await asyncio.sleep(0)
        # Timers of a few milliseconds are due then; nothing is asserted about later messages.
        await asyncio.sleep(0.005)

    async def rows(self, engine: Any = None) -> list[tuple[str, Send]]:
        """Read the messages on record and their rows, through a process or an engine of our own."""
        if engine is None:
            assert self.processes[0].gateway is not None
            engine = self.processes[0].engine
        (session,), _ = await engine.sessions(Page(1), SessionFilter())
        found: list[tuple[str, Send]] = []
        for envelope in await journal(engine, session.session_id):
            if isinstance(envelope.event, MessagePosted):
                block = envelope.event.content[0]
                assert isinstance(block, Text)
                rows = await engine.sends_of(session.session_id, envelope.sequence)
                found += [(block.text, row) for row in rows if row.target == RUNTIME]
        return found

    async def note_attempts(self, *, orderly: bool = False) -> None:
        """Remember the messages with a recorded start of their send; after an orderly stop all are delivered."""
        if self.processes:
            rows = await self.rows()
        else:
            async with self.engine() as engine:
                rows = await self.rows(engine)
        started = {text for text, row in rows if row.state == "pending" and row.attempt == 1}
        self.at_risk |= started
        if orderly:
            assert started <= {text for text, _ in self.peer.texts}, started

    async def end(self, *, kill: bool) -> None:
        """End the process that carries the session, and let another one take it up."""
        process = self.processes.pop(0)
        await (process.kill() if kill else process.stop())
        await self.note_attempts(orderly=not kill)
        if not self.processes:
            await self.start()

    async def reload(self) -> None:
        await self.note_attempts()
        await self.processes[0].reload()
        await self.note_attempts()

    async def finish(self) -> None:
        """Let the runtime take everything, and hold each message to the promise."""
        self.peer.way = "taken"
        self.peer.lose()
        await self.settle()
        self.peer.come_back()
        async with asyncio.timeout(PATIENCE):
            while any(row.state == "pending" for _, row in await self.rows()):
                if self.peer.running:
                    self.peer.running = False
                    self.moved()
                await asyncio.sleep(0.02)
        silent = self.peer.capabilities.delivery == "silence"
        heard = Counter(text for text, _ in self.peer.texts)
        rows = await self.rows()
        for text, row in rows:
            if not heard[text]:
                assert row.state == "unknown", (text, row)
                assert text in self.at_risk, (text, row)
            by = Counter(process for one, process in self.peer.texts if one == text)
            # The same text again, if the link was lost before silence had confirmed it.
            assert len(by) <= 1, (text, row, self.peer.texts)
            assert silent or heard[text] <= 1, (text, row, self.peer.texts)
        assert self.accepted <= {text for text, _ in rows}
        while self.processes:
            await self.processes.pop().stop()


class Messages(RuleBasedStateMachine):
    """Everything that can happen between a post and its delivery."""

    capabilities: Capabilities = ANSWERS
    on_postgres = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.world: World | None = None

    def run(self, work: Callable[[World], Awaitable[object]]) -> None:
        async def then_settle() -> None:
            assert self.world is not None
            await work(self.world)
            await self.world.settle()

        self.runner.run(then_settle())

    @initialize()
    def begin(self) -> None:
        schema = postgres_server.new_schema() if self.on_postgres else None

        async def start() -> None:
            self.world = World(Path(self.folder.name), self.capabilities, schema)
            await self.world.start()

        self.runner.run(start())

    @rule(count=st.integers(1, 3))
    def post(self, count: int) -> None:
        self.run(lambda world: world.post(count))

    @rule(way=st.sampled_from(get_args(Way)))
    def behaves(self, way: Way) -> None:
        assert self.world is not None
        self.world.peer.way = way

    @rule(seconds=st.sampled_from([0.0, 0.02]))
    def store_slows(self, seconds: float) -> None:
        assert self.world is not None
        self.world.peer.commits_take = seconds

    @rule()
    def lose_link(self) -> None:
        assert self.world is not None
        self.world.peer.lose()
        self.run(lambda world: world.settle())

    @rule()
    def link_back(self) -> None:
        assert self.world is not None
        self.world.peer.come_back()
        self.run(lambda world: world.settle())

    @rule(running=st.booleans())
    def turn(self, running: bool) -> None:
        async def move(world: World) -> None:
            world.peer.running = running
            world.moved()

        self.run(move)

    @rule(kill=st.booleans(), posts=st.integers(0, 2))
    def end(self, kill: bool, posts: int) -> None:
        async def end(world: World) -> None:
            posting = [asyncio.create_task(world.post(1)) for _ in range(posts)]
            await asyncio.sleep(0)
            await world.end(kill=kill)
            await asyncio.gather(*posting)

        self.run(end)

    @rule()
    def reload(self) -> None:
        self.run(lambda world: world.reload())

    @precondition(lambda self: self.on_postgres)
    @rule(kill=st.booleans())
    def take_over(self, kill: bool) -> None:
        async def take(world: World) -> None:
            if len(world.processes) == 1:
                await world.start()
            await world.end(kill=kill)

        self.run(take)

    def teardown(self) -> None:
        try:
            if self.world is not None:
                self.runner.run(self.world.finish())
        finally:
            self.runner.close()
            self.folder.cleanup()


class SilentMessages(Messages):
    capabilities = SILENT


class PostgresMessages(Messages):
    on_postgres = True


class SilentPostgresMessages(SilentMessages):
    on_postgres = True


_FEW = settings(
    max_examples=15,
    stateful_step_count=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(
    "machine",
    [pytest.param(Messages, id="answers"), pytest.param(SilentMessages, id="silent", marks=pytest.mark.slow)],
)
def test_each_message_is_delivered_or_its_send_was_on_record(machine: type[Messages]) -> None:
    run_state_machine_as_test(machine, settings=_FEW)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [PostgresMessages, SilentPostgresMessages], ids=["answers", "silent"])
def test_each_message_is_delivered_or_its_send_was_on_record_with_takeovers(machine: type[Messages]) -> None:
    run_state_machine_as_test(machine, settings=settings(_FEW, max_examples=8))


@pytest.mark.parametrize("capabilities", [ANSWERS, SILENT])
async def test_a_link_that_comes_up_after_the_drain_starts_no_send(tmp_path: Path, capabilities: Capabilities) -> None:
    world = World(tmp_path, capabilities, None)
    await world.start()
    world.peer.lose()
    await world.settle()
    await world.post(2)
    (process,) = world.processes
    assert process.gateway is not None
    await process.gateway.drain()
    world.peer.come_back()
    await condition(lambda: process.side.receiver)
    await world.settle()
    assert [(row.state, row.attempt) for _, row in await world.rows()] == [("pending", 0)] * 2
    await world.end(kill=False)
    await world.finish()
    assert {text for text, _ in world.peer.texts} == {"m0", "m1"}


async def fate(world: World) -> str:
    """Wait until the fate of the only message is on record."""

    async def look() -> str | None:
        [(_, row)] = await world.rows()
        return None if row.state == "pending" else row.state

    return await until(look)


async def test_a_message_without_its_response_after_a_reload_is_unknown(tmp_path: Path) -> None:
    world = World(tmp_path, ANSWERS, None)
    await world.start()
    world.peer.way = "silent"
    await world.post(1)
    await condition(lambda: world.peer.texts)
    await world.reload()
    assert await fate(world) == "unknown"
    await world.finish()


async def test_a_message_that_is_sent_while_the_store_records_another_link_is_sent_once(tmp_path: Path) -> None:
    world = World(tmp_path, ANSWERS, None)
    await world.start()
    world.peer.commits_take = 0.3
    await world.post(1)
    # The links change while the attempt is committed, and the message leaves while their change is.
    await world.reload()
    assert await fate(world) == "delivered"
    await world.finish()
