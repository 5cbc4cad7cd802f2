"""The overview and the timeline of a session, as pages that are not loaded again."""

import re

from gateway.errors import EngineUnavailable
from gateway.events import ApprovalAsked, CallId, Outcome
from gateway.executors.port import Answered, NeverSent
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
    assert re.search(r"executor cards first failed .{,12} · connection refused", page)


async def test_the_overview_without_a_store_shows_the_checks_and_everything_that_is_in_memory(
    environment: Environment, url: str
) -> None:
    await environment.attach()
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        for method in ("health", "calls", "interactions", "dead_sends", "instances"):
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
