"""Refusals of the OpenHands connector: what was asked, what was answered, and which server it is."""

import asyncio
from typing import Any

import pytest

from adapters.openhands import ADAPTER
from adapters.openhands.wire import v1_version
from gateway.adapter.port import Order, Resting
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.link import Collector, enter, within
from tests.adapters.openhands.raw_openhands import CONVERSATION, KEY, RawOpenHands, state, thought
from tests.adapters.openhands.raw_v1 import V0_INFO, V1_INFO, RawAppServer, RawV1
from tests.pace import PATIENCE


def options_for(url: str, **more: Any) -> Any:
    given = {"adapter": "openhands", "url": url, "conversation_id": CONVERSATION, "session_api_key": KEY, **more}
    return ADAPTER.options.model_validate(given)


async def refused_by(url: str, **more: Any) -> LinkRefused:
    """Connect, and return how that was refused."""
    async with ADAPTER.connector(options_for(url, **more)) as connector:
        with pytest.raises(LinkRefused) as refused:
            await enter(connector.connect(CONVERSATION, Collector()))
    return refused.value


# Which protocol a server speaks ------------------------------------------------------------------------------


@pytest.mark.requirement("OV2", "OV4")
async def test_a_v1_server_is_named_as_one_and_not_as_a_wrong_key() -> None:
    async with RawV1().serve() as server:
        refused = await refused_by(server.url)
    assert refused.code == "WRONG_PROTOCOL"
    assert "this is an OpenHands V1 server (agent-server 1.58.0); adapter openhands speaks V0" in str(refused)
    assert f"GET {server.url}/socket.io/: HTTP 403" in str(refused)
    assert KEY not in str(refused)
    assert refused.terminal


@pytest.mark.requirement("OV72")
@pytest.mark.parametrize("pages", [True, False])
async def test_an_app_server_of_v1_is_named_with_what_to_configure(*, pages: bool) -> None:
    async with RawAppServer(pages=pages).serve() as server:
        refused = await refused_by(server.url)
        creating: dict[str, Any] = {"conversation_id": None, "conversation": {}}
        async with ADAPTER.connector(options_for(server.url, **creating)) as connector:
            with pytest.raises(LinkRefused) as not_created:
                await within(connector.create(Order()))
    for one in (refused, not_created.value):
        assert (one.code, one.terminal) == ("WRONG_PROTOCOL", True)
        assert "this is an OpenHands V1 server (app server 1.11.0)" in str(one)
        assert "adapter openhands-v1" in str(one)


async def test_an_app_server_whose_pages_answer_every_path_is_named_before_a_link_is_made() -> None:
    async with RawAppServer().serve() as server, ADAPTER.connector(options_for(server.url)) as connector:
        assert isinstance(connector, Resting)
        with pytest.raises(LinkRefused, match="OpenHands V1 server"):
            await within(connector.is_stopped(CONVERSATION))


async def test_an_app_server_without_a_document_is_known_by_its_count_unless_a_key_may_be_wrong() -> None:
    creating: dict[str, Any] = {"conversation_id": None, "conversation": {}}
    for count, code in ((200, "WRONG_PROTOCOL"), (401, "HTTP_404")):
        async with (
            RawAppServer(pages=False, document=False, count=count).serve() as server,
            ADAPTER.connector(options_for(server.url, **creating)) as connector,
        ):
            with pytest.raises(LinkRefused) as refused:
                await within(connector.create(Order()))
        assert refused.value.code == code


async def test_a_wrong_key_of_a_server_of_both_protocols_is_a_wrong_key() -> None:
    creating: dict[str, Any] = {"conversation_id": None, "conversation": {}}
    async with (
        RawAppServer(both=True).serve() as server,
        ADAPTER.connector(options_for(server.url, **creating)) as connector,
    ):
        with pytest.raises(LinkRefused) as refused:
            await within(connector.create(Order()))
    assert refused.value.code == "UNAUTHORIZED"


