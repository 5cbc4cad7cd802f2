"""A gateway, or its database, restarted under thousands of followers: each goes on behind the last event it saw."""

import asyncio
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic

import pytest

from tests.engines.postgres_server import start_own_server
from tests.faults.environment import until
from tests.faults.followers import Followers, enough_files
from tests.faults.instance import ROOT, START
from tests.faults.observed import observed
from tests.faults.scene import Scene
from tests.faults.stores import postgres
from tests.pace import PATIENCE
from tests.ports import free_port

pytestmark = pytest.mark.faults

LEASE = 6.0
"""Seconds of a lease, as by default: showing one event to all of them takes about one."""
CROWDED = 10 * PATIENCE
"""How long a test waits for all of them, who share two cores with other tests."""
USUAL_FILES = 1_024
"""What a shell or a service lets a process open at first."""


@pytest.mark.parametrize(
    ("number", "many"),
    [
        pytest.param(signal.SIGTERM, 1_000, marks=pytest.mark.fault("Gateway restarted under 1,000 followers")),
        pytest.param(signal.SIGKILL, 5_000, marks=pytest.mark.fault("Gateway killed under 5,000 followers")),
    ],
)
async def test_followers_of_a_gateway_that_is_restarted_miss_nothing(
    tmp_path: Path, number: signal.Signals, many: int
) -> None:
    async with Scene(tmp_path, "0.2") as scene, followers_of(scene, many) as followers:

        async def restart() -> None:
            process = scene.gateway.process
            assert process is not None
            async with asyncio.timeout(CROWDED):
                assert await process.wait() == (0 if number == signal.SIGTERM else -number), scene.log()
            await scene.unlinked()
            await until(refused, within=CROWDED)
            await scene.serve()

        async def refused() -> bool:
            return followers.turned_away > 0

        await through(scene, followers, lambda: scene.gateway.signal(number), restart)


@pytest.mark.fault("PostgreSQL restarted under 1,000 followers", on="postgres")
async def test_followers_of_a_gateway_whose_database_is_restarted_miss_nothing(tmp_path: Path) -> None:
    with start_own_server() as server:
        async with Scene(tmp_path, "0.2", store=postgres(server.dsn)) as scene, followers_of(scene, 1_000) as followers:
            seen = asyncio.Event()
            loop = asyncio.get_running_loop()

            async def restart() -> None:
                await seen.wait()
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)

            await through(scene, followers, lambda: loop.call_soon_threadsafe(seen.set), restart)


async def test_a_gateway_that_may_open_too_few_files_says_so(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("engine: {type: memory}\nlogging: {format: json}\n")
    serve = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--port", str(free_port())]
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'ulimit -n 2000; exec "$@"', "sh", *serve,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START):
            while b"limit of open files is too low" not in (line := await process.stdout.readline()):
                assert line, "it has ended"
        told = json.loads(line)
        assert (told["allowed"], told["level"]) == (2_000, "warning")
        assert "ulimit -Hn" in told["fix"]
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def followers_of(scene: Scene, many: int) -> AsyncGenerator[Followers]:
    """Let a crowd follow the one session of a gateway that was started as a shell starts it."""
    settings = scene.settings(scene.gateway)
    settings["limits"] |= {"followers": many, "session_followers": many}
    settings["instance"]["lease"] = LEASE
    scene.gateway.configure(settings)
    with few_files():
        await scene.serve()
    await scene.ask("once", within=CROWDED)
    await scene.settled()
    session_id, last = await scene.session_id(), await last_sequence(scene)
    with enough_files(many):
        async with Followers(scene.gateway.port, session_id, after=last, many=many) as followers:
            await all_stand(followers)
            yield followers


async def through(
    scene: Scene, followers: Followers, trouble: Callable[[], object], restart: Callable[[], Awaitable[None]]
) -> None:
    """Make trouble while an event is on its way to the crowd, and hold everybody to all that is on record."""
    await scene.ask("again", within=CROWDED)
    await all_there(scene, followers)
    began = 0.0

    def begin() -> None:
        nonlocal began
        began = monotonic()
        trouble()

    followers.when_first_sees(await last_sequence(scene) + 2, begin)
    asking = asyncio.create_task(scene.ask("again", within=CROWDED))
    await restart()
    await asking
    await all_stand(followers)
    observed().waited(monotonic() - began)
    await scene.ask("once", within=CROWDED)
    await scene.settled()
    await all_there(scene, followers)
    assert followers.faults == []
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


