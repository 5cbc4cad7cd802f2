"""A PostgreSQL schema of its own for each test of the kit, so that no start finds what another test has left."""

from collections.abc import AsyncIterator

import pytest

from tests.engines import postgres_server


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    server, schema = postgres_server.dsn(), postgres_server.new_schema()
    link = await postgres_server.reach(server)
    try:
        await link.execute(f"CREATE SCHEMA {schema}")
    finally:
        await link.close()
    yield f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{schema}"
    await postgres_server.drop_schema(schema)
