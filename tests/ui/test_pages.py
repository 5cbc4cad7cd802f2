"""Every page: its contents, its size on a phone, both color schemes, the keyboard, and without scripts."""

import re
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.ui.conftest import Ui, serious

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LISTS = ("/ui", "/ui/sessions", "/ui/calls", "/ui/inbox", "/ui/dead-letters")


def pages_of(ids: dict[str, str]) -> list[str]:
    return [
        *LISTS,
        f"/ui/sessions/{ids['session']}",
        f"/ui/sessions/{ids['session']}/events/3",
        f"/ui/calls/{ids['accepted']}",
        f"/ui/calls/{ids['lost']}",
        f"/ui/inbox/{ids['interaction']}",
        "/ui/search?q=nothing-has-this-id",
        "/ui/nothing",
        "/ui/calls/unknown",
        "/ui/calls?state=wrong",
    ]


async def test_pages_of_an_empty_gateway_say_what_to_do(ui: Ui) -> None:
    page = await ui.open("/ui")
    await expect(page.locator("main")).to_contain_text("dragoman demo --keep")
    await page.goto("/ui/calls")
    await expect(page.locator("main")).to_contain_text("No agent has called a tool yet")
    await page.goto("/ui/inbox")
    await expect(page.locator("main")).to_contain_text("Nothing waits for you")
    await page.goto("/ui/dead-letters")
    await expect(page.locator("main")).to_contain_text("No dead letters")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_are_accessible_and_fit_a_phone(ui: Ui, scheme: Literal["light", "dark"]) -> None:
    ids = await ui.environment.fill()
    for width in (390, 1440):
        page = await ui.open(width=width, scheme=scheme)
        for path in pages_of(ids):
            await page.goto(path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, f"{path} scrolls at {width}"
            assert await serious(page) == [], f"{path} at {width} in {scheme}"
        await page.context.close()


async def test_lists_show_twenty_rows_and_begin_near_the_top(ui: Ui) -> None:
    for number in range(30):
        await ui.environment.attach(f"agent-{number}")
    page = await ui.open("/ui/sessions")
    rows = page.locator("table.rows tbody tr")
    tops = [box["y"] for one in await rows.all() if (box := await one.bounding_box()) is not None]
    assert sum(top < 872 for top in tops) >= 20
    table = await page.locator("table.rows").bounding_box()
    assert table is not None
    assert table["y"] < 120


async def test_type_sizes_are_few_and_readable(ui: Ui) -> None:
    ids = await ui.environment.fill()
    page = await ui.open()
    sizes: set[str] = set()
    for path in pages_of(ids):
        await page.goto(path)
        sizes |= set(
            await page.evaluate(
                """[...document.querySelectorAll('body *')]
                .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
                .map((one) => getComputedStyle(one).fontSize)"""
            )
        )
    assert len(sizes) <= 6, sizes
    assert min(float(size.removesuffix("px")) for size in sizes) >= 12


async def test_a_keyboard_reaches_a_call_and_its_form(ui: Ui) -> None:
    ids = await ui.environment.fill()
    page = await ui.open("/ui/calls")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("k")
    focused = page.locator("a.main:focus")
    await expect(focused).to_have_count(1)
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("/ui/calls/.+"))
    await page.keyboard.press("/")
    await page.keyboard.type(ids["accepted"])
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/ui/calls/{ids['accepted']}")
    await _tab_to(page, "Cancel the call…")
    await page.keyboard.press("Enter")
    await _tab_to(page, "Cancel")
    await page.keyboard.press("Enter")
    await expect(page.locator(".lead")).to_contain_text("is being canceled")


async def _tab_to(page: Page, text: str) -> None:
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"no focus on {text!r}")


async def test_shortcuts_are_off_in_inputs_and_can_be_disabled(ui: Ui) -> None:
    page = await ui.open("/ui")
    await page.keyboard.press("/")
    await page.keyboard.type("j?t")
    assert await page.input_value("#search") == "j?t"
    await page.locator("h1").click()
    await page.keyboard.press("?")
    await page.uncheck("#shortcuts")
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.id") != "search"


async def test_pages_work_without_scripts(ui: Ui) -> None:
    ids = await ui.environment.fill()
    page = await ui.open(f"/ui/calls/{ids['accepted']}", java_script_enabled=False)
    await page.click("text=Cancel the call…")
    await page.click("button:text-is('Cancel')")
    await expect(page.locator(".lead")).to_contain_text("is being canceled")
    await page.goto(f"/ui/sessions/{ids['session']}")
    await page.click(".seq >> nth=0")
    await expect(page.locator("h1")).to_contain_text("Event")
    await page.goto("/ui/inbox")
    await page.click("text=Allow >> nth=-1")
    await expect(page.locator(".gone")).to_contain_text("answered")
