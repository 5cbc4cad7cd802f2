"""What `doctor` says of a PostgreSQL store: how the server is set, its tables, and which gateways are on it."""

import asyncio
from collections.abc import Iterator

from gateway.cli.checks import Check
from gateway.errors import DragomanError
from gateway.settings.model import PostgresStore
from gateway.store.postgres.connection import Address
from gateway.store.postgres.operations import Examined, examine
from gateway.store.postgres.tables import MIGRATIONS
from gateway.store.postgres.tuning import PRODUCTION, PostgresTuning

_PATIENCE = 15.0
_WARNING = "warning "


def look_at_postgres(store: PostgresStore, tuning: PostgresTuning = PRODUCTION) -> Iterator[Check]:
    """Connect as a gateway does; nothing is changed."""
    address = Address(store.dsn.get_secret_value(), store.schema_name, tuning)
    try:
        seen = asyncio.run(_examine(address))
    except DragomanError as exc:
        yield Check("broken", f"postgres {address.place}", str(exc))
        return
    except TimeoutError:
        yield Check("broken", f"postgres {address.place} did not answer in {_PATIENCE:g} s", "check engine.dsn")
        return
    facts = ", ".join(f"{name} {value}" for name, value in seen.found.items() if not name.startswith(_WARNING))
    yield Check("ok", f"postgres {address.place}: {facts}")
    for name, doubt in seen.found.items():
        if name.startswith(_WARNING):
            yield Check("warning", name.removeprefix(_WARNING), doubt)
    yield from _tables(address, seen)
    yield from _instances(seen)


async def _examine(address: Address) -> Examined:
    async with asyncio.timeout(_PATIENCE):
        return await examine(address)


def _tables(address: Address, seen: Examined) -> Iterator[Check]:
    newest = len(MIGRATIONS)
    if not seen.number:
        yield Check("ok", f"schema {address.schema}: will be made at the first start")
    elif seen.number < newest:
        yield Check("note", f"schema {address.schema} is at {seen.number}, this release has {newest}",
                    "the first start migrates it, or `dragoman migrate`")  # fmt: skip
    else:
        yield Check("ok", f"schema {address.schema} is at {seen.number}")


def _instances(seen: Examined) -> Iterator[Check]:
    for one in seen.instances:
        name = f"instance {one.instance_id} at {one.url}, sessions: {one.sessions}"
        if one.alive:
            yield Check("ok", name)
        else:
            yield Check("warning", f"{name}: dead", "the others take its sessions over when its lease has run out")
    if not any(one.alive for one in seen.instances):
        yield Check("note", "no gateway is on it now")
