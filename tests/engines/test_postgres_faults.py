"""The PostgreSQL engine when connections, servers and neighbours fail: nothing is lost, nothing is written twice."""

import asyncio
import random
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from gateway.errors import EngineUnavailable, EngineUnusable, InvalidRequest, Repeated, SchemaTooNew
from gateway.events import SessionId
from gateway.guard import FAULTS
from gateway.store.postgres import (
    PostgresEngine,
    notifier as postgres_notifier,
    pool as postgres_pool,
)
from gateway.store.postgres.tables import NEWEST
from gateway.store.postgres.tuning import PostgresTuning
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    ALL,
    BOB,
    FakeClock,
    asked,
    call,
    open_session,
    row_of,
    said,
    texts,
)
from tests.engines import postgres_server
from tests.engines.postgres_proxy import Proxy, between
from tests.pace import PATIENCE

pytestmark = pytest.mark.slow

LONG = timedelta(hours=1)
BESIDE = SessionId("carol")
"""Steps of it and of Alice are committed together, in one lane."""


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with between(postgres_server.dsn()) as proxy:
        yield proxy


def engine_at(dsn: str, schema: str, **more: Any) -> PostgresEngine:
    return PostgresEngine(dsn, FakeClock(), schema=schema, **more)


# A server that goes away


@pytest.fixture
def own() -> Iterator[postgres_server.OwnServer]:
    with postgres_server.start_own_server() as server:
        yield server


async def until(holds: Callable[[], bool]) -> None:
    while True:
        if holds():
            return
        await asyncio.sleep(0.02)


async def until_writable(engine: PostgresEngine, *, writable: bool = True) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if (await engine.health()).writable is writable:
                return
            await asyncio.sleep(0.05)


async def take_all_connections(dsn: str, taken: list[Any]) -> None:
    while True:
        try:
            taken.append(await asyncpg.connect(dsn))
        except asyncpg.TooManyConnectionsError:
            return


async def leave_no_connection(dsn: str) -> list[Any]:
    """Take every connection of a server, also those that others have; answers those that are taken."""
    taken: list[Any] = []
    await take_all_connections(dsn, taken)
    async with asyncio.timeout(PATIENCE):
        # One that is ended keeps its place for a moment, and whoever lost it may be back before us.
        while await taken[0].fetchval(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname IS NOT NULL AND pid <> ALL ($1::int[])",
            [one.get_server_pid() for one in taken],
        ):
            await take_all_connections(dsn, taken)
    await take_all_connections(dsn, taken)
    return taken


async def under_load(engine: PostgresEngine, trouble: Callable[[], Awaitable[None]]) -> list[str]:
    """Commit all the time while there is trouble; answers what was acknowledged, which must be all there, once."""
    acknowledged: list[str] = []
    ending = False

    async def commit(session_id: SessionId) -> None:
        number = 0
        while not ending:
            number += 1
            text = f"{session_id} {number}"
            while True:
                try:
                    await engine.commit(Step(session_id, (said(text),)))
                except EngineUnavailable:
                    await asyncio.sleep(0.05)
                else:
                    acknowledged.append(text)
                    break

    names = [SessionId(f"s-{number}") for number in range(12)]
    for name in names:
        await open_session(engine, name)
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(commit(name))
        async with asyncio.timeout(PATIENCE):
            await until(lambda: len(acknowledged) >= 2 * len(names))
        before = len(acknowledged)
        await trouble()
        async with asyncio.timeout(PATIENCE):
            await until(lambda: len(acknowledged) >= before + 100)
        ending = True
    written = [text for name in names for text in await texts(engine, name)]
    assert sorted(written) == sorted(acknowledged)
    return acknowledged


async def test_a_server_that_is_restarted_under_load_loses_nothing(own: postgres_server.OwnServer) -> None:
    async with engine_at(own.dsn, "dragoman") as engine:

        async def restart() -> None:
            await asyncio.to_thread(own.stop)
            await asyncio.to_thread(own.start)

        await under_load(engine, restart)


async def test_a_server_that_is_killed_under_load_loses_nothing(own: postgres_server.OwnServer) -> None:
    async with engine_at(own.dsn, "dragoman") as engine:

        async def crash() -> None:
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.start)

        await under_load(engine, crash)


