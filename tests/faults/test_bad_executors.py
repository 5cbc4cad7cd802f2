"""Executors that misbehave in every way at once, before one real gateway: each call ends once, and as it should."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.executors.peers import Peer, Script, Seen, hang, http, http_json, listen, send, serve
from tests.faults import shim
from tests.faults.judge import Request
from tests.faults.load import Load
from tests.faults.scene import Scene
from tests.pace import PATIENCE

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shim.missing() is not None, reason=shim.missing() or ""),
]

DONE = {"outcome": "success", "result": "done"}
OTHER = {"outcome": "failure", "error": "something else"}
METADATA = "metadata.example"
MUTE = "mute.example"
TIMEOUT, LATE = 3.0, 4.5
"""Seconds that an executor has for its answer, long enough for a busy machine, and when the late one comes."""


async def call_back(seen: Seen, body: dict[str, Any]) -> int:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # noqa: S501 - plain HTTP on loopback
        return (await client.post(seen.json["data"]["callback_url"], json=body)).status_code


async def late(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    # That it answers late is the fault.
    await asyncio.sleep(LATE)
    await send(writer, http_json(200, DONE))


async def twice(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Answer by callback, by the body, and by another callback."""
    assert await call_back(seen, DONE) == 200
    await send(writer, http_json(200, OTHER))
    assert await call_back(seen, OTHER) == 409


