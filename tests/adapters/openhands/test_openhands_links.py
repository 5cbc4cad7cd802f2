"""The OpenHands connector against a server that speaks raw JSON and keeps to the rules of the real one."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from pydantic import SecretStr

from adapters.openhands import ADAPTER, wire
from gateway.adapter.port import LARGEST_FRAME, Adapter, Connector, Frame, McpEndpoint, Order, Resting, RestTimes, Tool
from gateway.errors import LinkLost, LinkRefused, MalformedFrame
from gateway.links.frame_memory import FRAMES
from gateway.testing.conformance.link import Collector, LinkSuite, Peer, enter, within
from tests.adapters.openhands.raw_openhands import (
    CONVERSATION,
    KEY,
    RawOpenHands,
    at,
    null,
    socketio,
    state,
    thought,
)

FAILED = (500, b"Internal Server Error")
"""What a real server says where it fails inside."""


def options_for(server: RawOpenHands, **more: Any) -> Any:
    given = {"adapter": "openhands", "url": server.url, "conversation_id": CONVERSATION, **more}
    return ADAPTER.options.model_validate(given)


@asynccontextmanager
async def linked(
    server: RawOpenHands, collector: Collector, *, resume_after: str | None = None, **more: Any
) -> AsyncGenerator[Any]:
    async with (
        ADAPTER.connector(options_for(server, **more)) as connector,
        connector.connect(CONVERSATION, collector, resume_after=resume_after) as link,
    ):
        await within(server.connected())
        yield link


def ids(collector: Collector) -> list[int]:
    return [frame.payload["id"] for frame in collector.frames]


def refused(*arguments: Any) -> BaseException:
    return socketio.exceptions.ConnectionRefusedError(*arguments)


def message(text: str) -> Frame:
    return Frame("oh_user_action", {"action": "message", "args": {"content": text, "image_urls": []}})


@pytest.mark.requirement("OH5")
class TestOpenHandsLink(LinkSuite):
    adapter: Adapter = ADAPTER
    native_id = CONVERSATION
    overlap = wire.OVERLAP
    key = KEY

    def serve(self) -> AbstractAsyncContextManager[Peer]:
        return RawOpenHands(key=KEY).serve()

    def connector(self, peer: Peer) -> AbstractAsyncContextManager[Connector]:
        options = options_for(cast("RawOpenHands", peer), ack_timeout="3s", session_api_key=KEY)
        return self.adapter.connector(options)

    def inbound(self, number: int, padding: str = "") -> Frame:
        return Frame("oh_event", thought(number, padding))

    def outbound(self, number: int, padding: str = "") -> Frame:
        return message(f"{number} {padding}")


# The handshake -----------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH6", "OH13")
async def test_everything_travels_in_the_query_and_the_key_to_rest_in_a_header() -> None:
    async with (
        RawOpenHands(key=KEY).serve() as server,
        linked(server, Collector(), session_api_key=KEY, providers_set=["github", "gitlab"]),
    ):
        query = server.queries[0]
        assert query["conversation_id"] == [CONVERSATION]
        assert query["latest_event_id"] == ["-1"]
        assert query["session_api_key"] == [KEY]
        assert query["providers_set"] == ["github,gitlab"]
        assert server.requests[0][2]["x-session-api-key"] == KEY


@pytest.mark.requirement("OH9", "OH13")
@pytest.mark.parametrize("key", [None, ""])
async def test_an_empty_key_is_never_sent(key: str | None) -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector(), session_api_key=key):
        assert "session_api_key" not in server.queries[0]
        assert "providers_set" not in server.queries[0]
        assert "x-session-api-key" not in server.requests[0][2]


@pytest.mark.requirement("OH62")
async def test_the_path_of_the_endpoint_is_an_option() -> None:
    async with (
        RawOpenHands().serve(path="runtime/x/socket.io") as server,
        linked(server, Collector(), path="/runtime/x/socket.io"),
    ):
        assert len(server.queries) == 1


@pytest.mark.requirement("OH62")
async def test_rest_may_live_elsewhere_than_the_socket() -> None:
    async with RawOpenHands().serve() as server, RawOpenHands().serve() as other:
        other.keep(thought(0))
        collector = Collector()
        async with linked(server, collector, rest_url=other.url):
            assert ids(collector) == [0]
            assert server.requests == []


@pytest.mark.requirement("OH14", "OH18", "OH20")
@pytest.mark.parametrize(
    ("cursor", "asked"),
    [
        (None, "-1"),
        ("0", "-1"),
        ("49", "-1"),
        ("50", "0"),
        ("250", "200"),
        ("junk", "-1"),
        ("", "-1"),
        ("9" * 30, "-1"),
    ],
)
async def test_each_connect_asks_from_fifty_behind_its_own_cursor(cursor: str | None, asked: str) -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector(), resume_after=cursor):
        assert server.queries[0]["latest_event_id"] == [asked]


@pytest.mark.requirement("OH12")
@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\\b", "a b", "a\n", "x" * 101, "\x7f"])
async def test_a_name_that_would_write_elsewhere_is_refused_before_anything_is_sent(name: str) -> None:
    async with RawOpenHands().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(name, Collector()))
        assert (refusal.value.code, refusal.value.terminal) == ("BAD_CONVERSATION_ID", True)
        assert server.queries == []


# Refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH10", "OH11")
@pytest.mark.parametrize(
    ("arguments", "code", "terminal"),
    [
        (("invalid_session_api_key",), "UNAUTHORIZED", True),
        (("No conversation_id in query params",), "NO_CONVERSATION_ID", True),
        (
            ("Settings not found", {"msg_id": "CONFIGURATION$SETTINGS_NOT_FOUND"}),
            "CONFIGURATION$SETTINGS_NOT_FOUND",
            True,
        ),
        (("Settings not found",), "CONFIGURATION$SETTINGS_NOT_FOUND", True),
        (("Failed to access conversation events: boom",), "REFUSED", False),
        (("Failed to join conversation",), "REFUSED", False),
    ],
)
async def test_a_refusal_with_an_answer_is_told_by_its_code(
    arguments: tuple[Any, ...], code: str, terminal: bool
) -> None:
    async with RawOpenHands().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        server.refusal = refused(*arguments)
        with pytest.raises(LinkRefused) as refusal:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert (refusal.value.code, refusal.value.terminal) == (code, terminal)
        assert code != "REFUSED" or arguments[0] in str(refusal.value)


@pytest.mark.requirement("OH10")
async def test_missing_settings_are_told_with_the_way_to_mend_them_although_a_replay_came_before() -> None:
    collector = Collector()
    async with RawOpenHands().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        server.keep(thought(0))
        server.refusal = refused("Settings not found", {"msg_id": "CONFIGURATION$SETTINGS_NOT_FOUND"})
        with pytest.raises(LinkRefused, match="OpenHands settings"):
            await enter(connector.connect(CONVERSATION, collector))
        assert ids(collector) == [0]
        assert not collector.is_caught_up


@pytest.mark.requirement("OH6", "OH13")
async def test_a_refusal_without_an_answer_is_told_after_the_wait_with_what_it_may_mean() -> None:
    server = RawOpenHands()
    server.silent.set()
    async with server.serve(), ADAPTER.connector(options_for(server, wait_timeout="200ms")) as connector:
        with pytest.raises(LinkRefused, match="check session_api_key") as refusal:
            await enter(connector.connect(CONVERSATION, Collector()))
        assert (refusal.value.code, refusal.value.terminal) == ("NO_ANSWER", False)


@pytest.mark.requirement("OH13")
async def test_a_wrong_key_shows_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("engineio.client").setLevel(logging.DEBUG)
    logging.getLogger("socketio.client").setLevel(logging.DEBUG)
    told: list[BaseException] = []
    async with RawOpenHands(key="another").serve() as server:
        options = options_for(server, session_api_key=KEY)
        creating = ADAPTER.options.model_validate(
            {"adapter": "openhands", "url": server.url, "conversation": {}, "session_api_key": KEY}
        )
        async with ADAPTER.connector(options) as connector:
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(CONVERSATION, Collector()))
            told.append(refusal.value)
            server.refusal = refused(f"Failed with {KEY}")
            with pytest.raises(LinkRefused) as refusal:
                await enter(connector.connect(CONVERSATION, Collector()))
            told.append(refusal.value)
        async with ADAPTER.connector(creating) as connector:
            with pytest.raises(LinkRefused) as refusal:
                await within(connector.create(Order()))
            assert refusal.value.code == "UNAUTHORIZED"
            told.append(refusal.value)
            await server.stop()
            with pytest.raises(LinkLost) as loss:
                await enter(connector.connect(CONVERSATION, Collector()))
            told.append(loss.value)
        assert "secret" not in repr(options)
    for exc in told:
        chain: BaseException | None = exc
        while chain is not None:
            assert "secret" not in repr(chain)
            chain = chain.__cause__ or chain.__context__
    assert "secret" not in caplog.text


# Replay, live and store --------------------------------------------------------------------------------------


@pytest.mark.requirement("OH7", "OH14", "OH15", "OH16")
async def test_a_replay_comes_before_the_connection_stands_and_its_last_state_takes_its_own_place() -> None:
    server = RawOpenHands()
    for event in (state(0, "loading"), thought(1), state(2, "running"), thought(3), null(4), thought(5)):
        server.keep(event)
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert collector.is_caught_up
        assert ids(collector) == [1, 2, 3, 5]
        assert collector.frames[1].payload["source"] == "environment"
        assert collector.cursors == ["1", "2", "3", "5"]


@pytest.mark.requirement("OH3", "OH63")
async def test_what_falls_between_the_replay_and_the_join_is_fetched_from_the_store() -> None:
    server = RawOpenHands()
    server.keep(thought(0))
    server.keep(state(1, "running"))
    recall: dict[str, Any] = {**thought(3), "action": "recall", "args": {}}

    def meanwhile() -> None:
        server.before_join = None
        for event in (thought(2), recall, null(4), state(5, "finished"), thought(6)):
            server.keep(event)

    server.before_join = meanwhile
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert ids(collector) == [0, 1, 2, 5, 6]
        assert collector.is_caught_up
        assert collector.cursors[-1] == "6"


@pytest.mark.requirement("OH15", "OH63")
async def test_the_store_brings_no_state_that_has_gone_by() -> None:
    server = RawOpenHands()
    for event in (state(0, "loading"), state(1, "running"), thought(2), state(3, "awaiting_user_input")):
        server.keep(event)
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert ids(collector) == [2, 3]


@pytest.mark.requirement("OH17", "OH19")
async def test_the_same_event_of_replay_and_live_comes_once_and_another_with_its_id_comes_too() -> None:
    server = RawOpenHands()
    server.keep(state(0, "loading"))
    collector = Collector()
    async with server.serve(), linked(server, collector):
        await server.say(Frame("oh_event", {**state(0, "loading"), "source": "agent"}))
        await server.say(Frame("oh_event", {**state(0, "running"), "timestamp": at(9)}))
        await server.say(Frame("oh_event", thought(1)))
        await collector.wait_for(3)
        assert [(frame.payload["id"], frame.payload["timestamp"]) for frame in collector.frames] == [
            (0, at(0)),
            (0, at(9)),
            (1, at(1)),
        ]


@pytest.mark.requirement("OH18")
async def test_live_events_out_of_order_all_come_and_the_cursor_is_the_highest_id() -> None:
    collector = Collector()
    async with RawOpenHands().serve() as server, linked(server, collector):
        for number in (5, 7, 6, 8):
            await server.happen(thought(number))
        await collector.wait_for(4)
        assert ids(collector) == [5, 7, 6, 8]
        assert collector.cursors == ["5", "7", "7", "8"]


@pytest.mark.requirement("OH28", "OH31")
async def test_what_is_no_event_passes_without_a_cursor_and_as_often_as_it_is_said() -> None:
    status = {"status_update": True, "type": "info", "id": "STATUS$READY", "message": ""}
    collector = Collector()
    async with RawOpenHands().serve() as server, linked(server, collector):
        await server.say(Frame("oh_event", status))
        await server.say(Frame("oh_event", status))
        assert await collector.wait_for(2) == [Frame("oh_event", status)] * 2
        assert collector.cursors == [None, None]


@pytest.mark.requirement("OH14", "OH21")
async def test_a_conversation_that_was_begun_anew_under_its_name_is_read_from_the_start() -> None:
    server = RawOpenHands()
    for event in (state(0, "loading"), thought(1)):
        server.keep(event)
    collector = Collector()
    async with server.serve(), linked(server, collector, resume_after="500"):
        assert ids(collector) == [0, 1]
        await server.happen(thought(2))
        await collector.wait_for(3)
        assert collector.cursors[-1] == "2"


@pytest.mark.requirement("OH40")
@pytest.mark.parametrize(
    ("status", "meanwhile", "starting"),
    [
        ("STARTING", None, True),
        ("STARTING", "awaiting_user_input", None),
        ("RUNNING", None, False),
        ("STOPPED", None, None),
        (None, None, None),
        (FAILED, None, None),
    ],
)
async def test_a_link_finds_out_whether_the_agent_is_still_starting(
    status: str | tuple[int, bytes] | None, meanwhile: str | None, starting: bool | None
) -> None:
    server = RawOpenHands()
    # The state of the last agent loop, which a replay shows although another one begins now.
    server.keep(state(0, "awaiting_user_input"))
    if status is not None:
        answer = (200, {"status": status}) if isinstance(status, str) else status
        server.answers[f"/api/conversations/{CONVERSATION}"] = answer
    if meanwhile is not None:
        server.before_join = lambda: server.keep(state(1, meanwhile))
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert collector.is_caught_up
        assert collector.is_starting is starting


@pytest.mark.requirement("OH21", "OH61")
@pytest.mark.parametrize(
    ("answer", "stopped"),
    [
        ((200, {"status": "STOPPED"}), True),
        ((200, {"status": "ARCHIVED"}), True),
        ((200, None), True),
        ((200, {"status": "RUNNING"}), False),
        ((200, {"status": "STARTING"}), False),
        ((404, {"detail": "Not Found"}), False),
    ],
)
async def test_a_conversation_is_stopped_where_the_server_says_that_no_agent_runs(
    answer: tuple[int, Any], stopped: bool
) -> None:
    server = RawOpenHands()
    server.answers[f"/api/conversations/{CONVERSATION}"] = answer
    async with server.serve(), ADAPTER.connector(options_for(server)) as connector:
        assert isinstance(connector, Resting)
        assert await connector.is_stopped(CONVERSATION) is stopped
        assert server.queries == []
        assert connector.rest_times == RestTimes()


@pytest.mark.requirement("OH61")
@pytest.mark.parametrize("answer", [FAILED, (404, {"detail": "Not Found"})])
@pytest.mark.parametrize(("words", "stopped"), [(("running", "stopped"), True), (("stopped", "loading"), False)])
async def test_a_server_that_does_not_say_how_a_conversation_stands_has_stopped_what_it_left_so(
    answer: tuple[int, Any], words: tuple[str, str], stopped: bool
) -> None:
    server = RawOpenHands()
    server.answers[f"/api/conversations/{CONVERSATION}"] = answer
    for number, word in enumerate(words):
        server.keep(state(2 * number, word))
        server.keep(thought(2 * number + 1))
    async with server.serve(), ADAPTER.connector(options_for(server)) as connector:
        assert isinstance(connector, Resting)
        assert await connector.is_stopped(CONVERSATION) is stopped
        assert server.queries == []


@pytest.mark.requirement("OH61")
async def test_a_server_that_fails_once_is_asked_again_how_a_conversation_stands() -> None:
    server = RawOpenHands()
    path = f"/api/conversations/{CONVERSATION}"
    server.answers_once[path] = FAILED
    server.answers[path] = (200, {"status": "STARTING"})
    # The state of the last agent loop, which a replay shows although another one begins now.
    server.keep(state(0, "awaiting_user_input"))
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert collector.is_starting is True


@pytest.mark.requirement("OH63")
async def test_a_long_stretch_is_fetched_page_by_page_within_bounds() -> None:
    server = RawOpenHands()

    def meanwhile() -> None:
        for number in range(1, 251):
            server.keep(thought(number))

    server.keep(thought(0))
    server.before_join = meanwhile
    collector = Collector()
    async with server.serve(), linked(server, collector):
        assert ids(collector) == list(range(251))
        assert [path.split("?")[1] for _, path, _, _ in server.requests if "/events?" in path] == [
            "start_id=1&limit=100",
            "start_id=101&limit=100",
            "start_id=201&limit=100",
        ]


@pytest.mark.requirement("OH63", "OH64")
@pytest.mark.parametrize(
    "answer",
    [
        (429, {"detail": "slow down"}),
        (500, b"no JSON"),
        (200, []),
        (200, {"events": {}}),
        (200, {"events": [], "has_more": True}),
        (200, {"events": [{"id": "x"}], "has_more": True}),
    ],
)
async def test_a_store_that_cannot_be_read_leaves_the_session_behind(answer: tuple[int, Any]) -> None:
    server = RawOpenHands()
    server.keep(thought(0))
    server.answers[f"/api/conversations/{CONVERSATION}/events"] = answer
    collector = Collector()
    async with server.serve(), ADAPTER.connector(options_for(server)) as connector:
        with pytest.raises(LinkLost):
            await enter(connector.connect(CONVERSATION, collector))
        assert not collector.is_caught_up
        await within(server.disconnected())


@pytest.mark.requirement("OH63")
async def test_one_unspeakable_event_of_the_store_does_not_cost_the_others() -> None:
    server, collector = RawOpenHands(), Collector()
    first = {**thought(0), "message": "?"}
    page = json.dumps({"events": [first, thought(1)], "has_more": False}).replace('"?"', '"\\ud800"')
    server.answers[f"/api/conversations/{CONVERSATION}/events"] = (200, page.encode())
    async with server.serve(), linked(server, collector):
        broken, following = collector.frames
        assert following.payload["id"] == 1
        with pytest.raises(MalformedFrame):
            ADAPTER.codec().decode(broken)


@pytest.mark.requirement("OH21", "OH65")
async def test_a_server_that_evicts_us_ends_the_link_with_a_reason_and_no_second_connection() -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector()) as link:
        await server.drop()
        assert "server" in await within(link.wait_closed())
        assert len(server.queries) == 1


@pytest.fixture
def large_frames() -> Iterator[None]:
    """Allow the largest frames."""
    frames = FRAMES.get()
    before, frames.largest = frames.largest, LARGEST_FRAME
    yield
    frames.largest = before


@pytest.mark.requirement("OH58")
@pytest.mark.usefixtures("large_frames")
async def test_an_event_of_over_four_mebibytes_arrives() -> None:
    collector = Collector()
    large = thought(0, "x" * (9 * 1024 * 1024))
    async with RawOpenHands().serve() as server, linked(server, collector):
        await server.happen(large)
        assert await collector.wait_for(1) == [Frame("oh_event", large)]


@pytest.mark.requirement("OH58")
async def test_a_message_that_the_server_would_drop_is_refused_here() -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector()) as link:
        receipt = await within(link.send_all([message("x" * (4 * 1024 * 1024))]))
        assert receipt.state == "refused"
        assert (await within(link.send_all([message("small")]))).state == "delivered"


# Sending -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("OH8", "OH2")
@pytest.mark.parametrize("channel", ["oh_user_action", "oh_action"])
async def test_a_message_is_delivered_when_the_server_acknowledges_it(channel: str) -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector()) as link:
        said = Frame(channel, {"action": "message", "args": {"content": "Hi"}})
        assert (await within(link.send_all([said]))).state == "delivered"
        assert await within(server.hear()) == said


async def test_frames_of_one_call_are_acknowledged_together() -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector()) as link:
        said = [message(text) for text in ("one", "two")]
        assert (await within(link.send_all(said))).state == "delivered"
        assert [await within(server.hear()) for _ in said] == said


@pytest.mark.requirement("OH8", "OH56")
async def test_without_an_acknowledgement_it_is_only_sent_and_the_link_lives_on() -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector(), ack_timeout="1s") as link:
        server.acknowledges = False
        receipt = await within(link.send_all([message("Hi")]))
        assert receipt.state == "sent"
        assert "no acknowledgement" in receipt.reason
        server.acknowledges = True
        assert (await within(link.send_all([message("Hi")]))).state == "delivered"


@pytest.mark.requirement("OH8")
async def test_a_link_that_ends_before_the_acknowledgement_leaves_the_send_open() -> None:
    async with RawOpenHands().serve() as server, linked(server, Collector()) as link:
        server.acknowledges = False
        sending = asyncio.ensure_future(link.send_all([message("Hi")]))
        await within(server.hear())
        await server.drop()
        with pytest.raises(LinkLost):
            await within(sending)


# Creating ----------------------------------------------------------------------------------------------------


def creating(server: RawOpenHands, **conversation: Any) -> Any:
    given = {"adapter": "openhands", "url": server.url, "conversation": conversation, "session_api_key": KEY}
    return ADAPTER.options.model_validate(given)


@pytest.mark.requirement("OH13", "OH60")
async def test_a_conversation_is_created_as_the_options_say() -> None:
    async with RawOpenHands(key=KEY).serve() as server:
        options = creating(server, repository="owner/name", git_provider="github", initial_user_msg="Hi")
        assert options.creates
        assert options.native_id is None
        async with ADAPTER.connector(options) as connector:
            created = await within(connector.create(Order({"a": "b"}, instructions="Be brief.")))
        assert created.native_id == CONVERSATION
        method, path, headers, body = server.requests[0]
        assert (method, path) == ("POST", "/api/conversations?")
        assert headers["x-session-api-key"] == KEY
        assert json.loads(body) == {
            "repository": "owner/name",
            "git_provider": "github",
            "initial_user_msg": "Hi",
            "conversation_instructions": "Be brief.",
        }
        assert created.losses == ()


TICKET = "dtt_a-ticket-of-one-conversation"


def order_with_tools(longest: timedelta = timedelta(seconds=90)) -> Order:
    endpoint = McpEndpoint("https://gateway.example/mcp/t/1", SecretStr(TICKET), longest)
    return Order(tools=(Tool("ask", "Ask.", {}),), mcp=endpoint)


@pytest.mark.requirement("OH60")
@pytest.mark.parametrize(("longest", "told"), [(5, 60), (120.2, 121), (7200, 3600)])
async def test_a_conversation_is_told_an_mcp_server_and_for_how_long_its_calls_may_take(
    longest: float, told: int
) -> None:
    async with RawOpenHands().serve() as server, ADAPTER.connector(creating(server)) as connector:
        created = await within(connector.create(order_with_tools(timedelta(seconds=longest))))
        assert (created.tools, created.losses) == (("ask",), ())
        said = {"url": "https://gateway.example/mcp/t/1", "api_key": TICKET, "timeout": told}
        assert json.loads(server.requests[0][3]) == {"mcp_config": {"shttp_servers": [said]}}


@pytest.mark.parametrize("status", [400, 503])
async def test_a_refusal_that_quotes_the_creation_quotes_no_ticket(status: int) -> None:
    async with RawOpenHands().serve() as server:
        server.answers["/api/conversations"] = (status, {"message": f"no such key: {TICKET}", "msg_id": TICKET})
        async with ADAPTER.connector(creating(server)) as connector:
            with pytest.raises((LinkRefused, LinkLost)) as refusal:
                await within(connector.create(order_with_tools()))
    assert TICKET not in repr(refusal.value)
    assert "no such key: ***" in str(refusal.value)


@pytest.mark.requirement("OH60")
@pytest.mark.parametrize(
    ("msg_id", "said"),
    [
        ("CONFIGURATION$SETTINGS_NOT_FOUND", "OpenHands settings"),
        ("STATUS$ERROR_LLM_AUTHENTICATION", "Error authenticating"),
    ],
)
async def test_what_the_settings_lack_is_told_by_its_own_id(msg_id: str, said: str) -> None:
    async with RawOpenHands().serve() as server:
        server.answers["/api/conversations"] = (
            400,
            {"status": "error", "message": "Error authenticating with the LLM", "msg_id": msg_id},
        )
        async with ADAPTER.connector(creating(server)) as connector:
            with pytest.raises(LinkRefused, match=said) as refusal:
                await within(connector.create(Order()))
            assert (refusal.value.code, refusal.value.terminal) == (msg_id, True)


async def test_a_key_that_is_not_taken_is_told_as_that_whatever_id_the_server_gives_it() -> None:
    async with RawOpenHands().serve() as server:
        server.answers["/api/conversations"] = (401, {"message": "no", "msg_id": "STATUS$ERROR"})
        async with ADAPTER.connector(creating(server)) as connector:
            with pytest.raises(LinkRefused) as refusal:
                await within(connector.create(Order()))
            assert (refusal.value.code, refusal.value.terminal) == ("UNAUTHORIZED", True)


@pytest.mark.requirement("OH60", "OH64")
@pytest.mark.parametrize(
    "answer",
    [
        (200, {"status": "ok", "conversation_id": None}),
        (200, {"status": "ok", "conversation_id": "../x"}),
        (200, []),
        (429, {"detail": "Too many requests"}),
        (429, {"message": "Too many requests", "msg_id": "STATUS$ERROR"}),
        (503, {"message": "Not yet", "msg_id": "CONFIGURATION$SETTINGS_NOT_FOUND"}),
        (503, b"<html>"),
    ],
)
async def test_an_answer_that_names_no_conversation_is_a_lost_link(answer: tuple[int, Any]) -> None:
    async with RawOpenHands().serve() as server:
        server.answers["/api/conversations"] = answer
        async with ADAPTER.connector(creating(server)) as connector:
            with pytest.raises(LinkLost):
                await within(connector.create(Order()))


async def test_without_a_conversation_to_create_none_is_asked_for() -> None:
    async with RawOpenHands().serve() as server, ADAPTER.connector(options_for(server)) as connector:
        with pytest.raises(LinkRefused) as refusal:
            await within(connector.create(Order()))
        assert (refusal.value.code, refusal.value.terminal) == ("NO_CONVERSATION", True)
        assert server.requests == []


async def test_our_tools_and_a_name_are_not_told_which_is_a_loss_each() -> None:
    tools = (Tool("ask_for_cards", "Ask.", {"type": "object"}),)
    async with RawOpenHands(key=KEY).serve() as server, ADAPTER.connector(creating(server)) as connector:
        created = await within(connector.create(Order(tools=tools, name="Table 4")))
        assert created.tools == ()
        assert [(loss.how, loss.path) for loss in created.losses] == [("dropped", "/tools"), ("dropped", "/name")]
