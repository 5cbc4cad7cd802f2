"""Nothing is lost, doubled or taken for news between stream and history, wherever the connection breaks."""

import asyncio
import json
from typing import Any

import pytest

from adapters.herm import ADAPTER
from adapters.herm.tuning import HermTuning
from gateway.errors import LinkLost, LinkRefused
from gateway.testing.conformance.link import enter, within
from tests.adapters.herm.links import (
    CONVERSATION,
    RUNNING,
    TITLE,
    RecordingBackend,
    call,
    idle,
    linked,
    name_of,
    options_for,
    result,
    text,
)
from tests.adapters.herm.raw_herm import ABORT, SESSION, RawHerm, RestAnswer, is_live


async def test_an_old_conversation_is_all_history_sorted_and_ends_before_the_news() -> None:
    async with RawHerm().serve() as server:
        for payload in CONVERSATION:
            await server.happen(payload)
        record = RecordingBackend()
        async with linked(server, record):
            await server.happen(text("news"))
            await record.wait_for(len(server.stored))
        assert record.history == [one["id"] for one in server.stored[:-1]]
        assert record.news == [server.stored[-1]["id"]]
        assert record.cursors == [str(one["sequence"]) for one in server.stored]


@pytest.mark.requirement("H-g", "H9")
@pytest.mark.parametrize("ending", [None, ABORT, b'data: {"id": "evt_half'], ids=["politely", "broken", "half"])
@pytest.mark.parametrize("cut", range(len(CONVERSATION) + 1))
async def test_a_stream_cut_anywhere_loses_doubles_and_confuses_nothing(cut: int, ending: bytes | None) -> None:
    missed, late = CONVERSATION[cut : cut + 3], CONVERSATION[cut + 3 :]
    first, second = RecordingBackend(), RecordingBackend()
    async with RawHerm().serve() as server:
        async with linked(server, first) as opened:
            seen = [await server.happen(payload) for payload in CONVERSATION[:cut]]
            await first.wait_for(len(seen))
            if ending is not None:
                await server.raw(ending)
            await server.drop()
            await within(opened.wait_closed())
        away = [await server.happen(payload) for payload in missed]
        async with linked(server, second, resume_after=first.cursor):
            news = [await server.happen(payload) for payload in late]
            await second.wait_for(len([one for one in away if not is_live(one["payload"])]) + len(news))
    assert first.history == []
    assert first.news == [one["id"] for one in seen]
    assert second.history == [one["id"] for one in away if not is_live(one["payload"])]
    assert second.news == [one["id"] for one in news]


@pytest.mark.requirement("H-g", "H-h")
@pytest.mark.parametrize("cut", range(0, len(CONVERSATION), 4))
async def test_a_server_that_replays_everything_on_the_stream_changes_nothing(cut: int) -> None:
    first, second = RecordingBackend(), RecordingBackend()
    async with RawHerm().serve() as server:
        server.replays = True
        async with linked(server, first) as opened:
            seen = [await server.happen(payload) for payload in CONVERSATION[:cut]]
            await first.wait_for(len(seen))
            await server.drop()
            await within(opened.wait_closed())
        away = [await server.happen(payload) for payload in CONVERSATION[cut:]]
        for after in ("after", None):
            second = RecordingBackend()
            async with linked(server, second, resume_after=first.cursor, after_parameter=after):
                last = await server.happen(text("last"))
                await second.wait_for(len([one for one in away if not is_live(one["payload"])]) + 1)
            assert second.history == [one["id"] for one in away if not is_live(one["payload"])]
            assert second.news == [last["id"]]
            away.append(last)


