"""A running gateway of which every port can be made to raise what nobody foresees."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from inspect import iscoroutinefunction
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any, cast

import yaml

from gateway.adapter.port import Codec, Connector, Created, Encoded, Frame, Link, Order, Receipt, Receiver
from gateway.errors import EngineUnavailable, LinkLost
from gateway.events import Draft, Envelope, Event, Outcome, SessionId, ToolRequested, dump_event
from gateway.executors.port import Answer, Answered, Cancellation, Copied, Destination, Executor, Request
from gateway.http.app import build_app
from gateway.http.server import make_server
from gateway.runtime import log
from gateway.runtime.app import Gateway
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.serve import parts_for
from gateway.settings.load import load
from gateway.settings.model import DestinationSpec, ExecutorSpec
from gateway.store.port import Engine
from gateway.store.sqlite import TemporaryEngine
from gateway.testing.change import Change
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, Running, plain_http, until
from tests.scenarios.hooks import SECRET
from tests.scenarios.plain_runtime import PlainCodec, PlainOptions, PlainRuntime
from tests.submits import submit_by

ENGINE_METHODS = tuple(
    sorted(name for name in dir(Engine) if not name.startswith("_") and callable(getattr(Engine, name)))
)
LEASE = "3s"


class Unforeseen(Exception):
    """Of no class that anybody knows."""


class Traps:
    """Raises where a test has set a trap."""

    def __init__(self) -> None:
        self._left: Counter[str] = Counter()
        self.sprung: Counter[str] = Counter()
        self.at: dict[str, float] = {}
        """When each place first raised."""
        self.change = Change()

    def set(self, place: str, times: int = 1) -> None:
        """Let the next so many who come to a place fail."""
        self._left[place] = times
        self.change.tell()

    def is_set(self, place: str) -> bool:
        return self._left[place] > 0

    def step_on(self, place: str) -> None:
        """Raise where there is a trap."""
        if self._left[place] <= 0:
            return
        self._left[place] -= 1
        self.sprung[place] += 1
        self.at.setdefault(place, monotonic())
        self.change.tell()
        raise Unforeseen(place)

    async def stand_on(self, place: str) -> None:
        """Hang where there is a trap."""
        with suppress(Unforeseen):
            self.step_on(f"{place}, hangs")
            return
        await asyncio.Event().wait()

    async def springs(self, place: str, times: int = 1) -> None:
        """Wait until somebody has come to a place."""

        def look() -> bool | None:
            return True if self.sprung[place] >= times else None

        await self.change.until(look, PATIENCE, what=lambda: f"{place}: {self.sprung[place]} of {times}")


class Options(PlainOptions):
    """Attaches to a session, or creates one at start."""

    session: str = ""
    makes: bool = False

    @property
    def native_id(self) -> str | None:  # type: ignore[override]
        return self.session or None

    @property
    def creates(self) -> bool:
        return self.makes


class FaultyCodec(PlainCodec):
    def __init__(self, traps: Traps) -> None:
        super().__init__()
        self._traps = traps

    def decode(self, frame: Frame) -> tuple[Draft, ...]:
        self._traps.step_on("codec.decode")
        return super().decode(frame)

    def encode(self, item: Draft | Envelope) -> Encoded:
        self._traps.step_on("codec.encode")
        return super().encode(item)


@dataclass
class FaultyRuntime(PlainRuntime):
    """An adapter with one runtime, of which each method can fail."""

    options: type[Any] = Options
    traps: Traps = field(default_factory=Traps)
    open: int = 0
    """How many connectors and links are open."""
    created: int = 0
    history: list[Frame] = field(default_factory=list[Frame])
    """What it has said, where it says that again to whoever resumes."""
    stands: bool = False
    """Whether its own session has a link: over one that was left, nothing is heard."""

    def codec(self, options: Any = None) -> Codec:
        del options
        self.traps.step_on("adapter.codec")
        return FaultyCodec(self.traps)

    @asynccontextmanager
    async def connector(self, options: Any) -> AsyncGenerator[Connector]:
        del options
        self.traps.step_on("adapter.connector")
        await self.traps.stand_on("adapter.connector")
        try:
            with self._opened():
                yield self
        finally:
            self.traps.step_on("connector.close")
            await self.traps.stand_on("connector.close")

    async def create(self, order: Order) -> Created:
        del order
        self.traps.step_on("connector.create")
        await self.traps.stand_on("connector.create")
        self.created += 1
        return Created(f"made-{self.created}")

    def connect(
        self, native_id: str, receiver: Receiver, *, resume_after: str | None = None
    ) -> AbstractAsyncContextManager[Link]:
        self.traps.step_on("connector.connect")
        return self._linked(native_id, receiver, int(resume_after or 0))

    @asynccontextmanager
    async def _linked(self, native_id: str, receiver: Receiver, after: int) -> AsyncGenerator[Link]:
        self.traps.step_on("link.enter")
        await self.traps.stand_on("link.enter")
        # Other sessions only come and go.
        own = native_id == f"room-{self.name}"
        if own:
            self._receiver, self.stands = receiver, True
        if own and self.capabilities.resumes:
            for number, frame in enumerate(self.history[after:], after + 1):
                receiver.frame(frame, str(number))
            if not self.traps.is_set("link.enter, never caught up"):
                receiver.caught_up()
        try:
            with self._opened():
                yield self
        finally:
            self.stands = self.stands and not own
            self.traps.step_on("link.close")
            await self.traps.stand_on("link.close")

    @contextmanager
    def _opened(self) -> Generator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def say(self, event: Event, native_id: str = "") -> None:
        if not self.capabilities.resumes:
            super().say(event, native_id)
            return
        # Of what is said again without an id, calls are not known to be open.
        self.history.append(Frame(f"event/{native_id or len(self.history) + 1}", dump_event(event)))
        assert self._receiver is not None
        self._receiver.frame(self.history[-1], str(len(self.history)))

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        try:
            self.traps.step_on("link.send, no answer")
        except Unforeseen:
            return cast("Any", None)
        return self._send(frames)

    async def _send(self, frames: Sequence[Frame]) -> Receipt:
        try:
            self.traps.step_on("link.send, no such state")
        except Unforeseen:
            return Receipt(cast("Any", "queued"))
        self.traps.step_on("link.send")
        await self.traps.stand_on("link.send")
        if not self.stands:
            raise LinkLost("the link was left")
        receipt = await super().send_all(frames)
        return Receipt("sent") if self.capabilities.delivery == "silence" else receipt

    async def prove(self) -> None:
        self.traps.step_on("link.prove")
        await self.traps.stand_on("link.prove")

    async def wait_closed(self) -> str:
        ends = ("link.wait_closed", "link.wait_closed, canceled")
        await self.traps.change.until(lambda: any(map(self.traps.is_set, ends)) or None, 3_600, what=str)
        try:
            self.traps.step_on("link.wait_closed, canceled")
        except Unforeseen as exc:
            raise asyncio.CancelledError from exc
        self.traps.step_on("link.wait_closed")
        return "never"

    def texts(self) -> list[str]:
        """What the agent was told in messages, each once, in the order in which it first came."""
        said = [one["content"][0]["text"] for one in self.heard if one["kind"] == "message.posted"]
        return list(dict.fromkeys(said))

    def results(self) -> list[str]:
        return [one["native_call_id"] for one in self.heard if one["kind"] == "tool.finished"]


class FaultyExecutor:
    """Answers each call with its arguments."""

    def __init__(self, traps: Traps) -> None:
        self._traps = traps

    def execute(self, request: Request) -> Awaitable[Answer]:
        self._traps.step_on("executor.execute, at once")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ends: Mapping[str, Callable[[Unforeseen], object]] = {
            "executor.execute, in a future": future.set_exception,
            "executor.execute, canceled": lambda _: future.cancel(),
            "executor.execute, no answer": future.set_result,
        }
        for place, end in ends.items():
            try:
                self._traps.step_on(place)
            except Unforeseen as exc:
                end(exc)
                return future
        return self._execute(request)

    async def _execute(self, request: Request) -> Answer:
        self._traps.step_on("executor.execute")
        if request.data["tool"] == "slow":
            await self._traps.change.until(lambda: self._traps.is_set("slow ends") or None, 3_600, what=str)
            with suppress(Unforeseen):
                self._traps.step_on("slow ends")
        return Answered(Outcome(outcome="success", result=request.data["arguments"]))

    async def cancel(self, cancellation: Cancellation) -> None:
        del cancellation
        self._traps.step_on("executor.cancel")

    async def __aenter__(self) -> Executor:
        self._traps.step_on("executor.enter")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._traps.step_on("executor.leave")


class FaultyDestination:
    """Takes copies, and refuses those of messages that say so."""

    def __init__(self, traps: Traps, copies: list[dict[str, Any]]) -> None:
        self._traps, self._copies = traps, copies

    async def copy(self, *, key: str, kind: str, at: datetime, data: dict[str, Any], attempt: int) -> Copied:
        del key, kind, at, attempt
        self._traps.step_on("destination.copy")
        text = data["event"].get("content", [{}])[0].get("text", "")
        self._traps.step_on(f"destination.copy {text}")
        if text.startswith("refuse"):
            return Copied("refused", "as it was asked for")
        self._copies.append(data)
        self._traps.change.tell()
        return Copied("delivered")

    async def __aenter__(self) -> Destination:
        self._traps.step_on("destination.enter")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._traps.step_on("destination.leave")


class FaultyEngine(TemporaryEngine):
    """A store of which each method can fail: before it has done anything (`commit`, or `commit, away` in a way that is
    foreseen), or after it (`commit, done`).
    """

    traps: Traps | None = None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ENGINE_METHODS:
            return found
        traps = super().__getattribute__("traps")
        assert traps is not None

        async def later(*args: Any, **kwargs: Any) -> Any:
            traps.step_on(f"engine.{name}")
            try:
                traps.step_on(f"engine.{name}, away")
            except Unforeseen as exc:
                raise EngineUnavailable("away for a moment") from exc
            if "text='poison'" in repr(args):
                traps.step_on(f"engine.{name} poison")
            answer = await found(*args, **kwargs)
            traps.step_on(f"engine.{name}, done")
            return answer

        def at_once(*args: Any, **kwargs: Any) -> Any:
            traps.step_on(f"engine.{name}")
            if name == "submit":
                # What happens to commits happens to submitted steps too.
                return submit_by(self.commit, *args, **kwargs)
            return found(*args, **kwargs)

        return later if iscoroutinefunction(found) else at_once


@dataclass
class Host(Running):
    """A gateway with two runtimes: `finn`, whose adapter can fail, and `sound`, which is like it and never does."""

    traps: Traps = field(default_factory=Traps)
    finn: FaultyRuntime = field(default_factory=FaultyRuntime)
    sound: FaultyRuntime = field(default_factory=FaultyRuntime)
    config: Path = Path()
    engine: TemporaryEngine = field(default_factory=lambda: TemporaryEngine(SystemClock()))
    copies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    logged: StringIO = field(default_factory=StringIO)
    said: dict[str, list[str]] = field(default_factory=lambda: {"finn": [], "sound": []})
    number: int = 0

    def faults(self) -> Counter[str]:
        """How many faults each part has had since the start."""
        return Counter(self.gateway.ambient.faults.total)

    async def noticed(self) -> float:
        """Wait until a fault is in the log, and on the page of metrics; returns when it was."""

        async def look() -> bool | None:
            shown = {name: value for name, value in (await self.metrics()).items() if "dragoman_faults_total" in name}
            return bool(shown and self.faults() and "Unforeseen" in self.logged.getvalue()) or None

        await until(look)
        return monotonic()

    async def post(self, path: str, body: Any = None, *, status: int | None = None, **headers: str) -> Any:
        answer = await self.http.post(path, json=body, headers=headers)
        assert status is None or answer.status_code == status, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def ids(self) -> dict[str, SessionId]:
        return {name: SessionId(await self.session(name)) for name in ("finn", "sound")}

    async def say(self, runtime: str, text: str, *, again: bool = True) -> bool:
        """Post a message as a client does who tries again where he is told that nothing was done."""
        body = {"kind": "message.posted", "content": text}
        path = f"/v1/sessions/{(await self.ids())[runtime]}/events"
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self.http.post(path, json=body, headers={"idempotency-key": text})
                if answer.status_code == 202:
                    self.said[runtime].append(text)
                    return True
                if not again:
                    return False
                await asyncio.sleep(0.05)

    async def asks(self, runtime: FaultyRuntime) -> str:
        """Let an agent ask for something; returns the id of its call."""
        self.number += 1
        asked = f"call-{self.number}"
        runtime.say(ToolRequested(native_call_id=asked, tool="echo", arguments={"n": self.number}))
        return asked

    async def told(self, runtime: FaultyRuntime, look: Callable[[], bool], what: str) -> None:
        await runtime.change.until(lambda: look() or None, PATIENCE, what=lambda: f"{what}: {runtime.heard[-5:]}")

    async def works(self, runtime: FaultyRuntime, name: str) -> None:
        """Hold a runtime to everything that it should do."""
        self.number += 1
        text = f"{name} {self.number}"
        await self.say(name, text)
        await self.told(runtime, lambda: text in runtime.texts(), text)
        asked = await self.asks(runtime)
        await self.told(runtime, lambda: asked in runtime.results(), asked)
        await self.traps.change.until(
            lambda: any(one["event"].get("content", [{}])[0].get("text") == text for one in self.copies) or None,
            PATIENCE,
            what=lambda: f"the copy of {text}",
        )

    async def others_go_on(self) -> None:
        await self.works(self.sound, "sound")

    async def is_well(self) -> None:
        """Whatever has failed is back, and nothing has overtaken anything."""
        await until(lambda: self.up("finn"), within=PATIENCE)
        await self.works(self.finn, "finn")
        await self.others_go_on()
        for name, runtime in (("finn", self.finn), ("sound", self.sound)):
            told = [text for text in runtime.texts() if text in self.said[name]]
            assert told == [text for text in self.said[name] if text in told], "something was overtaken"
        for path in ("/readyz", "/v1/sessions", "/v1/calls", "/v1/dead-letters", "/v1/interactions", "/v1/instances"):
            assert (await self.http.get(path)).status_code == 200

    async def up(self, name: str) -> bool | None:
        link = await self.link(name)
        return (link is not None and link["state"] == "up") or None

    async def has_all(self, runtime: str) -> None:
        """Wait until a runtime's agent was told all that clients said to it, in that order."""
        agent = self.finn if runtime == "finn" else self.sound
        await self.told(agent, lambda: len(agent.texts()) >= len(self.said[runtime]), f"all of {self.said[runtime]}")
        assert agent.texts() == self.said[runtime]


