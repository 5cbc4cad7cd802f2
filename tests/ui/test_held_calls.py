"""Held calls in a browser: by keyboard, on a phone, in both color schemes, with hostile text, edited, grouped, live."""

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from gateway.events import ToolRequested
from gateway.store.rows import Page as StorePage
from tests.http.conftest import serving
from tests.http.environment import environment_of
from tests.http.test_approvals import DONE, GATED
from tests.ui.conftest import KEY, Ui, serious

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PATIENT = 20_000
"""The time limit in milliseconds; a slow machine updates pages less often."""
HOSTILE = "<img src=x onerror=window.hacked=1>{{ 7 * 7 }} safe\u202eevil\u202c \x1b[31mred \u200bzero \u2800\u3164fill"
HIDDEN = set("\u202e\u202c\x1b\u200b\u2800\u3164")
KEYS = [{"name": "lead", "key": KEY, "scopes": ["read", "drive", "answer", "approve"]}]


@pytest_asyncio.fixture(loop_scope="module")
async def held(browser: Browser) -> AsyncIterator[Ui]:
    """A gateway that holds refunds, with one session."""
    over: dict[str, Any] = {**GATED, "api": {"keys": KEYS}, "limits": {"drain": "1s"}}
    async with environment_of(over) as environment, serving(environment.gateway) as (server, url):
        environment.backend.answers["refund"] = DONE
        await environment.attach()
        made = Ui(environment, server, url, browser)
        yield made
        for context in browser.contexts:
            await context.close()
        assert made.faults == []


async def hold(ui: Ui, native: str = "c-1", **arguments: Any) -> None:
    asked = ToolRequested(native_call_id=native, tool="refund", arguments={"amount": 120, **arguments})
    ui.environment.runtime.say(asked, room="agent-7")
    await ui.environment.call(native, "held")


async def fits(page: Page, width: int) -> None:
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert await serious(page) == [], page.url
    for button in await page.locator("main .decide button, main .edit button").all():
        if await button.is_visible():
            box = await button.bounding_box()
            assert box is not None
            assert box["height"] >= 44


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
async def test_the_pages_of_held_calls_are_accessible_and_fit(
    held: Ui, width: int, scheme: Literal["light", "dark"]
) -> None:
    await hold(held, note=HOSTILE, lines=[{"card": n, "text": "x" * 90} for n in range(4)])
    for number in range(2, 4):
        await hold(held, f"c-{number}", note="twice")
    await hold(held, "c-4", text="long words " * 400)
    page = await held.open("/ui/inbox", width=width, scheme=scheme)
    await expect(page.locator("main")).to_contain_text("2 equal calls")
    # The short names of long arguments stay on one line.
    assert (
        await page.locator(".arguments th").evaluate_all(
            """names => names.filter(name => {
            const text = document.createRange();
            text.selectNodeContents(name);
            return name.innerText.length < 12 && text.getBoundingClientRect().height > 30;
        }).map(name => name.innerText)"""
        )
        == []
    )
    await fits(page, width)
    await page.click("text=Change the arguments… >> nth=0")
    await page.wait_for_url("**/ui/inbox/*")
    await page.click(".edit > summary")
    await fits(page, width)
    await page.fill("textarea", '{"amount": 5000}')
    await page.click("text=Allow with these arguments")
    await expect(page.get_by_role("alert")).to_contain_text("Nobody refunds so much.")
    await fits(page, width)
    allow, deny = await page.locator("button.allow").first.bounding_box(), await page.locator(".deny").bounding_box()
    assert allow is not None
    assert deny is not None
    assert deny["x"] - allow["x"] - allow["width"] >= 28 or deny["y"] - allow["y"] - allow["height"] >= 8


