"""The page of dead letters: its height, the keyboard, and live updates of its groups."""

from typing import Literal

import pytest
from playwright.async_api import expect

from gateway.executors.port import Uncertain
from tests.ui.conftest import Ui, serious

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def lose(ui: Ui, *numbers: int) -> None:
    """Let calls end without an answer, for the same cause."""
    for number in numbers:
        ui.environment.backend.answers["charge"] = Uncertain(f"executor answered 500: order {number}", by_choice=True)
        await ui.environment.ask(f"c-{number}", "charge", state="failed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_equal_dead_letters_are_one_row(ui: Ui, scheme: Literal["light", "dark"]) -> None:
    await ui.environment.attach()
    await lose(ui, *range(31))
    for width, height in ((1440, 500), (390, 600)):
        page = await ui.open("/ui/dead-letters", width=width, scheme=scheme)
        box = await page.locator("footer").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < height
        await page.click("summary >> text=31 × charge → cards")
        await expect(page.locator(".group li >> nth=30")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await serious(page) == []
        await page.click(".menu summary")
        await expect(page.get_by_label("Cause")).to_be_in_viewport(ratio=1)


async def test_a_keyboard_opens_a_group_and_dismisses_it(ui: Ui) -> None:
    await ui.environment.attach()
    await lose(ui, 1, 2)
    page = await ui.open("/ui/dead-letters")
    await page.keyboard.press("j")
    await expect(page.locator("summary:focus")).to_contain_text("2 × charge → cards")
    await page.keyboard.press("j")
    await expect(page.locator(".letter > .decide button:focus")).to_have_text("Redrive…")
    await page.keyboard.press("k")
    await page.keyboard.press("Enter")
    await page.keyboard.press("j")
    await expect(page.locator(".group a:focus")).to_contain_text("Call ")
    while not await page.locator(".letter > .decide button:text('Dismiss…'):focus").count():
        await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_contain_text("2 dead letters would be dismissed")
    await page.click("button.primary")
    await expect(page.locator(".notice")).to_contain_text("2 of 2 dismissed")


async def test_one_letter_of_a_group_is_dismissed_without_scripts(ui: Ui) -> None:
    await ui.environment.attach()
    await lose(ui, 1, 2)
    page = await ui.open("/ui/dead-letters", java_script_enabled=False)
    await page.click(".group summary")
    await page.click(".group .decide summary:text('Dismiss…') >> nth=0")
    await page.click(".group .menu[open] button:text-is('Dismiss')")
    await expect(page.locator(".notice")).to_contain_text("The dead letter was dismissed")
    await expect(page.locator(".group summary strong")).to_have_text("charge → cards")


async def test_a_live_page_counts_on_but_leaves_an_open_group_alone(ui: Ui) -> None:
    await ui.environment.attach()
    await lose(ui, 1, 2)
    page = await ui.open("/ui/dead-letters")
    await ui.live(page)
    await lose(ui, 3)
    await expect(page.locator("summary strong")).to_have_text("3 × charge → cards")
    await page.click(".group summary")
    await page.mouse.move(0, 0)
    await page.evaluate("document.activeElement.blur()")
    await lose(ui, 4)
    await ui.environment.lose_call("other")
    # The new group shows that the page has read the new letter of the open group as well.
    await expect(page.locator("[data-fresh]")).to_have_text("1 new")
    await expect(page.locator(".group li")).to_have_count(3)
    await page.click("[data-fresh]")
    await expect(page.locator("main")).to_contain_text("4 × charge → cards")
