"""The proxy of the compose profile `scaled`: a real nginx with its real configuration, in front of real gateways."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import asyncpg
import httpx
import pytest
from fastapi import Response

from gateway.http.errors import PROBLEMS
from gateway.runtime.app import Gateway
from tests.engines.postgres_server import dsn
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, plain_http, until
from tests.scenarios.hooks import success
from tests.scenarios.nginx import program, running
from tests.scenarios.replica_processes import Serving, fleet

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config/nginx.conf"
MAX_BODY = 4 * 1024**2
MESSAGE = {"kind": "message.posted", "content": "Your turn, Finn!"}
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def configuration(folder: Path, port: int, gateways: tuple[int, int]) -> str:
    """Give the configuration other addresses and folders, and leave all else as it is."""
    text = CONFIG.read_text(encoding="utf-8")
    one, two = gateways
    for old, new in {
        "server gateway-one:8080 ": f"server 127.0.0.1:{one} ",
        "server gateway-two:8080 ": f"server 127.0.0.1:{two} ",
        "listen 8080;": f"listen 127.0.0.1:{port};",
        " /tmp/": f" {folder}/",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@asynccontextmanager
async def nginx(port: int, *gateways: int, written: list[str] | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    """Run nginx on a port in front of two others; `written` gets all that it has logged anywhere."""
    one, two = gateways
    async with (
        running(port, lambda folder: configuration(folder, port, (one, two)), written=written),
        plain_http() as http,
    ):
        http.base_url, http.headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {API_KEY}"}
        yield http


@dataclass
class Proxied:
    """Two gateways behind the proxy; the first one carries the session."""

    session_id: str
    one: Serving
    two: Serving
    proxy: Running
    schema: str

    @property
    def events(self) -> str:
        return f"/v1/sessions/{self.session_id}/events"


@asynccontextmanager
async def behind(
    scene: Scene, port: int, *, lease: str = "20s", written: list[str] | None = None, **settings: Any
) -> AsyncGenerator[Proxied]:
    """Start two gateways whose public address is the proxy's, and the proxy."""
    program()
    async with fleet(scene, lease=lease) as store:
        scene.configure({"public_url": f"http://127.0.0.1:{port}"})
        one = await store.serve("one", **settings)
        await scene.agent.wait_connected()
        session_id = await one.session()
        await one.wait_carries(session_id)
        two = await store.serve("two", **settings)
        ports = [cast("int", httpx.URL(each.url).port) for each in (one, two)]
        async with nginx(port, *ports, written=written) as http:
            # The gateways themselves are in other processes.
            yield Proxied(
                session_id,
                one,
                two,
                Running(cast("Gateway", None), str(http.base_url), http),
                str(store.engine["schema"]),
            )


@dataclass
class Upstream:
    """Stands where a gateway would: notes what it is sent, and says the same to all, or nothing and hangs up."""

    answer: bytes = b""
    heads: list[str] = field(default_factory=list[str])
    connections: int = 0
    port: int = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.heads.append(head)
                length = next((line for line in head.splitlines() if line.startswith("content-length:")), "0")
                await reader.readexactly(int(length.rpartition(":")[2]))
                if not self.answer:
                    break
                writer.write(self.answer)
                await writer.drain()
        writer.close()


