"""The Herm connector against a real server that speaks raw JSON: what every link must do, and refusals."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import pytest

from adapters.herm import ADAPTER
from gateway.adapter.port import Connector, Frame, Order, Tool
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.link import Collector, LinkSuite, Peer, enter, within
from tests.adapters.herm.links import RecordingBackend, linked, options_for, result, text, user
from tests.adapters.herm.raw_herm import ABORT, AGENT, KEY, SESSION, RawHerm, RestAnswer
from tests.pace import PATIENCE


class TestHermLink(LinkSuite):
    adapter = ADAPTER
    native_id = SESSION
    sends = 100
    send_within = 10.0
    key = KEY

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        return RawHerm().serve()

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        return ADAPTER.connector(options_for(cast("RawHerm", peer), send_timeout="2s"))

    def inbound(self, number: int, padding: str = "") -> Frame:
        payload = {**text(padding), "number": number}
        place = {"id": f"evt_{number}", "sequence": number, "sessionId": SESSION, "status": "complete"}
        return Frame("stream", {**place, "type": "agent.message", "payload": payload})

    def outbound(self, number: int, padding: str = "") -> Frame:
        return Frame("events", {**result(number), "padding": padding})


@pytest.mark.requirement("H1", "H2", "H3", "H8", "H-a", "H-f")
async def test_stream_list_and_posts_go_to_the_documented_paths_with_the_key_in_a_header() -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        assert (await link.send_all([Frame("events", user("Hi"))])).state == "delivered"
        seen = [(request.method, request.path, request.query) for request in server.requests]
        assert seen == [
            ("GET", "/v1/sessions/session_1/events/stream", {}),
            ("GET", "/v1/sessions/session_1/events", {"limit": "100"}),
            ("POST", "/v1/sessions/session_1/events", {}),
        ]
        assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}
        assert server.requests[-1].body == {"events": [user("Hi")]}
        assert server.requests[0].headers["accept"] == "text/event-stream"


@pytest.mark.requirement("H-a", "H-c")
@pytest.mark.parametrize(
    ("form", "body"), [("events", {"events": [user("Hi")]}), ("single", user("Hi")), ("list", [user("Hi")])]
)
async def test_the_form_of_a_post_is_an_option(form: str, body: Any) -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend(), body=form) as link:
        await link.send_all([Frame("events", user("Hi"))])
        assert server.requests[-1].body == body


async def test_paths_parameters_and_headers_are_options() -> None:
    options: dict[str, Any] = {
        "events_path": "/x/{session_id}/e",
        "stream_path": "/x/{session_id}/stream",
        "auth_header": "X-Key",
        "auth_scheme": "",
        "headers": {"Herm-Version": "2"},
        "after_parameter": "after",
        "list_limit": 7,
        "resume_header": "Last-Event-ID",
    }
    async with RawHerm().serve() as server, linked(server, RecordingBackend(), resume_after="41", **options):
        stream, listed = server.requests
        assert (stream.path, listed.path) == ("/x/session_1/stream", "/x/session_1/e")
        assert stream.headers["x-key"] == KEY
        assert stream.headers["herm-version"] == "2"
        assert stream.headers["last-event-id"] == "41"
        assert listed.query == {"limit": "7", "after": "41"}
        assert "last-event-id" not in listed.headers


@pytest.mark.parametrize("name", ["a/../b", "..", ".", "a b?c#d", "ä"])
async def test_the_name_of_a_session_never_leads_to_another_path(name: str) -> None:
    async with RawHerm().serve() as server:
        async with ADAPTER.connector(options_for(server)) as connector:
            await enter(connector.connect(name, Collector()))
        assert all(request.path.count("/") == 5 - (n % 2) for n, request in enumerate(server.requests))
        assert all("/../" not in request.path for request in server.requests)


@pytest.mark.requirement("H55")
@pytest.mark.parametrize(
    ("answer", "native_id"),
    [
        (RestAnswer(201, {"id": "ses_9"}), "ses_9"),
        (RestAnswer(200, {"sessionId": "ses_9"}), "ses_9"),
        (RestAnswer(201, {"data": {"id": "ses_9"}}), "ses_9"),
        (RestAnswer(202, {"session": {"session_id": "ses_9"}}), "ses_9"),
    ],
)
async def test_a_session_is_opened_as_the_options_say(answer: RestAnswer, native_id: str) -> None:
    more = {"agent_id": AGENT, "session_id": None, "user_id": "u1", "title": "T", "metadata": {"a": 1}}
    tool = Tool("ask", "Ask.", {})
    async with RawHerm().serve() as server:
        server.creates.append(answer)
        async with ADAPTER.connector(options_for(server, **more)) as connector:
            created = await within(connector.create(Order({"label": "x"}, (tool,), "N", "Be brief.")))
        assert created.native_id == native_id
        # Herm declares tools on its agents, which is not ours to do.
        lost = [(loss.how, loss.path) for loss in created.losses]
        assert lost == [("dropped", "/tools/ask"), ("dropped", "/instructions")]
        assert created.tools == ()
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/agents/agent_1/sessions")
        assert request.body == {"userId": "u1", "title": "N", "metadata": {"a": 1}}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RestAnswer(404, {"error": "not_found", "message": "No such agent."}), LinkRefused),
        (RestAnswer(500, {"error": "server_error", "message": "Oops."}), LinkLost),
        (RestAnswer(200, {"title": "no id"}), LinkLost),
        (RestAnswer(200, b"<html>"), LinkLost),
    ],
)
async def test_a_session_that_cannot_be_opened_says_why(answer: RestAnswer, error: type[Exception]) -> None:
    async with RawHerm().serve() as server:
        server.creates.append(answer)
        async with ADAPTER.connector(options_for(server, agent_id=AGENT, session_id=None)) as connector:
            with pytest.raises(error):
                await within(connector.create(Order()))


async def test_without_an_agent_no_session_is_opened() -> None:
    async with RawHerm().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        with pytest.raises(LinkRefused) as refusal:
            await connector.create(Order())
        assert refusal.value.terminal
        assert server.requests == []


@pytest.mark.requirement("H-jj")
@pytest.mark.parametrize("where", ["opens", "lists"])
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 410, 422])
async def test_a_refusal_of_stream_or_list_is_final(where: str, status: int) -> None:
    async with RawHerm().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        getattr(server, where).append(RestAnswer(status, {"error": "some_code", "message": "Some words."}))
        collector = Collector()
        with pytest.raises(LinkRefused, match=r"some_code: Some words\.") as refusal:
            await enter(connector.connect(SESSION, collector))
        assert refusal.value.terminal
        assert refusal.value.code == ("UNAUTHORIZED" if status in {401, 403} else f"HTTP_{status}")
        assert not collector.is_caught_up
        await within(server.disconnected())


@pytest.mark.parametrize("where", ["opens", "lists"])
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_trouble_that_may_pass_is_a_lost_link(where: str, status: int) -> None:
    async with RawHerm().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        headers = {"Retry-After": "17"}
        getattr(server, where).append(RestAnswer(status, {"error": "x", "message": "y"}, headers))
        collector = Collector()
        with pytest.raises(LinkLost, match=rf"HTTP {status}: x: y \(Retry-After: 17\)"):
            await enter(connector.connect(SESSION, collector))
        assert not collector.is_caught_up
        await within(server.disconnected())


async def test_a_runtime_that_is_not_ready_is_refused_for_now() -> None:
    async with RawHerm().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        server.opens.append(RestAnswer(409, {"error": "deployment_not_ready", "message": "Wait."}))
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(SESSION, Collector()))
        assert not refusal.value.terminal


@pytest.mark.parametrize(
    "answer",
    [
        RestAnswer(200, b"<html>login</html>", {"content-type": "text/html"}),
        RestAnswer(200, {"data": []}),
        RestAnswer(200, b"data: x\n\n", {"content-type": "text/event-stream", "content-encoding": "gzip"}),
    ],
)
async def test_an_answer_that_is_no_stream_ends_the_link(answer: RestAnswer) -> None:
    async with RawHerm().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        server.opens.append(answer)
        with pytest.raises(LinkLost):
            async with asyncio.timeout(PATIENCE), connector.connect(SESSION, Collector()) as link:
                raise LinkLost(await link.wait_closed())


async def test_a_stream_that_breaks_off_ends_the_link_with_a_reason() -> None:
    async with RawHerm().serve() as server, linked(server, RecordingBackend()) as link:
        await within(server.connected())
        await server.raw(ABORT)
        assert "the connection broke within a response" in await within(link.wait_closed())


async def test_a_server_that_does_not_answer_is_a_lost_link_in_time() -> None:
    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0)
        writers.append(writer)

    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    options = ADAPTER.options.model_validate(
        {
            "adapter": "herm",
            "url": f"http://127.0.0.1:{port}",
            "api_key": KEY,
            "session_id": SESSION,
            "connect_timeout": "100ms",
        }
    )
    try:
        async with ADAPTER.connector(options) as connector:
            with pytest.raises(LinkLost, match=r"no answer within 0\.1 s"):
                await enter(connector.connect(SESSION, Collector()))
    finally:
        for writer in writers:
            writer.close()
        silent.close()
        await silent.wait_closed()
