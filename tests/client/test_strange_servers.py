"""The client against what is no gateway, an older or a newer one, and what stands in front of one."""

import asyncio
import json
import random
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from typing import Any

import httpx
import pytest

from dragoman.client import (
    Client,
    ClientError,
    Envelope,
    Gap,
    GatewayUnreachable,
    Interaction,
    Live,
    Missed,
    RequestRefused,
    UnexpectedAnswer,
)
from gateway.events import Opaque, TurnSteered, TypingChanged
from tests.client.strange import (
    PATIENCE,
    STREAM,
    Answer,
    StrangeServer,
    answer,
    collect,
    envelope,
    problem,
    session,
    sse,
)

ROW, EVENTS, NEWS = "/v1/sessions/s", "/v1/sessions/s/events", "/v1/sessions/s/events/stream"
HTML = answer("<html>Welcome to nginx!</html>", kind="text/html; charset=utf-8")
quick = partial(Client, pause=0.05)
"""A client whose pauses are a tenth as long."""


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
    while True:
        writer.write(b"1," * 32_000)
        await writer.drain()


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (HTML, "does not respond like a Dragoman gateway (200 OK, text/html)"),
        (answer("no", "500 Oops", kind="text/plain"), "(500 Internal Server Error, text/plain)"),
        (answer({}, "999 Strange"), "(999, application/json)"),
        (answer("{", kind="application/json"), "does not respond like a Dragoman gateway"),
        (answer(b"\xff\xfe"), "does not respond like a Dragoman gateway"),
        (answer("[" * 200_000), "does not respond like a Dragoman gateway"),
        (answer([1]), "does not respond like a Dragoman gateway"),
        (answer(b""), "does not respond like a Dragoman gateway"),
        (answer({"error": "no such file"}, "404 Not Found"), "(404 Not Found, application/json)"),
        (answer({"session_id": "s"}), "the response is not a valid Session: /runtime: Field required"),
        (answer({**session(1), "last_sequence": "many hunter2"}), "/last_sequence: invalid value"),
        (answer("", "307 Temporary Redirect", location="http://elsewhere.invalid/"), "it redirects"),
        (answer(b"\x1f\x8b", content_encoding="gzip"), "is compressed"),
        (endless, "is over 1000000 bytes"),
    ],
)
async def test_what_is_no_answer_of_a_gateway_is_said_at_once(given: Answer, words: str) -> None:
    async with StrangeServer({"": [given]}) as server, quick(server.url, "k", largest_answer=10**6) as dragoman:
        with pytest.raises(UnexpectedAnswer) as caught:
            async with asyncio.timeout(PATIENCE):
                await dragoman.session("s")
    assert words in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert len(server.asked) == 1


@pytest.mark.parametrize("given", [silent, dripping])
async def test_an_answer_that_does_not_come_or_does_not_end_is_not_waited_for(given: Answer) -> None:
    async with StrangeServer({"": [given]}) as server, quick(server.url, timeout=0.3, retries=1) as dragoman:
        began = time.monotonic()
        with pytest.raises(GatewayUnreachable, match="did not respond in time"):
            await dragoman.session("s")
        assert 0.6 <= time.monotonic() - began < 5
        with pytest.raises(GatewayUnreachable, match="did not respond in time"):
            await anext(dragoman.follow("s"))
    assert len(server.asked) == 4


async def test_what_proxies_say_while_the_gateway_is_away_is_tried_again() -> None:
    bad: list[Answer] = [
        answer("<html>Bad Gateway</html>", "502 Bad Gateway", kind="text/html"),
        answer("", "503 Service Unavailable", kind="text/html", retry_after="0"),
        b"",
    ]
    async with StrangeServer({ROW: [*bad, answer(session(3))]}) as server, quick(server.url) as dragoman:
        assert (await dragoman.session("s")).last_sequence == 3
        assert len(server.asked) == 4
        server.answers[ROW] = [bad[0]]
        with pytest.raises(UnexpectedAnswer) as caught:
            await dragoman.session("s")
        assert (caught.value.status, caught.value.passing, len(server.asked)) == (502, True, 8)


