"""Two gateways on one PostgreSQL: one dies, stands still, is cut off or leaves, and the other one goes on alone.

A runtime must never hear two of them speak for one session, and no outcome may be lost on the way.
"""

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from gateway.testing.runtimes.huma.server import Manners, SimAgent
from tests.engines import postgres_server
from tests.faults.environment import until
from tests.faults.instance import Instance
from tests.faults.load import Load
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.faults.stores import postgres, proxy_to
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

LEASE = 4.0
"""Seconds of a lease; long enough for a busy machine, which must not take one from an instance that lives."""
HELD = 3.0
"""Seconds after which the server lets go of the rows of a client that it hears nothing of any more."""
MINUTE = timedelta(minutes=1)
TAKEOVER = 2 * LEASE
"""Seconds within which another instance must have a dead one's sessions."""


HANDED_OVER = "unrecorded frames handed to the session's owner"
ORPHANS = """
INSERT INTO @sessions (session_id, runtime, protocol, native_id, state, labels, last_seq, min_seq, fence, size,
    opened_at, updated_at)
SELECT 's' || n, 'finn', 'test/1', 'n' || n, 'idle', '{}', 0, 1, 0, 0, 1, 1 FROM generate_series(1, $1) n
"""


class Ear(SimAgent):
    """An agent that notes which of its sockets speaks, and how many of them it has at once."""

    spoken: list[str]
    most = 0

    async def accept(self, sid: str, payload: object) -> None:
        self.spoken.append(sid)
        await super().accept(sid, payload)

    def join(self, sid: str) -> None:
        super().join(sid)
        self.most = max(self.most, len(self.sockets))


class Pair(Scene):
    """A scene whose agent listens closely, with a second instance."""

    counts_repeats = False
    lease = LEASE

    def __init__(self, folder: Path, dialect: Dialect) -> None:
        super().__init__(folder, dialect, store="postgres")
        self.ear = Ear("finn", dialect, self.huma, Manners())
        self.ear.spoken = []
        self.huma.agents["finn"] = self.agent = self.ear

    def turns(self) -> int:
        """How often another socket began to speak; a socket that speaks again later counts again."""
        spoken = self.ear.spoken
        return sum(before != after for before, after in pairwise(spoken))

    def late(self) -> int:
        """How many frames the first socket sent after another one had begun to speak."""
        first, spoken = self.ear.spoken[0], self.ear.spoken
        began = next((number for number, sid in enumerate(spoken) if sid != first), len(spoken))
        return spoken[began:].count(first)


@dataclass
class Environment:
    """The scene, the instance that carries its session, and the other one."""

    scene: Pair
    owner: Instance
    other: Instance
    all: list[Instance] = field(default_factory=list[Instance])

    async def taken_over(self, links: int, since: float) -> float:
        """Wait until another link stands; returns how long it took, and lets the two change places."""
        await self.scene.relinked(links, within=TAKEOVER + 5)
        took = monotonic() - since
        observed().waited(took)
        self.owner, self.other = self.other, self.owner
        self.scene.gateway = self.owner
        return took

    async def finish(self) -> None:
        """Hold everybody's records together."""
        await until(self.owner.ready, within=PATIENCE)
        await self.scene.settled(within=PATIENCE)
        await self.scene.verify(strictly=False)
        for instance in self.all:
            if instance.alive:
                await instance.stop()
        await self.scene.verify_journal()


@asynccontextmanager
async def environment(folder: Path, dialect: Dialect, **engine: str) -> AsyncGenerator[Environment]:
    """Start two instances; the first one has the session."""
    async with Pair(folder, dialect) as scene:
        scene.gateway.configure(scene.settings(scene.gateway, **engine))
        await scene.run()
        other = await scene.another("other")
        other.fork()
        await until(other.ready, within=PATIENCE)
        yield Environment(scene, scene.gateway, other, [scene.gateway, other])


@pytest.mark.fault("SIGKILL of the owner", on="replicas")
async def test_another_instance_takes_over_from_a_dead_one(tmp_path: Path) -> None:
    async with environment(tmp_path, "0.2") as both:
        scene = both.scene
        async with Load(scene) as load:
            for _ in range(2):
                await load.more(20)
                links, since = scene.agent.connections, monotonic()
                both.owner.signal(signal.SIGKILL)
                await both.owner.died()
                took = await both.taken_over(links, since)
                assert took <= TAKEOVER, took
                await load.more(10)
                both.other.fork()
                await until(both.other.ready, within=PATIENCE)
        # Each of the two deaths is one change of the speaker.
        assert scene.turns() == 2
        await both.finish()