def is_problem(answer: httpx.Response) -> dict[str, Any]:
    """Check that something was refused in the API's own form."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["title"]
    assert problem["detail"]
    return problem


async def test_streams_of_both_gateways_leave_at_once_and_resume(newer: Scene) -> None:
    # As many streams as both take together: so each of the two serves one of each kind.
    async with behind(newer, free_port(), api={"heartbeat": "300ms"}, limits={"session_followers": 2}) as environment:
        [missed] = (await environment.one.post(environment.events, MESSAGE, status=202))["data"]
        async with AsyncExitStack() as stack:
            live = [environment.proxy.stream(environment.session_id) for _ in range(2)]
            resumed = [environment.proxy.stream(environment.session_id, last=missed["sequence"] - 1) for _ in range(2)]
            for source in (*live, *resumed):
                await stack.enter_async_context(source)
            for source in resumed:
                assert (await source.next())["id"] == missed["position"]
            [news] = (await environment.proxy.post(environment.events, MESSAGE, status=202))["data"]
            for source in (*live, *resumed):
                seen = await source.until("message.posted")
                assert seen[-1]["id"] == news["position"]
            refused = await environment.proxy.http.get(f"{environment.events}/stream")
            assert (refused.status_code, is_problem(refused)["type"]) == (503, "/problems/overloaded")


async def test_heartbeats_of_a_quiet_stream_come_through(newer: Scene) -> None:
    async with behind(newer, free_port(), api={"heartbeat": "300ms"}) as environment:
        beats = 0
        async with (
            asyncio.timeout(PATIENCE),
            environment.proxy.http.stream("GET", f"{environment.events}/stream") as answer,
        ):
            async for line in answer.aiter_lines():
                beats += line == ": heartbeat"
                if beats == 3:
                    break
        assert beats == 3


async def test_posts_in_hand_when_a_gateway_is_killed_are_on_record_once(newer: Scene) -> None:
    async with behind(newer, free_port(), lease="2s") as environment:
        texts = [f"move {number}" for number in range(8)]

        async def post(text: str) -> httpx.Response:
            body = {"kind": "message.posted", "content": text}
            return await environment.proxy.http.post(
                environment.events, json=body, headers={"idempotency-key": text}, timeout=30
            )

        connection = await asyncpg.connect(dsn())
        try:
            async with connection.transaction():
                # Everything that is written waits, so that the posts are in hand for as long as it takes.
                await connection.execute(f'LOCK TABLE "{environment.schema}".events IN EXCLUSIVE MODE')
                posting = [asyncio.create_task(post(text)) for text in texts]
                count = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass"

                async def waiting() -> bool:
                    return bool(await connection.fetchval(count, f'"{environment.schema}".events'))

                await until(waiting)
                environment.one.signal(signal.SIGKILL)
                await environment.one.ended()
        finally:
            await connection.close()
        first = [await task for task in posting]
        refused = [answer for answer in first if answer.status_code != 202]
        assert refused
        for answer in refused:
            assert answer.status_code in {502, 503, 504}
            assert answer.headers["retry-after"]
            is_problem(answer)

        async def taken(text: str) -> bool:
            return (await post(text)).status_code == 202

        for text in texts:
            await until(lambda text=text: taken(text))
        on_record = [one["event"]["content"][0]["text"] for one in await environment.two.events(kind="message.posted")]
        assert sorted(on_record) == texts


async def test_requests_go_on_while_a_gateway_is_stopped(newer: Scene) -> None:
    async with behind(newer, free_port()) as environment:
        statuses: list[int] = []
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def ask() -> None:
            while not stopped.is_set() or len(statuses) < 200:
                statuses.append((await environment.proxy.http.get(environment.events)).status_code)
                if len(statuses) == 40:
                    begun.set()

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
            environment.one.signal(signal.SIGTERM)
            assert await environment.one.ended() == 0
            stopped.set()
            await asyncio.gather(*asking)
        assert len(statuses) >= 200
        assert set(statuses) == {200}


async def test_bodies_pass_up_to_the_limit_and_callbacks_leave_no_token(newer: Scene) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=202)
    written: list[str] = []
    async with behind(newer, free_port(), written=written) as environment:
        largest = json.dumps(MESSAGE).encode().ljust(MAX_BODY)
        kind = {"content-type": "application/json"}
        answered = await environment.proxy.http.post(environment.events, content=largest, headers=kind)
        assert answered.status_code == 202, answered.text

        async def in_pieces() -> AsyncGenerator[bytes]:
            yield largest
            yield b" "

        for content in (largest + b" ", in_pieces()):
            refused = await environment.proxy.http.post(environment.events, content=content, headers=kind)
            assert refused.status_code == 413
            problem = is_problem(refused)
            assert (problem["type"], problem["title"]) == ("/problems/too-large", PROBLEMS["too-large"].title)
        assert len(await environment.one.events(kind="message.posted")) == 1

        # A gateway that says no does not read the body first.
        for _ in range(4):
            wrong = await environment.proxy.http.post(
                environment.events, content=largest, headers={"authorization": "Bearer no"}
            )
            assert (wrong.status_code, is_problem(wrong)["type"]) == (401, "/problems/unauthorized")

        call = await newer.agent.call("ask", GOOD)
        [asked] = await newer.hooks.wait_for(name="ask")
        await environment.two.wait_call(call.call_id, "accepted")
        progress, outcome = httpx.URL(asked.data["progress_url"]), httpx.URL(asked.data["callback_url"])
        token = outcome.params["token"]
        assert str(outcome).startswith(environment.proxy.url)
        async with plain_http() as executor:
            # Half of them come to the gateway that passes them on.
            for done in range(4):
                told = await executor.post(progress, json={"done": done})
                assert told.is_success, told.text
            answer = await executor.post(outcome, json=success("called back"))
            assert answer.status_code == 200, answer.text
        assert (await ended(call)).result == "called back"
    assert written
    assert token
    assert all(token not in text for text in written)


async def test_nobody_outside_can_mark_a_request_as_passed_on(newer: Scene) -> None:
    async with behind(newer, free_port()) as environment:
        mark = {"dragoman-forwarded": "somebody"}
        directly = await environment.two.http.post(environment.events, json=MESSAGE, headers=mark)
        assert (directly.status_code, directly.json()["type"]) == (503, "/problems/session-owner-unavailable")
        for _ in range(4):
            await environment.proxy.post(environment.events, MESSAGE, status=202, **mark)
        assert len(await environment.two.events(kind="message.posted")) == 4


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("POST", 1)])
async def test_a_post_that_left_is_never_repeated(method: str, times: int) -> None:
    async with Upstream() as one, Upstream() as two, nginx(free_port(), one.port, two.port) as http:
        answer = await http.request(method, "/v1/sessions", content=b"{}" if method == "POST" else None)
        assert answer.status_code == 502
        assert is_problem(answer)["type"] == "about:blank"
        assert answer.headers["retry-after"] == "2"
        assert len(one.heads) + len(two.heads) == times


async def test_a_post_that_never_connected_goes_to_the_other_one() -> None:
    written: list[str] = []
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        dead = deaf.getsockname()[1]
        async with Upstream(ANSWER) as alive, nginx(free_port(), dead, alive.port, written=written) as http:
            for _ in range(4):
                answer = await http.post("/v1/calls/c/outcome?token=token-canary-7Hq", json={})
                assert answer.status_code == 200
        assert alive.connections == len(alive.heads) == 4
    assert written
    assert all("token-canary" not in text for text in written)


async def test_a_client_that_does_not_read_holds_its_gateway_up() -> None:
    held = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"100000\r\n" + b"x" * 1024**2 + b"\r\n")
                try:
                    # A write that takes this long is held up; which of them it is does not matter.
                    async with asyncio.timeout(0.5):
                        await writer.drain()
                except TimeoutError:
                    held.set()
                    break
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    gateway, port = server.sockets[0].getsockname()[1], free_port()
    async with server, nginx(port, gateway, gateway), asyncio.timeout(PATIENCE):
        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /v1/sessions/s/events/stream HTTP/1.1\r\nhost: proxy\r\n\r\n")
            await held.wait()
