"""Engine conformance: a page of rows ends at its limit or at about 1 MiB, and says where to continue."""

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from gateway.events import ApprovalAsked, Envelope, InteractionId, MessagePosted, SessionId, text_of
from gateway.store.port import Engine
from gateway.store.rows import ANY_EVENT, FROM_THE_START, PAGE_BYTES, CallFilter, Page
from gateway.store.step import RUNTIME, Enqueue, InteractionChange, SendChange, Step
from gateway.testing.conformance.engine_words import ALICE, call, new, open_session, said, settled

COPIES = "destination:log"
SIZES = (PAGE_BYTES + 1, 9, 400_000, 400_000, 400_000, 9, PAGE_BYTES // 2, PAGE_BYTES // 2 + 1, 9, PAGE_BYTES * 2)
"""The lengths of the texts, in order."""
Pages = AsyncIterator[Sequence[Envelope]]


async def _events(engine: Engine) -> Pages:
    after, more = 1, True
    while more:
        page = await engine.read(ALICE, after=after)
        yield page
        after, more = page[-1].sequence, page.more


async def _events_of_kinds(engine: Engine) -> Pages:
    after: int | None = 0
    while after is not None:
        page, after = await engine.read_kinds(ALICE, {"message.posted"}, after=after)
        yield page


async def _events_of_all_sessions(engine: Engine) -> Pages:
    place, more = FROM_THE_START, True
    while more:
        page = await engine.read_all(place, ANY_EVENT, limit=500, searched=500)
        yield [one.envelope for one in page.events if one.envelope.sequence > 1]
        place, more = page.position, page.more


async def _pending_sends(engine: Engine) -> Pages:
    after, more = 0, True
    while more:
        page = await engine.pending_sends(session_id=ALICE, target=RUNTIME, after=after)
        yield [row.envelope for row in page]
        after, more = page[-1].sequence, page.more


async def _pending_copies(engine: Engine) -> Pages:
    more = True
    while more:
        page = await engine.pending_sends(target=COPIES)
        yield [row.envelope for row in page]
        done = tuple(SendChange(row.sequence, COPIES, "delivered", attempt=1) for row in page)
        await engine.commit(Step(ALICE, send_changes=done))
        more = page.more


async def _dead_sends(engine: Engine) -> Pages:
    dead = tuple(SendChange(2 + number, RUNTIME, "dead", attempt=1) for number in range(len(SIZES)))
    await engine.commit(Step(ALICE, send_changes=dead))
    after, found = None, list[Sequence[Envelope]]()
    while after is not None or not found:
        page, after = await engine.dead_sends(Page(500, after))
        found.append([row.envelope for row in reversed(page)])
    for one in reversed(found):
        yield one


class PageSuite:
    """The size of pages."""

    @pytest.mark.parametrize(
        "pages", [_events, _events_of_kinds, _events_of_all_sessions, _pending_sends, _pending_copies, _dead_sends]
    )
    async def test_large_events_make_short_pages_and_none_is_left_out(
        self, engine: Engine, pages: Callable[[Engine], Pages]
    ) -> None:
        await open_session(engine)
        for number, size in enumerate(SIZES):
            await engine.commit(
                Step(ALICE, (said(f"{number}".ljust(size)),), sends=(Enqueue(0, RUNTIME), Enqueue(0, COPIES)))
            )
        found: list[int] = []
        async for page in pages(engine):
            texts = [text_of(one.event.content) for one in page if isinstance(one.event, MessagePosted)]
            assert len(texts) == len(page)
            assert len(texts) <= 1 or sum(map(len, texts)) <= PAGE_BYTES, [len(text) for text in texts]
            found += [int(text) for text in texts]
        assert found == list(range(len(SIZES)))

    async def test_what_people_are_asked_makes_short_pages_too(self, engine: Engine) -> None:
        await open_session(engine)
        for number, size in enumerate(SIZES):
            event = new(ApprovalAsked(id=f"{number}", tool="shell", arguments={"command": "x" * size}))
            interaction = InteractionChange(InteractionId(f"i-{number}"), "waiting", "approval", 2 + number)
            await engine.commit(Step(ALICE, (event,), interactions=(interaction,)))
        found, lengths, after = list[str](), list[int](), None
        while after is not None or not found:
            rows, after = await engine.interactions_with_events(Page(500, after), state="waiting")
            found += [row.interaction_id for row, _ in rows]
            lengths.append(len(rows))
            events = [asked.event for _, asked in rows if asked is not None]
            assert [f"i-{event.id}" for event in events if isinstance(event, ApprovalAsked)] == found[-len(rows) :]
        assert (found, max(lengths)) == ([f"i-{number}" for number in range(len(SIZES))], 3)

    @pytest.mark.parametrize("which", [CallFilter(), CallFilter(tool="ask_for_cards")])
    async def test_long_errors_of_calls_make_short_pages_too(self, engine: Engine, which: CallFilter) -> None:
        await open_session(engine)
        for number in range(5):
            name = f"call-{number}"
            await engine.commit(Step(ALICE, (said(),), calls=(call(name),)))
            failed = settled(name, state="failed", error="e" * 400_000)
            await engine.commit(Step(ALICE, (said(),), calls=(failed,)))
        pages, after = list[list[str]](), None
        while after is not None or not pages:
            rows, after = await engine.calls(which, Page(500, after))
            pages.append([row.call_id[-1] for row in rows])
        assert pages == [["4", "3"], ["2", "1"], ["0"]]

    async def test_long_labels_of_sessions_make_short_pages_too(self, engine: Engine) -> None:
        for number in range(5):
            await open_session(engine, SessionId(f"s-{number}"), labels={"long": "x" * 400_000})
        pages, after = list[list[str]](), None
        while after is not None or not pages:
            rows, after = await engine.sessions(Page(500, after))
            pages.append([row.session_id[-1] for row in rows])
        assert pages == [["0", "1"], ["2", "3"], ["4"]]
