"""DSNs as hosted databases and other clients write them."""

import pytest

from dragoman.postgres_dsn import asyncpg_dsn, find_dropped, is_of_libpq, why_refused
from tests.unit.settings.conftest import Complain

BASE = "postgresql://gail:secret-canary@db.example.com:5432/shop"
NEON = f"{BASE}?sslmode=require&channel_binding=require"
PRISMA = f"{BASE}?schema=public&connect_timeout=300&pgbouncer=true&connection_limit=1"


def complain_of(complaints: Complain, dsn: str) -> list[str]:
    found = complaints("engine: {type: postgres, dsn: '${DSN}'}\n", DSN=dsn)
    assert "secret-canary" not in "\n".join(found)
    return [line.partition("engine.dsn: ")[2] for line in found if "engine.dsn" in line]


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("", ""),
        ("?sslmode=require&channel_binding=require", "?sslmode=require"),
        ("?channel_binding=prefer", ""),
        ("?connect_timeout=10&sslmode=require", "?sslmode=require"),
        ("?keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=5", ""),
        ("?target_session_attrs=read-write", "?target_session_attrs=read-write"),
        ("?options=endpoint%3Dep-cool-1&sslmode=require", "?options=endpoint%3Dep-cool-1&sslmode=require"),
        ("?sslmode=require&supa=base-pooler.x&workaround=supabase-pooler.vercel", "?sslmode=require"),
        ("?sslmode=verify-full&sslrootcert=system", "?sslmode=verify-full&sslrootcert=/etc/ca.pem"),
        ("?password=a%26channel_binding%3Drequire", "?password=a%26channel_binding%3Drequire"),
        ("?application%5Fname=shop", "?application%5Fname=shop"),
    ],
)
def test_asyncpg_gets_only_the_parameters_that_it_understands(query: str, kept: str) -> None:
    assert why_refused(BASE + query) is None
    assert asyncpg_dsn(BASE + query, system_certificates="/etc/ca.pem") == BASE + kept


def test_a_password_that_looks_like_a_parameter_is_left_alone() -> None:
    dsn = "postgresql://gail:a&channel_binding=require@db.example.com/shop"
    assert why_refused(dsn) is None
    assert asyncpg_dsn(dsn, system_certificates=None) == dsn
    assert list(find_dropped(dsn)) == []


def test_a_dropped_parameter_is_named_with_the_reason(complaints: Complain) -> None:
    found = complain_of(complaints, f"{BASE}?connect_timeout=10&supa=secret-canary&channel_binding=require")
    assert found == [
        (
            "channel_binding=require is ignored, so the connection is less safe: asyncpg cannot bind the login to the"
            " TLS channel; use sslmode=verify-full"
        ),
        "connect_timeout is ignored: the gateway has its own deadlines and pings",
        "supa is ignored: libpq has no such parameter; a setting of the server is options=-c%20NAME=VALUE",
    ]


def test_a_preferred_channel_binding_needs_no_warning(complaints: Complain) -> None:
    assert complain_of(complaints, f"{BASE}?channel_binding=prefer") == []


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        (PRISMA, "set `direct_dsn`"),
        (f"{BASE}?ssl=true", "write sslmode=require"),
        (f"{BASE}?sslmode=on", "sslmode must be one of disable, allow, prefer, require, verify-ca, verify-full"),
        (f"{BASE}?target_session_attrs=standby", "the gateway writes"),
        (f"{BASE}?target_session_attrs=master", "target_session_attrs must be one of any, primary,"),
        (f"{BASE}?sslmode", "must be a URL such as postgresql://"),
        (f"{BASE}?sslmode=require&sslrootcert=/no/such/file", "the file of sslrootcert does not exist"),
        (f"{BASE}?sslmode=verify-full", "add sslrootcert=system"),
        ("postgresql://gail:secret-canary@db.example.com:99999/shop", "ports from 1 to 65535"),
        ("postgresql://gail:secret-canary@db.example.com:5432x/shop", "ports from 1 to 65535"),
        ("postgresql://gail:secret-canary/x@db.example.com/shop", "ports from 1 to 65535"),
        ("postgresql://gail:secret-canary#x@db.example.com/shop", "in a password as %23"),
        ("postgresql://gail:secret-canary@db.example.com/my shop", "must not contain a space"),
        ("postgres+asyncpg://gail:secret-canary@db.example.com/shop", "must be a URL such as postgresql://"),
        ("host=db.example.com password=secret-canary", "must be a URL such as postgresql://"),
    ],
)
def test_check_refuses_a_dsn_that_no_server_could_serve(
    complaints: Complain, monkeypatch: pytest.MonkeyPatch, dsn: str, reason: str
) -> None:
    monkeypatch.delenv("PGSSLROOTCERT", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    (found,) = [line for line in complain_of(complaints, dsn) if "ignored" not in line]
    assert reason in found


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://one:5432,two:5433/shop?target_session_attrs=primary",
        "postgresql://[::1]:5432,[fd00::2]/shop",
        "postgresql:///shop?host=/run/postgresql",
        "postgresql://gail@%2Frun%2Fpostgresql/shop",
        "postgres://gail%40server:p%40ss@server.postgres.example.com:5432/shop?sslmode=require",
    ],
)
def test_other_forms_of_libpq_are_accepted(complaints: Complain, dsn: str) -> None:
    assert complain_of(complaints, dsn) == []
    assert asyncpg_dsn(dsn, system_certificates=None) == dsn


def test_pg_dump_is_given_only_the_parameters_that_it_accepts() -> None:
    assert is_of_libpq("channel_binding")
    assert is_of_libpq("dbname")
    assert not is_of_libpq("supa")
    assert not is_of_libpq("database")