async def test_connections_ended_by_the_server_are_opened_again(own: postgres_server.OwnServer) -> None:
    async with engine_at(own.dsn, "dragoman") as engine:

        async def end_all() -> None:
            operator = await asyncpg.connect(own.dsn)
            for _ in range(5):
                await operator.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
                await asyncio.sleep(0.1)
            await operator.close()

        await under_load(engine, end_all)


async def test_a_server_that_answers_no_more_is_told_in_time_and_found_again(own: postgres_server.OwnServer) -> None:
    tuning = PostgresTuning(ask=2.0, commit=2.0)
    async with engine_at(own.dsn, "dragoman", tuning=tuning) as engine:
        await open_session(engine)
        own.freeze()
        try:
            asking: list[Coroutine[Any, Any, object]] = [engine.read(ALICE), engine.commit(Step(ALICE, (said("a"),)))]
            results = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE)
            assert [type(result) for result in results] == [EngineUnavailable] * 2
            assert all(str(own.port) in str(result) for result in results)
            # They share one try, so that their number leaves the connections to others.
            asked = [engine.health() for _ in range(2 * postgres_pool.WAITING)]
            found = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
            assert {one.writable for one in found} == {False}
            assert len({one.detail for one in found}) == 1
        finally:
            own.thaw()
        await until_writable(engine)
        await engine.commit(Step(ALICE, (said("b"),)))
        assert await texts(engine) == ["b"]


async def test_a_server_that_only_reads_is_named_and_nothing_is_lost(own: postgres_server.OwnServer) -> None:
    async with engine_at(own.dsn, "dragoman") as engine:
        await open_session(engine)
        operator = await asyncpg.connect(own.dsn)
        await operator.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await operator.execute("SELECT pg_reload_conf()")
        await operator.close()
        await until_writable(engine, writable=False)
        assert "is read-only" in (await engine.health()).detail
        with pytest.raises(EngineUnavailable, match="primary"):
            await engine.commit(Step(ALICE, (said("lost"),)))
        assert await texts(engine) == []
        with pytest.raises(EngineUnusable, match="writable primary"):
            async with engine_at(own.dsn, "dragoman"):
                pass
        operator = await asyncpg.connect(own.dsn, server_settings={"default_transaction_read_only": "off"})
        await operator.execute("ALTER SYSTEM RESET default_transaction_read_only")
        await operator.execute("SELECT pg_reload_conf()")
        await operator.close()
        await until_writable(engine)
        await engine.commit(Step(ALICE, (said("kept"),)))
        assert await texts(engine) == ["kept"]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = postgres_server.make_folder()
    owner = folder.stat()
    options = f"size=40m,uid={owner.st_uid},gid={owner.st_gid},mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


async def test_a_full_disk_is_named_and_nothing_that_was_refused_is_written(
    own: postgres_server.OwnServer, small_disk: Path
) -> None:
    operator = await asyncpg.connect(own.dsn)
    await operator.execute(f"CREATE TABLESPACE small LOCATION '{small_disk}'")
    await operator.execute("CREATE DATABASE small TABLESPACE small")
    await operator.close()
    filler = small_disk / "filler"
    await asyncio.to_thread(filler.write_bytes, bytes(15 * 1024**2))
    written: list[str] = []
    async with engine_at(f"{own.dsn.removesuffix('/postgres')}/small", "dragoman") as engine:
        await open_session(engine)

        async def fill() -> None:
            for number in range(1_000):
                # Hardly compressible, or the server would make little of it.
                text = random.Random(number).randbytes(100_000).hex()
                await engine.commit(Step(ALICE, (said(text),)))
                written.append(text)

        with pytest.raises(EngineUnavailable, match="disk is full"):
            await fill()
        filler.unlink()
        for text in ("a", "b"):
            await engine.commit(Step(ALICE, (said(text),)))
        assert await texts(engine) == [*written, "a", "b"]
        assert (await engine.health()).writable


async def test_a_server_without_free_connections_is_waited_for(own: postgres_server.OwnServer) -> None:
    own.stop()
    own.start(max_connections="12", superuser_reserved_connections="1")
    async with engine_at(own.dsn, "dragoman", connections=4) as engine:
        await open_session(engine)
        others = await leave_no_connection(own.dsn)
        refused = own.log().count("too many clients already")
        waiting = asyncio.create_task(engine.commit(Step(ALICE, (said("a"),))))
        async with asyncio.timeout(PATIENCE):
            await until(lambda: own.log().count("too many clients already") >= refused + 3)
        assert not waiting.done()
        for other in others:
            await other.close()
        await asyncio.wait_for(waiting, PATIENCE)
        assert await texts(engine) == ["a"]


