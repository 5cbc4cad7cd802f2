"""Every error of a page is a page too, whether somebody expected it or not."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from gateway.http.errors import PROBLEMS, Refused
from gateway.http.ui import pages
from gateway.runtime.tuning import Tuning
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.http.ui.browser import browsing, forms_in
from tests.unit.cli.test_fixes import API


@pytest.mark.parametrize(
    ("path", "method", "read"),
    [
        ("/ui/calls/{call}", "call", "/v1/calls/{call}"),
        ("/ui/sessions/{session}", "session", "/v1/sessions/{session}"),
        ("/ui/sessions/{session}", "calls", "/v1/calls?session_id={session}&amp;limit=500&amp;since="),
        ("/ui/inbox", "interactions_with_events", "/v1/interactions?state=waiting&amp;limit=50"),
        ("/ui/dead-letters?runtime=finn", "dead_sends", "/v1/dead-letters?limit=50&amp;runtime=finn"),
        ("/ui/search?q=a b", "call", "/v1/calls/a%20b"),
    ],
)
async def test_an_unexpected_error_is_a_page_with_the_id_of_the_request_and_the_read(
    environment: Environment, url: str, lines: list[MutableMapping[str, Any]], path: str, method: str, read: str
) -> None:
    session_id = await environment.attach()
    ids = {"session": session_id, "call": await environment.ask()}
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        environment.fail(method, LookupError("a secret detail"))
        answer = await browser.open(path.format(**ids))
        environment.fail(method, None)
        assert answer.status_code == 500
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["x-request-id"] in answer.text.partition("<main")[2]
        assert '<a href="/ui/calls"' in answer.text
        assert f"curl -s '{url}{read.format(**ids)}" in answer.text.replace("&#39;", "'")
        assert "a secret detail" not in answer.text
    failed = [one for one in lines if one["event"] == "request failed"]
    assert [one["status"] for one in failed] == [500, 500][: len(failed)]
    assert failed


async def test_an_error_of_a_template_is_a_page(
    environment: Environment, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = pages.fill

    def broken(template: str, root: str, **values: Any) -> bytes:
        if template == "overview.html":
            raise ZeroDivisionError
        return fill(template, root, **values)

    monkeypatch.setattr(pages, "fill", broken)
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        answer = await browser.open("/ui")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "Internal error" in answer.text


async def test_a_form_that_fails_unexpectedly_keeps_its_text(environment: Environment, url: str) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        (form,) = forms_in(await browser.open(path), f"{path}/message")
        environment.fail("session", LookupError("broken"))
        answer = await browser.send(f"{path}/message", form | {"text": "Any sevens?"})
        environment.fail("session", None)
    assert answer.status_code == 500
    assert "Any sevens?</textarea>" in answer.text
    assert "Try again" not in answer.text


async def hang(*_: object) -> None:
    await asyncio.Event().wait()


async def test_a_page_that_takes_too_long_says_so_as_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        environment_of({"limits": {"drain": "1s"}}, tuning=Tuning(answer=1)) as made,
        serving(made.gateway) as (_, url),
        browsing(url) as browser,
    ):
        await browser.sign_in("all-of-it")
        monkeypatch.setattr(made.engine, "calls", hang)
        answer = await browser.open("/ui/calls")
        monkeypatch.undo()
    assert (answer.status_code, answer.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "nothing came of it within 1 s" in answer.text
    assert "Try again" in answer.text


@pytest.mark.parametrize("path", ["sessions/none", "calls/none", "sessions/none/events/1", "nothing"])
async def test_a_page_that_does_not_exist_leads_to_other_pages_and_not_to_the_api(url: str, path: str) -> None:
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        answer = await browser.open(f"/ui/{path}")
    main = answer.text.partition("<main")[2].partition("<footer")[0]
    assert answer.status_code == 404
    assert '<a href="/ui/sessions">' in main
    assert "/v1/" not in main


async def test_no_page_of_an_error_gives_the_advice_of_the_api(environment: Environment, url: str) -> None:
    told: dict[str, str] = {}
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        for name, kind in PROBLEMS.items():
            environment.fail("call", Refused(name, "it failed"))
            answer = await browser.open("/ui/calls/some")
            assert answer.status_code == kind.status
            told[name] = answer.text.partition('<p class="advice">')[2].partition("</p>")[0]
    assert [name for name, advice in told.items() if not advice or API.search(advice)] == []
