"""Failed calls that are redriven together: those that certainly did not run, and each once."""

import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from gateway.errors import EngineUnavailable
from gateway.events import CallId, Outcome, ToolRequested
from gateway.executors.port import Accepted, Answered, Uncertain
from gateway.store.rows import CallFilter, Page
from tests.http.environment import Environment
from tests.http.ui.browser import Browser, browsing, forms_in

CALLS, MANY = "/ui/calls?state=failed", "/ui/calls/many"
REFUSED = Answered(Outcome(outcome="failure", error="executor answered 401 Unauthorized: no signature"), refused=True)


@pytest.fixture
async def browser(environment: Environment, url: str) -> AsyncIterator[Browser]:
    """A browser of an operator with all scopes."""
    await environment.attach()
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        yield browser


async def fail(environment: Environment, tool: str, *numbers: int, answer: object = REFUSED) -> list[str]:
    environment.backend.answers[tool] = answer  # pyright: ignore[reportArgumentType]
    return [await environment.ask(f"{tool}-{number}", tool, state="failed") for number in numbers]


async def confirm(browser: Browser, path: str) -> httpx.Response:
    """Press the button of a page of calls."""
    (form,) = forms_in(await browser.open(path), MANY)
    answer = await browser.send(MANY, form)
    assert answer.status_code == 200, answer.text
    return answer


async def carry_out(browser: Browser, page: httpx.Response) -> httpx.Response:
    (form, *_) = forms_in(page, MANY)
    return await browser.send(MANY, form)


def text_of(page: httpx.Response) -> str:
    return " ".join(unescape(re.sub("<[^>]*>", " ", page.text)).split())


def ids_on(page: httpx.Response) -> set[str]:
    return set(re.findall("<li><code>([^<]+)</code>", page.text))


async def redriven(environment: Environment) -> list[str | None]:
    """List the calls that were redriven, newest redrive first."""
    rows, _ = await environment.engine.calls(CallFilter(), Page(500))
    return [row.redrive_of for row in rows if row.redrive_of is not None]


async def test_failed_calls_of_a_filter_are_redriven_once(environment: Environment, browser: Browser) -> None:
    charged = await fail(environment, "charge", 1, 2)
    await fail(environment, "refund", 1)
    await fail(environment, "charge", 3, answer=Answered(Outcome(outcome="failure", error="the card is blocked")))
    await environment.ask("c-1")
    page = await confirm(browser, f"{CALLS}&tool=charge")
    assert "2 failed calls would be redriven" in text_of(page)
    assert "1 more failed after their executor took the request" in text_of(page)
    assert ids_on(page) == set(charged)
    environment.backend.answers["charge"] = Accepted()
    done = [await carry_out(browser, page) for _ in range(2)]
    assert ["2 of 2 redriven." in text_of(one) for one in done] == [True, True]
    assert sorted(map(str, await redriven(environment))) == sorted(charged)
    # They are still failed calls of this filter.
    again = await confirm(browser, f"{CALLS}&tool=charge")
    assert "No failed call matches" in text_of(again)
    assert "3 more failed after their executor took the request, or were redriven before" in text_of(again)
    stale = await carry_out(browser, page)
    assert "2 of 2 redriven." in text_of(stale)


async def test_calls_that_may_have_run_are_redriven_only_if_asked_for(
    environment: Environment, browser: Browser
) -> None:
    lost = await fail(environment, "lost", 1, answer=Uncertain("the connection broke"))
    assert "No failed call matches" in text_of(await browser.send(MANY, {"state": "failed"}))
    page = await confirm(browser, "/ui/calls?state=unknown")
    assert ids_on(page) == set(lost)
    assert "They may have run already" in text_of(page)
    assert "1 of 1 redriven." in text_of(await carry_out(browser, page))
    assert await redriven(environment) == lost


async def test_a_refused_redrive_is_named_and_the_others_are_done(environment: Environment, browser: Browser) -> None:
    charged, refunded = await fail(environment, "charge", 1), await fail(environment, "refund", 1)
    environment.runtime.say(ToolRequested(native_call_id="w-1", tool="charge", problem="at /rank: 99 is not allowed"))
    wrong = (await environment.call("w-1", "failed")).call_id
    page = await confirm(browser, CALLS)
    assert ids_on(page) == {wrong, *charged, *refunded}
    await environment.reload({"tools": {"refund": {"parameters": {"type": "object", "required": ["sum"]}}}})
    done = text_of(await carry_out(browser, page))
    assert "1 of 3 redriven. 2 failed:" in done
    for call_id, why in ((wrong, "at /rank: 99 is not allowed"), (refunded[0], "Invalid arguments for 'refund'")):
        assert f"{call_id[:8]} it would be refused before any executor is asked: {why}" in done
    assert await redriven(environment) == charged


async def test_other_matches_than_those_seen_are_shown_first(environment: Environment, browser: Browser) -> None:
    first, second = await fail(environment, "charge", 1, 2)
    page = await confirm(browser, CALLS)
    await fail(environment, "charge", 3)
    await environment.gateway.calls.redrive(CallId(first), new_key=False, deliver=False)
    stale = await carry_out(browser, page)
    assert stale.status_code == 409
    assert "0 more matched and 1 no longer did, so nothing was done" in text_of(stale)
    assert await redriven(environment) == [first]
    assert "1 of 1 redriven." in text_of(await carry_out(browser, stale))
    assert await redriven(environment) == [second, first]


async def test_an_unavailable_store_ends_the_redrives(environment: Environment, browser: Browser) -> None:
    await fail(environment, "charge", 1, 2, 3)
    page = await confirm(browser, CALLS)
    environment.fail("commit", EngineUnavailable("the disk is full"))
    done = text_of(await carry_out(browser, page))
    environment.fail("commit", None)
    assert "0 of 3 redriven. 1 failed:" in done
    assert "The others were not tried." in done


async def test_a_form_redrives_a_bounded_number_and_continues_with_older_calls(
    environment: Environment, browser: Browser
) -> None:
    charged = await fail(environment, "charge", *range(103))
    environment.backend.answers["charge"] = Accepted()
    page = await confirm(browser, CALLS)
    assert "100 of more than 100 failed calls would be redriven" in text_of(page)
    done = await carry_out(browser, page)
    assert "100 of 100 redriven." in text_of(done)
    (older,) = forms_in(done, MANY)
    page = await browser.send(MANY, older)
    assert ids_on(page) == set(charged[:3])
    assert "3 of 3 redriven." in text_of(await carry_out(browser, page))
    assert sorted(map(str, await redriven(environment))) == sorted(charged)


async def test_only_an_operator_is_offered_to_redrive_failed_calls(
    environment: Environment, browser: Browser, url: str
) -> None:
    (failed,) = await fail(environment, "charge", 1)
    assert forms_in(await browser.open("/ui/calls"), MANY) == []
    async with browsing(url) as viewer:
        await viewer.sign_in("look-only")
        assert forms_in(await viewer.open(CALLS), MANY) == []
        done = await viewer.send(MANY, {"seen": failed, "until": "2999-01-01T00:00:00Z"})
    assert "lacks the scope 'operate'" in text_of(done)
    assert await redriven(environment) == []
