"""What a V1 link makes of the history: sequences, pages, gaps, silent sockets and large events."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.adapter.port import Frame
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.collector import Collector, enter, within
from tests.adapters.openhands.raw_agent_server import (
    KEY,
    Closing,
    RawAgentServer,
    Request,
    RestAnswer,
    agent_message,
    snapshot,
)
from tests.adapters.openhands.v1_links import SHORT, VERSIONS, cursor, ids, linked
from tests.pace import PATIENCE

PATIENT = replace(SHORT, first_frame=PATIENCE)
"""No tool keeps the socket silent, so that the link waits for what the server says first."""


def some(*numbers: int) -> list[dict[str, Any]]:
    return [agent_message(f"event-{number}", f"Text {number}") for number in numbers]


def names(*numbers: int) -> list[str]:
    return [f"event-{number}" for number in numbers]


@pytest.mark.requirement("OV5", "OV11")
async def test_a_session_socket_replays_after_the_sequence_and_hears_the_key_in_its_first_frame() -> None:
    async with RawAgentServer().serve() as server:
        server.stored = some(0, 1, 2)
        first = Collector()
        async with linked(server, first):
            server.store(*some(3))
            await first.wait_for(4)
        assert first.before_caught_up == [
            Frame("session", {"type": "durable", "seq": number, "event": event})
            for number, event in enumerate(some(0, 1, 2))
        ]
        assert first.cursors == ["0:event-0", "1:event-1", "2:event-2", "3:event-3"]
        server.stored += some(4)
        second = Collector()
        async with linked(server, second, resume_after="2:event-2"):
            pass
        assert ids(second) == names(3, 4)
        assert [one.query for one in server.opened] == [{"after_seq": "-1"}, {"after_seq": "2"}]
        assert server.first_frames == [{"type": "auth", "session_api_key": KEY}] * 2
        assert all(KEY not in str((one.path, one.query, one.headers)) for one in server.opened)


@pytest.mark.requirement("OV2", "OV21")
async def test_an_events_socket_gets_its_history_from_pages_after_the_last_id() -> None:
    async with RawAgentServer("1.44.0").serve() as server:
        server.stored, server.first_state = some(*range(7)), snapshot("idle")
        first = Collector()
        async with linked(server, first):
            server.store(*some(7))
            await first.wait_for(9)
        assert ids(first) == [*names(*range(7)), "snapshot-idle", *names(7)]
        assert all(frame.channel == "events" for frame in first.frames)
        assert cursor(first) == "event-7"
        server.stored += some(8)
        second = Collector()
        async with linked(server, second, resume_after="event-6"):
            pass
        assert ids(second) == [*names(7, 8), "snapshot-idle"]


@pytest.mark.requirement("OV9")
async def test_events_before_and_within_the_pages_come_once() -> None:
    """The events socket is subscribed before the pages are read, so both show the same events."""
    async with RawAgentServer("1.44.0").serve() as server:
        server.stored, server.first_state = some(0, 1), snapshot("running")
        record, number = Collector(), 2

        async def happen(request: Request) -> None:
            nonlocal number
            if request.query["limit"] != "1" and number < 12:
                server.store(*some(number))
                number += 1

        server.on_search = happen
        async with linked(server, record):
            server.on_search = None
            server.store(*some(number))
            await record.wait_for_frame(Frame("events", some(number)[0]))
        assert [name for name in ids(record) if name.startswith("event")] == names(*range(number + 1))


@pytest.mark.requirement("OV13")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_running_tool_that_silences_a_new_socket_does_not_delay_the_history(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        server.stored = some(0, 1, 2, 3, 4)
        server.is_free.clear()
        record = Collector()
        async with linked(server, record, resume_after="1:event-1" if version == "1.58.2" else "event-1"):
            assert record.is_caught_up
            assert ids(record) == names(2, 3, 4)
            # A parallel tool ends.
            server.stored += some(5)
            await record.wait_for(4)
            server.first_state = snapshot("running")
            server.is_free.set()
            server.stored += some(6)
            await record.wait_for(6)
            server.store(*some(7))
            await record.wait_for(7)
        assert [name for name in ids(record) if name.startswith("event")] == names(*range(2, 8))
        if version == "1.58.2":
            stored = [frame.payload for frame in record.frames if frame.payload["type"] == "durable"]
            assert [one["seq"] for one in stored] == [2, 3, 4, 5, 6, 7]


@pytest.mark.requirement("OV20")
async def test_an_event_too_large_for_the_socket_comes_from_a_page() -> None:
    async with RawAgentServer().serve() as server:
        server.largest = 2_000
        large = agent_message("event-1", "x" * 5_000)
        server.stored = [*some(0), large, *some(2)]
        record = Collector()
        async with linked(server, record):
            server.store(agent_message("event-3", "y" * 5_000))
            server.store(*some(4))
            await record.wait_for(5)
            server.store(*some(5))
            await record.wait_for(6)
        assert ids(record) == names(*range(6))
        assert record.frames[1] == Frame("session", {"type": "durable", "seq": 1, "event": large})
        assert record.times_caught_up == 1
        assert [one.query["after_seq"] for one in server.opened] == ["-1", "2", "4"]


@pytest.mark.requirement("OV11")
async def test_a_gap_in_the_sequences_is_filled_from_pages() -> None:
    async with RawAgentServer().serve() as server:
        server.stored = some(0)
        record = Collector()
        async with linked(server, record):
            server.stored += some(1, 2)
            server.store(*some(3))
            await record.wait_for(4)
        assert ids(record) == names(0, 1, 2, 3)
        assert record.cursors[-1] == "3:event-3"


@pytest.mark.requirement("OV11")
async def test_a_gap_that_the_store_has_too_is_accepted() -> None:
    """A file that the server cannot read is missing in its pages as well; the sequences go on behind it."""
    async with RawAgentServer().serve() as server:
        server.stored, server.missing = some(0, 2, 3), 1
        record = Collector()
        async with linked(server, record):
            assert ids(record) == names(0, 2, 3)
            server.store(*some(4))
            await record.wait_for(4)
        assert ids(record) == names(0, 2, 3, 4)
        assert record.cursors[-1] == "4:event-4"
        assert len(server.opened) == 2


@pytest.mark.requirement("OV65")
async def test_a_normal_close_that_nobody_explains_leads_to_the_pages_and_a_new_socket() -> None:
    async with RawAgentServer().serve() as server:
        record = Collector()
        async with linked(server, record) as link:
            server.stored += some(0, 1)
            server.close_all(1000)
            await record.wait_for(2)
            await within(server.connected(times=2))
            # Without news the next one would end the same way.
            server.close_all(1000)
            assert "1000" in await within(link.wait_closed())
        assert ids(record) == names(0, 1)


@pytest.mark.requirement("OV21")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cursor_that_the_store_lacks_leads_to_the_beginning(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        server.stored = some(10, 11, 12, 13)
        record = Collector()
        async with linked(server, record, resume_after="1:event-1" if version == "1.58.2" else "event-1"):
            assert ids(record) == names(10, 11, 12, 13)


async def test_a_conversation_that_begins_again_behind_a_known_cursor_is_read_from_its_beginning() -> None:
    async with RawAgentServer().serve() as server:
        server.stored = some(0, 1, 2)
        record, is_first = Collector(), True

        async def reset(_: Request) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                return
            server.stored = some(20)

        server.on_search = reset
        async with linked(server, record):
            server.on_search = None
            server.stored = some(20)
            server.close_all(1012)
        # The next link finds fewer events than its cursor says, although the page still knew it.
        answer = RestAnswer(200, {"items": some(2), "next_page_id": None})
        server.answers["events/search"].append(answer)
        again = Collector()
        async with linked(server, again, resume_after="2:event-2"):
            pass
        assert ids(again) == names(20)


async def test_a_conversation_that_begins_again_while_it_is_read_is_read_from_its_beginning() -> None:
    async with RawAgentServer("1.44.0").serve() as server:
        server.stored = some(0, 1, 2)

        async def reset(request: Request) -> None:
            if request.query["limit"] != "1":
                server.stored = some(20, 21)

        server.on_search = reset
        record = Collector()
        async with linked(server, record, resume_after="event-1"):
            assert ids(record) == names(20, 21)


async def test_a_cursor_of_an_older_server_is_read_again_from_the_beginning() -> None:
    async with RawAgentServer().serve() as server:
        server.stored = some(0, 1)
        record = Collector()
        async with linked(server, record, resume_after="event-1"):
            pass
        assert record.cursors == ["0:event-0", "1:event-1"]


PAGES: list[tuple[str, list[tuple[Any, str | None]], str]] = [
    ("repeat", [(some(0, 1), "event-2"), (some(2, 3), "event-2")], "repeat"),
    ("go back", [(some(0, 1), "event-2"), (some(2, 3), "event-4"), (some(4, 5), "event-2")], "repeat"),
    ("do not follow", [(some(0, 1), "event-2"), (some(0, 1), "event-2")], "follow"),
    ("are empty", [(some(0, 1), "event-2"), ([], "event-4")], "follow"),
    ("are no pages", [(None, None)], "not a page"),
]


@pytest.mark.requirement("OV21")
@pytest.mark.parametrize(("case", "pages", "reason"), PAGES, ids=[one[0] for one in PAGES])
async def test_pages_that_lead_nowhere_end_the_link_with_a_reason(
    case: str, pages: list[tuple[Any, str | None]], reason: str
) -> None:
    async with RawAgentServer("1.44.0").serve() as server:
        server.answers["events/search"].append(RestAnswer(200, {"items": [], "next_page_id": None}))
        for items, following in pages:
            body = "pages" if items is None else {"items": items, "next_page_id": following}
            server.answers["events/search"].append(RestAnswer(200, body))
        with pytest.raises(LinkLost, match=reason):
            async with linked(server, Collector()):
                pass


@pytest.mark.requirement("OV21")
async def test_pages_that_never_end_are_left_after_the_limit() -> None:
    async with RawAgentServer("1.44.0").serve() as server:
        server.stored = some(*range(50))
        tuning = replace(SHORT, page=1, pages=20)
        with pytest.raises(LinkLost, match="longer than 20 pages"):
            async with linked(server, Collector(), tuning=tuning):
                pass


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_quiet_socket_asks_whether_the_conversation_still_exists(version: str) -> None:
    """Its sockets stay open and silent after a deletion (trap 13)."""
    async with RawAgentServer(version).serve() as server:
        server.first_state = snapshot("idle")
        async with linked(server, Collector()) as link:
            await within(server.asked("/events/count", times=2))
            server.answers["events/count"].append(RestAnswer(404, {"detail": "Not Found"}))
            assert "NO_CONVERSATION" in await within(link.wait_closed())


async def test_a_quiet_server_whose_count_fails_keeps_the_link() -> None:
    async with RawAgentServer().serve() as server, linked(server, Collector()) as link:
        server.answers["events/count"].append(RestAnswer(500, {"detail": "Internal Server Error"}))
        await within(server.asked("/events/count", times=3))
        await link.prove()


@pytest.mark.requirement("OV6", "OV7")
@pytest.mark.parametrize(
    ("closing", "code"),
    [
        (403, "NO_WEBSOCKET"),
        (Closing(4001, "Authentication failed"), "UNAUTHORIZED"),
        (Closing(4004, "Conversation not found"), "NO_CONVERSATION"),
        (Closing(1008), "NO_CONVERSATION"),
    ],
)
async def test_ends_that_a_retry_cannot_change_are_refusals(closing: "Closing | int", code: str) -> None:
    async with RawAgentServer().serve() as server:
        server.closes.append(closing)
        with pytest.raises(LinkRefused) as refusal:
            await enter(linked(server, Collector(), tuning=PATIENT))
        assert (refusal.value.code, refusal.value.terminal) == (code, True)
        assert KEY not in str(refusal.value)


@pytest.mark.requirement("OV7")
@pytest.mark.parametrize(
    "closing", [Closing(1011), Closing(1012), Closing(1013, "Too many connections for this conversation")]
)
async def test_ends_that_pass_are_losses(closing: Closing) -> None:
    async with RawAgentServer().serve() as server:
        server.closes.append(closing)
        with pytest.raises(LinkLost, match=str(closing.code)):
            await enter(linked(server, Collector(), tuning=PATIENT))


@pytest.mark.requirement("OV12", "OV22")
@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_stored_has_no_cursor(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        server.first_state = snapshot("idle")
        record = Collector()
        async with linked(server, record):
            await record.wait_for(1)
            server.store(*some(0))
            if version == "1.58.2":
                server.send({"type": "delta", "item_id": "event-1", "attempt": 1, "order": 0, "content": "I "})
            else:
                server.send({"kind": "StreamingDeltaEvent", "id": "delta-1", "content": "I "})
            server.store(*some(1))
            await record.wait_for(4)
        assert [one is None for one in record.cursors] == [True, False, True, False]
        assert [frame.live for frame in record.frames] == [True, False, True, False]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_text_that_is_no_json_ends_nothing(version: str) -> None:
    async with RawAgentServer(version).serve() as server:
        server.first_state = snapshot("idle")
        record = Collector()
        async with linked(server, record):
            await record.wait_for(1)
            server.send("{not json")
            server.send('{"kind": 7, "id": ["x"]}')
            server.send('{"acp_session_id": "as_canary", ')
            server.store(*some(0))
            await record.wait_for_frame(
                Frame("session", {"type": "durable", "seq": 0, "event": some(0)[0]})
                if version == "1.58.2"
                else Frame("events", some(0)[0])
            )
        assert "{not json" in repr(record.frames)
        assert "as_canary" not in repr(record.frames)


@pytest.mark.requirement("OV14")
async def test_a_server_that_answers_no_ping_ends_the_link() -> None:
    async with RawAgentServer().serve() as server:
        tuning = replace(SHORT, quiet=60.0, ping=0.2)
        async with linked(server, Collector(), tuning=tuning) as link:
            server.freeze()
            assert await within(link.wait_closed())


async def test_an_unknown_conversation_is_refused_before_any_socket() -> None:
    async with RawAgentServer().serve() as server:
        server.answers["events/search"].append(RestAnswer(404, {"detail": "Conversation not found"}))
        with pytest.raises(LinkRefused, match="NO_CONVERSATION"):
            await enter(linked(server, Collector()))
        assert not server.opened