@pytest.mark.fault("SIGSTOP of the owner for longer than its lease, then SIGCONT", on="replicas")
@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_an_owner_that_wakes_up_too_late_says_and_writes_nothing_more(tmp_path: Path, dialect: Dialect) -> None:
    async with environment(tmp_path, dialect) as both:
        scene = both.scene
        async with Load(scene) as load:
            await load.more(20)
            links, since = scene.agent.connections, monotonic()
            both.owner.signal(signal.SIGSTOP)
            await both.taken_over(links, since)
            await load.more(10)
            # All that the agent has said meanwhile waits in the old one's socket, and its own timers are due.
            late = both.other
            late.signal(signal.SIGCONT)

            async def release_name() -> bool:
                return len(scene.agent.sockets) == 1

            await until(release_name)
            await load.more(20)
        # The signal may stop it between its look at the lease and the end of a write: that frame is still sent.
        assert scene.turns() == 1 + 2 * scene.late() <= 3

        async def said_so() -> bool:
            lost = (await late.metrics())["dragoman_leases_lost_total"]
            return lost >= 1 and "lease lost" in late.whole_log()

        await until(said_so)
        await both.finish()


@pytest.mark.fault("Both replicas stopped in turn, for about one lease", on="replicas")
async def test_instances_that_flap_lose_and_double_nothing(tmp_path: Path) -> None:
    async with environment(tmp_path, "0.2") as both:
        scene = both.scene
        async with Load(scene) as load:
            for number in range(5):
                flapping = both.all[number % 2]
                flapping.signal(signal.SIGSTOP)
                # Sometimes just within the lease, sometimes just beyond.
                await asyncio.sleep(LEASE * (0.7 + 0.2 * number))
                flapping.signal(signal.SIGCONT)
                await load.more(6, within=PATIENCE)
        await both.finish()


@pytest.mark.fault("Owner cut off from the store, but not from the runtime", on="replicas")
async def test_an_owner_that_cannot_reach_the_store_is_silent_before_another_takes_over(tmp_path: Path) -> None:
    async with proxy_to(postgres_server.dsn()) as wire:
        dsn = f"postgresql://postgres@127.0.0.1:{wire.port}/postgres?sslmode=disable"
        async with environment(tmp_path, "0.1", dsn=dsn) as both:
            scene = both.scene
            async with Load(scene) as load:
                await load.more(20)
                links, since = scene.agent.connections, monotonic()
                # What the owner hears from now on it cannot write down, until it hands it to the other one.
                wire.half_open()
                took = await both.taken_over(links, since)
                assert took <= TAKEOVER + HELD, took
                await load.more(10)
                wire.heal()
                await load.more(10)
                await until(both.other.ready, within=PATIENCE)

            async def release_name() -> bool:
                return len(scene.agent.sockets) == 1

            # Of the two links that it had for a while, the old one was silent.
            await until(release_name, within=PATIENCE)
            assert scene.turns() == 1

            async def told_so() -> bool:
                return HANDED_OVER in both.other.whole_log()

            # No call may be lost, since its link stood: what the old one has heard, the other one has decided about.
            await until(told_so)
            await both.finish()


@pytest.mark.fault("SIGTERM of the owner", on="replicas")
async def test_an_owner_that_leaves_hands_over_at_once(tmp_path: Path) -> None:
    async with environment(tmp_path, "0.2") as both:
        scene = both.scene
        async with Load(scene) as load:
            for _ in range(2):
                await load.more(20)
                links, since = scene.agent.connections, monotonic()
                leaving = both.owner
                leaving.signal(signal.SIGTERM)
                await both.taken_over(links, since)
                async with asyncio.timeout(PATIENCE):
                    assert await leaving.process.wait() == 0 if leaving.process else True
                await load.more(10)
                leaving.fork()
                await until(leaving.ready, within=PATIENCE)
        assert scene.ear.most == 1
        assert scene.turns() == 2
        await both.finish()


@pytest.mark.fault("10,000 sessions taken over by two replicas at once", on="replicas")
async def test_two_instances_never_take_over_the_same_orphan(tmp_path: Path) -> None:
    many = 10_000
    async with postgres(postgres_server.dsn()) as store, store.engine() as one, store.engine() as two:
        await store.fetch(ORPHANS, many)
        names = {"one": one, "two": two}
        for name, engine in names.items():
            assert await engine.beat(name, url="http://127.0.0.1", ttl=MINUTE)
        got: dict[str, list[str]] = {"one": [], "two": []}

        async def take_over(name: str) -> None:
            while rows := await names[name].take_over(name, runtimes=["finn"], limit=100):
                got[name] += [row.session_id for row in rows]
                assert {(row.owner, row.fence) for row in rows} == {(name, 1)}

        started = monotonic()
        await asyncio.gather(take_over("one"), take_over("two"), take_over("one"), take_over("two"))
        observed().waited(monotonic() - started)
        assert not set(got["one"]) & set(got["two"])
        assert len(got["one"]) + len(got["two"]) == len({*got["one"], *got["two"]}) == many
        owners = await store.fetch("SELECT owner, count(*) FROM @sessions GROUP BY owner")
        assert {row[0]: row[1] for row in owners} == {name: len(rows) for name, rows in got.items()}
