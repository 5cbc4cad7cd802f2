"""The real gateway on a temporary store, between a plain runtime and a backend that promises every outcome."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qs, urlsplit

from adapters.mcp import ADAPTER as MCP
from adapters.mcp.options import McpOptions
from gateway.adapter.port import Capabilities, ConfirmationRule, Created, Link, Order, Receiver, RuntimeOptions
from gateway.errors import DragomanError
from gateway.events import (
    ActionOrdered,
    ApprovalAsked,
    Envelope,
    Event,
    InteractionId,
    Loss,
    QuestionAsked,
    SecretAsked,
    SessionId,
    ToolRequested,
    TurnSteered,
)
from gateway.executors.port import Accepted, Answer, Cancellation, Copied, Request, Uncertain
from gateway.runtime.app import Gateway, Parts
from gateway.runtime.metrics import Metrics
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.runtime.tuning import Tuning
from gateway.settings.model import Settings
from gateway.store.call import Call
from gateway.store.port import Engine, Report, report_nothing
from gateway.store.postgres import PostgresEngine
from gateway.store.rows import CallFilter, Page, RetentionPolicy
from gateway.store.sqlite import SqliteEngine, TemporaryEngine
from gateway.testing.conformance.engine_words import journal
from tests.engines.postgres_server import dsn
from tests.pace import PATIENCE
from tests.scenarios.environment import merge
from tests.scenarios.plain_runtime import PlainRuntime
from tests.submits import submit_by

Found = TypeVar("Found")
VERSION = "9.9.9"
CLOCK = SystemClock()

CONFIGURATION: dict[str, Any] = {
    "api": {
        "keys": [
            {"name": "backend", "key": "all-of-it"},
            {"name": "viewer", "key": "look-only", "scopes": ["read"]},
            {"name": "driver", "key": "drive-only", "scopes": ["drive"]},
            {"name": "answerer", "key": "answer-only", "scopes": ["answer"]},
            {"name": "lead", "key": "approve-only", "scopes": ["approve"]},
            {"name": "operator", "key": "operate-only", "scopes": ["operate"]},
        ],
    },
    "engine": {"type": "memory"},
    "public_url": "http://gateway.example",
    "executors": {"cards": {"type": "webhook", "url": "http://backend.invalid", "attempts": 1}},
    "destinations": {"log": {"url": "http://backend.invalid"}},
    "routes": [
        {"match": {"tool": "*"}, "to": "cards", "undeclared": True},
        {"match": {"event": "message.posted"}, "to": "cards"},
        {"match": {"event": "action.ordered"}, "copy_to": ["log"]},
    ],
    "logging": {"level": "error", "format": "json"},
}


_ABLE = replace(PlainRuntime.capabilities, mcp_hold=timedelta(seconds=30), limits={"result_utf16_units": 65_536})


class Options(RuntimeOptions):
    """Sessions are made when a client asks for them."""

    @property
    def creates(self) -> bool:
        return True

    @property
    def confirmation(self) -> ConfirmationRule:
        return ConfirmationRule(timedelta(seconds=30))


@dataclass
class Rooms(PlainRuntime):
    """A plain runtime with any number of sessions."""

    options: type[RuntimeOptions] = Options
    capabilities: Capabilities = _ABLE
    receivers: dict[str, Receiver] = field(default_factory=dict[str, Receiver])
    refuses: DragomanError | None = None
    """Why it makes no session."""
    orders: int = 0
    """How many sessions it was to make."""
    order: Order | None = None
    """Of what kind the last one was to be."""
    losses: tuple[Loss, ...] = ()
    """What of an order it cannot be told."""
    tools: tuple[str, ...] = ()
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it makes sessions at once."""

    def __post_init__(self) -> None:
        self.open.set()

    async def create(self, order: Order) -> Created:
        self.order = order
        self.orders += 1
        await self.open.wait()
        if self.refuses is not None:
            raise self.refuses
        return Created(f"made-{self.orders}", self.losses, self.tools)

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        self.receivers[native_id] = receiver
        return super().connect(native_id, receiver, resume_after=resume_after)

    def say(self, event: Event, native_id: str = "", *, room: str = "agent-7") -> None:
        self._receiver = self.receivers[room]
        super().say(event, native_id)


