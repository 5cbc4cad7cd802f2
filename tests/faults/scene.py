"""A runtime, a witness and a mortal gateway process between them, and what must hold of all three at the end."""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from gateway.engines.sqlite import SqliteEngine
from gateway.envelope import SessionId, ToolFinished
from gateway.ports.engine import Page
from gateway.runtime.clock import SystemClock
from gateway.runtime.recovery import load_view
from gateway.simulators.huma import Confirmation, HumaServer, SimAgent, SimCall
from gateway.simulators.huma_rules import Dialect
from gateway.simulators.serving import Served
from tests.faults.process import Forked, Process, end
from tests.faults.witness import SECRET, Witness

ROOT = Path(__file__).parents[2]
START = 30.0
BOUND = 15.0
SETTLED = frozenset({"succeeded", "failed", "canceled", "expired"})


class Scene:
    """One runtime, one backend, one database, and gateway processes one after the other."""

    def __init__(
        self,
        folder: Path,
        dialect: Dialect,
        *,
        idempotent_chat: bool = True,
        copies: bool = False,
        slots: int = 16,
        window: str = "200ms",
    ) -> None:
        self.folder = folder
        self.database = folder / "dragoman.db"
        self.dialect: Dialect = dialect
        self.huma = HumaServer(dialect)
        self.agent: SimAgent = self.huma.agent("finn")
        self.witness = Witness()
        self.port = _free_port()
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=BOUND, trust_env=False)
        self.calls: list[SimCall] = []
        self.process: Process | None = None
        self._numbers = itertools.count()
        self._served = Served(self.witness.app)
        self._started: list[Process] = []
        self._idempotent_chat, self._copies, self._slots, self._window = idempotent_chat, copies, slots, window

    async def __aenter__(self) -> Self:
        await self._served.start()
        await self.huma.start()
        self._config.write_text(yaml.safe_dump(self._settings()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in self._started:
            await end(process)
        self.witness.open()
        await self.http.aclose()
        await self.huma.__aexit__()
        await self._served.stop()

    # The gateway's processes

    async def run(self, die_at: str | None = None, *, nth: int = 1) -> None:
        """Start a gateway that dies at a point, or never by itself, and wait until it has its link."""
        log = self.folder / "gateway.log"
        await self._until_up(Forked(self._config, self.port, die_at=die_at, nth=nth, log=log))

    async def serve(self) -> None:
        """Start `python -m gateway serve`, and wait until it has its link."""
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self._config), "--port", str(self.port)]
        with (self.folder / "gateway.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=log, stderr=log)
        await self._until_up(process)

    def kill(self) -> None:
        """End the gateway as `kill -9` does."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the gateway."""
        os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def dead(self) -> None:
        """Wait until the gateway was ended by SIGKILL, and its runtime has noticed."""
        assert self.process is not None
        async with asyncio.timeout(BOUND):
            assert await self.process.wait() == -signal.SIGKILL, self.log()
        await self.agent.wait_disconnected()

    async def stop(self) -> None:
        """End the gateway in the orderly way."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND):
            assert await self.process.wait() == 0, self.log()

    def log(self) -> str:
        """The end of what the gateways have logged."""
        return (self.folder / "gateway.log").read_text()[-4000:]

    async def _until_up(self, process: Process) -> None:
        self.process = process
        self._started.append(process)
        before = self.agent.connections

        async def up() -> bool:
            assert process.returncode is None, self.log()
            return self.agent.connections > before and self.agent.connected and (await self.ready())

        await until(up, within=START)

    # Asking the gateway

    async def ready(self) -> bool:
        """Whether the gateway says it is ready."""
        try:
            return (await self.http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    async def rows(self, path: str, **query: str | int) -> list[dict[str, Any]]:
        """All rows of a list of the API."""
        found: list[dict[str, Any]] = []
        after: str | int | None = None
        while True:
            page = await self.http.get(
                path, params={**query, "limit": 200, **({} if after is None else {"after": after})}
            )
            assert page.status_code == 200, page.text
            body = page.json()
            found += body["data"]
            after = body["next"]
            if after is None:
                return found

    async def row_of(self, call: SimCall) -> dict[str, Any] | None:
        """The gateway's record of a call."""
        rows = [row for row in await self.rows("/v1/calls") if row["native_call_id"] == call.call_id]
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    async def recorded(self, call: SimCall, state: str) -> dict[str, Any]:
        """Wait until a call is on record in a state; returns its row."""
        found: list[dict[str, Any]] = []

        async def so() -> bool:
            row = await self.row_of(call)
            found[:] = [row] if row is not None and row["state"] == state else []
            return bool(found)

        await until(so)
        return found[0]

    async def session_id(self) -> str:
        """The one session."""
        (session,) = await self.rows("/v1/sessions")
        return str(session["session_id"])

    async def settled(self) -> None:
        """Wait until every call on record has ended and nothing is on its way to anybody."""

        async def all_settled() -> bool:
            return {row["state"] for row in await self.rows("/v1/calls")} <= SETTLED

        await until(all_settled)
        await until(self._nothing_pending)

    async def _nothing_pending(self) -> bool:
        return not self.look("SELECT seq, target, reason FROM outbound WHERE state = 'pending'")

    def look(self, query: str, *values: object) -> list[Any]:
        """Ask the live database, without a write."""
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def committed(self) -> set[str]:
        """The native ids of the calls that a dead gateway has left on disk; its files stay untouched."""
        copy = self.folder / "copy"
        copy.mkdir(exist_ok=True)
        for suffix in ("", "-wal"):
            source = self.database.with_name(self.database.name + suffix)
            if source.exists():
                shutil.copy(source, copy / source.name)
        connection = sqlite3.connect(copy / self.database.name)
        try:
            return {row[0] for row in connection.execute("SELECT native_call_id FROM calls")}
        finally:
            connection.close()
            shutil.rmtree(copy)

    # Asking as the runtime

    async def call(self, tool: str, **arguments: Any) -> SimCall:
        """Let the agent ask for a tool."""
        call = await self.agent.call(tool, {"n": next(self._numbers), **arguments})
        self.calls.append(call)
        return call

    async def say(self, texts: list[str]) -> asyncio.Task[list[Confirmation]]:
        """Let the agent send messages."""
        return asyncio.create_task(self.agent.say(texts))

    # What must hold

    async def verify(self, *, strictly: bool = True) -> dict[str, dict[str, Any]]:
        """Hold the gateway to all promises about calls; returns its rows by native id.

        `strictly`: each repeat of a result comes behind a repeat of its update, as it does unless one of the two was
        known to be delivered already.
        """
        assert self.agent.violations == []
        rows = {row["native_call_id"]: row for row in await self.rows("/v1/calls")}
        assert len(rows) == len(await self.rows("/v1/calls"))
        for call in self.calls:
            row = rows[call.call_id]
            assert call.reading is not None, (row, self.log())
            texts = {json.dumps(frame, sort_keys=True) for frame in call.results}
            assert len(texts) == 1, texts
            told = {"success": "succeeded", "failure": "failed", "canceled": "canceled"}[call.reading.outcome]
            assert told == row["state"], (row, call.reading)
            if call.tool != "words":
                self._check_requests(call, row)
                self._check_order(call, strictly=strictly)
        await self._check_dead_letters(rows)
        return rows

    def _check_requests(self, call: SimCall, row: dict[str, Any]) -> None:
        """Each attempt carried the call's own id; what may have arrived at `once` and `later` was not sent again."""
        assert call.reading is not None
        requests = [
            seen
            for seen in self.witness.seen
            if seen.kind == "tool.requested" and seen.content["native_call_id"] == call.call_id
        ]
        assert {seen.key for seen in requests} <= {row["call_id"]}, requests
        if call.tool != "again":
            assert len(requests) <= 1, requests
        if call.reading.outcome == "success":
            assert requests
        elif call.tool == "once" and call.reading.outcome == "failure":
            assert row["unknown"] is True
            assert "unknown" in (call.reading.error or "")

    def _check_order(self, call: SimCall, *, strictly: bool) -> None:
        """Updates come before their result, in repeats as well."""
        assert call.reading is not None
        if call.reading.outcome != "success":
            return
        told = ""
        for frame in self.agent.received:
            said = frame.payload.get("content", frame.payload)
            if said.get("toolCallId") == call.call_id:
                told += "r"
            elif said.get("name") == "board" and said["context"].get("board") == call.arguments:
                told += "u"
        assert re.fullmatch("(u+r)+" if strictly else "u(u*r)+", told), told

    async def _check_dead_letters(self, rows: dict[str, dict[str, Any]]) -> None:
        listed = {
            letter["native_call_id"] for letter in await self.rows("/v1/dead-letters") if letter["type"] == "call"
        }
        assert listed == {name for name, row in rows.items() if row["unknown"]}

    async def verify_journal(self) -> None:
        """With the gateway gone: no gaps, one outcome for each call, and two readings give one memory."""
        async with SqliteEngine(self.database, SystemClock()) as engine:
            for session in (await engine.sessions(Page()))[0]:
                await _check_session(engine, session.session_id)

    @property
    def _config(self) -> Path:
        return self.folder / "gateway.yaml"

    def _settings(self) -> dict[str, Any]:
        url = self._served.url
        webhook = {
            "type": "webhook",
            "url": f"{url}/tools",
            "secret": SECRET,
            "timeout": "10s",
            "deadline": "60s",
            "attempts": 10,
            "backoff": {"initial": "50ms", "maximum": "200ms"},
        }
        return {
            "public_url": str(self.http.base_url),
            "engine": {"type": "sqlite", "path": str(self.database)},
            "runtimes": {
                "finn": {
                    "adapter": f"huma-{self.dialect}",
                    "url": self.huma.url,
                    "api_key": self.huma.api_key,
                    "agent_id": "finn",
                    "delivery_window": self._window,
                }
            },
            "executors": {
                "again": {**webhook, "idempotent": True},
                "once": webhook,
                "words": {"type": "static", "result": "words"},
                "chat": {**webhook, "url": f"{url}/messages", "idempotent": self._idempotent_chat},
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


async def until(held: Callable[[], Awaitable[bool]], *, within: float = BOUND) -> None:
    """Ask again and again until something holds."""
    async with asyncio.timeout(within):
        # What happens in another process sets no event here.
        while not await held():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _check_session(engine: SqliteEngine, session_id: SessionId) -> None:
    events = await engine.read(session_id, limit=100_000)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    outcomes: defaultdict[str, int] = defaultdict(int)
    for event in events:
        if isinstance(event.event, ToolFinished):
            outcomes[event.event.call_id or ""] += 1
    assert set(outcomes.values()) <= {1}, outcomes
    assert await load_view(engine, session_id) == await load_view(engine, session_id)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