@pytest.mark.requirement("H-g")
@pytest.mark.parametrize("page", range(4))
async def test_what_happens_while_the_history_is_read_comes_once(page: int) -> None:
    async with RawHerm(most=3).serve() as server:
        before = [await server.happen(text(str(number))) for number in range(10)]
        happened: list[dict[str, Any]] = []

        async def meanwhile(number: int) -> None:
            if number == page and not happened:
                happened.extend([await server.happen(call(1)), await server.happen(text("a", delta=True))])
                happened.append(await server.happen(text("ab")))

        server.on_list = meanwhile
        record = RecordingBackend()
        async with linked(server, record):
            last = await server.happen(idle(type="end_turn"))
            await record.wait_for(13)
        durable = [one["id"] for one in (*before, *happened, last) if not is_live(one["payload"])]
        names = [name_of(frame) for frame in record.frames]
        assert [name for name in names if name in durable] == durable
        assert len(set(names)) == len(names)
        # The piece of a message is either news or, behind its whole, dropped; history it is never.
        assert happened[1]["id"] not in record.history


@pytest.mark.requirement("H-l")
async def test_a_piece_that_comes_behind_its_whole_is_dropped() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        piece, whole = server.wrap(text("Hel", delta=True)), server.wrap(text("Hello"))
        title = {**server.wrap(TITLE), "sequence": whole["sequence"]}
        for one in (whole, piece, title, server.wrap(text("x", delta=True))):
            await server.stream(one)
        await record.wait_for(3)
        assert [name_of(frame) for frame in record.frames] == ["evt_2", "evt_3", "evt_4"]


@pytest.mark.requirement("H-j", "H-i")
async def test_what_is_only_live_never_moves_the_cursor() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        await server.happen(text("Hello"))
        await server.happen(text("x", delta=True))
        await server.happen(TITLE)
        await server.stream({"type": "session.title_updated", "payload": TITLE})
        await record.wait_for(4)
        assert record.cursors == ["1", None, None, None]


@pytest.mark.requirement("H-i")
async def test_a_gap_after_connecting_is_filled_from_the_list_once() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        await server.happen(text("old"))
        async with linked(server, record):
            # As if the server had begun to listen for news only after it sent the head of its answer.
            missed = server.wrap(call(1))
            server.stored.append(missed)
            await server.happen(idle(type="requires_action", event_ids=["custom_1"]))
            await record.wait_for(3)
            assert record.news == [one["id"] for one in server.stored[1:]]
            for _ in range(3):
                server.wrap(TITLE)
                await server.happen(text("later"))
            await record.wait_for(6)
        lists = [request for request in server.requests if request.path.endswith("/events")]
        assert len(lists) == 2


@pytest.mark.parametrize("status", [500, 404])
async def test_a_gap_that_cannot_be_filled_ends_the_link_before_anything_is_acted_on(status: int) -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record) as opened:
        server.stored.append(server.wrap(call(1)))
        server.lists.append(RestAnswer(status, {"error": "some_code", "message": "Oops."}))
        await server.happen(text("behind the gap"))
        assert f"{status}: some_code" in await within(opened.wait_closed())
        assert record.frames == []


def camel(found: list[Any], cursor: str | None) -> Any:
    return {"data": found, "nextCursor": cursor}


def snake(found: list[Any], cursor: str | None) -> Any:
    return {"events": found, "next_cursor": cursor, "has_more": cursor is not None}


def only_while_there_is_more(found: list[Any], cursor: str | None) -> Any:
    return {"items": found, "next_page": cursor} if cursor else {"items": found}


def always_with_a_cursor(found: list[Any], cursor: str | None) -> Any:
    return {"data": found, "nextCursor": cursor or "13", "hasMore": cursor is not None}


@pytest.mark.requirement("H-f")
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("form", [camel, snake, only_while_there_is_more, always_with_a_cursor])
async def test_every_page_is_read_whatever_its_form_and_order(form: Any, newest_first: bool) -> None:
    record = RecordingBackend()
    async with RawHerm(most=5).serve() as server:
        server.page_form, server.newest_first = form, newest_first
        happened = [await server.happen(text(str(number))) for number in range(13)]
        async with linked(server, record):
            assert record.history == [one["id"] for one in happened]
        assert len([request for request in server.requests if request.path.endswith("/events")]) == 3


