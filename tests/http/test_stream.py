"""The event stream over real sockets: live, resumed, with gaps, and how it ends."""

import asyncio
import gc
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from starlette.types import Message

from dragoman.models.stream import sequence_of
from gateway.errors import EngineUnavailable
from gateway.events import Envelope, Live, Missed, SessionId, TurnSteered, TypingChanged
from gateway.http.sse import EventStream, Followers, encode
from gateway.runtime.views import News
from gateway.store.rows import Rows, SessionRow
from tests.http.conftest import bearer, plain_client, serving
from tests.http.environment import CONFIGURATION, Environment, environment_of, until
from tests.http.test_server import port_of
from tests.pace import PATIENCE


class Reader:
    """Reads one stream: its comment lines, and its events as lists of lines."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def line(self) -> str:
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                return line
        raise EOFError

    async def frame(self) -> list[str]:
        frame: list[str] = []
        while line := await self.line():
            if not line.startswith(":"):
                frame.append(line)
        assert frame, "an empty line with nothing before it is an empty event to some clients"
        return frame

    async def event(self) -> dict[str, str]:
        """Read one event as its fields, without the `retry` that stands in the first one."""
        # Heartbeats alone are none, however long they come.
        async with asyncio.timeout(PATIENCE):
            fields = dict(line.split(": ", 1) for line in await self.frame())
        fields.pop("retry", None)
        return fields


def number_of(event: dict[str, str]) -> int:
    """Return the sequence in the `id` of an event."""
    return sequence_of(event["id"])


@asynccontextmanager
async def following(
    wire: httpx.AsyncClient, session_id: str, query: str = "", headers: dict[str, str] | None = None
) -> AsyncGenerator[Reader]:
    path = f"/v1/sessions/{session_id}/events/stream{query}"
    async with wire.stream("GET", path, headers=headers) as response:
        reader = Reader(response)
        assert await reader.line() == ": heartbeat"
        yield reader


async def test_a_stream_begins_live_and_shows_what_happens(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    async with following(wire, session_id) as reader:
        assert reader.response.headers["content-type"].startswith("text/event-stream")
        assert reader.response.headers["cache-control"] == "no-store"
        assert reader.response.headers["x-accel-buffering"] == "no"
        await environment.ask()
        frame = await reader.event()
        assert (number_of(frame), frame["event"]) == (3, "tool.requested")
        page = (await wire.get(f"/v1/sessions/{session_id}/events?after=2")).json()
        assert orjson.loads(frame["data"]) == page["data"][0]


async def test_a_head_of_a_stream_is_its_head_and_then_the_end(wire: httpx.AsyncClient, session_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        answer = await wire.head(f"/v1/sessions/{session_id}/events/stream?after=0")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_live_events_carry_no_id(wire: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    async with following(wire, session_id) as reader:
        environment.runtime.say(TypingChanged(typing=True))
        frame = await reader.event()
    assert "id" not in frame
    assert frame["event"] == "typing.changed"
    assert orjson.loads(frame["data"]) == {
        "live": True,
        "after_sequence": 2,
        "event": {"kind": "typing.changed", "typing": True},
    }


CURSORS: list[tuple[str, dict[str, str], int]] = [
    ("?after=0", {}, 1),
    ("?after=2", {}, 3),
    ("", {"last-event-id": "1"}, 2),
    ("?after=0", {"last-event-id": "2"}, 3),
    ("?after=2", {"last-event-id": ""}, 3),
]


async def test_a_stream_resumes_behind_its_cursor(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.ask()
    for query, headers, first in CURSORS:
        async with following(wire, session_id, query, headers) as reader:
            event = await reader.event()
            assert number_of(event) == first, (query, headers)
        if first < 3:
            async with following(wire, session_id, f"?after={event['id']}") as reader:
                assert number_of(await reader.event()) == first + 1


async def test_a_gap_says_what_is_left(wire: httpx.AsyncClient, environment: Environment, session_id: str) -> None:
    await environment.post(session_id, 4)
    assert await environment.forget(session_id, keep=2) == 5
    async with following(wire, session_id, "?after=1") as reader:
        assert await reader.event() == {"event": "gap", "data": '{"first_sequence":5}'}
        assert number_of(await reader.event()) == 5


async def test_a_cursor_behind_the_end_is_told_where_the_session_ends_and_goes_on_there(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.post(session_id, 2)
    cursors: list[tuple[str, dict[str, str]]] = [
        ("?after=5", {}), ("", {"last-event-id": "1000000"}), ("?after=0", {"last-event-id": "5"}),
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(following(wire, session_id, *cursor)) for cursor in cursors]
        for reader in readers:
            # With an id, so that it is behind the end when it comes back.
            gap = await reader.event()
            assert (gap["event"], number_of(gap)) == ("gap", 4)
            assert orjson.loads(gap["data"]) == {"first_sequence": 5, "position": gap["id"]}
        await environment.post(session_id, 2)
        for reader in readers:
            assert [number_of(await reader.event()) for _ in range(2)] == [5, 6]


async def test_a_quiet_stream_has_heartbeats(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.reload({"api": {"heartbeat": "10ms"}})
    async with following(wire, session_id) as reader:
        assert [await reader.line() for _ in range(3)] == [": heartbeat"] * 3


async def test_the_time_to_come_back_after_is_said_with_the_first_event(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.reload({"api": {"heartbeat": "10ms"}})
    async with following(wire, session_id) as reader:
        assert await reader.line() == ": heartbeat"
        await environment.post(session_id, 2)
        assert (await reader.frame())[0] == "retry: 1000"
        assert (await reader.frame())[0].startswith("id: 4.")
        await environment.post(session_id)
        assert (await reader.frame())[0].startswith("id: 5.")


async def test_a_bad_cursor_is_refused(api: httpx.AsyncClient, session_id: str) -> None:
    path = f"/v1/sessions/{session_id}/events/stream"
    ids = ("x", "-1", "1.0", "9223372036854775808", "1" * 250, "1.0123456789abc", "1.0123456789AB", "v2", "v2.")
    asked = [(await api.get(f"{path}?{query}"), query.partition("=")[0]) for query in ("after=x", "after=-1", "aftr=1")]
    asked += [(await api.get(path, headers={"last-event-id": one}), "Last-Event-ID") for one in ids]
    for answer, named in asked:
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/invalid-request"), answer.request.url
        assert [error["parameter"] for error in answer.json()["errors"]] == [named]


async def test_a_client_that_leaves_is_no_longer_followed_for(environment: Environment, session_id: str) -> None:
    async with serving(environment.gateway) as (server, base), plain_client(base) as client:
        async with following(client, session_id):
            assert len(server.followers) == 1

        async def left() -> bool | None:
            return not len(server.followers) or None

        await until(left)


async def test_newlines_in_texts_stay_inside_their_line(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    text = "a\r\nid: 99\n\nevent: evil\u2028\x00"
    await environment.post(session_id, text=text)
    raw = b""
    async with wire.stream("GET", f"/v1/sessions/{session_id}/events/stream?after=2") as response:
        async for chunk in response.aiter_raw():
            raw += chunk
            if raw.endswith(b"\n\n"):
                break
    heartbeat, retry, head, event, data = raw.rstrip(b"\n").split(b"\n")
    assert (heartbeat, retry) == (b": heartbeat", b"retry: 1000")
    assert (head[:6], event) == (b"id: 3.", b"event: turn.steered")
    assert orjson.loads(data.removeprefix(b"data: "))["event"]["text"] == text


async def test_a_stream_above_the_limit_of_all_sessions_is_refused(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    other = await environment.attach("agent-8")
    await environment.reload({"limits": {"followers": 1}})
    path = f"/v1/sessions/{other}/events/stream"
    async with following(wire, session_id), wire.stream("GET", path) as refused:
        assert refused.status_code == 503
        assert orjson.loads(await refused.aread())["detail"].startswith("1 event streams are open already")


async def test_a_store_that_fails_ends_the_stream_cleanly(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.post(session_id, 20)
    read = environment.engine.read

    async def fails_later(
        session_id: SessionId, *, after: int = 0, limit: int = 500, excerpts: bool = False
    ) -> Rows[Envelope]:
        if after > 0:
            raise EngineUnavailable("disk full")
        return await read(session_id, after=after, limit=limit, excerpts=excerpts)

    environment.engine.read = fails_later
    async with following(wire, session_id, "?after=0") as reader:
        # The first page has four; the next one is not there.
        assert [number_of(await reader.event()) for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(EOFError):
            await reader.frame()


async def test_a_burst_reaches_every_follower_in_order(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(following(wire, session_id)) for _ in range(5)]

        async def ids(reader: Reader) -> list[int]:
            return [number_of(await reader.event()) for _ in range(500)]

        async with asyncio.timeout(60):
            reading = [asyncio.create_task(ids(reader)) for reader in readers]
            await environment.post(session_id, 500, text="x" * 500)
            assert [await reader for reader in reading] == [list(range(3, 503))] * 5


async def test_a_stopping_server_ends_its_streams_at_once(environment: Environment, session_id: str) -> None:
    async with serving(environment.gateway) as (server, base):
        async with plain_client(base) as client, following(client, session_id) as reader:
            server.should_exit = True
            with pytest.raises(EOFError):
                await reader.frame()
        assert not len(server.followers)


KEYS: list[dict[str, Any]] = CONFIGURATION["api"]["keys"]


def keys_with(viewer: dict[str, Any] | None) -> dict[str, Any]:
    """Say which keys there are: those of the configuration, with another `viewer`, or without one."""
    others = [key for key in KEYS if key["name"] != "viewer"]
    return {"api": {"keys": [*others, *([] if viewer is None else [viewer])]}}


async def end_of(reader: Reader) -> None:
    """Read on until the stream ends as it should, and not in an error; nothing but heartbeats comes before."""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                assert (await reader.line()).startswith(":")
    except EOFError:
        pass


@pytest.mark.parametrize(
    ("viewer", "status"),
    [
        (None, 401),
        ({"name": "viewer", "key": "another", "scopes": ["read"]}, 401),
        ({"name": "viewer", "key": "look-only", "scopes": ["drive"]}, 403),
    ],
)
async def test_a_stream_ends_when_a_reload_takes_its_key_or_the_scope_away(
    wire: httpx.AsyncClient, environment: Environment, session_id: str, viewer: dict[str, Any] | None, status: int
) -> None:
    path, key = f"/v1/sessions/{session_id}/events/stream", bearer("look-only")
    async with AsyncExitStack() as stack:
        mine = await stack.enter_async_context(following(wire, session_id))
        theirs = await stack.enter_async_context(following(wire, session_id, headers=key))
        asked = await stack.enter_async_context(wire.stream("GET", "/v1/interactions/stream", headers=key))
        questions = Reader(asked)
        assert await questions.line() == ": heartbeat"
        await environment.reload(keys_with(viewer))
        await end_of(theirs)
        await end_of(questions)
        for one in (path, "/v1/interactions/stream"):
            assert (await wire.get(one, headers=key)).status_code == status
        await environment.post(session_id)
        assert (await mine.event())["event"] == "turn.steered"


async def test_a_stream_goes_on_where_a_reload_leaves_its_key(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    async with following(wire, session_id, headers=bearer("look-only")) as reader:
        await environment.reload({"api": {"max_body": 100_000}})
        await environment.reload(keys_with({"name": "viewer", "key": "look-only", "scopes": ["read", "drive"]}))
        await environment.post(session_id)
        assert (await reader.event())["event"] == "turn.steered"


async def test_a_stream_without_a_key_ends_where_a_reload_wants_one() -> None:
    async with environment_of({"api": {"keys": []}}) as environment, serving(environment.gateway) as (_, base):
        session_id = await environment.attach()
        async with plain_client(base) as client, following(client, session_id) as reader:
            await environment.reload({"api": {"max_body": 100_000}})
            await environment.post(session_id)
            assert (await reader.event())["event"] == "turn.steered"
            await environment.reload({"api": {"keys": KEYS}})
            await end_of(reader)


async def test_a_stream_whose_key_is_taken_away_on_its_way_in_ends_at_once(
    wire: httpx.AsyncClient, environment: Environment, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = environment.gateway.session

    async def reloading(session_id: SessionId) -> SessionRow:
        await environment.reload(keys_with(None))
        return await session(session_id)

    monkeypatch.setattr(environment.gateway, "session", reloading)
    async with following(wire, session_id, headers=bearer("look-only")) as reader:
        await end_of(reader)


def test_news_are_encoded_once_for_all_followers() -> None:
    news = News([Live(TurnSteered(text=text), 1) for text in ("first", "second")])
    encoded = encode(news, "0" * 12)
    assert encode(news, "0" * 12) is encoded
    assert encoded.count(b"event: turn.steered") == 2


async def test_questions_to_people_are_streamed_as_in_the_list(
    wire: httpx.AsyncClient, environment: Environment, session_id: str
) -> None:
    await environment.reload({"api": {"heartbeat": "10ms"}})
    interaction = await environment.ask_person()
    (listed,) = (await wire.get("/v1/interactions")).json()["data"]
    async with wire.stream("GET", "/v1/interactions/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = Reader(response)
        shown = await reader.event()
        assert (shown["event"], orjson.loads(shown["data"])) == ("interaction", listed)
        assert "id" not in shown
        await wire.post(f"/v1/interactions/{interaction}/answer", json={"decision": "deny"})
        assert orjson.loads((await reader.event())["data"])["state"] == "answered"
        assert await reader.line() == ": heartbeat"


def test_a_reader_of_questions_who_has_missed_some_is_told_so() -> None:
    assert encode(Missed(), "") == b"event: gap\ndata: {}\n\n"


class Client:
    """A client of one stream without a socket; it takes a piece each time it is allowed to."""

    def __init__(self, items: AsyncGenerator[News | bytes], followers: Followers) -> None:
        self.stream = EventStream(items, followers, subject="session")
        self.taken: list[bytes] = []
        self.allowed = asyncio.Semaphore(0)
        self.started = asyncio.Event()
        self.left = asyncio.Event()
        self.task = asyncio.create_task(
            self.stream({"type": "http", "state": {"head": False}}, self._receive, self._send)
        )

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started.set()
        elif message.get("more_body"):
            await self.allowed.acquire()
            self.taken.append(message["body"])

    async def _receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_nothing_is_read_ahead_for_a_client_that_does_not_read() -> None:
    read = 0

    async def items() -> AsyncGenerator[News]:
        nonlocal read
        while True:
            read += 1
            yield News([Live(TurnSteered(text="x"), 0)])

    followers = Followers()
    client = Client(items(), followers)
    await client.started.wait()
    for wanted in range(5):
        while len(client.taken) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert read <= wanted
        client.allowed.release()
    client.left.set()
    async with asyncio.timeout(PATIENCE):
        await client.task
    assert not len(followers)


async def test_a_large_event_is_sent_in_pieces() -> None:
    async def items() -> AsyncGenerator[News]:
        yield News([Live(TurnSteered(text="x" * 1_000_000), 0)])

    client = Client(items(), Followers())
    for _ in range(100):
        client.allowed.release()
    async with asyncio.timeout(PATIENCE):
        await client.task
    assert max(map(len, client.taken)) == 64 * 1024
    assert b"".join(client.taken).count(b"x" * 1_000_000) == 1


class Piece(bytes):
    """Bytes that note when nothing refers to them any more."""

    freed = 0

    def __del__(self) -> None:
        Piece.freed += 1


async def test_what_a_client_left_unread_is_freed_before_the_next_collection_of_garbage() -> None:
    async def items() -> AsyncGenerator[bytes]:
        yield Piece(b"x")

    followers, freed = Followers(), Piece.freed
    client = Client(items(), followers)
    gc.disable()
    try:
        for _ in range(2):
            # The heartbeat and the `retry`.
            client.allowed.release()
        async with asyncio.timeout(PATIENCE):
            while len(client.taken) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert Piece.freed == freed
        client.left.set()
        async with asyncio.timeout(PATIENCE):
            await client.task
        assert Piece.freed == freed + 1
    finally:
        gc.enable()


async def test_a_stream_that_is_ended_ends_also_while_its_client_does_not_read_and_there_is_always_more() -> None:
    closed = asyncio.Event()

    async def items() -> AsyncGenerator[News]:
        try:
            while True:
                yield News([Live(TurnSteered(text="x"), 0)])
        finally:
            closed.set()

    followers = Followers()
    ended, other = (Client(items(), followers) for _ in range(2))
    ended.allowed.release()
    async with asyncio.timeout(PATIENCE):
        while not ended.taken:  # noqa: ASYNC110
            await asyncio.sleep(0)
    ended.stream.is_allowed = lambda: False
    followers.end_refused()
    async with asyncio.timeout(PATIENCE):
        await ended.task
    # What it followed is closed with it, and not by the collector.
    assert closed.is_set()
    assert len(followers) == 1
    other.left.set()
    async with asyncio.timeout(PATIENCE):
        await other.task


@pytest.mark.slow
async def test_a_client_that_never_reads_is_dropped_and_no_error_is_logged(
    environment: Environment,
    session_id: str,
    lines: list[MutableMapping[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await environment.post(session_id, 400, text="x" * 20_000)
    path = f"/v1/sessions/{session_id}/events/stream?after=0"
    async with serving(environment.gateway) as (server, base):
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(base), limit=1)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer all-of-it\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            while not len(server.followers):  # noqa: ASYNC110
                await asyncio.sleep(0)
        async with asyncio.timeout(90):
            while len(server.followers) or server.server_state.connections:  # noqa: ASYNC110
                # The kernel tells only the server, after 30 s.
                await asyncio.sleep(0.1)
        writer.close()
    assert not [line for line in lines if line["log_level"] in {"warning", "error"}]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
