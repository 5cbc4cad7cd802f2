"""Renders every page in every condition, width and color scheme onto contact sheets: `make shots`."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw
from playwright.async_api import Browser, Page, async_playwright

from gateway.errors import EngineUnavailable
from gateway.events import ApprovalAsked, CallId, MessagePosted, QuestionAsked, SecretAsked, Text, ToolRequested
from gateway.executors.port import Uncertain
from gateway.store.rows import Page as StorePage
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.http.ui.undispatched import OVER, WAYS
from tests.ui.conftest import KEY, sign_in

WIDTHS = (390, 1024, 1440)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MANY = 10_000
_TOGETHER = 100
"""Calls that are open together."""
_HEIGHT = 900
_THUMB = 480
"""The width of a picture on a sheet."""
_COLUMNS = 4

_ONCE = frozenset({"stale", "409"})
"""Conditions that a picture uses up."""

Ids = dict[str, str]
Look = tuple[int, Literal["light", "dark"]]
Prepare = Callable[[Environment], Awaitable[Ids]]


def pages_of(ids: Ids) -> dict[str, str]:
    """Return the paths of the pages by name; pages of one thing exist only if there is one."""
    found = {
        "overview": "/ui",
        "sessions": "/ui/sessions",
        "calls": "/ui/calls",
        "inbox": "/ui/inbox",
        "dead letters": "/ui/dead-letters",
    }
    if "session" in ids:
        found |= {
            "session": f"/ui/sessions/{ids['session']}",
            "event": f"/ui/sessions/{ids['session']}/events/3",
        }
    if "call" in ids:
        found["call"] = f"/ui/calls/{ids['call']}"
    if "interaction" in ids:
        found["request"] = f"/ui/inbox/{ids['interaction']}"
    return found


async def _empty(made: Environment) -> Ids:
    del made
    return {}


async def _one(made: Environment) -> Ids:
    session_id = await made.attach()
    call_id = await made.ask("c-1")
    interaction = await made.ask_person()
    return {"session": session_id, "call": call_id, "interaction": interaction}


async def _busy(made: Environment) -> Ids:
    ids = await _one(made)
    for number in range(40):
        made.runtime.say(MessagePosted(content=(Text(text=f"Do you have any {number % 13}s?"),)))
        await made.ask(f"b-{number}")
        if number % 3:
            await made.lose_call(f"l-{number}")
    for number in range(5):
        await made.attach(f"agent-{number + 20}")
    made.runtime.say(QuestionAsked(id="q-1", text="Whom shall I ask?", choices=("Alice", "Bob")))
    made.runtime.say(SecretAsked(id="s-1", purpose="secret", name="TOKEN"))
    await made.recorded(ids["session"], "secret.asked")
    return ids


async def _many(made: Environment) -> Ids:
    """Make as many calls, dead letters, requests for a person, and events."""
    ids = await _one(made)
    made.backend.answers["lost"] = Uncertain("the connection broke")
    for number in range(MANY):
        made.runtime.say(ApprovalAsked(id=f"m-{number}", tool="rm", arguments={"path": f"deck-{number}"}))
        made.runtime.say(ToolRequested(native_call_id=f"m-{number}", tool="lost", arguments={"number": number}))
        if number % _TOGETHER == _TOGETHER - 1:
            await made.call(f"m-{number}", "failed")
    await made.post(ids["session"], MANY)
    return ids


async def _failing(made: Environment) -> Ids:
    ids = await _one(made)
    lost = await made.lose_call("f-1")
    await made.lose_copy(ids["session"])
    made.runtime.say(ToolRequested(native_call_id="f-2", tool="ask_for_cards", problem="at /rank: 99 is not allowed"))
    await made.call("f-2", "failed")
    return {**ids, "call": lost}


async def _undispatched(way: str, made: Environment) -> Ids:
    """Make a call that ends before its dispatch."""
    session_id = await made.attach()
    return {"session": session_id, "call": await WAYS[way](made, session_id)}


UNDISPATCHED = {f"undispatched{number}": partial(_undispatched, way) for number, way in enumerate(WAYS, 1)}
"""One condition for each way in which a call can end before its dispatch."""
CONDITIONS: dict[str, Prepare] = {
    "empty": _empty,
    "one": _one,
    "busy": _busy,
    "10000": _many,
    "failing": _failing,
    "partial": _many,
    "stale": _one,
    "not live": _one,
    "403": _one,
    "404": _one,
    "409": _one,
    "503": _one,
    **UNDISPATCHED,
}


@asynccontextmanager
async def condition(name: str) -> AsyncGenerator[tuple[Environment, str, dict[str, str]]]:
    """Run a gateway in a condition; yields its URL and the paths of its pages."""
    async with (
        environment_of(OVER if name in UNDISPATCHED else {"limits": {"drain": "1s"}}) as made,
        serving(made.gateway) as (_, url),
    ):
        ids = await CONDITIONS[name](made)
        pages = pages_of(ids)
        match name:
            case "partial":
                pages = {"session": f"/ui/sessions/{ids['session']}?before=5000", "search": "/ui/search?q=no-such-id"}
            case "404":
                pages = {"page": "/ui/nothing", "call": "/ui/calls/unknown", "session": "/ui/sessions/unknown"}
            case "403" | "409" | "stale":
                pages = {"call": f"/ui/calls/{ids['call']}", "inbox": "/ui/inbox"}
            case _ if name in UNDISPATCHED:
                pages = {"call": pages["call"]}
            case _:
                pass
        yield made, url, pages


async def _bring_about(name: str, made: Environment, page: Page) -> None:
    """Bring a loaded page into its condition."""
    match name:
        case "not live":
            await page.evaluate("document.getElementById('banner').hidden = false")
            await page.evaluate("document.getElementById('banner').textContent = 'Not live since 14:02; reconnecting.'")
        case "stale" | "409" if "/calls/" in page.url:
            call_id = page.url.rpartition("/")[2].partition("?")[0]
            await made.gateway.calls.progress(CallId(call_id), {"percent": 50}, size=20)
            await page.click("text=Cancel the call…")
            await page.click("button:text-is('Cancel')")
            await page.wait_for_load_state()
        case "stale" | "409":
            rows = await made.gateway.interactions.page(StorePage(50), session_id=None, state="waiting")
            for row, asked in rows[0]:
                if isinstance(asked.event, ApprovalAsked):
                    await made.gateway.interactions.answer(row.interaction_id, {"decision": "deny"}, by="operator")
                    await page.click("button.allow")
                    await page.wait_for_load_state()
                    break
        case _:
            pass


async def _shoot(browser: Browser, name: str, folder: Path) -> list[Path]:
    looks: list[Look] = [(width, scheme) for width in WIDTHS for scheme in SCHEMES]
    if name not in _ONCE:
        return await _shoot_looks(browser, name, folder, looks)
    return [shot for look in looks for shot in await _shoot_looks(browser, name, folder, [look])]


async def _shoot_looks(browser: Browser, name: str, folder: Path, looks: Sequence[Look]) -> list[Path]:
    """Take the pictures of a condition in some widths and schemes, all of one gateway."""
    shots: list[Path] = []
    async with condition(name) as (made, url, pages):
        for width, scheme in looks:
            context = await browser.new_context(
                viewport={"width": width, "height": _HEIGHT},
                color_scheme=scheme,
                base_url=url,
                # A live page would not become stale.
                java_script_enabled=name not in _ONCE,
            )
            page = await context.new_page()
            await sign_in(page, "look-only" if name == "403" else KEY)
            if name == "503":
                made.fail("calls", EngineUnavailable("the database does not respond"))
                made.fail("sessions", EngineUnavailable("the database does not respond"))
            for title, path in pages.items():
                await page.goto(path)
                await _bring_about(name, made, page)
                shot = folder / f"{name.replace(',', '')}-{title.replace(' ', '-')}-{width}-{scheme}.png"
                await page.screenshot(path=shot)
                shots.append(shot)
            await context.close()
            if name == "503":
                made.fail("calls", None)
                made.fail("sessions", None)
    return shots


def _sheet(shots: list[Path], path: Path) -> None:
    """Paste pictures of one size onto a sheet, each with its name."""
    pictures = [Image.open(shot) for shot in shots]
    height = _HEIGHT * _THUMB // max(picture.width for picture in pictures)
    rows = -(-len(pictures) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * (_THUMB + 8), rows * (height + 24)), "#888")
    draw = ImageDraw.Draw(sheet)
    for number, (picture, shot) in enumerate(zip(pictures, shots, strict=True)):
        x, y = number % _COLUMNS * (_THUMB + 8), number // _COLUMNS * (height + 24)
        picture.thumbnail((_THUMB, height))
        sheet.paste(picture, (x, y + 18))
        draw.text((x + 2, y + 2), shot.stem, fill="white")
    sheet.save(path)


async def _run(names: list[str], folder: Path) -> None:
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("`make shots` needs Debian's chromium: apt-get install chromium")
    shots: list[Path] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name in names:
            found = await _shoot(browser, name, folder)
            sys.stderr.write(f"{name:<10} {len(found)} pictures\n")
            shots += found
        await browser.close()
    for width in WIDTHS:
        for scheme in SCHEMES:
            chosen = [shot for shot in shots if shot.stem.endswith(f"-{width}-{scheme}")]
            _sheet(chosen, folder / f"sheet-{width}-{scheme}.png")
    sys.stderr.write(f"contact sheets: {folder}/sheet-*.png\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CONDITIONS), help="conditions, separated by commas")
    parser.add_argument("--folder", type=Path, default=Path(".cache/shots"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_run([name for name in CONDITIONS if name in given.only.split(",") or given.only == ""], given.folder))


if __name__ == "__main__":
    main()