@dataclass
class Backend:
    """Promises an outcome for each call, and refuses each copy."""

    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    """By tool, where it answers otherwise."""
    copied: Copied = field(default_factory=lambda: Copied("refused", "answered 500"))
    asked: list[Request] = field(default_factory=list[Request])
    canceled: list[Cancellation] = field(default_factory=list[Cancellation])
    gate: asyncio.Event | None = None
    """What it waits for before it answers."""
    cancels_forever: bool = False
    """Whether it never ends a cancel."""

    async def execute(self, request: Request) -> Answer:
        self.asked.append(request)
        if request.kind == "message.posted":
            # Whether it was delivered, a client says first.
            await asyncio.Event().wait()
        if self.gate is not None:
            await self.gate.wait()
        return self.answers.get(request.data["tool"], Accepted())

    @contextmanager
    def held(self) -> Generator[None]:
        """Let no attempt end while this is entered."""
        self.gate = gate = asyncio.Event()
        try:
            yield
        finally:
            self.gate = None
            gate.set()

    async def cancel(self, cancellation: Cancellation) -> None:
        self.canceled.append(cancellation)
        if self.cancels_forever:
            await asyncio.Event().wait()

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        del key, kind, at, data, attempt
        return self.copied

    async def __aenter__(self) -> "Backend":
        return self

    async def __aexit__(self, *exc: object) -> None:
        return


async def until(look: Callable[[], Awaitable[Found | None]]) -> Found:
    """Look again until there is something; all of it is in this process, and a moment away."""
    async with asyncio.timeout(PATIENCE):
        # What is waited for tells nobody.
        while (found := await look()) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return found


@dataclass
class Environment:
    """A gateway at work, and what stands around it."""

    engine: Engine
    runtime: Rooms
    backend: Backend
    configuration: dict[str, Any]
    reread: Callable[[], Settings]
    """What a reload reads."""
    gateway: Gateway = field(init=False)

    async def reload(self, over: Mapping[str, Any]) -> None:
        """Lay something over the configuration, and let the gateway read it."""
        self.configuration = merge(self.configuration, over)
        await self.gateway.reload()

    async def attach(self, native_id: str = "agent-7") -> str:
        """Open a session; its link is up and on record when this returns, as its second event."""
        row, *_ = await self.gateway.opening.open("finn", native_id=native_id, labels={})

        async def linked() -> bool | None:
            return len(await self.journal(row.session_id)) >= 2 or None

        await until(linked)
        return row.session_id

    async def journal(self, session_id: str) -> Sequence[Envelope]:
        """Everything that is on record of a session."""
        return await journal(self.engine, SessionId(session_id))

    async def post(self, session_id: str, count: int = 1, *, text: str = "left") -> None:
        """Let a client say something so many times."""
        for start in range(0, count, 100):
            events = [TurnSteered(text=text)] * min(100, count - start)
            await self.gateway.post(SessionId(session_id), events, by="-")

    async def recorded(self, session_id: str, kind: str) -> Envelope:
        """Wait until an event of a kind is on record, and return the first one."""

        async def look() -> Envelope | None:
            return next((one for one in await self.journal(session_id) if one.event.kind == kind), None)

        return await until(look)

    async def call(self, native_call_id: str, *states: str) -> Call:
        """Wait until a call stands so, or is known at all."""

        async def look() -> Call | None:
            rows, _ = await self.engine.calls(CallFilter(), Page(500))
            found = (row for row in rows if row.native_call_id == native_call_id)
            return next((row for row in found if not states or row.state in states), None)

        return await until(look)

    async def ask(self, native_call_id: str = "c-1", tool: str = "ask_for_cards", *, state: str = "accepted") -> str:
        """Let the agent ask for something; returns the id of the call once it stands so."""
        self.runtime.say(ToolRequested(native_call_id=native_call_id, tool=tool))
        return (await self.call(native_call_id, state)).call_id

    def token(self, call_id: str) -> str:
        """The token of the callback address that the backend was given with a call."""
        (url,) = {str(one.data["callback_url"]) for one in self.backend.asked if one.data["call_id"] == call_id}
        return parse_qs(urlsplit(url).query)["token"][0]

    async def ask_person(self, asked: Event | None = None) -> InteractionId:
        """Let the agent ask a person, for an approval where nothing else is said."""
        self.runtime.say(asked or ApprovalAsked(id="a-1", tool="rm"))

        async def look() -> InteractionId | None:
            rows, _ = await self.engine.interactions(Page())
            return rows[0].interaction_id if rows else None

        return await until(look)

    async def lose_copy(self, session_id: str, *, state: str = "refused") -> str:
        """Let the copy of one event be refused; returns the id of the dead letter."""
        order = ActionOrdered(action="run", arguments={"command": "ls"})
        (sent,) = await self.gateway.post(SessionId(session_id), [order], by="-")
        letter = f"{session_id}:{sent.sequence}:destination:log"

        await self.copied(letter, state=state)
        return letter

    async def copied(self, letter: str, *, state: str = "delivered") -> None:
        """Wait until a copy stands so."""
        session_id, sequence, _ = letter.split(":", 2)

        async def look() -> bool | None:
            sends = await self.engine.sends_of(SessionId(session_id), int(sequence))
            return any(one.state == state and letter.endswith(one.target) for one in sends) or None

        await until(look)

    async def lose_call(self, native_call_id: str = "c-1") -> str:
        """Let a call end without an answer; returns its id."""
        self.backend.answers["lost"] = Uncertain("the connection broke")
        return await self.ask(native_call_id, "lost", state="failed")

    async def fill(self) -> dict[str, str]:
        """Make a call in each kind of state and all that waits for a person; returns their ids by name."""
        session_id = await self.attach()
        accepted = await self.ask("c-1")
        lost = await self.lose_call("c-2")
        interaction = await self.ask_person()
        self.runtime.say(QuestionAsked(id="q-1", text="Whom shall I ask?", choices=("Alice", "Bob")))
        self.runtime.say(SecretAsked(id="s-1", purpose="secret", name="TOKEN"))
        await self.recorded(session_id, "secret.asked")
        letter = await self.lose_copy(session_id)
        return {
            "session": session_id,
            "accepted": accepted,
            "lost": lost,
            "interaction": interaction,
            "dead letter": letter,
        }

    def fail(self, method: str, exc: Exception | None) -> None:
        """Let a method of the store raise from now on, or work again."""
        if exc is None:
            delattr(self.engine, method)
            if method == "commit":
                delattr(self.engine, "submit")
            return

        async def fails(*_: Any, **__: Any) -> NoReturn:
            raise exc

        setattr(self.engine, method, fails)
        if method == "commit":
            # Sessions submit their steps.
            self.engine.submit = partial(submit_by, fails)

    async def forget(self, session_id: str, *, keep: int) -> int:
        """Let retention remove all events of a session but the last ones; returns the first that is left."""

        async def look() -> int | None:
            # Events that are still to be sent stay.
            await self.engine.sweep(RetentionPolicy(open_events=keep))
            row = await self.gateway.session(SessionId(session_id))
            return row.first_sequence if row.last_sequence - row.first_sequence + 1 == keep else None

        return await until(look)