@pytest.mark.parametrize("date", [False, True])
async def test_a_refusal_that_says_when_to_come_back_is_heeded(date: bool) -> None:
    # A date has no parts of seconds.
    said = format_datetime(datetime.now(UTC) + timedelta(seconds=2.999), usegmt=True) if date else "1"
    refusals: list[Answer] = [problem("503 Service Unavailable", "overloaded", retry_after=said), answer(session(3))]
    async with StrangeServer({ROW: refusals}) as server, quick(server.url) as dragoman:
        began = time.monotonic()
        await dragoman.session("s")
        assert 0.9 <= time.monotonic() - began < 5
        for one, status in (("3600", "503 Service Unavailable"), ("soon", "503 Service Unavailable")):
            server.answers[ROW] = [problem(status, "overloaded", retry_after=one)]
            before = len(server.asked)
            with pytest.raises(RequestRefused) as caught:
                await dragoman.session("s")
            assert (caught.value.type, caught.value.retry_after) == ("overloaded", 3600.0 if one == "3600" else None)
            assert len(server.asked) == before + 1


async def test_one_key_goes_with_all_tries_of_a_request_and_each_request_has_its_own() -> None:
    away = answer("", "502 Bad Gateway", kind="text/html")
    told = answer({"data": [envelope(4)]}, "202 Accepted")
    async with StrangeServer({EVENTS: [away, away, told, away, told]}) as server, quick(server.url) as dragoman:
        for _ in range(2):
            [posted] = await dragoman.post("s", "hello")
            assert posted.event == TurnSteered(text="4")
        keys = [one.headers["idempotency-key"] for one in server.asked]
        assert (keys[0] == keys[1] == keys[2] != keys[3] == keys[4], len(keys)) == (True, 5)
        calls = f"{ROW}/calls"
        server.answers[calls] = [away, b"", problem("404 Not Found", "unknown-tool")]
        with pytest.raises(RequestRefused):
            await dragoman.call("s", "fly")
        assert len({json.loads(one.body)["key"] for one in server.told(calls)}) == 1
        assert len(server.told(calls)) == 3
        question = "/v1/interactions/i/answer"
        server.answers[question] = [away]
        with pytest.raises(UnexpectedAnswer):
            await dragoman.answer("i", answer="yes")
        assert len(server.told(question)) == 1


async def test_a_key_that_a_strange_server_sends_back_is_hidden() -> None:
    key = 'canary"key\\7QxZ'
    quoted = "canary%22key%5C7QxZ canary%22key%5c7QxZ"
    echo = {"type": f"x {key}", "title": key, "status": 400, "detail": f"bad {key} {quoted}", "errors": [{"h": key}]}
    raw = f"{key}\r\n\r\n".encode()
    for given in (answer(echo, "400 Bad Request", kind="application/problem+json"), raw, answer(key, kind=key)):
        async with StrangeServer({"": [given]}) as server, quick(server.url, key, retries=0) as dragoman:
            for asking in (dragoman.session("s"), anext(dragoman.follow_interactions())):
                with pytest.raises(ClientError) as caught:
                    await asking
                shown = f"{caught.value!r} {caught.value} {caught.value.__dict__} {caught.value.__cause__}"
                assert key not in shown
                assert "canary" not in shown
            assert server.asked[0].headers["authorization"] == f"Bearer {key}"