def configuration(**over: Any) -> dict[str, Any]:
    return {
        "api": {"keys": [{"name": "backend", "key": API_KEY}]},
        "engine": {"type": "memory"},
        "instance": {"lease": LEASE},
        "tools": {"echo": {"description": "Says it again."}, "slow": {"description": "Never ends."}},
        "runtimes": {
            name: {"adapter": name, "url": "http://plain.invalid", "session": f"room-{name}", "delivery_window": "50ms"}
            for name in ("finn", "sound")
        },
        "executors": {"echo": {"type": "static", "result": 1}},
        "destinations": {
            "copies": {
                "url": "http://copies.invalid",
                "secret": SECRET,
                "backoff": {"initial": "20ms", "maximum": "50ms"},
            },
        },
        "routes": [
            {"match": {"tool": "*"}, "to": "echo"},
            {"match": {"event": "*"}, "copy_to": ["copies"]},
        ],
        "limits": {"drain": "1s"},
        "logging": {"format": "json"},
        **over,
    }


@dataclass
class Made:
    """A gateway that was made and not entered."""

    gateway: AbstractAsyncContextManager[Gateway]
    traps: Traps
    finn: FaultyRuntime
    sound: FaultyRuntime
    engine: TemporaryEngine
    copies: list[dict[str, Any]]
    config: Path
    listener: socket.socket