async def test_what_is_doubtful_about_a_server_is_reported(own: postgres_server.OwnServer) -> None:
    own.stop()
    own.start(fsync="off", full_page_writes="off", synchronous_commit="off")
    async with engine_at(own.dsn, "dragoman") as engine:
        extra = (await engine.health()).extra
        assert {name for name in extra if name.startswith("warning ")} == {
            "warning fsync",
            "warning full_page_writes",
            "warning synchronous_commit",
        }


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(EngineUnusable) as caught:
        async with engine_at("postgresql://gail:SECRET@127.0.0.1:1/shop", "dragoman", tuning=PostgresTuning(start=0.2)):
            pass
    assert "127.0.0.1:1, database shop" in str(caught.value)
    assert "SECRET" not in str(caught.value)


# Neighbours


async def test_gateways_that_start_at_once_make_one_schema(schema: str) -> None:
    engines = [engine_at(postgres_server.dsn(), schema) for _ in range(5)]
    await asyncio.gather(*(engine.__aenter__() for engine in engines))
    await asyncio.gather(*(open_session(engine) for engine in engines))
    assert (await row_of(engines[0])).last_sequence == 1
    await asyncio.gather(*(engine.__aexit__(None, None, None) for engine in engines))


async def test_a_newer_schema_is_refused_with_the_mend(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema):
        pass
    operator = await asyncpg.connect(postgres_server.dsn())
    await operator.execute(f"SET search_path = {schema}")
    await operator.execute("INSERT INTO schema_version VALUES ($1, now())", NEWEST + 1)
    await operator.close()
    with pytest.raises(SchemaTooNew, match="run the newer release, or restore the backup from before the upgrade"):
        async with engine_at(postgres_server.dsn(), schema):
            pass


