"""The page of a call, however the call ended and whatever its backend reported."""

import html
import re
from typing import Any

import pytest

from gateway.events import CallId, SessionId, ToolRequested
from gateway.executors.port import Uncertain
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import call
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.http.ui.browser import Browser, browsing
from tests.http.ui.undispatched import OVER, WAYS


async def text_of(browser: Browser, path: str) -> str:
    """Load a page and return the text of its main part."""
    answer = await browser.open(path)
    assert answer.status_code == 200, answer.text
    main = answer.text.partition("<main")[2].partition("<footer")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", main).split())


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_ended_before_its_dispatch_has_a_page(way: str) -> None:
    async with environment_of(OVER) as made, serving(made.gateway) as (_, url), browsing(url) as browser:
        session_id = await made.attach()
        call_id = await WAYS[way](made, session_id)
        assert (await made.gateway.calls.one(CallId(call_id))).attempt == 0
        await browser.sign_in("all-of-it")
        page = await text_of(browser, f"/ui/calls/{call_id}")
    assert re.search(r"(failed|expired|was canceled) after", page), page
    assert "the tool did not run" in page
    assert ("overloaded" in page) == (way == "too many open calls")
    assert ".;" not in page
    assert "arguments checked" not in page
    assert "Outcome recorded" in page
    assert "Attempt 1" not in page or "not sent" in page


PROGRESS: list[dict[str, Any]] = [
    {name: value}
    for name in ("redriven_as", "dismissed_by", "kind", "event", "unknown", "synthetic", "outcome")
    for value in (None, True, 7, -0.5, "the operator", "", [1], ["x"], {"a": 1}, {}, [])
]


async def test_whatever_a_backend_reports_is_shown_as_its_progress(environment: Environment, url: str) -> None:
    await environment.attach()
    call_id = await environment.ask()
    for data in PROGRESS:
        await environment.gateway.calls.progress(CallId(call_id), data, size=40)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = await text_of(browser, f"/ui/calls/{call_id}")
    steps = page.partition("Step Took")[2]
    assert steps.count("Progress reported") == len(PROGRESS)
    assert not re.search(r"Redriven as|Dismissed by", steps)


async def test_the_gateways_own_notes_are_steps_of_the_story(environment: Environment, url: str) -> None:
    await environment.attach()
    redriven, dismissed = await environment.lose_call("c-1"), await environment.lose_call("c-2")
    made = await environment.gateway.calls.redrive(CallId(redriven), new_key=False, deliver=False)
    await environment.gateway.dead_letters.dismiss(dismissed, by="night shift")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        assert f"Redriven as call {made.call_id}" in await text_of(browser, f"/ui/calls/{redriven}")
        assert "Dismissed by night shift" in await text_of(browser, f"/ui/calls/{dismissed}")


PRINTABLE = "".join(chr(code) for code in range(0x21, 0x7F)) + "äßñΩжק漢字ﬁ😀é"


async def test_a_key_of_any_printable_characters_opens_every_page() -> None:
    keys = [{"name": "odd", "key": PRINTABLE}]
    async with (
        environment_of({"api": {"keys": keys}}) as made,
        serving(made.gateway) as (_, url),
        browsing(url) as browser,
    ):
        ids = await made.fill()
        await browser.sign_in(PRINTABLE)
        for path in ("", "/sessions", "/calls", "/inbox", "/dead-letters", f"/calls/{ids['lost']}", "/search?q=none"):
            assert (await browser.open(f"/ui{path}")).status_code == 200, path


async def test_a_browser_may_name_itself_in_any_letters(environment: Environment, url: str) -> None:
    await environment.attach()
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        browser.http.headers["user-agent"] = "Bräuser/1.0"
        browser.http.headers.encoding = "utf-8"
        assert (await browser.open("/ui/sessions")).status_code == 200


async def test_the_arguments_stand_beside_the_outcome_and_the_webhook_id_at_most_twice(
    environment: Environment, url: str
) -> None:
    await environment.attach()
    environment.backend.answers["ask"] = Uncertain("the connection broke")
    environment.runtime.say(ToolRequested(native_call_id="c-1", tool="ask", arguments={"rank": "seven"}))
    failed = await environment.call("c-1", "failed")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = await text_of(browser, f"/ui/calls/{failed.call_id}")
    page = html.unescape(page.partition("Request: native frame")[0])
    assert re.search(r'Arguments \{ "rank" : "seven" \} Outcome \{ "outcome"', page), page
    # Without a key of its own a call has its id as the webhook-id.
    assert page.count(failed.call_id) == 2


async def test_a_trace_id_links_to_the_configured_page() -> None:
    over = {"traces": {"ui": "https://traces.example/trace/{id}?from=1"}}
    async with environment_of(over) as made, serving(made.gateway) as (_, url), browsing(url) as browser:
        session_id = await made.attach()
        trace = "a" * 32
        opened = call(
            "traced", request_index=None, request_sequence=1, session_id=session_id, trace=f"00-{trace}-{'1' * 16}-01"
        )
        await made.engine.commit(Step(SessionId(session_id), calls=(opened,)))
        await browser.sign_in("all-of-it")
        page = (await browser.open("/ui/calls/traced")).text
    assert f'<a href="https://traces.example/trace/{trace}?from=1"' in page
