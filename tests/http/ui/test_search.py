"""The search field and the filters of the lists, which need no scripts."""

import re
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

import pytest

from gateway.events import SessionId, ToolRequested
from gateway.store.questions.question import WINDOW
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import call
from tests.http.environment import Environment
from tests.http.ui.browser import Browser, browsing


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    """A browser of an operator with all scopes."""
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        yield browser


async def keep_calls(environment: Environment, session_id: str, traces: Sequence[str]) -> None:
    """Put calls with these trace ids into the store."""
    for start in range(0, len(traces), 1_000):
        opened = (
            call(
                f"traced-{number}",
                request_index=None,
                request_sequence=1,
                session_id=SessionId(session_id),
                native_call_id=f"native-{number}",
                trace=f"00-{trace}-{'1' * 16}-01",
            )
            for number, trace in enumerate(traces[start : start + 1_000], start)
        )
        await environment.engine.commit(Step(SessionId(session_id), calls=tuple(opened)))


async def found(browser: Browser, query: str) -> str:
    """Search, and return the path of the page that the search leads to."""
    answer = await browser.open(f"/ui/search?q={query}")
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def rows(browser: Browser, path: str) -> int:
    answer = await browser.open(path)
    assert answer.status_code == 200, answer.text
    return len(re.findall(r"<tr data-id", answer.text))


async def look_further(browser: Browser, path: str) -> str:
    """Return the target of the link that continues a search."""
    answer = await browser.open(path)
    assert answer.status_code == 200, answer.text
    (target,) = re.findall(r'<a href="([^"]+)">look further[^<]*calls', answer.text) or re.findall(
        r'<a href="([^"]+)">look further back<', answer.text
    )
    return target.replace("&amp;", "&")


async def test_search_opens_the_page_of_any_id(environment: Environment, browser: Browser) -> None:
    ids = await environment.fill()
    await keep_calls(environment, ids["session"], ["a" * 32])
    session = f"/ui/sessions/{ids['session']}"
    assert await found(browser, ids["lost"]) == f"/ui/calls/{ids['lost']}"
    assert await found(browser, ids["session"]) == session
    assert await found(browser, "agent-7") == session
    assert await found(browser, "c-1") == f"/ui/calls/{ids['accepted']}"
    assert await found(browser, "a" * 32) == "/ui/calls/traced-0"
    assert await found(browser, ids["interaction"]) == f"/ui/inbox/{ids['interaction']}"
    assert (await found(browser, ids["dead letter"])).startswith(f"{session}?")


async def test_the_calls_of_a_trace_are_found(environment: Environment, browser: Browser) -> None:
    await keep_calls(environment, await environment.attach(), ["a" * 32, "b" * 32, "b" * 32])
    assert f'data-copy="{"a" * 32}"' in (await browser.open("/ui/calls/traced-0")).text
    assert await found(browser, "b" * 32) == f"/ui/calls?trace_id={'b' * 32}"
    assert await rows(browser, f"/ui/calls?trace_id={'b' * 32}") == 2
    none = await browser.open(f"/ui/search?q={'c' * 32}")
    assert "No session, call, interaction or dead letter matches" in none.text


async def test_a_search_of_a_part_of_the_calls_offers_to_look_further(
    environment: Environment, browser: Browser
) -> None:
    await keep_calls(environment, await environment.attach(), ["a" * 32, *["b" * 32] * (WINDOW + 10)])
    path = "/ui/search?q=native-4567"
    for _ in range(WINDOW // 8_000 - 1):
        assert "No call matches yet. The search of calls stopped early" in (await browser.open(path)).text
        path = await look_further(browser, path)
    assert (await browser.open(path)).headers["location"] == "/ui/calls/traced-4567"
    path = await found(browser, "a" * 32)
    assert await rows(browser, path) == 0
    assert await rows(browser, await look_further(browser, path)) == 1


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("state=unknown", 1),
        ("state=succeeded", 0),
        ("state=failed", 0),
        ("state=open", 1),
        ("within=15", 2),
        ("executor=cards", 2),
        ("label=room%3Dnone", 0),
        ("tool=lost&runtime=finn", 1),
        ("since=2020-01-01T00:00Z&until=2020-01-02T00:00Z", 0),
    ],
)
async def test_calls_are_filtered(environment: Environment, browser: Browser, query: str, count: int) -> None:
    await environment.fill()
    assert await rows(browser, f"/ui/calls?{query}") == count
    assert "/v1/calls?" in (await browser.open(f"/ui/calls?{query}")).text.partition("<footer")[2]


async def test_search_finds_parts_of_ids_labels_errors_and_arguments(
    environment: Environment, browser: Browser
) -> None:
    await environment.gateway.opening.open("finn", native_id="agent-9", labels={"room": "the blue one"})
    other = await environment.attach()
    session = f"/ui/sessions/{other}"
    assert await found(browser, other[:8]) == session
    assert await found(browser, "finn/agent-7") == session
    assert (await found(browser, "blue")).startswith("/ui/sessions/")
    environment.runtime.say(ToolRequested(native_call_id="c-1", tool="ask", arguments={"rank": "9 of hearts, 50%"}))
    asked = (await environment.call("c-1", "accepted")).call_id
    lost = await environment.lose_call("c-2")
    error = (await environment.call("c-2", "failed")).error
    assert error is not None
    assert await found(browser, "9 of hearts, 50%25") == f"/ui/calls/{asked}"
    assert await found(browser, quote(error.upper())) == f"/ui/calls/{lost}"
    assert "No session, call, interaction or dead letter matches" in (await browser.open("/ui/search?q=9%25f")).text
    both = (await browser.open("/ui/search?q=agent")).text
    assert all(f"agent-{number}" in both for number in (7, 9))
    assert await rows(browser, "/ui/calls?text=hearts") == 1
    assert await rows(browser, "/ui/sessions?text=BLUE") == 1