async def test_a_keyboard_changes_the_arguments_and_allows(held: Ui) -> None:
    await hold(held)
    page = await held.open("/ui/inbox", width=390)
    await tab_to(page, "Change the arguments…")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/ui/inbox/*")
    await tab_to(page, "Change the arguments…")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Control+a")
    # No shortcut of the page listens here.
    await page.keyboard.type('{"amount": 7, "note": "jkt?/"}')
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator(".asked.gone")).to_contain_text("answered by lead")
    await held.environment.call("c-1", "succeeded")
    assert held.environment.backend.asked[0].data["arguments"] == {"amount": 7, "note": "jkt?/"}


async def test_a_keyboard_denies_with_a_reason(held: Ui) -> None:
    await hold(held)
    page = await held.open("/ui/inbox", width=390)
    await tab_to(page, "Change the arguments…")
    await page.keyboard.press("Tab")
    await page.keyboard.type("ask first")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator(".asked.gone")).to_contain_text("answered by lead")
    call = await held.environment.call("c-1", "failed")
    assert call.error == "The call was not made: a person denied it: ask first"


async def tab_to(page: Page, text: str) -> None:
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"no focus on {text!r}")


@pytest.mark.parametrize("scripts", [True, False])
async def test_hostile_arguments_are_shown_and_edited_visibly(held: Ui, scripts: bool) -> None:
    arguments: dict[str, Any] = {"note": HOSTILE, HOSTILE: 1}
    await hold(held, **arguments)
    page = await held.open("/ui/inbox", java_script_enabled=scripts)
    for path in ("/ui/inbox", await page.get_attribute("text=Change the arguments…", "href") or ""):
        await page.goto(path)
        text = await page.inner_text("main")
        assert not set(text) & HIDDEN, path
        assert "<img src=x onerror=window.hacked=1>{{ 7 * 7 }}" in text
        assert await page.locator("main img").count() == 0
        if scripts:
            assert await page.evaluate("window.hacked") is None
    await page.click(".edit > summary")
    written = await page.input_value("textarea")
    assert not set(written) & HIDDEN
    await page.fill("textarea", written.replace("120", "7"))
    await page.click("text=Allow with these arguments")
    await expect(page.locator(".asked.gone")).to_contain_text("answered by lead")
    await held.environment.call("c-1", "succeeded")
    assert held.environment.backend.asked[0].data["arguments"] == {"amount": 7, "note": HOSTILE, HOSTILE: 1}


async def test_equal_calls_are_answered_one_by_one_while_new_ones_wait_for_a_key(held: Ui) -> None:
    for number in (1, 2):
        await hold(held, f"c-{number}", note="twice")
    page = await held.open("/ui/inbox")
    await held.live(page)
    await hold(held, "c-3", note="twice")
    await expect(page.locator("[data-fresh]")).to_have_text("1 new", timeout=PATIENT)
    await expect(page.locator(".asked")).to_have_count(2)
    rows, _ = await held.environment.engine.interactions(StorePage())
    await held.environment.gateway.interactions.answer(rows[0].interaction_id, {"decision": "deny"}, by="other")
    await expect(page.locator(".asked.gone")).to_contain_text("answered by other", timeout=PATIENT)
    await expect(page.locator(".asked:not(.gone)")).to_have_count(1)
    await page.keyboard.press("n")
    await expect(page.locator(".card")).to_have_count(1)
    await expect(page.locator(".asked:not(.gone)")).to_have_count(2)
    for left in (1, 0):
        await page.locator(".asked:not(.gone) button.allow").first.click()
        await expect(page.locator(".asked:not(.gone)")).to_have_count(left)
    assert len(held.environment.backend.asked) == 2


async def test_an_edit_survives_an_update_and_is_dimmed_when_another_person_answers(held: Ui) -> None:
    await hold(held)
    page = await held.open("/ui/inbox")
    await page.click("text=Change the arguments…")
    await page.wait_for_url("**/ui/inbox/*")
    await held.live(page)
    await page.click(".edit > summary")
    await page.fill("textarea", '{"amount": 7}')
    rows, _ = await held.environment.engine.interactions(StorePage())
    await held.environment.gateway.interactions.answer(rows[0].interaction_id, {"decision": "deny"}, by="other")
    await expect(page.locator(".asked.gone")).to_have_count(1, timeout=PATIENT)
    assert await page.input_value("textarea") == '{"amount": 7}'
    await page.click("text=Allow with these arguments")
    await expect(page.locator("h1")).to_have_text("Already answered")
    await expect(page.locator("main")).to_contain_text("other answered first")
    assert await page.input_value("main textarea") == '{"amount": 7}'
