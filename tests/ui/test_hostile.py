"""Hostile text in every field that an agent, a backend or an operator fills: it is shown, and does nothing."""

import pytest
from playwright.async_api import expect

from gateway.events import (
    ApprovalAsked,
    CallId,
    FaultReported,
    MessagePosted,
    Outcome,
    QuestionAsked,
    SecretAsked,
    SessionTitled,
    Text,
    ToolRequested,
)
from gateway.executors.port import Answered
from tests.ui.conftest import Ui

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

MARKUP = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>'\"--></script>{{ 7 * 7 }}"
CONTROLS = "safe\u202eevil\u202c \x1b[31mred\x1b[0m \u200bzero\x00nul"
HOSTILE = MARKUP + CONTROLS


async def hostile(ui: Ui, text: str) -> dict[str, str]:
    """Put a text into every field that an agent, a backend or an operator fills."""
    made = ui.environment
    row, *_ = await made.gateway.opening.open("finn", native_id="agent-7", labels={"room": text[:200], "<b>": "1"})
    session_id = row.session_id
    await made.recorded(session_id, "link.changed")
    call_id = await made.ask("c-1")
    made.runtime.say(
        ToolRequested(native_call_id=text[:300], tool=text[:200], arguments={text[:100]: text}, thought=text)
    )
    made.runtime.say(MessagePosted(content=(Text(text=text),)))
    made.runtime.say(SessionTitled(title=text))
    made.runtime.say(FaultReported(message=text))
    made.runtime.say(ApprovalAsked(id="a-1", tool=text[:200], arguments={text[:100]: text}))
    made.runtime.say(QuestionAsked(id="q-1", text=text, choices=(text, "no")))
    made.runtime.say(SecretAsked(id="s-1", purpose="secret", name=text[:100], prompt=text))
    await made.recorded(session_id, "secret.asked")
    await made.gateway.calls.progress(CallId(call_id), {"note": text}, size=len(text))
    await made.gateway.calls.settle(CallId(call_id), Answered(Outcome(outcome="failure", error=text)))
    other = await made.call(text[:300])
    return {"session": session_id, "call": call_id, "other": other.call_id}


def pages_of(ids: dict[str, str]) -> list[str]:
    events = [f"/ui/sessions/{ids['session']}/events/{number}" for number in range(1, 15)]
    calls = [f"/ui/calls/{ids['call']}", f"/ui/calls/{ids['other']}"]
    return [
        "/ui",
        "/ui/sessions",
        "/ui/calls",
        "/ui/inbox",
        "/ui/dead-letters",
        f"/ui/sessions/{ids['session']}",
        *events,
        *calls,
    ]


async def test_markup_and_controls_are_shown_as_text(ui: Ui) -> None:
    ids = await hostile(ui, HOSTILE)
    page = await ui.open()
    for path in pages_of(ids):
        await page.goto(path)
        assert await page.evaluate("window.hacked") is None, path
        assert await page.locator("main img, main script:not([type='application/json'])").count() == 0, path
        text = await page.inner_text("body")
        assert not set(text) & {"\u202e", "\x1b", "\u200b", "\x00"}, path
        assert "49" not in (await page.title()), path
    await page.goto("/ui/inbox")
    await expect(page.locator("main")).to_contain_text("<img src=x onerror=window.hacked=1>")
    await expect(page.locator(".esc").first).to_be_visible()


async def test_a_megabyte_is_cut_and_the_page_stays_small(ui: Ui) -> None:
    ids = await hostile(ui, "x" * 1_000_000)
    page = await ui.open(width=390)
    for path in pages_of(ids):
        response = await page.goto(path)
        assert response is not None
        # Only the page of one event shows all of it.
        limit = 4_000_000 if "/events/" in path else 1_500_000 if "/calls/" in path else 500_000
        assert len(await response.body()) < limit, path
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, path


async def test_hostile_queries_are_shown_as_text(ui: Ui) -> None:
    await ui.environment.attach()
    page = await ui.open()
    for path in ("/ui/search?q=", "/ui/calls?tool=", "/ui/sessions?runtime=finn&native_id="):
        await page.goto(f"{path}{MARKUP.replace('#', '').replace('&', '')}")
        assert await page.evaluate("window.hacked") is None, path
        await expect(page.locator("h1")).to_be_visible()
