"""Live updates: without moving anything, and with a notice while the stream is lost."""

import asyncio
from time import monotonic

import pytest
from playwright.async_api import Route, expect

from gateway.events import ApprovalAsked, CallId, MessagePosted, Outcome, QuestionAsked, Text
from gateway.executors.port import Answered
from tests.ui.conftest import Ui

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PATIENT = 20_000
"""The time limit in milliseconds; a slow machine updates pages less often."""


async def test_a_session_shows_new_events_without_moving_the_old_ones(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await ui.live(page)
    await page.evaluate(
        """() => { window.shift = 0; new PerformanceObserver((list) => {
            for (const one of list.getEntries()) window.shift += one.value;
        }).observe({type: 'layout-shift', buffered: true}); }"""
    )
    for number in range(3):
        ui.environment.runtime.say(MessagePosted(content=(Text(text=f"message {number}"),)))
        await expect(page.locator(".timeline")).to_contain_text(f"message {number}", timeout=PATIENT)
    assert await page.evaluate("window.shift") < 0.05


async def test_a_call_shows_its_end(ui: Ui) -> None:
    await ui.environment.attach()
    call_id = await ui.environment.ask()
    page = await ui.open(f"/ui/calls/{call_id}")
    await ui.live(page)
    await ui.environment.gateway.calls.settle(CallId(call_id), Answered(Outcome(outcome="success", result=7)))
    await expect(page.locator(".lead")).to_contain_text("succeeded", timeout=PATIENT)


async def test_new_rows_wait_for_a_key_and_known_rows_change_in_place(ui: Ui) -> None:
    await ui.environment.attach()
    call_id = await ui.environment.ask("c-1")
    page = await ui.open("/ui/calls")
    await ui.live(page)
    await page.keyboard.press("j")
    await ui.environment.ask("c-2")
    await expect(page.locator("[data-fresh]")).to_have_text("1 new", timeout=PATIENT)
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(page.locator("a.main:focus")).to_have_count(1)
    await ui.environment.gateway.calls.settle(CallId(call_id), Answered(Outcome(outcome="success", result=7)))
    await expect(page.locator(f"[data-id='{call_id}']")).to_contain_text("succeeded", timeout=PATIENT)
    await page.keyboard.press("n")
    await expect(page.locator("tbody tr")).to_have_count(2)


async def test_an_answered_request_stays_with_the_name_of_who_answered(ui: Ui) -> None:
    await ui.environment.attach()
    interaction_id = await ui.environment.ask_person()
    page = await ui.open("/ui/inbox")
    await ui.live(page)
    await ui.environment.gateway.interactions.answer(interaction_id, {"decision": "deny"}, by="operator")
    await expect(page.locator(".asked.gone")).to_contain_text("answered by operator", timeout=PATIENT)


async def test_what_an_operator_typed_and_chose_survives_an_update(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    ui.environment.runtime.say(QuestionAsked(id="q-1", text="Which rank?"))
    ui.environment.runtime.say(ApprovalAsked(id="a-1", tool="rm", scopes=("once", "always")))
    await ui.environment.recorded(session_id, "approval.asked")
    page = await ui.open("/ui/inbox")
    await ui.live(page)
    # Absolute times differ from those that the server renders, as relative ones do once a second has passed.
    await page.keyboard.press("t")
    await page.fill("input[name=answer]", "the nine of")
    await page.select_option("select[name=scope]", "always")
    await page.locator("h1").click()
    ui.environment.runtime.say(QuestionAsked(id="q-2", text="Which player?"))
    await expect(page.locator("[data-fresh]")).to_have_text("1 new", timeout=PATIENT)
    assert await page.input_value("input[name=answer]") == "the nine of"
    assert await page.input_value("select[name=scope]") == "always"


async def test_an_edited_card_is_dimmed_when_another_operator_answers_and_keeps_its_text(ui: Ui) -> None:
    await ui.environment.attach()
    interaction_id = await ui.environment.ask_person(QuestionAsked(id="q-1", text="Which rank?"))
    page = await ui.open("/ui/inbox")
    await ui.live(page)
    await page.fill("input[name=answer]", "the nine of")
    await page.locator("h1").click()
    await ui.environment.gateway.interactions.answer(interaction_id, {"answer": "7"}, by="operator")
    await expect(page.locator(".asked.gone")).to_have_count(1, timeout=PATIENT)
    assert await page.input_value("input[name=answer]") == "the nine of"


async def test_an_update_replaces_no_row_because_time_passes(ui: Ui) -> None:
    await ui.environment.attach()
    await ui.environment.ask_person()
    page = await ui.open("/ui/inbox")
    await ui.live(page)
    await page.keyboard.press("t")
    await page.evaluate("document.querySelector('.asked').kept = true")
    ui.environment.runtime.say(QuestionAsked(id="q-1", text="Which player?"))
    await expect(page.locator("[data-fresh]")).to_have_text("1 new", timeout=PATIENT)
    assert await page.evaluate("document.querySelector('.asked').kept")


async def test_a_lost_stream_is_told_and_found_again(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await ui.live(page)
    await page.context.set_offline(True)
    ui.end_streams()
    await expect(page.locator("#banner")).to_contain_text("Not live since", timeout=PATIENT)
    await page.context.set_offline(False)
    await expect(page.locator("#banner")).to_be_hidden(timeout=PATIENT)
    ui.faults.clear()


async def test_the_time_since_when_a_page_is_not_live_follows_the_zone_of_the_browser(ui: Ui) -> None:
    page = await ui.open("/ui", timezone_id="Asia/Kolkata")
    await ui.live(page)
    await page.context.set_offline(True)
    ui.end_streams()
    lost = page.locator("#banner time")
    await expect(lost).to_be_visible(timeout=PATIENT)
    hour, minute = (int(part) for part in (await lost.inner_text()).split(":"))
    await page.click("[data-zone]")
    hour, minute = divmod(hour * 60 + minute + 330, 60)
    await expect(lost).to_have_text(f"{hour % 24:02}:{minute:02}")
    await page.context.set_offline(False)
    await expect(page.locator("#banner")).to_be_hidden(timeout=PATIENT)
    ui.faults.clear()


async def test_an_event_in_two_pieces_updates_the_page_at_once(ui: Ui) -> None:
    await ui.environment.attach()
    call_id = await ui.environment.ask()
    page = await ui.open("/ui")
    # The network parts a stream anywhere.
    await page.context.add_init_script(
        """const own = window.fetch; window.fetch = (path, more) => !`${path}`.includes("/ui/live") ? own(path, more)
        : Promise.resolve(new Response(new ReadableStream({start: (one) => {
            window.hear = (text) => one.enqueue(new TextEncoder().encode(text)); }})));"""
    )
    await page.goto(f"/ui/calls/{call_id}")
    await ui.environment.gateway.calls.settle(CallId(call_id), Answered(Outcome(outcome="success", result=7)))
    for piece in ("event: tool.finished\nda", "ta: {}\n\n"):
        await page.evaluate("(piece) => window.hear(piece)", piece)
    await expect(page.locator(".lead")).to_contain_text("succeeded", timeout=PATIENT)


async def test_a_page_that_takes_long_is_read_less_often(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await ui.live(page)
    reads: list[float] = []

    async def delay(route: Route) -> None:
        reads.append(monotonic())
        # Stands for a page that costs this time.
        await asyncio.sleep(0.5)
        await route.continue_()

    await page.route("**/ui/sessions/*", delay)
    while len(reads) < 2:
        ui.environment.runtime.say(MessagePosted(content=(Text(text="on it goes"),)))
        # A busy session.
        await asyncio.sleep(0.1)
    assert reads[1] - reads[0] > 5
    await page.unroute_all(behavior="wait")


async def test_a_hidden_tab_holds_no_stream(ui: Ui) -> None:
    page = await ui.open("/ui")
    await ui.live(page)
    await page.evaluate(
        """() => { Object.defineProperty(document, 'hidden', {value: true, configurable: true});
        document.dispatchEvent(new Event('visibilitychange')); }"""
    )
    await ui.streams(0)


async def test_a_reload_that_removes_the_key_ends_the_stream(ui: Ui) -> None:
    page = await ui.open("/ui", key="look-only")
    await ui.live(page)
    keys = [key for key in ui.environment.configuration["api"]["keys"] if key["name"] != "viewer"]
    await ui.environment.reload({"api": {"keys": keys}})
    await expect(page.locator("#banner")).to_contain_text("Not live since", timeout=PATIENT)
    await page.goto("/ui")
    await expect(page.locator("input[name=key]")).to_be_visible()
    ui.faults.clear()
