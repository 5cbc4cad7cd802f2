"""Gateways on one store between a runtime and a backend, and what must hold of all of them at the end."""

import asyncio
import itertools
import json
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httpx

from gateway.events import SessionId, ToolFinished
from gateway.runtime.session.load import load_view
from gateway.store.port import Engine
from gateway.store.rows import Page
from gateway.testing.conformance.engine_words import journal
from gateway.testing.serving import Served
from tests.faults.backend import SECRET, RecordingBackend, Seen
from tests.faults.instance import BOUND, START, Instance
from tests.faults.judge import Entry, Finished, Journal, Request, Rules, Span, Verdict, Wanted, judge
from tests.faults.observed import note
from tests.faults.process import Process
from tests.faults.proxy import Proxy
from tests.faults.stores import Store, store_of

SETTLED = frozenset({"succeeded", "failed", "canceled", "expired"})
LEASE = 2.0
"""Seconds of a lease; short, since each process after a kill has to wait for the end of the last one's."""


class FaultEnvironment:
    """One runtime (a subclass says which), one backend, one store, and gateway processes."""

    runtime: str

    def __init__(
        self,
        folder: Path,
        *,
        store: str | AbstractAsyncContextManager[Store] = "sqlite",
        through: Collection[str] = (),
        copies: bool = False,
        slots: int = 16,
        executor: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.backend = RecordingBackend()
        self.gateway = Instance(folder)
        self.through = frozenset(through)
        """What is reached through a proxy: `runtime`, `executor`, `database`."""
        self.wires: dict[str, Proxy] = {}
        self.instances = [self.gateway]
        self._store = store_of(store, folder) if isinstance(store, str) else store
        self._copies, self._slots, self._executor = copies, slots, executor or {}
        self._served = Served(self.backend.app)
        self._numbers = itertools.count()
        self._repeats_before = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.store: Store = await stack.enter_async_context(self._store)
            await self._served.start()
            stack.push_async_callback(self._served.stop)
            await self.start_runtime()
            stack.push_async_callback(self.stop_runtime)
            stack.callback(self.backend.open)
            for name in sorted(self.through):
                self.wires[name] = await stack.enter_async_context(Proxy(self._target(name)))
            stack.push_async_callback(self.gateway.close)
            self.gateway.configure(self.settings(self.gateway))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def another(self, name: str, **engine: Any) -> Instance:
        """Make another instance on the same store; `engine` is laid over its part of the configuration."""
        made = Instance(self.folder, name)
        self.instances.append(made)
        self._stack.push_async_callback(made.close)
        made.configure(self.settings(made, **engine))
        return made

    # What a subclass says of its runtime

    async def start_runtime(self) -> None:
        raise NotImplementedError

    async def stop_runtime(self) -> None:
        raise NotImplementedError

    def runtime_url(self) -> str:
        """Where the runtime itself listens."""
        raise NotImplementedError

    def runtime_settings(self, url: str) -> dict[str, Any]:
        """The runtime's part of the configuration, reached at a URL."""
        raise NotImplementedError

    def links(self) -> tuple[int, bool]:
        """How many links were ever made, and whether one stands."""
        raise NotImplementedError

    def wanted(self) -> list[Wanted]:
        """The runtime's own record of its calls."""
        raise NotImplementedError

    def outages(self) -> dict[str, list[Span]]:
        """When what the runtime wrote may have been lost, by wire; a runtime that repeats it has no such times."""
        return {}

    # The gateway's processes

    async def run(self, die_at: str | None = None, *, nth: int = 1, broken: str | None = None) -> None:
        """Start a gateway that dies at a point, or never by itself, and wait until it has its link."""
        await self.until_up(self.gateway.fork(die_at, nth=nth, broken=broken))

    async def serve(self) -> None:
        """Start `python -m gateway serve`, and wait until it has its link."""
        await self.until_up(await self.gateway.serve())

    def kill(self) -> None:
        """End the gateway as `kill -9` does."""
        self.gateway.signal(signal.SIGKILL)

    async def dead(self) -> None:
        """Wait until the gateway was ended by SIGKILL, and its runtime has noticed."""
        await self.gateway.died()
        await self.unlinked()

    async def stop(self) -> None:
        """End the gateway in the orderly way."""
        await self.gateway.stop()

    async def until_up(self, process: Process) -> None:
        """Wait until a new process has made its link and is ready."""
        self._repeats_before = self._repeats()
        before, _ = self.links()

        async def up() -> bool:
            assert process.returncode is None, self.log()
            made, stands = self.links()
            return made > before and stands and await self.gateway.ready()

        await until(up, within=START)

    async def unlinked(self) -> None:
        """Wait until the runtime has no link."""

        async def down() -> bool:
            return not self.links()[1]

        await until(down)

    async def relinked(self, more_than: int, *, within: float = BOUND) -> None:
        """Wait until another link stands."""

        async def up() -> bool:
            made, stands = self.links()
            return made > more_than and stands

        await until(up, within=within)

    async def runtimes(self) -> list[dict[str, Any]]:
        """Read the runtimes with their links."""
        answer = await self.gateway.http.get("/v1/runtimes")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]
        return found

    async def noticed(self) -> None:
        """Wait until the gateway knows that its link is gone."""

        async def down() -> bool:
            return any(link["state"] != "up" for row in await self.runtimes() for link in row["links"])

        await until(down)

    @property
    def http(self) -> httpx.AsyncClient:
        """A client of the gateway."""
        return self.gateway.http

    def log(self) -> str:
        """The end of what the gateway has logged."""
        return self.gateway.log()

    # Asking the gateway

    async def ready(self) -> bool:
        """Whether the gateway says it is ready."""
        return await self.gateway.ready()

    async def rows(self, path: str, *, of: Instance | None = None, **query: str | int) -> list[dict[str, Any]]:
        """All rows of a list of the API."""
        found: list[dict[str, Any]] = []
        after: str | int | None = None
        while True:
            page = await (of or self.gateway).http.get(
                path, params={**query, "limit": 200, **({} if after is None else {"after": after})}
            )
            assert page.status_code == 200, page.text
            body = page.json()
            found += body["data"]
            after = body["next"]
            if after is None:
                return found

    async def row_of(self, native_call_id: str) -> dict[str, Any] | None:
        """The gateway's record of a call."""
        rows = [row for row in await self.rows("/v1/calls") if row["native_call_id"] == native_call_id]
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    async def reached(self, native_call_id: str, *states: str) -> dict[str, Any]:
        """Wait until a call is on record in one of these states; returns its row."""
        found: list[dict[str, Any]] = []

        async def so() -> bool:
            row = await self.row_of(native_call_id)
            found[:] = [row] if row is not None and row["state"] in states else []
            return bool(found)

        await until(so)
        return found[0]

    async def session_id(self) -> str:
        """The one session."""
        (session,) = await self.rows("/v1/sessions")
        return str(session["session_id"])

    async def post(self, *events: dict[str, Any]) -> int:
        """Post events to the session; returns the status."""
        body = events[0] if len(events) == 1 else {"events": list(events)}
        answer = await self.gateway.http.post(f"/v1/sessions/{await self.session_id()}/events", json=body)
        return answer.status_code

    async def call_back(self, body: dict[str, Any]) -> int:
        """Send an outcome to the address that the promised call named; returns the status."""
        address = urlsplit(str(self.promised().content["callback_url"]))
        return (await self.gateway.http.post(f"{address.path}?{address.query}", json=body)).status_code

    def promised(self) -> Seen:
        """The first request that was answered with a promise."""
        return next(seen for seen in self.backend.seen if seen.tool == "later")

    async def settled(self, *, within: float = BOUND) -> None:
        """Wait until every call on record has ended and nothing is on its way to anybody."""

        async def all_settled() -> bool:
            return {row["state"] for row in await self.rows("/v1/calls")} <= SETTLED

        async def nothing_pending() -> bool:
            return not await self.store.pending()

        await until(all_settled, within=within)
        await until(nothing_pending, within=within)

    # What must hold

    def _repeats(self) -> int:
        return sum(max(0, len(one.told) - 1) for one in self.wanted())

    async def _counted(self) -> int | None:
        """How many repeats there may have been, as the process that lives has counted; the others took theirs along."""
        if not self.counts_repeats:
            return None
        return self._repeats_before + int((await self.gateway.metrics())["dragoman_repeats_total"])

    async def verify(self) -> dict[str, dict[str, Any]]:
        """Let the judge compare everybody's records; returns the gateway's rows by native id."""
        rows = await self.rows("/v1/calls")
        counted = await self._counted()
        self.judged(
            [Entry(row["call_id"], row["native_call_id"], row["state"], unknown=row["unknown"]) for row in rows],
            [await self._journal(session["session_id"]) for session in await self.rows("/v1/sessions")],
            counted,
        )
        listed = {
            letter["native_call_id"] for letter in await self.rows("/v1/dead-letters") if letter["type"] == "call"
        }
        assert listed == {row["native_call_id"] for row in rows if row["dead"]}
        assert all(row["dead"] for row in rows if row["unknown"])
        return {row["native_call_id"]: row for row in rows}

    def judged(self, entries: list[Entry], journals: list[Journal], counted: int | None) -> Verdict:
        """Hold the ledger against what runtime and backend wrote down; what is found is noted before it is judged."""
        rules = Rules(self.repeatable, frozenset({"words"}), self.outages(), self.reasons)
        verdict = note(judge(self.wanted(), entries, self.requests(), journals, rules, counted=counted))
        try:
            return verdict.acquit()
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n\n{self.log()}") from None

    def requests(self) -> list[Request]:
        """The executors' own record of what they were asked."""
        return [
            Request(
                seen.key,
                seen.content["native_call_id"],
                seen.content["tool"],
                json.dumps(seen.content["arguments"], sort_keys=True),
                tuple(seen.answers),
            )
            for seen in self.backend.seen
            if seen.kind == "tool.requested"
        ]

    async def verify_journal(self) -> None:
        """With the gateway gone: no gaps, one outcome for each call, and two readings give one memory."""
        async with self.store.engine() as engine:
            for session in (await engine.sessions(Page()))[0]:
                await _check_session(engine, session.session_id)

    async def _journal(self, session_id: str) -> Journal:
        events = await self.rows(f"/v1/sessions/{session_id}/events")
        outcomes = [
            Finished(one["event"]["call_id"], json.dumps(one["event"]))
            for one in events
            if one["event"]["kind"] == "tool.finished" and one["event"].get("call_id")
        ]
        return Journal(session_id, [one["sequence"] for one in events], outcomes)

    # The configuration

    def settings(self, instance: Instance, **engine: Any) -> dict[str, Any]:
        """Write the configuration of one instance."""
        url = self.wires["executor"].url if "executor" in self.wires else self._served.url
        webhook: dict[str, Any] = {
            "type": "webhook",
            "url": f"{url}/tools",
            "secret": SECRET,
            "timeout": "10s",
            "deadline": "60s",
            "attempts": 10,
            "backoff": {"initial": "50ms", "maximum": "200ms"},
            # What is tried here is how often a call is asked for; a breaker would say no before that.
            "breaker": "off",
            **self._executor,
        }
        runtime = self.wires["runtime"].url if "runtime" in self.wires else self.runtime_url()
        return {
            "public_url": instance.url,
            "engine": self.store.settings | engine,
            "instance": {"url": instance.url, "lease": self.lease},
            "runtimes": {self.runtime: self.runtime_settings(runtime)},
            "executors": {
                "again": {**webhook, "idempotent": True},
                "once": webhook,
                "words": {"type": "static", "result": "words"},
                "chat": {**webhook, "url": f"{url}/messages", "idempotent": self.repeats_messages},
            },
            "destinations": {
                "log": {"url": f"{url}/events", "secret": SECRET, "backoff": {"initial": "100ms", "maximum": "1s"}}
            },
            "routes": [
                {"match": {"tool": "again"}, "to": "again"},
                {"match": {"tool": "words"}, "to": "words"},
                {"match": {"tool": "*"}, "to": "once"},
                {"match": {"event": "message.posted"}, "to": "chat"},
                *([{"match": {"event": "tool.finished"}, "copy_to": ["log"]}] if self._copies else []),
            ],
            "limits": {"session_concurrency": self._slots},
        }

    reasons = r"outcome unknown: "
    """What a failure has to say of which no executor was asked."""
    repeatable = frozenset({"again"})
    """Tools that executors may be asked for more than once."""
    lease = LEASE
    """Seconds of a lease of its gateways."""
    counts_repeats = True
    """Whether one process alone repeats what was said, and so can be held to its count."""
    repeats_messages = True
    """Whether messages of the agent may be delivered twice."""

    def _target(self, name: str) -> tuple[str, int]:
        url = {"runtime": self.runtime_url, "executor": lambda: self._served.url}[name]()
        parts = urlsplit(url)
        return str(parts.hostname), cast("int", parts.port)


async def until(held: Callable[[], Awaitable[bool]], *, within: float = BOUND) -> None:
    """Ask again and again until something holds."""
    async with asyncio.timeout(within):
        # What happens in another process sets no event here.
        while not await held():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _check_session(engine: Engine, session_id: SessionId) -> None:
    events = await journal(engine, session_id)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    outcomes: defaultdict[str, int] = defaultdict(int)
    for event in events:
        # What a runtime carries out itself is no call of ours.
        if isinstance(event.event, ToolFinished) and event.event.call_id is not None:
            outcomes[event.event.call_id] += 1
    assert set(outcomes.values()) <= {1}, outcomes
    assert await load_view(engine, session_id) == await load_view(engine, session_id)
