"""A PostgreSQL server that dies, restarts, refuses, locks and is cut off, under load: time is lost and nothing else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import asyncpg
import pytest

from tests.engines import postgres_server
from tests.engines.postgres_server import OwnServer, start_own_server
from tests.faults.environment import until
from tests.faults.load import WORKERS, Load
from tests.faults.observed import observed
from tests.faults.proxy import Side
from tests.faults.scene import Scene
from tests.faults.stores import PostgresSchema, given, postgres, proxied
from tests.pace import PATIENCE

pytestmark = pytest.mark.faults

NOTICED = 10.0
"""Seconds within which a half-open connection to the server must have been noticed."""


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """A server that only these tests use, so that they may do to it what they like."""
    with start_own_server(max_connections="40") as own:
        yield own


NO_ROOM = "too many clients already"


async def finish(scene: Scene) -> None:
    """Hold everybody's records together once all is quiet."""
    await until(scene.ready, within=PATIENCE)
    await scene.settled(within=PATIENCE)
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


@pytest.mark.fault("SIGKILL of PostgreSQL, then a restart", on="postgres")
async def test_a_server_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path, server: OwnServer) -> None:
    async with Scene(tmp_path, "0.2", store=postgres(server.dsn)) as scene:
        await scene.run()
        async with Load(scene) as load:
            for _ in range(2):
                await load.more(20)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start, max_connections="40")
                await load.more(WORKERS + 1)
        await finish(scene)


@pytest.mark.fault("PostgreSQL restarted in its fast mode", on="postgres")
async def test_a_server_that_is_restarted_in_order_loses_nothing(tmp_path: Path, server: OwnServer) -> None:
    async with Scene(tmp_path, "0.1", store=postgres(server.dsn)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(20)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start, max_connections="40")
            await load.more(WORKERS + 1)
        await finish(scene)