async def test_a_v1_server_is_named_before_a_link_is_made() -> None:
    async with RawV1(key=KEY).serve() as server, ADAPTER.connector(options_for(server.url)) as connector:
        assert isinstance(connector, Resting)
        with pytest.raises(LinkRefused, match="OpenHands V1 server") as refused:
            await within(connector.is_stopped(CONVERSATION))
    assert f"GET {server.url}/api/conversations/{CONVERSATION}: HTTP 422" in str(refused.value)


async def test_a_v1_server_is_named_when_a_conversation_is_to_be_created() -> None:
    options: dict[str, Any] = {"conversation_id": None, "conversation": {}}
    async with RawV1().serve() as server, ADAPTER.connector(options_for(server.url, **options)) as connector:
        with pytest.raises(LinkRefused, match="OpenHands V1 server") as refused:
            await within(connector.create(Order()))
    assert f"POST {server.url}/api/conversations: HTTP 401" in str(refused.value)


LIES: dict[str, object] = {
    "a V0 server": V0_INFO,
    "no object": [V1_INFO],
    "no JSON": b"<html>1.58.0</html>",
    "cut JSON": b'{"version": "1.58.0", "sdk_version": ',
    "a version that is no text": {"version": 1.58, "sdk_version": 1.58},
    "nothing": b"",
    "far too much": b'{"version": "1.58.0", "sdk_version": "1.58.0", "x": "' + b"x" * 4_000_000 + b'"}',
    "nested without end": b'{"version": "1", "sdk_version": "1", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_tells_nothing_usable_is_refused_as_before(lie: str) -> None:
    async with RawV1(LIES[lie]).serve() as server:
        refused = await refused_by(server.url)
    assert (refused.code, refused.terminal) == ("UNAUTHORIZED", True)
    assert f"GET {server.url}/socket.io/: HTTP 403" in str(refused)


@pytest.mark.parametrize("status", [302, 401, 404, 500])
async def test_only_an_answer_of_200_identifies_a_server(status: int) -> None:
    async with RawV1(status=status).serve() as server:
        server.headers.append((b"location", b"/elsewhere"))
        refused = await refused_by(server.url)
    assert refused.code == "UNAUTHORIZED"
    assert "/elsewhere" not in server.asked


async def test_a_server_that_never_tells_who_it_is_delays_a_refusal_by_seconds_only() -> None:
    async with RawV1(asyncio.Event()).serve() as server:
        async with asyncio.timeout(PATIENCE):
            refused = await refused_by(server.url)
    assert refused.code == "UNAUTHORIZED"
    assert server.asked[-1] == "/server_info"


@pytest.mark.parametrize(
    "info",
    [
        {**V1_INFO, "version": "1.0\n\x1b[31mEVIL"},
        {**V1_INFO, "version": "1" * 41 + "EVIL"},
        b'{"version": "\xffEVIL", "sdk_version": "1"}',
    ],
)
async def test_a_strange_version_is_not_repeated(info: object) -> None:
    async with RawV1(info).serve() as server:
        refused = await refused_by(server.url)
    assert "OpenHands V1 server (agent-server of an unknown version)" in str(refused)
    assert "EVIL" not in str(refused)


@pytest.mark.parametrize("info", [None, 7, "1.58.0", {}, {"version": "1.6.0"}, {"sdk_version": "1.0"}, V0_INFO])
def test_what_is_not_the_answer_of_a_v1_server_names_no_version(info: object) -> None:
    assert v1_version(info) is None


# What a refusal names ----------------------------------------------------------------------------------------


async def test_a_refusal_by_rest_names_method_address_and_status_and_no_key() -> None:
    server = RawOpenHands()
    async with server.serve():
        server.answers[f"/api/conversations/{CONVERSATION}"] = (418, {"message": f"no {KEY} today"})
        refused = await refused_by(server.url)
    assert str(refused).startswith(f"HTTP_418: GET {server.url}/api/conversations/{CONVERSATION}: HTTP 418: no ")
    assert KEY not in str(refused)


async def test_a_failure_by_rest_names_method_address_and_status_without_the_query() -> None:
    server = RawOpenHands()
    async with server.serve(), ADAPTER.connector(options_for(server.url)) as connector:
        server.answers[f"/api/conversations/{CONVERSATION}/events"] = (503, {"detail": "later"})
        with pytest.raises(LinkLost) as lost:
            await enter(connector.connect(CONVERSATION, Collector()))
    assert str(lost.value) == f"GET {server.url}/api/conversations/{CONVERSATION}/events: HTTP 503: later"


async def test_a_refused_creation_names_method_address_and_status() -> None:
    server = RawOpenHands()
    options: dict[str, Any] = {"conversation_id": None, "conversation": {}}
    async with server.serve(), ADAPTER.connector(options_for(server.url, **options)) as connector:
        path = "/api/conversations"
        server.answers[path] = (400, {"status": "error", "msg_id": "STATUS$ERROR_LLM_AUTHENTICATION", "message": "No"})
        with pytest.raises(LinkRefused) as refused:
            await within(connector.create(Order()))
        assert str(refused.value) == f"STATUS$ERROR_LLM_AUTHENTICATION: POST {server.url}{path}: HTTP 400: No"
        server.answers[path] = (405, b"")
        with pytest.raises(LinkRefused) as refused:
            await within(connector.create(Order()))
        assert str(refused.value) == f"HTTP_405: POST {server.url}{path}: HTTP 405: no reason given"


async def test_a_redirect_names_method_address_and_status_each_time() -> None:
    server = RawOpenHands()
    async with server.serve(), ADAPTER.connector(options_for(server.url)) as connector:
        server.answers[f"/api/conversations/{CONVERSATION}/events"] = (307, b"")
        for _ in range(2):
            with pytest.raises(LinkRefused) as refused:
                await enter(connector.connect(CONVERSATION, Collector()))
            assert f"GET {server.url}/api/conversations/{CONVERSATION}/events: HTTP 307" in str(refused.value)


# A server that speaks Socket.IO alone ------------------------------------------------------------------------


async def test_a_server_without_rest_is_caught_up_by_its_replay() -> None:
    # Side by side, since each takes the second after which a replay is over.
    await asyncio.gather(*map(_is_caught_up_by_its_replay, (404, 405, 501)))


async def _is_caught_up_by_its_replay(status: int) -> None:
    server = RawOpenHands()
    for number in range(3):
        server.keep(thought(number))
    server.keep(state(3, "awaiting_user_input"))
    path = f"/api/conversations/{CONVERSATION}"
    server.answers |= {path: (status, b"Not Found"), f"{path}/events": (status, b"Not Found")}
    collector = Collector()
    async with server.serve(), ADAPTER.connector(options_for(server.url)) as connector:
        assert isinstance(connector, Resting)
        assert not await within(connector.is_stopped(CONVERSATION))
        assert await within(connector.declared(CONVERSATION)) is None
        async with connector.connect(CONVERSATION, collector):
            assert [frame.payload["id"] for frame in collector.frames] == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [400, 401, 403, 410, 422])
