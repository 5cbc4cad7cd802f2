"""The overview and the timeline of a session, as pages that are not loaded again."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from gateway.adapter.port import Link
from gateway.errors import EngineUnavailable, LinkLost
from gateway.events import ApprovalAsked, CallId, Outcome, SessionState, ToolRequested
from gateway.executors.port import Answered, NeverSent
from gateway.http.ui.text import ago
from gateway.store.rows import ANY_SESSION, Page, SessionFilter
from tests.http.environment import Environment, until
from tests.http.ui.browser import Browser, browsing


async def _page(browser: Browser, path: str) -> str:
    """Load a page; return its text with single spaces, and links as their targets."""
    answer = await browser.open(path)
    assert answer.status_code == 200, answer.text
    main = answer.text.partition("<main")[2].partition("<footer")[0]
    return " ".join(re.sub(r"<(?!a |li |option)[^>]*>", " ", main).split())


def _plain(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def _rows(page: str) -> list[str]:
    """Return the rows of a timeline without markup."""
    return [_plain(row) for row in re.findall(r'<li class="event.*?(?=<li|$)', page)]


async def test_the_overview_shows_an_executor_that_is_down_and_the_calls_that_wait(
    environment: Environment, url: str
) -> None:
    await environment.attach()
    environment.backend.answers["ask_for_cards"] = NeverSent("connection refused")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        assert "cards ● closed 0 0 –" in _plain(await _page(browser, "/ui"))
        for call in ("c-1", "c-2"):
            await environment.ask(call, state="queued")

        async def look() -> str | None:
            page = _plain(await _page(browser, "/ui"))
            return page if re.search(r"cards \S (half )?open \d [12] .{,12} connection refused", page) else None

        page = await until(look)
    assert re.search(r"executor cards since .{,12} · does not respond: connection refused", page)


async def test_a_slash_at_the_end_of_a_path_leads_to_the_page_without_it(url: str) -> None:
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        for path in ("/ui", "/ui/calls", "/ui/sessions/none"):
            led = await browser.open(f"{path}/")
            assert (led.status_code, led.headers["location"]) == (303, path)
        assert (await browser.open("/ui/nothing")).status_code == 404


async def test_the_overview_without_a_store_shows_the_checks_and_everything_that_is_in_memory(
    environment: Environment, url: str
) -> None:
    await environment.attach()
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        for method in ("health", "calls", "interactions_with_events", "dead_sends", "instances", "recall"):
            environment.fail(method, EngineUnavailable("disk full"))
        page = _plain(await _page(browser, "/ui"))
    assert "not ready" in page
    assert "engine: disk full" in page
    assert "Latest calls Not available." in page
    assert "finn plain/1 ● 1 up" in page
    assert "cards ● closed" in page


async def test_a_call_is_one_row_with_links_to_all_its_events(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    call_id = await environment.ask("c-1")
    await environment.gateway.calls.progress(CallId(call_id), {"percent": 50}, size=20)
    await environment.gateway.calls.settle(CallId(call_id), Answered(Outcome(outcome="success", result=7)))
    finished = await environment.recorded(session_id, "tool.finished")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = await _page(browser, f"/ui/sessions/{session_id}")
    (row,) = [row for row in _rows(page) if "ask_for_cards" in row]
    assert "success: 7" in row
    assert "tool.finished" not in row
    for sequence in (3, finished.sequence - 1, finished.sequence):
        assert page.count(f'href="/ui/sessions/{session_id}/events/{sequence}"') == 1
        assert page.count(f' id="e{sequence}"') == 1


async def test_a_session_is_filtered_by_kind_and_by_failures(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    await environment.ask("c-1")
    await environment.lose_call("c-2")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        failures = _rows(await _page(browser, f"/ui/sessions/{session_id}?failed=true"))
        links = _rows(await _page(browser, f"/ui/sessions/{session_id}?kind=link.*"))
        none = await _page(browser, f"/ui/sessions/{session_id}?kind=approval.*")
        wrong = await browser.open(f"/ui/sessions/{session_id}?kind=nothing")
    assert len(failures) == 1
    assert "lost" in failures[0]
    assert [row.split()[2:4] for row in links] == [["·", "link.changed"]]
    assert "No event matches" in none
    assert wrong.status_code == 400


async def test_a_filter_finds_events_far_back_and_says_how_far(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    await environment.post(session_id, 1_000)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        opened = await _page(browser, f"/ui/sessions/{session_id}?kind=session.opened")
        steered = await _page(browser, f"/ui/sessions/{session_id}?kind=turn.steered")
    assert len(_rows(opened)) == 1
    assert len(_rows(steered)) == 200
    assert "looked back to event 803" in steered


async def test_a_turn_counts_failed_and_unknown_items_apart(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    await environment.lose_call("c-1")
    environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="failure", error="no cards"))
    await environment.ask("c-2", state="failed")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = _plain(await _page(browser, f"/ui/sessions/{session_id}"))
    assert re.search(r"2 calls, \S+ m?s \S 1 failed \S 1 unknown ", page)


async def test_a_waiting_approval_is_named_with_its_arguments(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    await environment.ask_person(ApprovalAsked(id="a-1", tool="rm", arguments={"path": "a"}))
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        pages = [_plain(await _page(browser, path)) for path in ("/ui", f"/ui/sessions/{session_id}")]
    for page in pages:
        assert "rm {&#34;path&#34;: &#34;a&#34;}" in page


async def test_counts_of_a_part_of_a_list_say_so(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    for number in range(6):
        environment.runtime.say(ApprovalAsked(id=f"a-{number}", tool="rm"))
    for number in range(51):
        await environment.lose_call(f"c-{number}")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        session = _plain(await _page(browser, f"/ui/sessions/{session_id}"))
        overview = _plain(await _page(browser, "/ui"))
    assert "more than 5 requests wait for a person: rm , rm , rm , rm , rm , all in the inbox" in session
    assert re.search(r"at least \d+ × lost", overview)


async def test_a_steered_turn_is_named_by_its_text(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    await environment.post(session_id, 1)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = _plain(await _page(browser, f"/ui/sessions/{session_id}"))
    assert re.search(r" left \d+ events?, ", page)


async def test_a_row_of_a_call_shows_its_session_and_its_error(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="failure", error="no cards"))
    await environment.ask("c-1", state="failed")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        pages = [await _page(browser, path) for path in ("/ui/calls", "/ui")]
    assert f'/ui/sessions/{session_id}"> agent-7' in pages[0].replace('">agent', '"> agent')
    assert all("ask_for_cards no cards finn cards 1 " in _plain(page) for page in pages)


async def test_a_row_of_a_call_shows_the_beginning_of_its_arguments(environment: Environment, url: str) -> None:
    await environment.attach()
    rows: dict[str, dict[str, object]] = {
        "none": {},
        "short": {"path": "<b>\n\u202e"},
        "long": {"text": "x" * 500},
        "huge": {"text": "x" * 20_000},
    }
    for name, arguments in rows.items():
        environment.runtime.say(ToolRequested(native_call_id=name, tool=name, arguments=arguments))
        await environment.call(name, "accepted")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = (await browser.open("/ui/calls")).text
        plain = (await browser.http.get("/v1/calls", headers={"x-api-key": "all-of-it"})).json()["data"]
    assert [call["tool"] for call in plain if "arguments_excerpt" not in call] == [*reversed(rows)]
    shown = dict(re.findall(r'">(none|short|long|huge)</a>(?: <code class="muted">(.*?)</code>)?', page))
    assert (shown["none"], shown["long"]) == ("", "{&#34;text&#34;: &#34;" + "x" * 69 + "…")
    assert shown["short"] == '{&#34;path&#34;: &#34;&lt;b&gt;\\n<span class="esc">\\u202e</span>&#34;}'
    assert re.fullmatch(r"… 20,\d{3} bytes", shown["huge"])
    assert "/v1/calls?arguments=true" in page


async def test_lists_read_all_sessions_of_their_rows_at_once(
    environment: Environment, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = list[str](), environment.gateway.sessions

    async def sessions(page: Page, which: SessionFilter = ANY_SESSION, **more: Any) -> Any:
        asked.extend(which.session_ids)
        return await answer(page, which, **more)

    async def session(session_id: str) -> Any:
        raise AssertionError(f"the session {session_id} was read alone")

    for number in range(3):
        room = f"agent-{number}"
        await environment.attach(room)
        environment.runtime.say(ToolRequested(native_call_id=room, tool="ask_for_cards"), room=room)
        environment.runtime.say(ApprovalAsked(id=room, tool="rm"), room=room)
        await environment.call(room, "accepted")
    ids = {row.session_id for row in (await environment.engine.sessions(Page()))[0]}
    monkeypatch.setattr(environment.gateway, "sessions", sessions)
    monkeypatch.setattr(environment.gateway, "session", session)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        for path in ("/ui/calls", "/ui/inbox"):
            asked.clear()
            page = _plain(await _page(browser, path))
            assert (set(asked), len(asked)) == (ids, 3)
            assert all(f"agent-{number}" in page for number in range(3))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "now"), (5, "5 s ago"), (185, "3 min 5 s ago"), (180, "3 min ago"), (7_500, "2 h ago")]
)
def test_a_time_within_the_hour_has_seconds(seconds: int, shown: str) -> None:
    now = datetime.now(UTC)
    assert ago(now - timedelta(seconds=seconds), now) == shown


async def test_sessions_show_a_lost_link_beside_the_state_and_filter_by_every_state(
    environment: Environment, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await environment.attach()

    @asynccontextmanager
    async def fails(*_: object, **__: object) -> AsyncGenerator[Link]:
        raise LinkLost("connection refused")
        yield environment.runtime

    monkeypatch.setattr(environment.runtime, "connect", fails)
    await environment.gateway.opening.open("finn", native_id="agent-8", labels={})
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")

        async def look() -> str | None:
            page = await _page(browser, "/ui/sessions")
            return page if "✕ down since" in _plain(page) else None

        page = await until(look)
        for state in (*get_args(SessionState), "closed"):
            assert f'<option value="{state}">' in page
            assert (await browser.open(f"/ui/sessions?state={state}")).status_code == 200
    assert re.search(r"✕ down since .{,12} agent-8 finn", _plain(page))
    assert re.search(r"● up agent-7 finn", _plain(page))


async def test_the_navigation_and_the_title_count_what_waits(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    async with browsing(url) as browser, browsing(url) as viewer:
        await browser.sign_in("all-of-it")
        await viewer.sign_in("drive-only")
        none = (await browser.open("/ui/calls")).text
        await environment.ask_person()
        await environment.lose_call()
        one, hidden = (await browser.open("/ui/calls")).text, (await viewer.open("/ui/calls")).text
        for number in range(50):
            environment.runtime.say(ApprovalAsked(id=f"b-{number}", tool="rm"))

        async def look() -> bool | None:
            return await environment.engine.count_waiting(60) == 51 or None

        await until(look)
        many = (await browser.open(f"/ui/sessions/{session_id}")).text
        environment.fail("count_waiting", EngineUnavailable("disk full"))
        assert 'class="count"' not in (await browser.open("/ui/calls")).text
    assert 'class="count"' not in none + hidden
    assert "<title>Calls" in none
    assert "<title>(1) Calls" in one
    assert re.search(r'>Inbox <span class="count">1</span>.*>Dead letters <span class="count">1</span>', one, re.DOTALL)
    assert "<title>(50+) agent-7" in many
    assert '>Inbox <span class="count">50+</span>' in many


async def test_the_chart_has_labels_at_both_ends_and_percentiles(environment: Environment, url: str) -> None:
    await environment.attach()
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        assert "p50" not in _plain(await _page(browser, "/ui"))
        await environment.lose_call()
        page = _plain(await _page(browser, "/ui"))
    assert re.search(r"2 a minute|1 a minute", page)
    assert re.search(r"since start now", page)
    assert re.search(r"1 failed or unknown p50 \S+ m?s, p95 \S+ m?s", page)
