"""The world: one gateway, its agents, its backend and its clients, and the choices of a seed."""

import asyncio
import gc
import json
import os
import pickle
import random as global_random
import signal
import sqlite3
import traceback
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from io import StringIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from gateway.runtime import log as log_setup
from gateway.testing.runtimes.huma.agent import Manners
from gateway.testing.runtimes.huma.calls import SimCall
from tests.simulation.backend import Backend, Callback, Request
from tests.simulation.clients import Follower, Writer
from tests.simulation.clock import EPOCH
from tests.simulation.huma import KEY, HumaServer
from tests.simulation.instance import FIRST_PORT, Exchange, Instance
from tests.simulation.loop import Endless, Process
from tests.simulation.network import NetLoop
from tests.simulation.people import People, allow_all, keys
from tests.simulation.policy import TOOLS, Policies, draw, ungated
from tests.simulation.promises import Event, check_end
from tests.simulation.steps import (
    API_KEY,
    GATED_STEPS,
    QUIET_STEPS,
    REPLICA_STEPS,
    RESTORING_STEPS,
    STEPS,
    USUAL,
)
from tests.simulation.store import Disk
from tests.simulation.store_server import RemoteEngine, StoreServer
from tests.simulation.watch import Watch, holders

_QUIET = 0.5
"""The share of runs with little traffic: timers alone decide."""
_REPLICAS = 0.3
"""The share of runs with two instances on one store."""
_GATED = 0.4
"""The share of runs whose routes ask people, and deny."""
_RESTORING = 0.6
"""The share of those in which the database is often restored."""
_HUMA = {"0.1": 4001, "0.2": 4002}
_BACKEND = 9000
_PUBLIC = f"http://127.0.0.1:{FIRST_PORT}"
_MOST_CPU = 60
"""Seconds of CPU after which a run is taken for endless."""
_TIMINGS = ((2, 10), (4, 3), (4, 10), (4, 30), (15, 3), (15, 3), (15, 30))
"""Seconds of an attempt, and until an accepted call without a sign of life is sent again, perhaps beside an attempt."""
_SOON = 30
"""Seconds in which a healthy gateway certainly sends a call."""


_FILTERS: tuple[Mapping[str, str], ...] = (
    {},
    {},
    {"runtime": "new"},
    {"kind": "tool.*"},
    {"runtime": "old", "kind": "tool.finished"},
)
"""Those of followers of all sessions."""


