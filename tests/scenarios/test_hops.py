"""What crosses between two gateway processes: requests signed by one of them, and no credential of a caller."""

import asyncio
import base64
import hashlib
import json
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import yaml
from fastapi import Response

from gateway.runtime.calls.callbacks import keep_key
from gateway.runtime.cluster.hops import HEADER, LIFE, HopCaller, Hops
from gateway.runtime.system_clock import SystemClock, SystemIds
from gateway.settings.model import ApiKey
from gateway.store.postgres import PostgresEngine
from tests.http.mcp_clients import Plain
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, GOOD, Scene, ended, plain_http, until
from tests.scenarios.hooks import success
from tests.scenarios.replica_processes import Fleet, Serving, fleet

MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}
READER = "reader-key-canary-8Wd"
KEYS = [
    {"name": "backend", "key": API_KEY},
    {"name": "reader", "key": READER, "scopes": ["read", "drive"]},
    {"name": "second", "key": "second-key-canary-3Rk"},
]
SCOPES = frozenset[str](ApiKey.model_fields["scopes"].default)
"""The scopes of a key that names none."""
ELSEWHERE = (503, "/problems/session-owner-unavailable")


@dataclass
class Recorder:
    """A TCP proxy in front of one process; records each connection, which carries one request."""

    port: int
    requests: list[bytes] = field(default_factory=list[bytes])
    answer: bytes | None = None
    """Sent in place of passing a request on; empty closes the connection."""

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        self.requests.append(request)
        answer = self.answer if self.answer is not None else await exchange(self.port, request)
        writer.write(answer)
        writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request with a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return head + (b"" if length is None else await reader.readexactly(int(length[1])))


async def exchange(port: int, request: bytes) -> bytes:
    """Send bytes to a process and read until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    return answer


def read_answer(answer: bytes) -> tuple[int, str | None]:
    """Return the status and the type of the problem."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    return status, json.loads(body)["type"] if b"problem+json" in head else None