async def all_stand(followers: Followers) -> None:
    """Wait until each of the crowd has a stream."""

    async def so() -> bool:
        return followers.standing == followers.many

    await until(so, within=CROWDED)


async def all_there(scene: Scene, followers: Followers) -> None:
    """Wait until each of the crowd was shown the last event on record."""

    async def so() -> bool:
        slowest, fastest = followers.places
        # Asked anew each time, since the record may grow meanwhile.
        return slowest == fastest == await last_sequence(scene)

    await until(so, within=CROWDED)


async def last_sequence(scene: Scene) -> int:
    """The last event on record."""
    events = await scene.rows(f"/v1/sessions/{await scene.session_id()}/events")
    return int(events[-1]["sequence"])


@contextmanager
def few_files() -> Generator[None]:
    """Let processes that are started begin with as few open files as a shell allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(USUAL_FILES, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


DEAF, WORDS = 600, 20_000
AT_ONCE = 0.1
"""Seconds within which a follower that reads sees an event, whatever the others do."""
GROWN = 250 * 1024
"""KiB by which the process may grow: for each follower a page of history, two pieces on their way to its client, its
connection and its tasks, and what the allocator keeps."""


@pytest.mark.fault("600 followers that never read beside one that does")
async def test_followers_that_never_read_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2") as scene:
        settings = scene.settings(scene.gateway)
        settings["limits"] |= {"followers": 2 * DEAF, "session_followers": 2 * DEAF}
        scene.gateway.configure(settings)
        await scene.serve()
        await scene.ask("once", within=CROWDED)
        await scene.settled()
        path = f"/v1/sessions/{await scene.session_id()}/events/stream"
        with enough_files(2 * DEAF):
            reader = await ask_for(scene, path)
            # 4 MB of history for each of them, read for it alone, which is far more than the kernel takes.
            alone = [await seen_after(scene, reader, number) for number in range(200)]
            before = resident(scene)
            deaf = [await ask_for(scene, f"{path}?after={number % 20}", is_deaf=True) for number in range(DEAF)]
            try:
                beside = [await seen_after(scene, reader, number) for number in range(200, 400)]
                grown = resident(scene) - before
            finally:
                for _, writer in (reader, *deaf):
                    writer.transport.abort()
        observed().waited(max(beside))
        print(f"\n{DEAF} deaf followers: grown {grown // 1024} MiB, slowest {max(beside):.3f} s")  # noqa: T201
        assert grown < GROWN
        assert max(beside) < max(AT_ONCE, 2 * max(alone))


async def ask_for(
    scene: Scene, path: str, *, is_deaf: bool = False
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream, and read its head only."""
    client = socket.socket()
    if is_deaf:
        # Little room in the kernel, so that little is hidden from the gateway.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", scene.gateway.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4_096)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b": heartbeat\n")
    return reader, writer


async def seen_after(scene: Scene, reader: tuple[asyncio.StreamReader, asyncio.StreamWriter], number: int) -> float:
    """Post an event and say how long after its answer the follower saw it."""
    # At the end of the event, so that nothing of it waits in the gateway until the next one is looked for.
    wanted = f'"number":{number}}}'.encode()
    seen = asyncio.create_task(find(reader[0], wanted))
    text = f"{number}".ljust(WORDS, "x")
    event = {"kind": "context.updated", "name": "news", "wakes_agent": False, "context": {"t": text, "number": number}}
    assert await scene.post(event) == 202
    answered = monotonic()
    async with asyncio.timeout(CROWDED):
        return await seen - answered


async def find(reader: asyncio.StreamReader, wanted: bytes) -> float:
    """Read on until some bytes have come."""
    kept = b""
    while wanted not in kept:
        more = await reader.read(65_536)
        assert more, "the stream ended"
        kept = kept[-len(wanted) :] + more
    return monotonic()


def resident(scene: Scene) -> int:
    """What the gateway's process takes, in KiB."""
    status = Path(f"/proc/{scene.gateway.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
