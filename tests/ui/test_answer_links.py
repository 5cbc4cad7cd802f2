"""The page behind a link of a notice, in a browser of the width of a phone, by keyboard."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.scenarios.environment import scene
from tests.scenarios.notified import ASKED, CLOSED, held, notify
from tests.ui.conftest import serious

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def test_a_call_is_allowed_on_a_phone_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        notify(made, links=True)
        async with made.running() as gateway:
            await held(made, gateway, {"text": "long " * 200, "amount": 150})
            (told,) = await made.hooks.wait_for(name=ASKED)
            context = await browser.new_context(viewport={"width": 390, "height": 844})
            page = await context.new_page()
            said: list[str] = []
            page.on("console", lambda message: said.append(message.text))
            await page.goto(told.data["open"])
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390
            assert await serious(page) == []
            while await page.evaluate("document.activeElement.textContent") != "Allow":
                await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await page.get_by_text("You allowed the call.").wait_for()
            await page.reload()
            (closed,) = await made.hooks.wait_for(name=CLOSED)
            assert closed.data["answered_by"] == "link ops"
            # A reload sends the form again.
            assert "by 'link ops' at " in await page.inner_text("main")
            assert [text for text in said if "409" not in text] == []
            await context.close()
