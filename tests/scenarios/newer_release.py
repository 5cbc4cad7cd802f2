"""A release to come, run as a process of its own: this one with a kind, a member of memory and a schema more.

    python -m tests.scenarios.newer_release write|say FOLDER ENGINE

`write` puts its kind wherever an event can stand, and ends; `say` runs until its runtime has heard what waited.
Both print what they know as JSON.
"""

# ruff: noqa: E402, T201
# The order matters: what is changed must be so before others import it; and what it knows is printed.

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

import gateway.core.state as memory_of
from gateway.events import Envelope, SessionId, kinds
from gateway.events.content import Value
from gateway.events.frozen import frozen

TOWNS = ("Bonn", "Köln", "Trier")


class WeatherChanged(Value):
    """→ The kind that only this release knows."""

    kind: Literal["weather.changed"] = "weather.changed"
    town: str
    id: str = ""
    degrees: float = 21.5


@frozen
class Remembered(memory_of.Remembered):
    """What this release remembers."""

    weather: tuple[str, ...] = ()


def _change(module: str, name: str, value: Any) -> None:
    vars(import_module(module))[name] = value


def _fold_weather(fold: Callable[..., Any]) -> Callable[..., Any]:
    def folded(memory: Any, recorded: Any) -> Any:
        memory = fold(memory, recorded)
        if isinstance(recorded.event, WeatherChanged):
            return replace(memory, weather=(*memory.weather, recorded.event.town))
        return memory

    return folded


def _register() -> None:
    """Make this process the newer release."""
    union: Any = get_args(kinds.Event)[0] | WeatherChanged
    annotated: Any = Annotated
    adapter: Any = TypeAdapter(annotated[union, Field(discriminator="kind")])
    for module in ("gateway.events.kinds", "gateway.events.envelope", "gateway.events"):
        _change(module, "EVENT", adapter)
    _change("gateway.core.state", "Remembered", Remembered)
    folding = import_module("gateway.core.fold")
    _change("gateway.core.fold", "fold", _fold_weather(folding.fold))
    _change("gateway.core.snapshots", "FOLDING", import_module("gateway.core.snapshots").FOLDING + 1)
    for module, table in (
        ("gateway.store.sqlite.schema", "sessions"),
        ("gateway.store.postgres.tables", "@sessions"),
    ):
        _change(
            module, "MIGRATIONS", (*import_module(module).MIGRATIONS, (f"ALTER TABLE {table} ADD COLUMN mood text",))
        )
    _change("gateway.store.postgres.schema", "MIGRATIONS", import_module("gateway.store.postgres.tables").MIGRATIONS)


_register()

from gateway.core.snapshots import to_snapshot
from gateway.events import EventId, InteractionId
from gateway.runtime.session.load import load_view
from gateway.runtime.system_clock import SystemClock
from gateway.store.postgres import PostgresEngine
from gateway.store.rows import Page
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, SendChange, Step
from tests.scenarios.plain_runtime import plain_gateway

COPIES = "destination:log"


def _engine(told: dict[str, Any]) -> Any:
    if told["type"] == "sqlite":
        return SqliteEngine(Path(told["path"]), SystemClock())
    return PostgresEngine(told["dsn"], SystemClock(), schema=told["schema"])


def _new(event: Any, name: str) -> Envelope:
    return Envelope(EventId(name), SessionId(""), 0, SystemClock().now(), "to_runtime", event)


async def write(folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    async with plain_gateway(folder, settings={"engine": engine}) as (running, _):
        session_id = SessionId(await running.session())
    async with _engine(engine) as store:
        towns = [_new(WeatherChanged(town=town, id=town), f"weather-{town}") for town in TOWNS]
        # The memory of the first is in the snapshot; the others are behind it.
        await store.commit(Step(session_id, (towns[0],), sends=(Enqueue(0, COPIES),)))
        view = await load_view(store, session_id)
        asks = InteractionChange(InteractionId("asked"), "waiting", "weather.asked", view.last_sequence + 1)
        late: Any = "whenever"
        done = await store.commit(
            Step(
                session_id,
                tuple(towns[1:]),
                sends=(Enqueue(0, RUNTIME, "turn"), Enqueue(1, COPIES), Enqueue(1, RUNTIME, late)),
                interactions=(asks,),
                snapshot=to_snapshot(view.last_sequence, view.memory),
            )
        )
        dead = SendChange(done.envelopes[1].sequence, COPIES, "dead", reason="gave up")
        await store.commit(Step(session_id, send_changes=(dead,)))
    return {"session_id": session_id, "sequences": [one.sequence for one in done.envelopes]}


async def say(folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    async with plain_gateway(folder, settings={"engine": engine}) as (running, runtime):
        await runtime.hears("weather.changed")
        await runtime.change.until(lambda: len(runtime.heard) >= 2, 15.0, what=lambda: "what stood behind it")
        session_id = SessionId(await running.session())
    async with _engine(engine) as store:
        view = await load_view(store, session_id)
        listed, _ = await store.dead_sends(Page(100))
    return {
        "heard": runtime.heard,
        "weather": getattr(view.memory, "weather", None),
        "listed": [[row.sequence, row.target, row.lane] for row in listed],
    }


if __name__ == "__main__":
    verb, where, how = sys.argv[1:]
    act = {"write": write, "say": say}[verb]
    print(json.dumps(asyncio.run(act(Path(where), json.loads(how)))))
