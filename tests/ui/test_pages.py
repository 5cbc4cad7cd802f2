"""Every page: its contents, its size on a phone, both color schemes, the keyboard, and without scripts."""

import re
from collections.abc import Sequence
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from gateway.events import QuestionAsked, SecretAsked, SessionId
from gateway.store.questions.question import WINDOW
from gateway.store.step import Step
from gateway.testing.conformance.engine_words import call
from tests.ui.conftest import Ui, serious

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
LISTS = ("/ui", "/ui/sessions", "/ui/calls", "/ui/inbox", "/ui/dead-letters")


async def busy(ui: Ui) -> dict[str, str]:
    """Give the gateway a call in each kind of state, and everything that waits for a person."""
    made = ui.environment
    session_id = await made.attach()
    accepted = await made.ask("c-1")
    lost = await made.lose_call("c-2")
    await made.ask_person()
    made.runtime.say(QuestionAsked(id="q-1", text="Whom shall I ask?", choices=("Alice", "Bob")))
    made.runtime.say(SecretAsked(id="s-1", purpose="secret", name="TOKEN"))
    await made.recorded(session_id, "secret.asked")
    await made.lose_copy(session_id)
    return {"session": session_id, "accepted": accepted, "lost": lost}


def pages_of(ids: dict[str, str]) -> list[str]:
    return [
        *LISTS,
        f"/ui/sessions/{ids['session']}",
        f"/ui/sessions/{ids['session']}/events/3",
        f"/ui/calls/{ids['accepted']}",
        f"/ui/calls/{ids['lost']}",
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
    ids = await busy(ui)
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
    ids = await busy(ui)
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
    ids = await busy(ui)
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
    await _tab_to(page, "Cancel the call")
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
    ids = await busy(ui)
    page = await ui.open(f"/ui/calls/{ids['accepted']}", java_script_enabled=False)
    await page.click("text=Cancel the call")
    await expect(page.locator(".lead")).to_contain_text("is being canceled")
    await page.goto(f"/ui/sessions/{ids['session']}")
    await page.click(".seq >> nth=0")
    await expect(page.locator("h1")).to_contain_text("Event")
    await page.goto("/ui/inbox")
    await page.click("text=Allow >> nth=-1")
    await expect(page.locator(".gone")).to_contain_text("answered")


@pytest.mark.parametrize(
    "kind", ["call", "session", "native session", "native call", "trace", "interaction", "dead letter"]
)
async def test_search_opens_the_page_of_any_id(ui: Ui, kind: str) -> None:
    ids = await busy(ui)
    interaction_id = await ui.environment.ask_person()
    letter = await ui.environment.lose_copy(ids["session"])
    await keep_calls(ui, ids["session"], ["a" * 32])
    given, wanted = {
        "call": (ids["lost"], f"/ui/calls/{ids['lost']}"),
        "session": (ids["session"], f"/ui/sessions/{ids['session']}"),
        "native session": ("agent-7", f"/ui/sessions/{ids['session']}"),
        "native call": ("c-1", f"/ui/calls/{ids['accepted']}"),
        "trace": ("a" * 32, "/ui/calls/traced-0"),
        "interaction": (interaction_id, f"/ui/sessions/{ids['session']}?"),
        "dead letter": (letter, f"/ui/sessions/{ids['session']}?"),
    }[kind]
    page = await ui.open("/ui")
    await page.fill("#search", given)
    await page.press("#search", "Enter")
    await page.wait_for_url(lambda url: url.startswith(ui.url + wanted))


async def keep_calls(ui: Ui, session_id: str, traces: Sequence[str]) -> None:
    """Put calls with these trace ids into the store."""
    for start in range(0, len(traces), 1_000):
        opened = (
            call(
                f"traced-{number}",
                request_index=None,
                request_sequence=1,
                session_id=SessionId(session_id),
                native_call_id=f"native-{number}",
                trace=f"00-{trace}-{'1' * 16}-01",
            )
            for number, trace in enumerate(traces[start : start + 1_000], start)
        )
        await ui.environment.engine.commit(Step(SessionId(session_id), calls=tuple(opened)))


async def test_the_calls_of_a_trace_are_found(ui: Ui) -> None:
    await keep_calls(ui, await ui.environment.attach(), ["a" * 32, "b" * 32, "b" * 32])
    page = await ui.open("/ui/calls/traced-0")
    await expect(page.locator(f"dd button[data-copy='{'a' * 32}']")).to_be_visible()
    await page.goto(f"/ui/search?q={'b' * 32}")
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert page.url.endswith(f"/ui/calls?trace_id={'b' * 32}")
    await page.goto(f"/ui/search?q={'c' * 32}")
    await expect(page.locator("main")).to_contain_text("No session, call, interaction or dead letter has this id")


async def test_a_search_of_a_part_of_the_calls_offers_to_look_further(ui: Ui) -> None:
    await keep_calls(ui, await ui.environment.attach(), ["a" * 32, *["b" * 32] * (WINDOW + 10)])
    page = await ui.open(f"/ui/search?q=native-{WINDOW - 700}")
    await expect(page.locator(".empty")).to_contain_text("No match yet. Looked back to ")
    await page.click("text=look further")
    await page.wait_for_url(f"**/ui/calls/traced-{WINDOW - 700}")
    await page.goto(f"/ui/search?q={'a' * 32}")
    await page.click("text=look further")
    await expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("outcome=unknown", 1),
        ("outcome=success", 0),
        ("state=accepted", 1),
        ("executor=cards", 2),
        ("label=room%3Dnone", 0),
        ("tool=lost&runtime=finn", 1),
        ("since=2020-01-01T00:00Z&until=2020-01-02T00:00Z", 0),
    ],
)
async def test_calls_are_filtered(ui: Ui, query: str, rows: int) -> None:
    await busy(ui)
    page = await ui.open(f"/ui/calls?{query}")
    await expect(page.locator("tbody tr")).to_have_count(rows)
    await page.goto(f"/ui/calls?{query}")
    shown = await page.locator("footer code").inner_text()
    assert "/v1/calls?" in shown