@pytest.mark.fault("PostgreSQL frozen for longer than the lease", on="postgres")
async def test_a_server_that_stands_still_is_waited_for(tmp_path: Path, server: OwnServer) -> None:
    async with Scene(tmp_path, "0.2", store=postgres(server.dsn)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(20)
            server.freeze()
            try:
                # The gateway falls silent before its lease ends by the store's clock.
                await until(lambda: not_ready(scene))
            finally:
                server.thaw()
            await load.more(WORKERS + 1)
        await finish(scene)


@pytest.mark.fault("Connections to PostgreSQL cut repeatedly", on="postgres")
async def test_connections_that_are_cut_under_load_lose_nothing(tmp_path: Path) -> None:
    async with proxied() as (store, wire), Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            cuts: list[int] = []
            for _ in range(6):
                await load.more(10)
                cuts.append(wire.cut())
            # Between two of them, only those that were needed have been opened again.
            assert all(cuts)
            assert max(cuts) > 1
        await finish(scene)


@pytest.mark.fault("Connection to PostgreSQL cut during a COMMIT", on="postgres")
@pytest.mark.parametrize(
    ("side", "said"),
    # A commit is a statement that writes heads and answers that a token was left.
    [("server", b"INSERT 0 1"), ("client", b'"last_seq"')],
    ids=["arrived", "lost"],
)
async def test_a_commit_whose_fate_is_unknown_is_found_out(tmp_path: Path, side: Side, said: bytes) -> None:
    async with proxied() as (store, wire), Scene(tmp_path, "0.1", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            for _ in range(6):
                await load.more(5)
                cut = wire.break_after(said, side=side, pass_on=False)
                async with asyncio.timeout(PATIENCE):
                    await cut.done.wait()
        await finish(scene)


@pytest.mark.fault("Connections to PostgreSQL half-open", on="postgres")
async def test_half_open_connections_are_noticed_and_replaced(tmp_path: Path) -> None:
    async with proxied() as (store, wire), Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(20)
            opened, began = wire.opened, monotonic()
            wire.half_open()

            async def noticed() -> bool:
                return wire.opened > opened

            # Whoever notices tries a new connection.
            await until(noticed, within=NOTICED)
            observed().waited(monotonic() - began)
            # The new one carries nothing either: how long that lasts is the fault.
            await asyncio.sleep(1)
            wire.heal()
            await load.more(WORKERS + 1, within=PATIENCE)
        await finish(scene)


@pytest.mark.fault("PostgreSQL behind a slow network", on="postgres")
async def test_a_slow_wire_to_the_server_costs_time_only(tmp_path: Path) -> None:
    async with proxied() as (store, wire), Scene(tmp_path, "0.1", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(10)
            wire.delay(0.1)
            await load.more(20)
            wire.heal(keep=True)
        await finish(scene)


@pytest.mark.fault("PostgreSQL read-only for a while", on="postgres")
async def test_a_server_that_turns_read_only_is_not_ready_and_comes_back(tmp_path: Path, server: OwnServer) -> None:
    async with postgres(server.dsn) as store, Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        await (await scene.call("once")).result()
        await read_only(store, on=True)
        try:
            waiting = [await scene.call(tool) for tool in ("again", "once")]
            await until(lambda: not_ready(scene))
            assert (await scene.http.get("/healthz")).status_code == 200
            assert all(call.reading is None for call in waiting)
        finally:
            await read_only(store, on=False)
        await until(scene.ready, within=PATIENCE)
        for call in waiting:
            await call.result(PATIENCE)
        await finish(scene)


async def not_ready(scene: Scene) -> bool:
    return not await scene.ready()


async def read_only(store: PostgresSchema, *, on: bool) -> None:
    wanted = "on" if on else "off"
    connection = await asyncpg.connect(store.dsn)
    try:
        await connection.execute("SET default_transaction_read_only = off")
        await connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {wanted}")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()

    async def so() -> bool:
        return (await store.fetch("SHOW default_transaction_read_only"))[0][0] == wanted

    # The server reads it a little later; it tells those who are connected before it lets in anybody new.
    await until(so)


@pytest.mark.fault("PostgreSQL out of connections (`max_connections`)", on="postgres")
async def test_a_server_without_a_free_connection_is_waited_for(tmp_path: Path, server: OwnServer) -> None:
    async with postgres(server.dsn) as store, Scene(tmp_path, "0.1", store=given(store)) as scene:
        await scene.run()
        taken: list[asyncpg.Connection[Any]] = []
        try:
            async with Load(scene) as load:
                await load.more(10)
                admin = await asyncpg.connect(server.dsn)
                taken.append(admin)
                # Who lost its connection may be back before us.
                while await admin.fetchval(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND pid <> ALL ($1::int[])",
                    [connection.get_server_pid() for connection in taken],
                ):
                    with pytest.raises(asyncpg.TooManyConnectionsError):
                        await take_all(server.dsn, taken)
                refused = server.log().count(NO_ROOM)

                async def turned_away() -> bool:
                    return server.log().count(NO_ROOM) >= refused + 10

                await until(turned_away)
                for connection in taken:
                    await connection.close()
                taken.clear()
                await load.more(WORKERS + 1)
        finally:
            for connection in taken:
                connection.terminate()
        await finish(scene)


@pytest.mark.fault("PostgreSQL tables locked for seconds", on="postgres")
async def test_a_lock_held_by_somebody_else_costs_time_only(tmp_path: Path) -> None:
    async with postgres(postgres_server.dsn()) as store, Scene(tmp_path, "0.2", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            await load.more(10)
            other = await asyncpg.connect(store.dsn)
            try:
                async with other.transaction():
                    await other.execute(store.named("LOCK TABLE @calls IN ACCESS EXCLUSIVE MODE"))
                    # How long it is held is the fault.
                    await asyncio.sleep(2.5)
            finally:
                await other.close()
            await load.more(WORKERS + 1)
        await finish(scene)


@pytest.mark.fault("Deadlocks and terminated transactions in PostgreSQL", on="postgres")
async def test_deadlocks_and_ended_backends_cost_time_only(tmp_path: Path) -> None:
    async with postgres(postgres_server.dsn()) as store, Scene(tmp_path, "0.1", store=given(store)) as scene:
        await scene.run()
        async with Load(scene) as load:
            for number in range(8):
                await load.more(5)
                await (disturb if number % 2 else cancel_all)(store)
        await finish(scene)


async def take_all(dsn: str, taken: "list[asyncpg.Connection[Any]]") -> None:
    while len(taken) < 100:
        taken.append(await asyncpg.connect(dsn))


async def disturb(store: PostgresSchema) -> None:
    """Take rows in an order that no batch takes them in, so that the server has to break a deadlock."""
    other = await asyncpg.connect(store.dsn)
    try:
        async with other.transaction():
            await other.execute("SET LOCAL deadlock_timeout = '10s'")
            await other.execute(store.named("SELECT 1 FROM @sessions FOR UPDATE"))
            await postgres_server.waited_for(other)
            await other.execute(store.named("SELECT 1 FROM @calls ORDER BY call_id FOR UPDATE"))
    except asyncpg.DeadlockDetectedError:
        # Either of the two may be the one that gives way.
        pass
    finally:
        await other.close()


async def cancel_all(store: PostgresSchema) -> None:
    """Cancel what every other client of the schema is doing, as a statement time-out does."""
    await store.fetch(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND state <> 'idle' AND query LIKE '%' || $1 || '%'",
        store.schema,
    )
