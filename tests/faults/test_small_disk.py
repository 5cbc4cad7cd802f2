"""A disk that really is full, under the database file and under PostgreSQL: what cannot be written is not taken."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.engines.postgres_server import start_own_server
from tests.faults.disk import SmallDisk, small_disk
from tests.faults.environment import until
from tests.faults.load import Load
from tests.faults.scene import Scene
from tests.faults.stores import SqliteFile, given, postgres
from tests.pace import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.fault("Disk full")]

TEXT = "x" * 20_000


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    with small_disk(24) as made:
        if made is None:
            pytest.skip("this machine lets us mount nothing; test_full_disk.py tries a quota instead")
        yield made


async def run_dry(scene: Scene, disk: SmallDisk) -> None:
    """Fill the disk in the middle of the load, and free it once the gateway has said that it takes nothing."""
    async with Load(scene, text=TEXT) as load:
        await load.more(20)

        async def refuses() -> bool:
            disk.fill()
            return not await scene.ready()

        await until(refuses, within=PATIENCE)
        assert (await scene.http.get("/healthz")).status_code == 200
        disk.free()
        await until(scene.ready, within=PATIENCE)
        await load.more(20)
    await scene.settled(within=PATIENCE)
    await scene.verify(strictly=False)
    await scene.stop()
    await scene.verify_journal()


async def test_a_database_file_on_a_full_disk(tmp_path: Path, disk: SmallDisk) -> None:
    async with Scene(tmp_path, "0.2", store=given(SqliteFile(disk.folder))) as scene:
        await scene.serve()
        await run_dry(scene, disk)


@pytest.mark.fault("PostgreSQL disk full", on="postgres")
async def test_tables_on_a_full_disk(tmp_path: Path, disk: SmallDisk) -> None:
    with start_own_server() as server:
        await move_tables(server.dsn, disk.folder / "tables")
        async with Scene(tmp_path, "0.1", store=postgres(server.dsn)) as scene:
            await scene.serve()
            await run_dry(scene, disk)


async def move_tables(dsn: str, folder: Path) -> None:
    """Let all tables that are made from now on be in a folder, which is given to the server's user."""
    connection = await asyncpg.connect(dsn)
    try:
        owner = await asyncio.to_thread(os.stat, await connection.fetchval("SHOW data_directory"))
        await asyncio.to_thread(folder.mkdir)
        await asyncio.to_thread(os.chown, folder, owner.st_uid, owner.st_gid)
        await connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
        await connection.execute("ALTER DATABASE postgres SET default_tablespace = small")
    finally:
        await connection.close()
