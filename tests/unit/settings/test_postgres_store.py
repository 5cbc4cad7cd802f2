"""The PostgreSQL section of the YAML, and the engine that is made of it."""

import pytest
from pydantic import ValidationError

from gateway.runtime.system_clock import SystemClock
from gateway.serve import make_engine
from gateway.settings.model import PostgresStore, Settings
from gateway.settings.secret_values import secrets_in
from gateway.store.postgres import PostgresEngine

DSN = "postgresql://gail:p%40ss-word@db.example.com:5433/shop"


def read(**more: object) -> Settings:
    return Settings.model_validate({"engine": {"type": "postgres", "dsn": DSN, **more}})


def test_the_password_of_a_dsn_is_hidden_alone_too() -> None:
    assert {DSN, "p%40ss-word", "p@ss-word"} <= set(secrets_in(read()))
    assert "ss-word" not in repr(read())


async def test_an_engine_is_made_of_the_section() -> None:
    spec = read(schema="shop", connections=4, direct_dsn=DSN).engine
    assert isinstance(spec, PostgresStore)
    engine = make_engine(spec, SystemClock())
    assert isinstance(engine, PostgresEngine)
    health = await engine.health()
    assert health.detail == "PostgreSQL at db.example.com:5433, database shop is not open"


@pytest.mark.parametrize(
    "more",
    [{"schema": "Shop"}, {"schema": 'a"b'}, {"schema": ""}, {"connections": 3}, {"dsn": "mysql://h/d"}, {"x": 1}],
)
def test_what_cannot_be_meant_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        read(**more)
