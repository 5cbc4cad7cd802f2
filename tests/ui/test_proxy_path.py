"""The UI, the API and the client under a path of a host whose other pages belong to somebody else."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Request, expect

from dragoman.client import Client
from tests.http.conftest import plain_client, serving
from tests.http.environment import Environment, environment_of
from tests.ports import free_port
from tests.scenarios.nginx import running
from tests.scenarios.terminal import dragoman as dragoman_command
from tests.ui.conftest import KEY

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

WAYS = {
    "keeps the path": "location /dragoman/ {{ proxy_pass http://127.0.0.1:{gateway}; {more} }}",
    "strips the path": "location /dragoman/ {{ proxy_pass http://127.0.0.1:{gateway}/; {more} }}",
    "leaves a slash too many": "location /dragoman {{ proxy_pass http://127.0.0.1:{gateway}/; {more} }}",
}
_MORE = """
    proxy_http_version 1.1; proxy_buffering off;
    proxy_set_header Connection ""; proxy_set_header Host $http_host;
"""
_CONFIGURATION = """
worker_processes 1; pid {folder}/nginx.pid; error_log stderr alert; events {{ worker_connections 256; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 418 "somebody else's"; }} {location} }}
}}
"""


@asynccontextmanager
async def published(way: str) -> AsyncGenerator[tuple[Environment, str]]:
    """Run a gateway behind nginx, under a path; yields its public URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/dragoman"
    async with (
        environment_of({"public_url": url, "limits": {"drain": "1s"}}) as made,
        serving(made.gateway) as (_, inside),
    ):

        def configure(folder: Path) -> str:
            location = WAYS[way].format(gateway=inside.rpartition(":")[2], more=_MORE)
            return _CONFIGURATION.format(folder=folder, port=port, location=location)

        async with running(port, configure):
            yield made, url


async def note(strange: list[str], request: Request) -> None:
    """Note an answer that is an error."""
    answer = await request.response()
    if answer is not None and answer.status >= 400:
        strange.append(f"{answer.status} {answer.url}")


async def sign_in(page: Page, url: str) -> None:
    await page.goto(f"{url}/ui")
    await page.fill("input[name=key]", KEY)
    await page.click("main button")
    await page.wait_for_url(f"{url}/ui")


@pytest.mark.parametrize("way", WAYS)
async def test_an_operator_never_leaves_the_path_of_the_gateway(browser: Browser, way: str) -> None:
    async with published(way) as (made, url):
        ids = await made.fill()
        asked: list[str] = []
        strange: list[str] = []
        context = await browser.new_context()
        page = await context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfinished", partial(note, strange))
        await sign_in(page, url)
        (cookie,) = await context.cookies()
        assert cookie.get("path") == "/dragoman/ui"
        # Styles and scripts are there, and the page is live.
        assert await page.evaluate("getComputedStyle(document.querySelector('.bar')).display") == "flex"
        await expect(page.locator("html.live")).to_have_count(1)
        for name in ("Sessions", "Calls", "Inbox", "Dead letters", "Overview"):
            await page.click(f"nav >> text={name}")
            await expect(page.locator("nav [aria-current]")).to_have_text(re.compile(rf"{name}( \d+\+?)?"))
        links, opened = {f"{url}/ui"}, set[str]()
        while links - opened:
            path = min(links - opened)
            opened.add(path)
            await page.goto(path)
            found = await page.eval_on_selector_all("a[href]", "all => all.map(one => one.href)")
            links |= {one.partition("#")[0] for one in found}
        assert f"{url}/ui/calls/{ids['lost']}" in opened
        await page.goto(f"{url}/ui/inbox")
        async with page.expect_navigation():
            await page.click("button.allow")
        assert page.url.startswith(f"{url}/ui/inbox?seen=")
        await page.fill("input[name=q]", ids["accepted"])
        async with page.expect_navigation():
            await page.press("input[name=q]", "Enter")
        assert page.url == f"{url}/ui/calls/{ids['accepted']}"
        assert f"curl -s '{url}/v1/calls/" in await page.inner_text("footer")
        await page.click("text=Cancel the call…")
        async with page.expect_navigation():
            await page.click("button:text-is('Cancel')")
        async with page.expect_navigation():
            await page.click("text=Sign out")
        assert page.url == f"{url}/ui/sign-in"
        assert await context.cookies() == []
        await context.close()
    assert [one for one in asked if not one.startswith((f"{url}/", "data:"))] == []
    assert strange == []


@pytest.mark.parametrize("way", WAYS)
async def test_programs_use_the_api_under_the_path(way: str) -> None:
    async with published(way) as (made, url):
        session_id = await made.attach()
        call_id = await made.ask()
        (asked,) = [one for one in made.backend.asked if one.data["call_id"] == call_id]
        assert asked.data["callback_url"].startswith(f"{url}/v1/calls/{call_id}/outcome?token=")
        async with Client(f"{url}/", KEY) as dragoman:
            assert [one.native_id async for one in dragoman.sessions()] == ["agent-7"]
            access = await dragoman.request("GET", f"/v1/sessions/{session_id}/mcp")
        assert access["url"] == f"{url}/mcp/{session_id}"
        listed = await dragoman_command(None, "sessions", "--url", url, "--key", KEY)
        assert (listed.code, listed.out.split("\t")[0]) == (0, "finn/agent-7"), listed.err
        async with plain_client(url) as client:
            opened = await client.post("/v1/sessions", json={"runtime": "finn", "native_id": "agent-8"})
            assert opened.headers["location"] == f"/dragoman/v1/sessions/{opened.json()['session_id']}"
