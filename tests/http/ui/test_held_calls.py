"""Held calls in the inbox: shown whole, allowed by the binding of the page, denied with a reason."""

from collections.abc import AsyncIterator

import pytest

from tests.http.environment import Environment, environment_of
from tests.http.test_approvals import DONE, GATED, hold
from tests.http.ui.browser import Browser, browsing, forms_in

SCOPES = ["read", "answer", "approve"]
KEYS = [
    {"name": "lead", "key": "lead-key", "scopes": SCOPES},
    {"name": "viewer", "key": "view-key", "scopes": SCOPES[:2]},
]


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of({**GATED, "api": {"keys": KEYS}}) as made:
        made.backend.answers["refund"] = DONE
        yield made


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    async with browsing(url) as browser:
        await browser.sign_in("lead-key")
        yield browser


async def forms(browser: Browser) -> tuple[str, str, list[dict[str, str]]]:
    """The text of the inbox, the address of its only answer, and the forms: allow, then deny."""
    page = await browser.open("/ui/inbox")
    action = page.text.partition('action="')[2]
    while not action.startswith("/ui/inbox/"):
        action = action.partition('action="')[2]
    action = action.partition('"')[0]
    return page.text, action, forms_in(page, action)


async def test_the_inbox_allows_what_it_shows(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    await hold(environment, amount=1.0, id=2**60, note="\u202eevil")
    text, action, (allow, _) = await forms(browser)
    for part in ("refund", str(2**60), "1.0", "\\u202e", "Held by routes[1]", allow["binding"]):
        assert part in text
    assert "\u202e" not in text
    assert len(allow["binding"]) == 64
    stale = await browser.send(action, allow | {"binding": "0" * 64})
    assert stale.status_code == 409
    sent = await browser.send(action, allow)
    assert sent.status_code == 303, sent.text
    await environment.call("c-1", "succeeded")


async def test_the_inbox_denies_with_a_reason(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    await hold(environment)
    _, action, (_, deny) = await forms(browser)
    assert (await browser.send(action, deny | {"reason": "ask first"})).status_code == 303
    call = await environment.call("c-1", "failed")
    assert call.error == "The call was not made: a person denied it: ask first"


async def test_without_the_scope_the_inbox_only_shows(environment: Environment, url: str) -> None:
    await environment.attach()
    await hold(environment)
    async with browsing(url) as viewer:
        await viewer.sign_in("view-key")
        page = await viewer.open("/ui/inbox")
        assert "Your key lacks the scope <code>approve</code>" in page.text
        assert "/answer" not in page.text