@pytest.mark.requirement("H-j", "H42")
async def test_pieces_and_titles_that_a_server_lists_are_no_history() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        server.stored.extend(server.wrap(payload) for payload in (text("a", delta=True), TITLE, text("ab")))
        async with linked(server, record):
            assert record.history == ["evt_3"]


async def test_a_bare_list_is_a_page_without_a_next_one() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        server.page_form = lambda found, _cursor: found
        await server.happen(RUNNING)
        async with linked(server, record):
            assert record.history == ["evt_1"]


@pytest.mark.requirement("H-f")
async def test_the_last_events_id_is_the_cursor_where_a_page_only_says_that_there_is_more() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        first, second = server.wrap(RUNNING), server.wrap(text("x"))
        server.lists.extend([RestAnswer(200, {"data": [first], "has_more": True}), RestAnswer(200, {"data": [second]})])
        with pytest.raises(LinkLost):
            # The raw server cannot read this cursor, which is what the request shows.
            async with linked(server, record):
                raise LinkLost("entered")
        assert server.requests[-1].query["cursor"] == "evt_1"


async def test_a_list_that_shows_the_newest_first_is_read_only_down_to_what_is_known() -> None:
    record = RecordingBackend()
    async with RawHerm(most=5).serve() as server:
        server.newest_first = True
        happened = [await server.happen(text(str(number))) for number in range(100)]
        async with linked(server, record, resume_after="97"):
            assert record.history == [one["id"] for one in happened[97:]]
        assert len([request for request in server.requests if request.path.endswith("/events")]) == 1


@pytest.mark.requirement("H-f")
async def test_a_cursor_that_comes_again_ends_the_list() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        page = RestAnswer(200, {"data": [server.wrap(RUNNING)], "nextCursor": "7"})
        server.lists.extend([page, page, page])
        async with linked(server, record):
            assert record.history == ["evt_1"]
        assert len(server.lists) == 1


async def test_a_history_without_end_refuses_the_link() -> None:
    async with RawHerm(most=1).serve() as server:
        for _ in range(5):
            await server.happen(RUNNING)
        options = options_for(server, list_pages=3)
        async with ADAPTER.connector(options) as connector:
            with pytest.raises(LinkLost, match="longer than 3 pages"):
                await enter(connector.connect(SESSION, RecordingBackend()))


@pytest.mark.parametrize(
    "answer",
    [
        RestAnswer(500, {"error": "server_error", "message": "Oops."}),
        RestAnswer(404, {"error": "not_found", "message": "Gone."}),
        RestAnswer(200, {"sessions": []}),
        RestAnswer(200, b'{"data": [{"id"'),
        RestAnswer(200, None),
    ],
)
async def test_a_list_that_fails_on_any_page_hands_nothing_on(answer: RestAnswer) -> None:
    async with RawHerm(most=5).serve() as server:
        for number in range(12):
            await server.happen(call(number))
        usual = server.on_list

        async def fail_on_the_last(number: int) -> None:
            assert usual is None
            if number == 2:
                server.lists.append(answer)

        server.on_list = fail_on_the_last
        record = RecordingBackend()
        async with ADAPTER.connector(options_for(server)) as connector:
            with pytest.raises((LinkLost, LinkRefused)):
                await enter(connector.connect(SESSION, record))
        assert record.frames == []
        assert not record.is_caught_up
        await within(server.disconnected())


async def test_one_unreadable_event_does_not_cost_the_page_it_stands_on() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        good = server.wrap(call(1))
        odd = {**server.wrap(call(2)), "note": 10**30}
        server.lists.append(RestAnswer(200, {"data": [good, odd, 7, "x", None, {}]}))
        async with linked(server, record):
            assert record.before == 6
        codec = ADAPTER.codec()
        kinds = [draft.event.kind for frame in record.frames[:2] for draft in codec.decode(frame)]
        assert kinds == ["tool.requested", "tool.requested"]


