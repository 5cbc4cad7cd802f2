"""T14: what a piece of a message costs that comes alone, as Herm streams them, with one follower to be told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.bench.bench import Bench, tell
from tests.bench.figures import Spread
from tests.bench.followers import BEGUN
from tests.bench.processes import BenchProblem, Peers, module, running
from tests.bench.report import Report
from tests.bench.subjects import Subject, settle

_PATIENCE = 30.0
_PER_SECOND = 500
"""How many are streamed for each second that a turn is to take."""
_TOLD = b"\nevent: message.streamed\n"


async def compare_chunks(bench: Bench, report: Report) -> None:
    """pieces of a message, as Herm streams them, one by one, beside httpx and httpx-sse"""
    chunks = max(50, int(bench.effort.seconds * _PER_SECOND))
    taken: dict[str, list[float]] = {"gateway": [], "floor": []}
    async with bench.gateway(sessions=0, runtimes=herm_settings(bench.peers)) as subject, _floor(bench) as floor:
        await bench.peers.ask("listens", session="gateway", patience=_PATIENCE)
        follower = await Follower.open(subject)
        for number in range(bench.effort.repetitions + 1):
            for name, one in (("gateway", subject), ("floor", floor)):
                before, told = one.look().cpu, follower.told
                await bench.peers.ask("chunks", session=name, chunks=chunks, within=_PATIENCE)
                if name == "gateway":
                    await follower.hears(told + chunks)
                await settle(one)
                if number:
                    taken[name].append((one.look().cpu - before) / chunks * 1e6)
                    tell(f"chunks, {number}, {name}: {taken[name][-1]:.0f} µs CPU each")
        follower.leave()
    pairs = zip(taken["gateway"], taken["floor"], strict=True)
    report.judge("T14", "chunk", [ours / theirs for ours, theirs in pairs])
    for name, key, what in (
        ("gateway", "gateway_us", "µs of CPU per chunk, one follower"),
        ("floor", "httpx_us", "µs of CPU of httpx and httpx-sse, no follower"),
    ):
        report.note_value("T14", key, what=what, value=Spread.of(taken[name]))


def herm_settings(peers: Peers) -> dict[str, Any]:
    """Write the runtimes of a gateway with one session, of Herm's."""
    return {"coach": {"adapter": "herm", "url": peers.herm, "api_key": "key", "session_id": "gateway"}}


class Follower:
    """Counts the pieces that a gateway's stream tells."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.told = 0
        self._writer = writer
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, subject: Subject) -> "Follower":
        """Follow the only session of a gateway."""
        async with httpx.AsyncClient(base_url=subject.url, trust_env=False) as http:
            (session,) = (await http.get("/v1/sessions")).json()["data"]
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(subject.url).port)
        path = f"/v1/sessions/{session['session_id']}/events/stream"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
        # What was live before it is never told.
        async with asyncio.timeout(_PATIENCE):
            await reader.readuntil(BEGUN)
        return cls(reader, writer)

    async def hears(self, told: int) -> None:
        """Wait until so many were told, and no more."""
        try:
            async with asyncio.timeout(_PATIENCE):
                # The pieces come from another process.
                while self.told < told:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise BenchProblem(f"{told - self.told} pieces of a message were not told to a follower") from None

    def leave(self) -> None:
        """Go without a word."""
        self._reading.cancel()
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while data := await reader.read(2**20):
            data = rest + data
            self.told += data.count(_TOLD)
            # Too short to be counted twice.
            rest = data[1 - len(_TOLD) :]


@asynccontextmanager
async def _floor(bench: Bench) -> AsyncGenerator[Subject]:
    command = module("tests.bench.floors", "chunks", bench.peers.herm, "", "1")
    log = bench.folder / "chunks.log"
    async with running(*command, cores=bench.cores.subject, log=log) as process:
        await bench.peers.ask("listens", session="floor", patience=_PATIENCE)
        yield Subject("floor", process.pid, [])