@dataclass
class Pair:
    """Two processes: one owns the session, and the recorder stands before it."""

    fleet: Fleet
    owner: Serving
    other: Serving
    recorder: Recorder
    session_id: str
    instance: str

    @property
    def path(self) -> str:
        return f"/v1/sessions/{self.session_id}/events"

    async def posted(self) -> int:
        return len(await self.owner.events(self.session_id, kind="message.posted"))

    async def post(self, key: str = API_KEY, **headers: str) -> httpx.Response:
        """Post a message at the process that does not own the session."""
        return await self.other.http.post(
            self.path, json=MESSAGE, headers={"authorization": f"Bearer {key}", **headers}
        )

    async def catch(self) -> bytes:
        """Return a signed request that the owner has not received."""
        self.recorder.answer = b""
        answer = await self.post()
        assert (answer.status_code, answer.json()["type"]) == ELSEWHERE
        self.recorder.answer = None
        return self.recorder.requests[-1]

    async def send(self, request: bytes) -> tuple[int, str | None]:
        """Send bytes to the owner itself."""
        return read_answer(await exchange(self.recorder.port, request))

    async def signer(self, *, late: float = 0.0) -> Hops:
        """Make a signer with the key of the store; its clock may be late."""
        clock = LateClock(late)
        async with PostgresEngine(self.fleet.engine["dsn"], clock, schema=self.fleet.engine["schema"]) as engine:
            return Hops(await keep_key(engine, SystemIds(clock)), clock, SystemIds(clock))

    def write(self, header: str, *, more: str = "") -> bytes:
        """Write the request that posts a message with a header of a signer."""
        body = json.dumps(MESSAGE)
        return (
            f"POST {self.path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n{more}"
            f"{HEADER}: {header}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        ).encode()


class LateClock(SystemClock):
    def __init__(self, late: float) -> None:
        super().__init__()
        self._late = timedelta(seconds=late)

    def timestamp(self) -> float:
        return (self.now() - self._late).timestamp()


@asynccontextmanager
async def pair(scene: Scene) -> AsyncGenerator[Pair]:
    """Run two processes on one PostgreSQL schema."""
    scene.configure({"api": {"keys": KEYS}})
    recorder = Recorder(free_port())
    listening = await asyncio.start_server(recorder.connect, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, fleet(scene, lease="10s") as processes:
        owner = await processes.serve("owner", port=recorder.port, instance={"url": url})
        session_id = await owner.session()
        await owner.wait_carries(session_id)
        other = await processes.serve("other")
        instance = (await other.get(f"/v1/sessions/{session_id}"))["owner"]
        yield Pair(processes, owner, other, recorder, session_id, instance)


def claims_of(request: bytes) -> list[Any]:
    header = re.search(rb"dragoman-forwarded: 1\.([^.]+)\.", request)
    assert header is not None
    return json.loads(base64.urlsafe_b64decode(header[1]))


async def test_a_forwarded_request_contains_no_secret_of_its_caller(newer: Scene) -> None:
    async with pair(newer) as two:
        secrets = {
            "x-api-key": "canary-of-x-api-key", "cookie": "dragoman-1=canary-of-a-cookie", "s": "canary-of-s",
            "x-session-api-key": "canary-of-openhands", "x-anything": "canary-of-a-proxy", "origin": "http://127.0.0.1",
        }  # fmt: skip
        assert (await two.post(**secrets)).status_code == 202

        # The tool token of the session, over HTTP and MCP.
        token = (await two.other.get(f"/v1/sessions/{two.session_id}/mcp"))["token"]
        async with plain_http() as http:
            http.base_url = two.other.url
            called = await http.post(
                f"/v1/sessions/{two.session_id}/calls",
                params={"wait": 10},
                json={"tool": "ask", "arguments": GOOD},
                headers={"authorization": f"Bearer {token}"},
            )
            assert called.json()["state"] == "succeeded", called.text
            told = await Plain(http, f"/mcp/{two.session_id}", token).call("ask", GOOD)
            assert not told["result"]["isError"]

            # The callback token of a call.
            newer.hooks.scripts["free"] = Response(status_code=202)
            call = await newer.agent.call("free", {})
            row = await two.other.wait_call(call.call_id, "accepted")
            [asked] = [one for one in newer.hooks.asked if one.key == row["call_id"]]
            target = httpx.URL(asked.data["callback_url"])
            answer = await http.post(target.raw_path.decode(), json=success("by callback"))
            assert answer.json()["state"] == "succeeded", answer.text
            assert (await ended(call)).result == "by callback"

        names = [claims_of(request)[0] for request in two.recorder.requests]
        assert names == ["backend", "tool token", "tool token", "callback"]
        crossed = b"\n".join(two.recorder.requests).decode("latin-1")
        for canary in (API_KEY, token, target.params["token"], "canary-of"):
            assert canary not in crossed


async def test_a_recorded_request_is_accepted_once(newer: Scene) -> None:
    async with pair(newer) as two:
        assert (await two.post()).status_code == 202
        assert await two.posted() == 1
        assert await two.send(two.recorder.requests[-1]) == ELSEWHERE
        fresh = await two.catch()
        replies = await asyncio.gather(*(two.send(fresh) for _ in range(10)))
        assert sorted(replies) == [(202, None), *[ELSEWHERE] * 9]
        assert await two.posted() == 2


async def test_a_changed_request_is_refused(newer: Scene) -> None:
    async with pair(newer) as two:
        caught = await two.catch()
        path, claims = two.path.encode(), claims_of(caught)

        def claiming(place: int, value: object) -> bytes:
            said = [*claims[:place], value, *claims[place + 1 :]]
            written = base64.urlsafe_b64encode(json.dumps(said).encode())
            return re.sub(rb"(dragoman-forwarded: 1\.)[^.]+", rb"\g<1>" + written, caught)

        changed = {
            "body": caught.replace(b"Finn", b"Gill"),
            "method": caught.replace(b"POST ", b"GET "),
            "path": caught.replace(path, path.replace(b"/events", b"/calls")),
            "query": caught.replace(path, path + b"?after=0"),
            "caller": claiming(0, "second"),
            "scopes": claiming(1, ["drive"]),
            "target": claiming(2, "another"),
            "time": claiming(3, claims[3] + 1),
            "nonce": claiming(4, "another"),
            "signed body": claiming(5, hashlib.sha256(b"{}").hexdigest()),
        }
        assert all(request != caught for request in changed.values())
        replies = {name: await two.send(request) for name, request in changed.items()}
        assert replies == dict.fromkeys(changed, ELSEWHERE)
        assert await two.posted() == 0
        assert await two.send(caught) == (202, None)
        assert await two.posted() == 1


async def test_only_a_fresh_signature_of_this_version_and_a_known_caller_is_accepted(newer: Scene) -> None:
    async with pair(newer) as two:
        backend = HopCaller("backend", SCOPES, hashlib.sha256(API_KEY.encode()).digest())
        reader = HopCaller("reader", SCOPES, hashlib.sha256(READER.encode()).digest())
        body = json.dumps(MESSAGE).encode()
        now, late = await two.signer(), await two.signer(late=LIFE + 1)
        key = f"authorization: Bearer {API_KEY}\r\n"

        def sign(caller: HopCaller, by: Hops = now) -> str:
            return by.sign("POST", two.path, body, caller, two.instance)

        refused = {
            "too old": two.write(sign(backend, late)),
            "unsigned": two.write("somebody", more=key),
            "another version": two.write(f"2{sign(backend)[1:]}", more=key),
            "no signature": two.write(sign(backend).rpartition(".")[0]),
        }
        assert {name: await two.send(request) for name, request in refused.items()} == dict.fromkeys(refused, ELSEWHERE)
        unauthorized = 401, "/problems/unauthorized"
        assert await two.send(two.write(sign(HopCaller("nobody", frozenset({"drive"}))))) == unauthorized
        assert await two.send(two.write(sign(reader))) == unauthorized
        assert await two.send(two.write(sign(HopCaller("local", SCOPES)))) == unauthorized
        few = HopCaller("backend", frozenset({"read"}), backend.digest)
        assert await two.send(two.write(sign(few))) == (403, "/problems/forbidden")
        assert await two.posted() == 0
        assert await two.send(two.write(sign(backend))) == (202, None)


async def test_a_key_that_a_reload_of_the_owner_removed_is_refused_there(newer: Scene) -> None:
    async with pair(newer) as two:
        assert (await two.post(READER)).status_code == 202
        config = two.fleet.scene.folder / "owner.yaml"
        for change, expected in (
            ([KEYS[0]], (401, "/problems/unauthorized")),
            ([KEYS[0], {**KEYS[1], "scopes": ["read"]}], (401, "/problems/unauthorized")),
            ([KEYS[0], {**KEYS[1], "key": "another-reader-key"}], ELSEWHERE),
        ):
            before = two.owner.log.read_text().count("configuration reloaded")
            config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "api": {"keys": change}}))
            two.owner.signal(signal.SIGHUP)

            async def reloaded(before: int = before) -> bool:
                return two.owner.log.read_text().count("configuration reloaded") > before

            await until(reloaded)
            answer = await two.post(READER)
            assert (answer.status_code, answer.json()["type"]) == expected
        assert await two.posted() == 1


async def test_an_owner_of_another_release_is_named_as_unavailable(newer: Scene) -> None:
    async with pair(newer) as two:
        body = b'{"type": "/problems/unauthorized"}'
        two.recorder.answer = (
            b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/problem+json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = await two.post()
        assert (answer.status_code, answer.json()["type"]) == ELSEWHERE
        assert answer.headers["retry-after"]
        assert await two.posted() == 0