async def test_a_stream_that_ends_while_the_history_is_read_still_leaves_the_history() -> None:
    record = RecordingBackend()
    async with RawHerm(most=2).serve() as server:
        happened = [await server.happen(text(str(number))) for number in range(5)]

        async def cut(number: int) -> None:
            if number == 1:
                await server.drop()
                await server.disconnected()

        server.on_list = cut
        async with linked(server, record) as opened:
            assert await within(opened.wait_closed())
        assert record.history == [one["id"] for one in happened]


async def test_more_news_than_are_kept_wait_in_the_stream_until_the_history_is_read() -> None:
    record = RecordingBackend()
    async with RawHerm(most=1).serve() as server:
        await server.happen(RUNNING)
        await server.happen(RUNNING)
        piled: list[dict[str, Any]] = []

        async def pile_up(number: int) -> None:
            if number == 0:
                piled.extend([server.wrap(text("x", delta=True)) for _ in range(1_500)])
                await server.raw(b"".join(server.sse(one) for one in piled))
                # Rounds of the loop in which the link could read all of it.
                for _ in range(500):
                    await asyncio.sleep(0)

        server.on_list = pile_up
        async with linked(server, record, tuning=HermTuning(buffered=10)):
            await record.wait_for(1_502)
        assert record.news == [one["id"] for one in piled]


@pytest.mark.requirement("H-h")
async def test_the_same_event_twice_on_the_stream_counts_once_and_the_same_number_twice_does_not() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record):
        one = server.wrap(result(1))
        other = {**server.wrap(result(2)), "sequence": one["sequence"]}
        for envelope in (one, one, other, one, server.wrap(RUNNING)):
            await server.stream(envelope)
        await record.wait_for(3)
        assert [name_of(frame) for frame in record.frames] == ["evt_1", "evt_2", "evt_3"]
        assert record.cursors == ["1", "1", "3"]


async def test_only_so_many_ids_are_remembered_and_the_oldest_go_first() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server, linked(server, record, tuning=HermTuning(ids=2)):
        first, second, third = (server.wrap(RUNNING) for _ in range(3))
        for envelope in (first, second, third, second, first):
            await server.stream(envelope)
        await record.wait_for(4)
        assert [name_of(frame) for frame in record.frames] == ["evt_1", "evt_2", "evt_3", "evt_1"]


async def test_one_absurd_number_does_not_move_the_place_to_resume_at() -> None:
    first, second = RecordingBackend(), RecordingBackend()
    async with RawHerm().serve() as server:
        async with linked(server, first):
            seen = [await server.happen(text("one")), await server.happen(text("two"))]
            await server.raw(f"data: {json.dumps({**seen[0], 'id': 'evt_absurd', 'sequence': 10**15})}\n\n".encode())
            await first.wait_for(3)
        assert first.cursor == str(seen[1]["sequence"])
        async with linked(server, second, resume_after=first.cursor):
            news = await server.happen(text("three"))
            await second.wait_for(1)
    assert second.news == [news["id"]]


async def test_a_place_that_the_history_does_not_reach_is_given_up_and_all_is_read_again() -> None:
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        stored = [await server.happen(text("one")), await server.happen(text("two"))]
        async with linked(server, record, resume_after=str(10**15)):
            news = await server.happen(text("three"))
            await record.wait_for(3)
    assert record.history == [one["id"] for one in stored]
    assert record.news == [news["id"]]


async def test_a_history_larger_than_memory_allows_costs_the_link() -> None:
    async with RawHerm().serve() as server:
        for _ in range(20):
            await server.happen(text("x" * 1_000))
        with pytest.raises(LinkLost, match="history"):
            async with linked(server, RecordingBackend(), tuning=HermTuning(history_bytes=10_000)):
                pass