async def test_a_proxy_of_the_environment_is_not_asked_for_what_is_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with StrangeServer({"": [answer(session(1))]}) as server, StrangeServer({"": [HTML]}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        async with quick(server.url) as dragoman, quick("http://gateway.invalid") as elsewhere:
            assert (await dragoman.session("s")).last_sequence == 1
            assert proxy.asked == []
            with pytest.raises(UnexpectedAnswer):
                await elsewhere.session("s")
        assert [one.line for one in proxy.asked] == ["GET http://gateway.invalid/v1/sessions/s HTTP/1.1"]


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with StrangeServer({"": [answer(session(1))]}) as other:
        led = answer("", "302 Found", location=f"{other.url}/v1/sessions/s")
        async with (
            StrangeServer({"": [led]}) as server,
            httpx.AsyncClient(follow_redirects=True, trust_env=False) as http,
            quick(server.url, "k", http_client=http) as dragoman,
        ):
            for asking in (dragoman.session("s"), anext(dragoman.follow_interactions())):
                with pytest.raises(UnexpectedAnswer, match="it redirects"):
                    await asking
        assert other.asked == []


async def test_pages_that_do_not_move_on_are_an_error() -> None:
    rows = {"data": [session(1)], "next": "same"}
    events = {"data": [envelope(1)], "next": 0}
    given: dict[str, list[Answer]] = {"/v1/sessions": [answer(rows)], EVENTS: [answer(events)]}
    async with StrangeServer(given) as server, quick(server.url) as dragoman:
        for pages in (dragoman.sessions(), dragoman.events("s")):
            with pytest.raises(UnexpectedAnswer, match="returned the same page"):
                await collect(pages, 5)
        server.answers["/v1/sessions"] = [answer({"rows": []})]
        with pytest.raises(UnexpectedAnswer, match="is not a list"):
            await anext(dragoman.sessions())


async def test_what_a_newer_release_adds_is_read_as_far_as_it_is_known() -> None:
    odd = {"kind": "mood.changed", "mood": "good"}
    news = [
        envelope(1, {"kind": "turn.steered", "text": "1", "volume": 11}, weight=3),
        envelope(2, odd),
        envelope(3, {"kind": "session.moved", "state": "dreaming"}),
    ]
    row = session(3, "dreaming", colour="blue")
    stream = [
        STREAM,
        b"retry: 20\n\n: heartbeat\n",
        b"".join(sse(one["sequence"], one["event"]["kind"], one) for one in news),
        sse(None, "mood.changed", {"live": True, "after_sequence": 3, "event": odd}),
        sse(None, "weather", {"rain": True}),
        b"event: mark\nid: 3\n\n",
        sse(
            None,
            "typing.changed",
            {"live": True, "after_sequence": 3, "event": {"kind": "typing.changed", "typing": True}},
        ),
    ]
    page = answer({"data": news, "next": None, "pages": 1})
    given: dict[str, list[Answer]] = {ROW: [answer(row)], EVENTS: [page], NEWS: [b"".join(stream)]}
    async with StrangeServer(given) as server, quick(server.url) as dragoman:
        assert (await dragoman.session("s")).state == "dreaming"
        followed = await collect(dragoman.follow("s", after=0), 5)
        assert followed[:3] == [one async for one in dragoman.events("s")]
    opaque = Opaque(channel="unknown-kind", payload=odd)
    assert [getattr(one, "event", None) for one in followed] == [
        TurnSteered(text="1"),
        opaque,
        Opaque(channel="unknown-kind", payload=news[2]["event"]),
        opaque,
        TypingChanged(typing=True),
    ]
    assert isinstance(followed[3], Live)


async def test_a_stream_that_is_none_is_not_followed() -> None:
    first = sse(1, "turn.steered", envelope(1))
    for given, words in (
        (HTML, "does not respond like a Dragoman gateway"),
        (answer({"data": []}), "does not respond like a Dragoman gateway"),
        (problem("410 Gone", "gone"), "no"),
        (STREAM + first + b"id: 2\nevent: x\ndata: {\n\n", "an event of the stream is not a JSON object"),
        (STREAM + first + b"id: 2\nevent: x\ndata: [1]\n\n", "an event of the stream is not a JSON object"),
        (STREAM + first + sse(2, "x", {"sequence": 2}), "the response is not a valid Envelope: /event_id"),
        (STREAM + first + sse(None, "gap", {}), "a gap of the stream has no"),
        (STREAM + first + b"data: " + b"x" * 2_000_000, "an event of the stream has more than 1000000 bytes"),
        (STREAM + first + b"data:\n" * 500_000, "an event of the stream has more than 1000000 bytes"),
    ):
        async with StrangeServer({ROW: [answer(session(2))], NEWS: [given]}) as server:
            async with quick(server.url, largest_answer=10**6) as dragoman:
                with pytest.raises(ClientError, match=words):
                    await collect(dragoman.follow("s", after=0), 2)
            assert len(server.told(NEWS)) == 1


async def test_events_come_once_and_in_order_whatever_a_proxy_makes_of_the_stream() -> None:
    def told(*numbers: int) -> bytes:
        return b"".join(sse(number, "turn.steered", envelope(number)) for number in numbers)

    opened: list[Answer] = [
        STREAM + told(1, 2) + b"id: 3\nevent: turn.ste",
        STREAM + told(1, 2, 3, 3),
        answer("", "502 Bad Gateway", kind="text/html"),
        STREAM,
        b"",
        STREAM + told(2, 4) + sse(None, "gap", {"first_sequence": 5}) + sse(None, "gap", {"first_sequence": 7}),
        STREAM + told(7, 9),
    ]
    async with StrangeServer({ROW: [answer(session(9))], NEWS: opened}) as server, quick(server.url) as dragoman:
        followed = await collect(dragoman.follow("s", after=0), 8)
    shown = [one.first_sequence * -1 if isinstance(one, Gap) else one.sequence for one in followed]
    assert shown == [1, 2, 3, 4, -7, 7, -9, 9]
    assert [one.headers["last-event-id"] for one in server.told(NEWS)] == ["0", "2", "3", "3", "3", "3", "6"]


async def test_a_server_that_says_of_each_place_that_it_is_gone_is_not_asked_for_ever() -> None:
    def gone(first: int) -> bytes:
        body = {"type": "/problems/gone", "title": "gone", "status": 410, "detail": "no", "first_sequence": first}
        return answer(body, "410 Gone", kind="application/problem+json")

    for firsts in ([4, 10, 4], [4, 3], [4, 4]):
        async with StrangeServer({EVENTS: [gone(first) for first in firsts]}) as server:
            async with quick(server.url) as dragoman:
                with pytest.raises(RequestRefused, match="no"):
                    await collect(dragoman.events("s", after=7), 4)
            assert len(server.told(EVENTS)) == len(firsts)


@pytest.mark.parametrize(("last", "words"), [(b"", "broke"), (STREAM, "the stream has ended")])
async def test_pauses_grow_and_end_where_patience_does(last: bytes, words: str) -> None:
    opened: list[Answer] = [STREAM, STREAM, STREAM, STREAM, last]
    async with StrangeServer({ROW: [answer(session(3))], NEWS: opened}) as server, quick(server.url) as dragoman:
        began = time.monotonic()
        with pytest.raises(GatewayUnreachable, match=words):
            await collect(dragoman.follow("s", after=3, patience=1.0), 1)
        assert 1.0 <= time.monotonic() - began < 10
        # Pauses of the same length would have let it ask forty times.
        assert 5 < len(server.told(NEWS)) < 15


async def test_pauses_grow_where_streams_begin_and_tell_nothing() -> None:
    opened: list[Answer] = [STREAM + b": heartbeat\n"]
    async with StrangeServer({ROW: [answer(session(3))], NEWS: opened}) as server, quick(server.url) as dragoman:
        with pytest.raises(TimeoutError):
            await collect(dragoman.follow("s", after=3), 1, within=2)
        assert 4 <= len(server.told(NEWS)) < 15


async def test_whoever_is_busy_for_longer_than_its_patience_finds_the_stream_again() -> None:
    opened: list[Answer] = [STREAM + sse(number, "turn.steered", envelope(number)) for number in (1, 2)]
    async with StrangeServer({ROW: [answer(session(2))], NEWS: opened}) as server, quick(server.url) as dragoman:
        following = dragoman.follow("s", after=0, patience=0.3)
        await collect(following, 1)
        # How long the stream is not read is the fault.
        await asyncio.sleep(0.6)
        [second] = await collect(following, 1)
    assert isinstance(second, Envelope)
    assert second.sequence == 2


async def test_a_stream_without_a_byte_is_opened_anew() -> None:
    async def stalls(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + b": heartbeat\n" + sse(1, "turn.steered", envelope(1)))
        await writer.drain()
        await asyncio.Event().wait()

    opened: list[Answer] = [stalls, STREAM + sse(2, "turn.steered", envelope(2))]
    async with StrangeServer({ROW: [answer(session(2))], NEWS: opened}) as server, quick(server.url) as dragoman:
        followed = await collect(dragoman.follow("s", after=0, silence=0.3), 2)
    assert [one.sequence for one in followed if isinstance(one, Envelope)] == [1, 2]
    assert server.told(NEWS)[1].headers["last-event-id"] == "1"


async def test_interactions_are_told_anew_behind_what_was_missed() -> None:
    row = {
        "interaction_id": "i",
        "kind": "question.asked",
        "state": "waiting",
        "session_id": "s",
        "sequence": 3,
        "expires_at": None,
        "answered_by": None,
        "event": {"kind": "question.asked", "id": "q", "text": "Which?"},
    }
    shown = sse(None, "interaction", row)
    opened: list[Answer] = [STREAM + shown + sse(None, "gap", {}) + shown, STREAM + sse(None, "new", {}) + shown]
    path = "/v1/interactions/stream"
    async with StrangeServer({path: opened}) as server, quick(server.url) as dragoman:
        told: list[Any] = await collect(dragoman.follow_interactions(), 5)
    assert [type(one) for one in told] == [Interaction, Missed, Interaction, Missed, Interaction]
    assert {one.interaction_id for one in told if isinstance(one, Interaction)} == {"i"}


async def test_a_gateway_that_does_not_hold_what_is_waited_for_is_not_asked_without_a_pause() -> None:
    open_call: dict[str, Any] = {
        **dict.fromkeys(("executor", "error", "due_at", "canceling_until", "finished_at", "redrive_of", "outcome")),
        **dict.fromkeys(("call_id", "native_call_id", "session_id", "runtime", "tool", "idempotency_key"), "c"),
        **dict.fromkeys(("created_at", "deadline_at"), "2026-11-23T01:00:00+00:00"),
        **dict.fromkeys(("unknown", "deliver", "dead"), False),
        **dict.fromkeys(("attempt", "request_sequence"), 1),
        "outcome_sequence": None,
        "state": "accepted",
        "answer_to": "caller",
    }
    done = {
        **open_call,
        "state": "succeeded",
        "finished_at": "2026-11-23T01:00:01+00:00",
        "outcome": {"outcome": "success", "result": 7},
    }
    away = answer("", "502 Bad Gateway", kind="text/html")
    held = answer(open_call, "202 Accepted")
    calls = f"{ROW}/calls"
    given: list[Answer] = [held, held, away, b"", away, away, away, answer(done)]
    async with StrangeServer({calls: given}) as server, quick(server.url) as dragoman:
        call = await dragoman.call("s", "t", wait=20)
        assert call.outcome is not None
        assert call.outcome.result == 7
        assert len(server.asked) == 8
        server.answers[calls] = [held]
        before = len(server.asked)
        assert (await dragoman.call("s", "t", wait=1)).outcome is None
        assert 3 <= len(server.asked) - before <= 12
        server.answers[calls] = [away]
        with pytest.raises(UnexpectedAnswer):
            await dragoman.call("s", "t", wait=1)


async def test_noise_is_an_error_of_the_client_whatever_it_is() -> None:
    noise = random.Random(7)
    bits = [b"HTTP/1.1 200 OK\r\n", b"\r\n", b"content-type: text/event-stream\r\n", b"content-length: 9\r\n", b"{}"]
    for _ in range(40):
        raw = b"".join(noise.choice([*bits, noise.randbytes(5)]) for _ in range(noise.randrange(6)))
        async with StrangeServer({"": [raw]}) as server, quick(server.url, retries=0, timeout=5) as dragoman:
            for asking in (dragoman.session("s"), anext(dragoman.follow_interactions(patience=0.1))):
                with pytest.raises(ClientError):
                    await asking
