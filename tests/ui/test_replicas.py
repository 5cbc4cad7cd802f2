"""A browser at each of two replicas: both are live, the first answer wins, and the survivor's page goes on."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.pace import PATIENCE, within
from tests.scenarios.environment import API_KEY
from tests.scenarios.fleet import OpenHandsEnvironment, openhands_environment
from tests.scenarios.replica_processes import Serving, fleet
from tests.ui.conftest import sign_in

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SOON, PATIENT = within(3) * 1_000, PATIENCE * 1_000
"""The time limits in milliseconds of what an operator must see at once, and of all else."""


@pytest_asyncio.fixture(loop_scope="module")
async def environment(tmp_path: Path) -> AsyncIterator[OpenHandsEnvironment]:
    async with openhands_environment(tmp_path) as made:
        yield made
        assert made.agent.violations == []


async def open_inbox(browser: Browser, replica: Serving, like: BrowserContext | None = None, *, live: bool) -> Page:
    """Open the inbox of a replica, signed in there or with the cookie of another browser, and wait for its stream."""
    state = None if like is None else await like.storage_state()
    context = await browser.new_context(base_url=replica.url, java_script_enabled=live, storage_state=state)
    context.set_default_timeout(PATIENT)
    page = await context.new_page()
    if like is None:
        await sign_in(page, API_KEY)
    if live:
        async with page.expect_response("**/ui/live?**"):
            await page.goto("/ui/inbox")
    else:
        await page.goto("/ui/inbox")
    return page


@pytest.mark.timing
async def test_operators_at_two_replicas_see_the_same_until_one_is_killed_and_after(
    environment: OpenHandsEnvironment, browser: Browser
) -> None:
    # One cookie for both replicas, as behind a proxy.
    proxied: dict[str, Any] = {"public_url": "https://gateway.example"}
    async with fleet(environment) as replicas:
        owner = await replicas.serve("one", **proxied)
        owner.runtime = environment.runtime
        await owner.wait_events("session.moved", state="awaiting_input")
        other = await replicas.serve("two", **proxied)
        other.runtime = environment.runtime
        here = await open_inbox(browser, owner, live=True)
        there = await open_inbox(browser, other, here.context, live=True)

        gated = asyncio.create_task(environment.agent.agent_runs("rm a", "", gated=True))
        await owner.wait_events("approval.asked")
        for page in (here, there):
            await expect(page.locator("[data-fresh]")).to_have_text("1 new", timeout=SOON)
        for page in (here, there):
            await page.keyboard.press("n")
            await expect(page.locator(".card")).to_contain_text("rm a", timeout=PATIENT)
        stale = await open_inbox(browser, other, here.context, live=False)
        await here.click("button.allow")
        await expect(there.locator(".asked.gone")).to_contain_text("answered by backend", timeout=SOON)
        assert (await gated)["observation"] == "run"
        async with stale.expect_navigation() as navigation:
            await stale.click("button.deny")
        answer = await navigation.value
        assert answer is not None
        assert answer.status == 409
        await expect(stale.locator("main")).to_contain_text("backend answered first", timeout=PATIENT)

        owner.signal(signal.SIGKILL)
        await expect(here.locator("#banner")).to_contain_text("Not live since", timeout=PATIENT)
        await other.wait_carries(await other.session())
        gated = asyncio.create_task(environment.agent.agent_runs("rm b", "", gated=True))
        await expect(there.locator("[data-fresh]")).to_have_text("1 new", timeout=PATIENT)
        await expect(there.locator("#banner")).to_be_hidden(timeout=PATIENT)
        await there.keyboard.press("n")
        await there.click("button.allow")
        assert (await gated)["observation"] == "run"