@asynccontextmanager
async def environment_of(
    over: Mapping[str, Any] | None = None,
    *,
    runtime: Rooms | None = None,
    schema: str | None = None,
    path: Path | None = None,
    report: Report = report_nothing,
    tuning: Tuning | None = None,
    autostart: bool = False,
) -> AsyncGenerator[Environment]:
    """Run a gateway, alone (on a file), or as one of several on a PostgreSQL `schema`; `desks` are more runtimes."""
    engine = TemporaryEngine(CLOCK) if path is None else SqliteEngine(path, CLOCK, report=report)
    engine = engine if schema is None else PostgresEngine(dsn(), CLOCK, schema=schema)
    runtime, backend = runtime or Rooms(), Backend()
    configuration = merge(CONFIGURATION, over or {})

    def reread() -> Settings:
        written = dict(made.configuration)
        desks = {name: McpOptions.model_validate(one) for name, one in written.pop("desks", {}).items()}
        linked = {"finn": runtime.options(adapter=runtime.name, url="http://plain.invalid", autostart=autostart)}
        return Settings.model_validate(written).model_copy(update={"runtimes": {**linked, **desks}})

    parts = Parts(
        engine=engine,
        adapters={runtime.name: runtime, "mcp": MCP},
        make_executor=lambda _: backend,
        make_destination=lambda _: backend,
        clock=CLOCK,
        ids=SystemIds(CLOCK),
        metrics=Metrics(version=VERSION),
        # Looked up each time: tests exchange it.
        reread=lambda: made.reread(),  # noqa: PLW0108
        version=VERSION,
        url="http://127.0.0.1",
        shared=schema is not None,
        tuning=tuning or Tuning(),
        report=report,
    )
    made = Environment(engine, runtime, backend, configuration, reread)
    async with Gateway.running(reread(), parts) as made.gateway:
        yield made