@contextmanager
def made(
    folder: Path, *, able: Mapping[str, Any] | None = None, tuning: Tuning | None = None, **over: Any
) -> Generator[Made]:
    """Make a gateway of parts that can fail; `able` changes what the protocol can do."""
    traps, copies = Traps(), list[dict[str, Any]]()
    capabilities = replace(PlainRuntime().capabilities, **(able or {}))
    finn = FaultyRuntime(name="finn", traps=traps, capabilities=capabilities)
    sound = FaultyRuntime(name="sound", capabilities=capabilities)
    adapters = {"finn": finn, "sound": sound}
    config = folder / "host.yaml"
    config.write_text(yaml.safe_dump(configuration(**over)))

    def read() -> Any:
        return load(config, adapters=adapters, env={}).settings

    def make_executor(spec: ExecutorSpec) -> Executor:
        traps.step_on("executor.make")
        return FaultyExecutor(traps)

    def make_destination(spec: DestinationSpec) -> Destination:
        traps.step_on("destination.make")
        return FaultyDestination(traps, copies)

    engine = FaultyEngine(SystemClock())
    engine.traps = traps
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        parts = replace(
            parts_for(read(), reread=read, url=url),
            adapters=adapters,
            engine=engine,
            shared=True,
            make_executor=make_executor,
            make_destination=make_destination,
            tuning=tuning or Tuning(),
        )
        yield Made(Gateway.running(read(), parts), traps, finn, sound, engine, copies, config, listener)


