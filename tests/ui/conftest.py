"""The web UI of a real gateway in a headless Chromium."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from gateway.http.server import Server
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of, until
from tests.http.ui.browser import OWN
from tests.pace import PATIENCE

AXE = files("axe_core_python").joinpath("axe.min.js").read_text()
KEY = "all-of-it"


@dataclass
class Ui:
    """A gateway's UI and a browser beside it."""

    environment: Environment
    server: Server
    url: str
    browser: Browser
    faults: list[str] = field(default_factory=list[str])
    """What the pages reported on their consoles."""

    async def open(
        self,
        path: str = "/ui",
        *,
        width: int = 1440,
        scheme: Literal["light", "dark"] = "light",
        key: str | None = KEY,
        **more: Any,
    ) -> Page:
        """Open a page in a new browser context, signed in with a key."""
        context: BrowserContext = await self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=self.url, **more
        )
        context.set_default_timeout(PATIENCE * 1_000)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._note)
        if key is not None:
            # Without the pages of the form, of which each costs as much as the page under test.
            response = await context.request.post("/ui/sign-in", form={"key": key}, headers=OWN, max_redirects=0)
            assert response.status == 303, await response.text()
        await page.goto(path)
        return page

    async def live(self, page: Page) -> None:
        """Wait until a page has its stream."""
        await self.streams(len(page.context.pages))

    async def streams(self, count: int) -> None:
        """Wait until this many streams are open."""

        async def look() -> bool | None:
            return len(self.server.followers) == count or None

        await until(look)

    def end_streams(self) -> None:
        """End all open streams."""
        self.server.followers.end_all()

    def _note(self, message: Any) -> None:
        # A page of an error has its status, which Chromium reports as a failed load.
        if message.type in {"error", "warning"} and "the server responded with a status of" not in message.text:
            self.faults.append(message.text)


async def sign_in(page: Page, key: str) -> None:
    """Sign in through the form."""
    await page.goto("/ui/sign-in")
    await page.fill("input[name=key]", key)
    await page.click("main button")
    await page.wait_for_url("**/ui")


async def serious(page: Page) -> list[str]:
    """Return what axe finds in a page: serious and critical violations."""
    # The policy of the page forbids scripts of other origins and inline ones; evaluation is not subject to it.
    await page.evaluate(AXE)
    found = await page.evaluate("axe.run()")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "the tests of the UI need Debian's chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def ui(browser: Browser) -> AsyncIterator[Ui]:
    """A gateway without any session; the tests of a module share a browser, but no context."""
    async with (
        environment_of({"limits": {"drain": "1s"}}) as environment,
        serving(environment.gateway) as (server, url),
    ):
        made = Ui(environment, server, url, browser)
        yield made
        for context in browser.contexts:
            await context.close()
        assert made.faults == []
