"""The PostgreSQL engine behind PgBouncer in transaction mode: no state of a server's session is used."""

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from gateway.errors import Repeated
from gateway.store.postgres import PostgresEngine, connection as postgres_link, once as postgres_once
from gateway.store.postgres.connection import Address, Connection
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import ALICE, BOB, FakeClock, open_session, row_of, said, texts
from tests.engines import postgres_server

pytestmark = pytest.mark.slow

_MISSING = "there is no pgbouncer: apt-get install pgbouncer"


@pytest.fixture
def pooler() -> Iterator[str]:
    """Start PgBouncer with two connections to the server for everybody; answers the DSN."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    parts = urlsplit(postgres_server.dsn())
    user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    password = f" password={parts.password}" if parts.password else ""
    folder = postgres_server.make_folder()
    (folder / "users").write_text(f'"{user}" "{parts.password or ""}"\n')
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={host} port={parts.port or 5432} user={user}{password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {folder / 'users'}\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 200\n"
    )
    command = postgres_server.as_server([program, str(config)])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
    process.terminate()
    try:
        process.wait(10)
    finally:
        process.kill()
        shutil.rmtree(folder)


@pytest.fixture
async def schema() -> AsyncIterator[str]:
    name = postgres_server.new_schema()
    yield name
    await postgres_server.drop_schema(name)


async def test_engines_share_two_connections_of_a_pooler(
    pooler: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Address] = []

    async def connect(address: Address) -> Connection:
        opened.append(address)
        return await postgres_link.connect(address)

    monkeypatch.setattr(postgres_once, "connect", connect)
    engines = [PostgresEngine(pooler, FakeClock(), schema=schema) for _ in range(3)]
    await asyncio.gather(*(engine.__aenter__() for engine in engines))
    assert (await engines[0].health()).extra["pooler"] == "yes"
    for name in (ALICE, BOB):
        await open_session(engines[0], name)
    steps = [
        engine.commit(Step(name, (said("x", dedupe_key=f"{number}"),)))
        for number in range(100)
        for engine in engines
        for name in (ALICE, BOB)
    ]
    reads = [engine.read(name) for engine in engines for name in (ALICE, BOB) for _ in range(20)]
    answers = await asyncio.wait_for(asyncio.gather(*steps, *reads, return_exceptions=True), 50)
    # Each event is said by three engines: one has written it, the others are told that it is there.
    refused = [one for one in answers if isinstance(one, BaseException)]
    assert (len(refused), {type(one) for one in refused}) == (400, {Repeated})
    # Whatever a pooler cannot carry costs a connection, and the next one makes up for it.
    assert len(opened) <= 3 * (1 + 8)
    for name in (ALICE, BOB):
        assert (await row_of(engines[1], name)).last_sequence == 101
        assert len(await texts(engines[2], name)) == 100
    await asyncio.gather(*(engine.__aexit__(None, None, None) for engine in engines))


async def test_notifications_come_through_where_there_is_a_direct_way(pooler: str, schema: str) -> None:
    direct = postgres_server.dsn()
    async with (
        PostgresEngine(pooler, FakeClock(), schema=schema) as deaf,
        PostgresEngine(pooler, FakeClock(), schema=schema, direct_dsn=direct) as hearing,
    ):
        heard: asyncio.Queue[str | None] = asyncio.Queue()
        unheard: list[str | None] = []
        hearing.listen(heard.put_nowait)
        deaf.listen(unheard.append)
        async with asyncio.timeout(10):
            assert await heard.get() is None
            # A pooler cannot be listened through, but rung through.
            deaf.notify("session:alice")
            assert await heard.get() == "session:alice"
            hearing.notify("session:bob")
            deaf.notify("session:carol")
            # The server tells in the order in which it was told, whoever listens.
            while await heard.get() != "session:carol":
                pass
            assert await deaf.session(ALICE) is None
        assert unheard == []