async def test_a_schema_of_another_program_is_left_alone(schema: str) -> None:
    operator = await asyncpg.connect(postgres_server.dsn())
    await operator.execute(f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".sessions (id int)')
    with pytest.raises(EngineUnusable, match=r"engine\.schema"):
        async with engine_at(postgres_server.dsn(), schema):
            pass
    await operator.close()


async def test_engines_that_write_the_same_sessions_leave_no_gap(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as one, engine_at(postgres_server.dsn(), schema) as other:
        for name in (ALICE, BOB):
            await open_session(one, name)

        async def write(engine: PostgresEngine, name: SessionId, worker: int) -> int:
            repeats = 0
            for number in range(20):
                try:
                    await engine.commit(Step(name, (said("x", dedupe_key=f"{worker} {number}"),)))
                except Repeated:
                    repeats += 1
            return repeats

        work = [write(engine, name, worker) for worker in range(4) for engine in (one, other) for name in (ALICE, BOB)]
        repeats = await asyncio.wait_for(asyncio.gather(*work), PATIENCE)
        # What one has written is a repeat for the other.
        assert sum(repeats) == 4 * 2 * 20
        for name in (ALICE, BOB):
            assert [e.sequence for e in await other.read(name)] == list(range(1, 82))


async def test_a_row_that_somebody_holds_is_waited_for_and_told(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema, tuning=PostgresTuning(commit=2.0)) as engine:
        await open_session(engine)
        somebody = await asyncpg.connect(postgres_server.dsn())
        await somebody.execute(f"SET search_path = {schema}")
        await somebody.execute("BEGIN; SELECT 1 FROM sessions FOR UPDATE")
        with pytest.raises(EngineUnavailable, match="lock"):
            await asyncio.wait_for(engine.commit(Step(ALICE, (said("a"),))), PATIENCE)
        await somebody.execute("ROLLBACK")
        await somebody.close()
        await engine.commit(Step(ALICE, (said("b"),)))
        assert await texts(engine) == ["b"]


async def test_a_row_that_somebody_holds_keeps_only_its_own_session_waiting(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as engine:
        await open_session(engine)
        await open_session(engine, BESIDE)
        somebody = await asyncpg.connect(postgres_server.dsn())
        await somebody.execute(f"SET search_path = {schema}; BEGIN")
        await somebody.execute("SELECT 1 FROM sessions WHERE session_id = $1 FOR UPDATE", ALICE)
        for number in range(10):
            # Whose rows are held is found out by the first of them.
            async with asyncio.timeout(9 if number == 0 else 1):
                held, free = await asyncio.gather(
                    engine.commit(Step(ALICE, (said(str(number)),))),
                    engine.commit(Step(BESIDE, (said(str(number)),))),
                    return_exceptions=True,
                )
            assert isinstance(held, EngineUnavailable)
            assert "pg_blocking_pids" in str(held)
            assert not isinstance(free, BaseException)
        with pytest.raises(EngineUnavailable):
            await engine.commit(Step(ALICE, (said("alone"),)))
        assert (await engine.health()).writable, "one session says nothing about the rest"
        await somebody.execute("ROLLBACK")
        await somebody.close()
        await engine.commit(Step(ALICE, (said("after it"),)))
        assert await texts(engine) == ["after it"]
        assert await texts(engine, BESIDE) == [str(number) for number in range(10)]


async def test_a_table_that_takes_no_writes_is_told_by_the_health(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as engine:
        await open_session(engine)
        await engine.commit(Step(ALICE, (said("a"),)))
        operator = await asyncpg.connect(postgres_server.dsn())
        await operator.execute(f"ALTER TABLE {schema}.events RENAME TO away")
        with pytest.raises(EngineUnavailable, match="restore the tables"):
            await engine.commit(Step(ALICE, (said("lost"),)))
        found = await engine.health()
        assert not found.writable
        assert "restore the tables" in found.detail
        await operator.execute(f"ALTER TABLE {schema}.away RENAME TO events")
        await operator.close()
        await engine.commit(Step(ALICE, (said("b"),)))
        assert (await engine.health()).writable
        assert await texts(engine) == ["a", "b"]


async def test_steps_wait_for_room_by_their_bytes(schema: str) -> None:
    tuning = PostgresTuning(commit=2.0, waiting_bytes=100_000)
    async with engine_at(postgres_server.dsn(), schema, tuning=tuning) as engine:
        await open_session(engine)
        somebody = await asyncpg.connect(postgres_server.dsn())
        await somebody.execute(f"SET search_path = {schema}")
        await somebody.execute("BEGIN; SELECT 1 FROM sessions FOR UPDATE")
        steps = [Step(ALICE, (said(f"{number}" + "x" * 40_000),)) for number in range(10)]
        results = await asyncio.wait_for(asyncio.gather(*map(engine.commit, steps), return_exceptions=True), PATIENCE)
        await somebody.execute("ROLLBACK")
        await somebody.close()
        assert {type(result) for result in results} == {EngineUnavailable}
        assert ["too many steps are queued" in str(result) for result in results] == [False] * 2 + [True] * 8
        await asyncio.wait_for(asyncio.gather(*map(engine.commit, steps)), PATIENCE)
        assert [text[0] for text in await texts(engine)] == [str(number) for number in range(10)]


# A step at fault


async def test_a_step_that_sql_refuses_fails_alone(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as engine:
        await open_session(engine)
        await open_session(engine, BOB)
        bad = Step(ALICE, (asked(),), calls=(call("bad", attempt=2**70),))
        steps = [Step(ALICE if n % 2 else BOB, (said(str(n)),)) for n in range(40)]
        steps[11] = bad
        results = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
        refused = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
        assert refused == [11]
        assert isinstance(results[11], InvalidRequest)
        written = [*await texts(engine), *await texts(engine, BOB)]
        assert sorted(written) == sorted(str(n) for n in range(40) if n != 11)


class OddChange:
    """A change of a call that nobody can read, as by a fault of ours."""

    @property
    def call_id(self) -> str:
        raise KeyError("a fault of ours")


async def test_a_fault_of_ours_in_a_lane_leaves_nobody_waiting(schema: str) -> None:
    odd: Any = OddChange()
    async with engine_at(postgres_server.dsn(), schema) as engine:
        await open_session(engine)
        for _ in range(3):
            asking = [engine.commit(Step(ALICE, (said(str(number)),), calls=(odd,))) for number in range(5)]
            results = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), PATIENCE)
            assert {type(result) for result in results} == {KeyError}
            # What one step raised is told to whoever asked for it; the lane itself goes on.
            await asyncio.wait_for(engine.commit(Step(ALICE, (said("after it"),))), PATIENCE)
        assert await texts(engine) == ["after it"] * 3
        assert (await engine.health()).writable


async def test_one_call_opened_for_two_sessions_at_once_is_stale_for_one(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as engine:
        names = [SessionId(f"s-{number}") for number in range(6)]
        for name in names:
            await open_session(engine, name)
        steps = [Step(name, (asked(),), calls=(call("same"),)) for name in names]
        results = await asyncio.gather(*map(engine.commit, steps), return_exceptions=True)
        assert [type(one).__name__ for one in results].count("Stale") == 5
        assert len(await engine.sessions(ALL)) == 2


async def test_a_connection_that_went_dead_does_not_cost_the_lease(proxy: Proxy, schema: str) -> None:
    async with engine_at(proxy.dsn, schema) as engine:
        assert await engine.beat("a", url="http://a", ttl=timedelta(seconds=6))
        proxy.mute()
        assert await asyncio.wait_for(engine.beat("a", url="http://a", ttl=timedelta(seconds=6)), PATIENCE)


# The notifier


async def test_more_topics_than_a_payload_holds_are_told_as_anything(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as one, engine_at(postgres_server.dsn(), schema) as other:
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        other.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            while await heard.get() is not None:
                pass
            for number in range(900):
                one.notify(f"session:{number:020}")
            assert await heard.get() is None


async def test_live_items_give_way_where_a_payload_has_no_room_for_all(schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema) as one, engine_at(postgres_server.dsn(), schema) as other:
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        other.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            while await heard.get() is not None:
                pass
            for number in range(20):
                one.notify(f"live:alice:{number:012}:{'x' * 500}")
            one.notify("session:alice")
            assert await heard.get() == "session:alice"
            for number in range(3):
                one.notify(f"live:alice:{number:012}:piece {number}")
            assert [await heard.get() for _ in range(3)] == [f"live:alice:{n:012}:piece {n}" for n in range(3)]


async def test_a_notifier_whose_listener_raises_tells_the_others_and_goes_on(schema: str) -> None:
    before = FAULTS.get().total["postgres notifier"]

    def fail(topic: str | None) -> None:
        raise KeyError(topic)

    async with engine_at(postgres_server.dsn(), schema) as one, engine_at(postgres_server.dsn(), schema) as other:
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        other.listen(fail)
        other.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() is None
            one.notify("session:alice")
            assert await heard.get() == "session:alice"
    assert FAULTS.get().total["postgres notifier"] - before == 2


async def test_a_notifier_that_failed_is_begun_again(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = FAULTS.get().total["postgres notifier"]
    connect, faults = postgres_notifier.connect, [KeyError("unforeseen")]

    async def connect_or_fail(address: postgres_notifier.Address) -> postgres_notifier.Connection:
        if faults:
            raise faults.pop()
        return await connect(address)

    monkeypatch.setattr(postgres_notifier, "connect", connect_or_fail)
    async with engine_at(postgres_server.dsn(), schema) as engine:
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        engine.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() is None
    assert FAULTS.get().total["postgres notifier"] - before == 1


async def test_a_lost_connection_of_notifications_is_logged_once_with_its_end(proxy: Proxy, schema: str) -> None:
    async with engine_at(postgres_server.dsn(), schema, direct_dsn=proxy.dsn) as one:
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        one.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() is None
            with capture_logs() as logs:
                proxy.cut_all()
                assert await heard.get() is None
    lines = [line["event"] for line in logs if line["event"].startswith("notification")]
    assert lines == ["notification connection lost", "notification connection available again"]


@pytest.mark.parametrize("how", ["nothing gets through", "only news is lost", "only news is lost, and it notifies"])
async def test_a_notifier_that_went_deaf_is_replaced_and_everybody_told(proxy: Proxy, schema: str, how: str) -> None:
    tuning = PostgresTuning(ping_every=0.2, ping=0.5)
    async with (
        engine_at(postgres_server.dsn(), schema, tuning=tuning) as one,
        engine_at(postgres_server.dsn(), schema, direct_dsn=proxy.dsn, tuning=tuning) as other,
    ):
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        other.listen(heard.put_nowait)
        async with asyncio.timeout(PATIENCE):
            assert await heard.get() is None
            if how == "nothing gets through":
                proxy.mute()
            else:
                proxy.drop_notifications = True
            if how == "only news is lost, and it notifies":
                # It never has 0.2 s without something to say.
                while heard.empty():
                    other.notify("session:bob")
                    await asyncio.sleep(0.02)
            assert await heard.get() is None
            proxy.drop_notifications = False
            one.notify("session:alice")
            while (topic := await heard.get()) is None:
                # So short a patience takes a stall for deafness, and whoever is told of notifications lost asks again.
                one.notify("session:alice")
            assert topic == "session:alice"