@asynccontextmanager
async def logged_to(stream: StringIO, *, level: log.Level = "info") -> AsyncGenerator[StringIO]:
    """Send what is logged to a stream."""
    log.configure(level=level, format="json", stream=stream)
    try:
        yield stream
    finally:
        log.configure(format="json")


@asynccontextmanager
async def host(
    folder: Path, *, able: Mapping[str, Any] | None = None, tuning: Tuning | None = None, **over: Any
) -> AsyncGenerator[Host]:
    """Run such a gateway on a real socket, with both links up."""
    with made(folder, able=able, tuning=tuning, **over) as one:
        async with one.gateway as gateway, logged_to(StringIO()) as logged:
            server = make_server(build_app(gateway), gateway.settings.limits)
            serving = asyncio.create_task(server.serve(sockets=[one.listener]))
            url = f"http://127.0.0.1:{one.listener.getsockname()[1]}"
            http = plain_http()
            http.base_url, http.headers = url, {"authorization": f"Bearer {API_KEY}"}
            running = Host(gateway, url, http)
            running.traps, running.finn, running.sound = one.traps, one.finn, one.sound
            running.copies, running.logged, running.engine = one.copies, logged, one.engine
            running.config = one.config
            async with http:
                try:
                    async with asyncio.timeout(PATIENCE):
                        # Uvicorn has no event for it.
                        while not server.started:  # noqa: ASYNC110
                            await asyncio.sleep(0)
                    for name in ("finn", "sound"):
                        await until(lambda name=name: running.up(name))
                    yield running
                finally:
                    await gateway.drain()
                    server.should_exit = True
                    async with asyncio.timeout(PATIENCE):
                        await serving