async def test_a_server_that_refuses_rest_otherwise_is_refused(status: int) -> None:
    server = RawOpenHands()
    async with server.serve():
        server.answers[f"/api/conversations/{CONVERSATION}/events"] = (status, {"detail": "no"})
        refused = await refused_by(server.url)
    assert f"HTTP {status}" in str(refused)


async def test_an_agent_that_begins_on_our_join_is_seen_before_a_server_without_rest_counts_as_caught_up() -> None:
    server = RawOpenHands()
    server.keep(state(0, "awaiting_user_input"))
    path = f"/api/conversations/{CONVERSATION}"
    server.answers |= {path: (404, b""), f"{path}/events": (404, b"")}
    collector = Collector()

    def begin() -> None:
        asyncio.get_running_loop().call_later(0.1, lambda: telling.append(asyncio.ensure_future(loading())))

    async def loading() -> None:
        await server.happen(state(1, "loading"))

    telling: list[asyncio.Future[None]] = []
    server.before_join = begin
    async with (
        server.serve(),
        ADAPTER.connector(options_for(server.url)) as connector,
        connector.connect(CONVERSATION, collector),
    ):
        told = [frame.payload["extras"]["agent_state"] for frame in collector.frames]
        assert told == ["awaiting_user_input", "loading"]