class World:
    """Everything that a seed runs."""

    def __init__(self, loop: NetLoop, folder: Path, log: StringIO) -> None:
        self.log = log
        """What all instances log."""
        self.loop, self.net, self.random = loop, loop.net, loop.random
        self.fault: BaseException | None = None
        """What is wrong with the world itself; it says nothing about the gateway."""
        self._folder = folder
        self.story: list[str] = []
        self.broken: list[str] = []
        random = self.random
        self.is_gated = random.random() < _GATED
        """Whether routes hold calls until a person allows them."""
        self.people = People()
        self.patience, self.while_held = random.choice((4, 20, 60)), random.choice(("deliver", "queue"))
        """Seconds that a call is usually held, and what messages do meanwhile."""
        self.allows_all = random.random() < 0.5
        """Whether somebody allows everything at the end, instead of nobody anything."""
        self.draw_limits()
        if self.is_gated:
            # Calls wait for a slot, while the routes change.
            self.concurrency = random.choice((1, 1, 2, 64))
            self.limits["session_concurrency"] = random.choice((1, 1, 2))
        self.draw_routes()
        self.policies = Policies(self.routes, self._runs)
        self.most_attempts = self.fewest_attempts = self.attempts
        """The most and the fewest that any configuration of the run allows."""
        self.deadline = random.choice((5, 30, 120))
        self.attempt_limit, self.silence = random.choice(_TIMINGS)
        self.messages_to = random.choice(("again", "once"))
        """The executor of the agents' messages."""
        self.grace = random.choice((3, 10))
        """Seconds in which the answer to a canceled call still counts."""
        self.accepted_deadline = random.choice((20, 60))
        self.breaker = {"failures": random.choice((1, 2, 5)), "open_for": random.choice(("1s", "10s"))}
        self.quiet = random.random() < _QUIET
        """Whether there is little traffic and few faults."""
        self.lease = random.choice((1, 3, 6))
        self.confirms_within = 30.0
        """Seconds for which an agent waits for the confirmation of a message."""
        manners = Manners(
            confirmation_timeout=timedelta(seconds=self.confirms_within), interrupts=random.random() < 0.3
        )
        self.servers = {
            "old": HumaServer(self.net, "0.1", "olga", _HUMA["0.1"], manners),
            "new": HumaServer(self.net, "0.2", "nina", _HUMA["0.2"], manners),
        }
        self.backend = Backend(
            self.net,
            random,
            _BACKEND,
            self._call_back,
            limit=self.attempt_limit,
            repeats=self.silence < self.attempt_limit,
        )
        self.watch = Watch(self)
        self.backend.on_request, self.backend.on_answer = self.watch.request, self.watch.answer
        self.backend.on_progress, self.backend.on_accept = self._report, self.watch.accepted
        self.callbacks: list[Callback] = []
        self.disk = Disk()
        path = folder / "0.db"
        self.store = StoreServer(self.net, path, self.disk) if random.random() < _REPLICAS else None
        if self.store is not None:
            self.store.read, self.store.on_foreign_write = self.read, partial(self.fail, 3)
        self.instances = [
            Instance(self.net, random, path, self._configuration, disk=self.disk, number=number, server=self.store)
            for number in range(1 if self.store is None else 2)
        ]
        for instance in self.instances:
            instance.misconfigured = self._blame
            instance.exited = partial(self._see_exit, instance)
        if self.store is not None:
            self.net.stamp = partial(holders, self)
        for name, one in self.servers.items():
            one.on_frame = partial(self.watch.frame, name)
        self.calls: list[tuple[str, SimCall]] = []
        self.followers: list[tuple[str | None, Follower]] = []
        """With the runtime of their session; None if they follow all sessions."""
        self.writers: list[Writer] = []
        self.uses_http = self.quiet or random.random() < 0.3
        """Whether clients use HTTP, which takes half of the CPU."""
        # Some runs have few kinds of faults, or none, so that others reach deep states.
        steps = QUIET_STEPS if self.quiet else STEPS
        self.weights = {
            step: weight if step in USUAL else weight * random.choice((0, 0.5, 1, 3)) for step, weight in steps.items()
        }
        if self.is_gated:
            self.weights |= GATED_STEPS | (RESTORING_STEPS if random.random() < _RESTORING else {})
        if self.store is not None:
            self.weights |= {step: weight * random.choice((0, 1, 3)) for step, weight in REPLICA_STEPS.items()}
        self.pace = random.choice((1, 1, 5))
        self.longest_pause = random.choice((1, 3, 8))
        self.number = 0
        self.due: list[str] = []
        """The calls that wait at the end, with time enough to be sent."""
        self.disturbed: list[tuple[float, float, bool]] = []
        """The times of faults, and whether requests to the backend may be lost then."""
        self.delayed: list[tuple[float, float]] = []
        """The times in which decisions may be recorded long after they were made."""
        self.disk_refuses_until = 0.0
        self.forgotten: set[str] = set()
        """The agents' ids of calls that were made before the database was restored: their outcomes may be lost."""
        self.restored: dict[str, int] = {}
        """The calls that were held in the last restored database, and the events that asked about them."""
        self.copy: Path | None = None
        """The last copy of the database."""
        self.copies = 0
        self.events: tuple[float, list[Event]] | None = None
        """The journal, as a judge has read it at a time."""
        self._has_tables = False
        self._reader: tuple[Path, sqlite3.Connection] | None = None
        """The connection that the judges use; to open one for each question takes a fifth of the CPU."""

    def draw_limits(self) -> None:
        """Draw what a reload may change."""
        random = self.random
        self.attempts = random.choice((1, 3, 10, 10))
        self.concurrency = random.choice((1, 2, 64, 64))
        self.target = random.choice(("again", "spare"))
        """The executor of the tool `again`."""
        self.limits = {"session_concurrency": random.choice((1, 2, 16)), "drain": f"{random.choice((1, 5, 20))}s"}

    def draw_routes(self) -> None:
        """Draw the routes of the tools; the tool `again` goes to the target."""
        self.routes = draw(self.random, self.target) if self.is_gated else ungated(self.target)

    def _runs(self, process: Process) -> bool:
        return not process.dead and any(one.process is process for one in self.instances)

    def _configuration(self) -> str:
        executor = {
            "type": "webhook", "concurrency": self.concurrency, "attempts": self.attempts,
            "timeout": f"{self.attempt_limit}s", "deadline": f"{self.deadline}s",
            "backoff": {"initial": "100ms", "maximum": "2s"},
            "accepted_deadline": f"{self.accepted_deadline}s", "accepted_silence": f"{self.silence}s",
            "reconnect_within": "10s", "breaker": self.breaker,
        }  # fmt: skip
        runtimes = {
            name: {
                "adapter": f"huma-{dialect}", "url": f"http://127.0.0.1:{_HUMA[dialect]}", "api_key": KEY,
                "agent_id": self.servers[name].agent.agent_id, "delivery_window": "200ms",
            }
            for name, dialect in (("old", "0.1"), ("new", "0.2"))
        }  # fmt: skip
        # JSON is YAML, and quicker to write.
        return json.dumps(
            {
                "engine": {"type": "sqlite", "path": str(self._folder / "0.db")},
                "public_url": _PUBLIC,
                "api": {"keys": [{"name": "world", "key": API_KEY}, *keys()]},
                "approvals": {"timeout": f"{self.patience}s", "while_held": self.while_held},
                "tools": {tool: {"description": tool, "parameters": {"type": "object"}} for tool in TOOLS},
                "instance": {"lease": f"{self.lease}s"},
                "limits": {**self.limits, "cancel_grace": f"{self.grace}s"},
                "logging": {"level": "error", "format": "console"},
                "executors": {
                    name: {**executor, "url": f"http://127.0.0.1:{_BACKEND}/{name}", "idempotent": name != "once"}
                    for name in ("again", "spare", "once")
                },
                "routes": [*self.routes, {"match": {"event": "message.posted"}, "to": self.messages_to}],
                "runtimes": runtimes,
            }
        )

    @property
    def path(self) -> Path:
        """The database file."""
        return self.instances[0].path

    def any_up(self) -> Instance | None:
        """Return an instance that answers requests."""
        found = [one for one in self.instances if one.up]
        return self.random.choice(found) if found else None

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Exchange | None:
        """Begin a request of an API client; None if nobody listens."""
        instance = self.any_up()
        named = {"authorization": f"Bearer {API_KEY}", **(headers or {})}
        return None if instance is None else instance.request(method, path, body, named)

    def reload(self) -> list[Exchange]:
        """Let each instance that runs read the configuration again."""
        headers = {"authorization": f"Bearer {API_KEY}"}
        for instance in self.instances:
            instance.rewrite()
        running = [one.process for one in self.instances if one.process is not None]
        read = self.policies.change(self.routes, self.loop.now, running)
        asked: list[Exchange] = []
        for instance in self.instances:
            exchange = instance.request("POST", "/v1/reload", b"{}", headers)
            if exchange is not None and instance.process is not None:
                self.loop.create_task(self._see_reload(exchange, instance.process, read))
                asked.append(exchange)
        return asked

    async def _see_reload(self, exchange: Exchange, process: Process, read: Callable[[Process], None]) -> None:
        if (await exchange.whole()).status == HTTPStatus.OK:
            read(process)

    # The story

    def tell(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.loop.now - 1_000:9.3f}  {text}")

    def fail(self, promise: int, text: str) -> None:
        """Note a broken promise; the run ends."""
        line = f"promise {promise} is broken: {text}"
        self.tell(line)
        self.broken.append(line)

    def take_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take an exception that nobody handles: a fault of the world, or promise 11 is broken."""
        del loop
        exc = context.get("exception")
        if "was destroyed" in context.get("message", ""):
            return
        if exc is not None and _is_ours(exc):
            self.fault = exc
            return
        trace = "" if exc is None else "".join(traceback.format_exception(exc))
        self.fail(11, f"unhandled: {context.get('message')} {exc!r}\n{trace}")

    def _blame(self, exc: BaseException) -> None:
        self.fault = exc

    def _see_exit(self, instance: Instance, process: Process) -> None:
        """Start a process again that has ended by itself, as a supervisor does."""
        self.tell(f"{instance.name} ends: {instance.failure!r}")
        self.disturb()
        if process.connected:
            self.fail(11, f"{instance.name} ended by itself after it had connected: {instance.failure!r}")
        self.net.call_at(self.loop.now + 1, self.start)

    def heal(self) -> None:
        """End all faults: from now on everything works, and nothing new happens."""
        self.tell("everything heals")
        self.disturb()
        # A call that is at its executor may hold the only slot until its own deadline.
        query = """
            SELECT call_id FROM calls WHERE state = 'queued' AND deadline_at > ?
            AND NOT EXISTS (SELECT 1 FROM calls WHERE state IN ('dispatched', 'accepted'))
        """
        soon = int((EPOCH + self.loop.now + _SOON + self.silence) * 1_000_000)
        self.due = [call_id for (call_id,) in self.read(query, soon)]
        # An idempotent executor that has accepted a call and says nothing more gets it again.
        query = (
            "SELECT call_id FROM calls WHERE state = 'accepted' AND deadline_at > ? AND tool = 'again' AND attempt < ?"
        )
        self.due += [call_id for (call_id,) in self.read(query, soon, self.fewest_attempts)]
        self.backend.kind = True
        if self.is_gated and self.allows_all:
            self.loop.create_task(allow_all(self))
        for part in (self.backend, *self.servers.values()):
            part.start()
        for _, follower in self.followers:
            follower.hangs_up = 0.0
        self.disk.heal()
        self.net.heal()
        for instance in self.instances:
            if isinstance(instance.engine, RemoteEngine):
                instance.engine.slow = instance.engine.late = instance.engine.held_until = 0.0
                instance.engine.reach()
            process = instance.process
            if process is not None:
                process.fuse = process.effects = None
                if process.paused:
                    process.resume(self.loop)

    def follow(self) -> None:
        """Let a client follow a session, from its first event or a later one, or all sessions."""
        of: list[tuple[str | None, str | None]] = self.read("SELECT runtime, session_id FROM sessions")
        of += [(None, None)] * 2
        runtime, session_id = self.random.choice(of)
        newest = self.read("SELECT coalesce(max(seq), 0) FROM events e JOIN sessions s ON s.id = e.session_id"
                           " WHERE s.session_id = ?", session_id)  # fmt: skip
        after = self.random.choice(
            (0, newest[0][0] if newest else 0, self.random.randint(0, newest[0][0] if newest else 0))
        )
        filters = self.random.choice(_FILTERS) if runtime is None else _FILTERS[0]
        self.tell(f"a client follows {runtime or 'all sessions'} after {after} {filters or ''}")
        hangs_up = self.random.choice((0.0, 0.03, 0.3))
        random = Random(self.random.random())
        follower = Follower(self.ask, session_id, after, random=random, hangs_up=hangs_up, filters=filters)
        self.followers.append((runtime, follower))
        self.loop.create_task(follower.follow())

    async def begin(self) -> None:
        """Start everything."""
        if self.store is not None:
            await self.store.engine.__aenter__()
        self.start()

    def end(self) -> None:
        """Kill everything."""
        for instance in self.instances:
            instance.kill()
        if self.store is not None:
            self.store.engine.die(writes=False)
        self.close_reader()

    def start(self) -> None:
        """Start each instance that does not run."""
        for instance in self.instances:
            if instance.process is None:
                self.tell(f"{instance.name} starts")
                instance.start()

    def disturb(self, seconds: float = 0.0, *, loses: bool = True) -> None:
        """Note a fault that may keep the gateway from an answer, and a request from the backend if it `loses` some."""
        # What a killed process had begun to write is on record a moment later.
        self.disturbed.append((self.loop.now, self.loop.now + seconds + 0.5, loses))

    def delay(self, seconds: float) -> None:
        """Note a fault after whose beginning what was decided before may be recorded late."""
        self.delayed.append((self.loop.now, self.loop.now + seconds))

    def was_delayed(self, first: float, last: float) -> bool:
        """Whether such a fault was in a span of time."""
        return any(begin <= last and end >= first for begin, end in self.delayed)

    def was_disturbed(self, first: float, last: float) -> bool:
        """Whether such a fault was in a span of time."""
        return any(begin <= last and end >= first for begin, end, _ in self.disturbed)

    def may_lose(self, first: float, last: float) -> bool:
        """Whether a request to the backend may have been lost in a span of time."""
        return any(begin <= last and end >= first for begin, end, loses in self.disturbed if loses)

    # The journal, read from outside

    def read(self, query: str, *values: object) -> list[Any]:
        """Ask the database, as another process would; a database without tables answers nothing."""
        path = self.path
        if self._reader is None or self._reader[0] != path:
            self.close_reader()
            if not path.exists():
                return []
            self._reader = path, sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection = self._reader[1]
        if not self._has_tables:
            found = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'calls'").fetchall()
            self._has_tables = bool(found)
        return connection.execute(query, values).fetchall() if self._has_tables else []

    def close_reader(self) -> None:
        """Let go of the database, before its file is replaced."""
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def call_of(self, request: Request) -> SimCall | None:
        """Return the agent's call of a request; None for the call of a client."""
        runtime = request.data["runtime"]
        return self.servers[runtime].agent.calls.get(request.data["native_call_id"])

    def _call_back(self, url: str, call_id: str, outcome: dict[str, Any]) -> None:
        """Post an outcome to the callback URL until it is answered."""
        sent = Callback(call_id, outcome)
        self.callbacks.append(sent)
        self._post_back(url.removeprefix(_PUBLIC), sent, 0)

    def _post_back(self, path: str, sent: Callback, tries: int) -> None:
        async def post() -> None:
            instance = self.any_up()
            exchange = None if instance is None else instance.request("POST", path, json.dumps(sent.outcome).encode())
            if exchange is not None:
                await exchange.whole()
                if exchange.status is not None and exchange.status < 500:
                    sent.status = exchange.status
                    return
            if tries < 60:
                self.net.call_at(self.loop.now + 1 + tries, lambda: self._post_back(path, sent, tries + 1))

        self.loop.create_task(post())

    def _report(self, request: Request) -> None:
        """Post a report of progress, once."""

        async def post() -> None:
            instance = self.any_up()
            path = request.data["progress_url"].removeprefix(_PUBLIC)
            exchange = None if instance is None else instance.request("POST", path, b'{"step":1}')
            posted_at = self.loop.now
            if exchange is not None and (await exchange.whole()).status == 202:
                self.watch.progressed(request.data["call_id"], posted_at)

        self.loop.create_task(post())

    # Steps

    async def settle(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def step(self) -> None:
        """Do one thing that the seed chooses."""
        chosen = self.random.choices([*self.weights], [*self.weights.values()])[0]
        await chosen(self)
        if self.quiet:
            await asyncio.sleep(self.random.choice((0, 0.1, 1, *[self.longest_pause] * 3)) * self.random.random())
        else:
            await asyncio.sleep(self.pace * self.random.choice((0, 0, 0.001, 0.01, 0.1, 0.5)) * self.random.random())


@dataclass(frozen=True, slots=True)
class Story:
    """What a run was: its events, its broken promises, and the gateway's errors."""

    lines: list[str]
    broken: list[str]
    log: list[str]


class WorldFault(Exception):
    """The world itself is wrong, so the run says nothing about the gateway."""


def prepare() -> None:
    """Import in this process what runs need, so that no run does it again."""
    _run(0, 0)
    gc.freeze()


def run(seed: int, steps: int, only: Collection[int] | None = None) -> Story:
    """Run a seed, or only some of its steps.

    Raises:
        WorldFault: a peer, a check or the configuration of the world failed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        # Each run has a process of its own, which leaves nothing behind: to collect a world takes a fifth of its CPU.
        told: tuple[Story | None, str] = None, "the run ended without a story"
        try:
            told = _run(seed, steps, only)
        except BaseException as exc:  # noqa: BLE001 - the parent hears of it
            told = None, "".join(traceback.format_exception(exc))
        finally:
            with open(writer, "wb") as pipe:  # noqa: PTH123 - a descriptor
                pickle.dump(told, pipe)
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a descriptor
        story, fault = pickle.loads(pipe.read())  # noqa: S301 - from a child
    os.waitpid(child, 0)
    if story is None:
        raise WorldFault(fault)
    return story


def _run(seed: int, steps: int, only: Collection[int] | None = None) -> tuple[Story | None, str]:
    """Return the story of a run, or what is wrong with the world."""
    # Jitter has no port.
    global_random.seed(seed)
    loop = NetLoop(Random(seed))
    shared_memory = Path("/dev/shm")  # noqa: S108 - a disk in memory
    log = StringIO()
    # What a dead process leaves behind must not be closed, nor log anything, while the world exists.
    gc.disable()
    where = shared_memory if shared_memory.is_dir() else None
    with TemporaryDirectory(prefix="dragoman-sim-", dir=where) as folder, redirect_stderr(log):
        log_setup.configure(level="error", stream=log)
        asyncio.set_event_loop(loop)
        world = World(loop, Path(folder), log)
        loop.set_exception_handler(world.take_exception)
        try:
            with _bounded():
                loop.run_until_complete(_live(world, seed, steps, only))
        except Endless as exc:
            world.fail(10, f"the run does not end: {exc}")
        except Exception as exc:  # noqa: BLE001 - a step that fails is a fault of the world
            world.fault = exc
        world.end()
    if world.fault is not None:
        return None, "".join(traceback.format_exception(world.fault))
    return Story(world.story, world.broken, log.getvalue().splitlines()), ""


async def _live(world: World, seed: int, steps: int, only: Collection[int] | None) -> None:
    await world.begin()
    for number in range(steps):
        if world.broken or world.fault is not None:
            return
        if only is None or number in only:
            # Of its own, so that a step does the same without the others.
            world.random = Random(f"{seed} {number}")
            await world.step()
    await check_end(world)


def _is_ours(exc: BaseException) -> bool:
    """Whether an exception comes from the world, and not from the gateway or its adapters."""
    root = Path(__file__).parents[2]
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(root / "tests") or path.is_relative_to(root / "gateway/testing"):
            return True
        if path.is_relative_to(root / "gateway") or path.is_relative_to(root / "adapters"):
            return False
    return False


@contextmanager
def _bounded() -> Generator[None]:
    """Limit the CPU of a run, also within one callback."""

    def end(*_: object) -> None:
        raise Endless(f"{_MOST_CPU} s of CPU")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_CPU)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