async def promised(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """Promise, keep the promise, and keep it again."""
    await send(writer, http(202))
    # The call takes its callback from the moment on which the promise is on record.
    while await call_back(seen, DONE) != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert await call_back(seen, DONE) == 200
    assert await call_back(seen, OTHER) == 409


async def drip(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        await send(writer, b" ")
        await asyncio.sleep(0.05)


async def flood(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n")
    for _ in range(99):
        await send(writer, b" " * 1_000_000)


def busy_once() -> Script:
    asked: list[Seen] = []

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        asked.append(seen)
        await send(writer, http_json(200, DONE) if len(asked) > 1 else http(429, retry_after="1"))

    return answer


def saying(answer: bytes) -> Script:
    async def script(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, answer)

    return script


SCRIPTS: dict[str, Callable[[], Script]] = {
    "never": lambda: hang,
    "late": lambda: late,
    "twice": lambda: twice,
    "promised": lambda: promised,
    "gone": lambda: saying(http(410)),
    "busy": busy_once,
    "drip": lambda: drip,
    "flood": lambda: flood,
    "redirect": lambda: saying(http(302, location="http://169.254.169.254/latest/meta-data")),
}

WANTED: dict[str, tuple[str, str]] = {
    "never": ("failed", "unknown"),
    "late": ("failed", "unknown"),
    "twice": ("succeeded", ""),
    "promised": ("succeeded", ""),
    "gone": ("failed", "410"),
    "busy": ("succeeded", ""),
    "drip": ("failed", "unknown"),
    "flood": ("failed", "over the size limit"),
    "redirect": ("failed", "redirects are not followed"),
    "expired": ("failed", "certificate"),
    "hangup": ("failed", "unknown"),
    "metadata": ("failed", "a metadata service"),
}
"""What each call has to end in, with words that the agent is told."""


@asynccontextmanager
async def bad_peers() -> AsyncGenerator[dict[str, Peer]]:
    async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(__file__).with_name("expired.pem"))
    async with AsyncExitStack() as stack:
        peers = {name: await stack.enter_async_context(serve(make())) for name, make in SCRIPTS.items()}
        peers["expired"] = await stack.enter_async_context(serve(hang, tls=tls))
        peers["hangup"] = await stack.enter_async_context(listen(hang_up))
        yield peers


class Zoo(Scene):
    """A scene in which each tool has an executor of its own kind."""

    repeatable = frozenset({"again", "busy"})
    reasons = "outcome unknown: |certificate|a metadata service"

    def __init__(self, folder: Path, peers: dict[str, Peer], **more: Any) -> None:
        super().__init__(folder, "0.2", **more)
        self.peers = peers

    def settings(self, instance: Any, **engine: Any) -> dict[str, Any]:
        made = super().settings(instance, **engine)
        urls = {name: peer.url for name, peer in self.peers.items()} | {"metadata": f"http://{METADATA}/latest"}
        patience = {"timeout": TIMEOUT, "attempts": 3, "reconnect_within": "1s"}
        made["executors"] |= {name: made["executors"]["once"] | patience | {"url": url} for name, url in urls.items()}
        made["routes"] = [{"match": {"tool": name}, "to": name} for name in urls] + made["routes"]
        return made

    def requests(self) -> list[Request]:
        heard = [(name, seen) for name, peer in self.peers.items() for seen in peer.seen]
        return super().requests() + [
            Request(
                seen.headers["webhook-id"],
                seen.json["data"]["native_call_id"],
                name,
                json.dumps(seen.json["data"]["arguments"], sort_keys=True),
            )
            for name, seen in heard
            if seen.json["type"] == "tool.requested"
        ]


@pytest.mark.fault("Executors that fail in twelve ways (late, double, endless, 410, 429, redirect, TLS, DNS …)")
async def test_every_misbehaviour_ends_in_one_outcome_that_says_what_was_wrong(tmp_path: Path) -> None:
    async with bad_peers() as peers, Zoo(tmp_path, peers) as scene:
        scene.gateway.environment = await shim.preload(tmp_path) | {
            "FAULTS_NAME": METADATA,
            # Its certificate is trusted, so that only its age can be held against it.
            "SSL_CERT_FILE": str(Path(__file__).with_name("expired.pem")),
        }
        await scene.serve()
        for tool in WANTED:
            await scene.call(tool)
        good = await scene.call("again")
        for call in scene.calls:
            await call.result(PATIENCE)
        assert good.reading is not None
        assert good.reading.outcome == "success"
        # What comes too late must have come before the records are compared.
        async with asyncio.timeout(2 * LATE):
            await peers["late"].left.wait()
        await scene.settled()
        rows = await scene.verify()
        found = {call.tool: (rows[call.call_id]["state"], call.reading) for call in scene.calls if call.reading}
        for tool, (state, words) in WANTED.items():
            assert found[tool][0] == state, (tool, found[tool])
            assert words in (found[tool][1].error or ""), (tool, found[tool])
        asked = {name: len(peer.seen) for name, peer in peers.items()}
        assert asked == {**dict.fromkeys(SCRIPTS, 1), "busy": 2, "expired": 0, "hangup": 0}
        await scene.stop()
        await scene.verify_journal()


class Mute(Scene):
    """A scene with an executor whose name no name server answers for."""

    reasons = "outcome unknown: |no connection within|host name cannot be resolved"

    def settings(self, instance: Any, **engine: Any) -> dict[str, Any]:
        made = super().settings(instance, **engine)
        patience = {"timeout": "2s", "reconnect_within": "2s"}
        made["executors"]["mute"] = made["executors"]["once"] | patience | {"url": f"http://{MUTE}/"}
        made["routes"].insert(0, {"match": {"tool": "mute"}, "to": "mute"})
        return made


@pytest.mark.fault("DNS of one executor unresponsive")
async def test_a_name_that_nobody_answers_for_keeps_only_its_own_calls_waiting(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    async with Mute(tmp_path, "0.2", slots=64) as scene:
        scene.gateway.environment = await shim.preload(tmp_path) | shim.mute_while(silent, MUTE)
        silent.touch()
        await scene.serve()
        muted = [await scene.call("mute") for _ in range(20)]
        # Both need connections of their own: the others' executors, and the link that was cut.
        links = scene.agent.connections
        async with Load(scene) as load:
            await load.more(20, within=5)
            await scene.agent.drop()
            await scene.relinked(links, within=5)
            await load.more(20, within=5)
        silent.unlink()
        for call in muted:
            await call.result(PATIENCE)
        await scene.settled()
        await scene.verify()
        await scene.stop()
        await scene.verify_journal()
