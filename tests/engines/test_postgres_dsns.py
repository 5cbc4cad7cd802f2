"""The engine connects with each form of DSN that hosted databases issue."""

import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.kit.postgres import PostgresCallStore
from gateway.settings.model import Settings
from gateway.store.postgres import PostgresEngine
from gateway.testing.conformance.engine_words import FakeClock
from tests.engines import postgres_server

pytestmark = pytest.mark.slow

CERTIFICATE = Path(__file__).parents[1] / "executors" / "localhost.pem"

FORMS = {
    "neon": "sslmode=require&channel_binding=require",
    "neon with an endpoint": "sslmode=require&options=-c%20application_name%3Dep-cool-1",
    "supabase on vercel": "sslmode=require&supa=base-pooler.x",
    "prisma": "schema=public&connect_timeout=300&connection_limit=1&sslmode=require",
    "rds behind a failover": "sslmode=require&target_session_attrs=read-write&connect_timeout=10",
    "azure": "sslmode=require&keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=5",
    "a verified server": f"sslmode=verify-full&sslrootcert={CERTIFICATE}",
    "a server verified by the system": "sslmode=verify-full&sslrootcert=system",
    "fly": "sslmode=disable",
    "libpq": "application_name=shop&fallback_application_name=x&gssencmode=disable&sslsni=1&client_encoding=utf8",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server with TLS."""
    if postgres_server.find_programs() is None:
        postgres_server.dsn()
    folder = postgres_server.make_folder()
    pair = folder / "pair.pem"
    shutil.copy(CERTIFICATE, pair)
    owner = folder.stat()
    os.chown(pair, owner.st_uid, owner.st_gid)
    pair.chmod(0o600)
    try:
        with postgres_server.start_own_server(
            copy_of=None, ssl="on", ssl_cert_file=str(pair), ssl_key_file=str(pair)
        ) as own:
            yield own.dsn
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("query", FORMS.values(), ids=FORMS)
async def test_a_dsn_of_a_hosted_database_opens_the_store(
    server: str, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    assert ssl.get_default_verify_paths().cafile == str(CERTIFICATE)
    store = Settings.model_validate({"engine": {"type": "postgres", "dsn": f"{server}?{query}"}}).engine
    assert store.type == "postgres"
    async with PostgresEngine(store.dsn.get_secret_value(), FakeClock(), schema="forms") as engine:
        health = await engine.health()
    assert health.writable
    async with PostgresCallStore(f"{server}?{query}") as kit:
        assert (await kit.claim(query, "digest")).state == "new"


def test_the_store_of_the_kit_refuses_the_dsn_of_another_client() -> None:
    with pytest.raises(ValueError, match="remove it") as caught:
        PostgresCallStore("postgresql://gail:canary@db.example.com/shop?pgbouncer=true")
    assert "canary" not in str(caught.value)
