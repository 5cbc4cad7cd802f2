"""The forms: what they change, who may use them, and what happens if the page is stale."""

import asyncio

import pytest
from playwright.async_api import Page, Route, expect

from gateway.events import CallId, MessagePosted, QuestionAsked, SecretAsked, SessionMoved, Text
from gateway.store.rows import Page as StorePage
from tests.ui.conftest import KEY, Ui

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def double_click(page: Page, selector: str, path: str) -> None:
    """Click a button again after the gateway has carried out its form, but before the browser has the response."""
    carried_out = asyncio.Event()

    async def hold_back(route: Route) -> None:
        response = await route.fetch(max_redirects=0)
        assert response.status == 303
        carried_out.set()

    await page.route(path, hold_back, times=1)
    box = await page.locator(selector).bounding_box()
    assert box is not None
    # Unlike `click`, the mouse does not wait for the first navigation.
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await page.mouse.click(x, y)
    await carried_out.wait()
    await page.mouse.click(x, y)


async def test_a_double_click_sends_a_message_once(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await page.fill("textarea", "Whose turn is it?")
    await double_click(page, "text=Send", "**/message")
    await expect(page.locator("textarea")).to_be_empty()
    await expect(page.locator(".timeline")).to_contain_text("Whose turn is it?")
    posted = [one for one in await ui.environment.journal(session_id) if one.event.kind == "message.posted"]
    assert len(posted) == 1


async def test_a_double_click_allows_once_and_is_not_told_of_itself(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    await ui.environment.ask_person()
    page = await ui.open("/ui/inbox", java_script_enabled=False)
    await double_click(page, "button.allow", "**/answer")
    await expect(page.locator(".gone")).to_contain_text("answered by backend")
    given = [one for one in await ui.environment.journal(session_id) if one.event.kind == "approval.given"]
    assert len(given) == 1


async def test_of_two_operators_who_answer_at_once_one_is_told_what_the_other_decided(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    await ui.environment.reload(
        {"api": {"keys": [*ui.environment.configuration["api"]["keys"], {"name": "colleague", "key": "another"}]}}
    )
    await ui.environment.ask_person()
    pages = [await ui.open("/ui/inbox", key=key, java_script_enabled=False) for key in (KEY, "another")]
    await asyncio.gather(pages[0].click("button.allow"), pages[1].click("button.deny"))
    for page in pages:
        await expect(page.locator(".gone, .panel")).to_contain_text("answered")
    (given,) = [one for one in await ui.environment.journal(session_id) if one.event.kind == "approval.given"]
    decision = getattr(given.event, "decision", None)
    winner, loser = pages if decision == "allow" else reversed(pages)
    name = "backend" if decision == "allow" else "colleague"
    await expect(winner.locator(".gone")).to_contain_text(f"answered by {name}")
    await expect(loser.locator("h1")).to_have_text("Already answered")
    await expect(loser.locator(".panel")).to_contain_text(f"{name} answered first")
    await expect(loser.locator(".panel li")).to_contain_text(f"approval.given: {decision}")


async def test_an_approval_is_given_once_and_the_second_operator_is_told(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    await ui.environment.ask_person()
    first, second = await ui.open("/ui/inbox"), await ui.open("/ui/inbox", java_script_enabled=False)
    await first.click("button.allow")
    await expect(first.locator(".gone")).to_contain_text("answered by backend")
    await second.click("button.deny")
    await expect(second.locator("h1")).to_contain_text("Already answered")
    await expect(second.locator("main")).to_contain_text("backend answered first")
    given = await ui.environment.recorded(session_id, "approval.given")
    assert getattr(given.event, "decision", None) == "allow"


async def test_a_stale_answer_is_kept_but_never_a_secret(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    ui.environment.runtime.say(QuestionAsked(id="q-1", text="Which rank?"))
    ui.environment.runtime.say(SecretAsked(id="s-1", purpose="secret", name="TOKEN"))
    await ui.environment.recorded(session_id, "secret.asked")
    stale = await ui.open("/ui/inbox", java_script_enabled=False)
    await stale.fill("input[name=answer]", "the typed answer")
    await stale.fill("input[name=value]", "hush-hush")
    rows = (await ui.environment.engine.interactions(StorePage()))[0]
    for row in rows:
        body = {"answer": "9"} if row.kind == "question.asked" else {"value": "other"}
        await ui.environment.gateway.interactions.answer(row.interaction_id, body, by="driver")
    await stale.click("text=Answer >> nth=-1")
    await expect(stale.locator("main")).to_contain_text("the typed answer")
    await stale.goto("/ui/inbox")
    assert "hush-hush" not in await stale.content()


async def test_a_stale_cancel_lists_the_changes_and_does_nothing(ui: Ui) -> None:
    await ui.environment.attach()
    call_id = await ui.environment.ask()
    page = await ui.open(f"/ui/calls/{call_id}", java_script_enabled=False)
    await ui.environment.gateway.calls.progress(CallId(call_id), {"percent": 50}, size=20)
    await page.click("text=Cancel the call…")
    await page.click("button:text-is('Cancel')")
    await expect(page.locator("h1")).to_have_text("The call changed")
    await expect(page.locator("main")).to_contain_text("call.progressed")
    assert (await ui.environment.gateway.calls.one(CallId(call_id))).state == "accepted"
    await page.click("text=Do it anyway")
    await expect(page.locator(".lead")).to_contain_text("is being canceled")


async def test_a_dead_call_is_redriven_from_its_story(ui: Ui) -> None:
    await ui.environment.attach()
    call_id = await ui.environment.lose_call()
    page = await ui.open(f"/ui/calls/{call_id}")
    await expect(page.locator(".lead")).to_contain_text(f"webhook-id {call_id}")
    ui.environment.backend.answers.clear()
    await page.click("text=Redrive…")
    await page.click("details[open] button.primary")
    await page.wait_for_url(lambda url: "/ui/calls/" in url and call_id not in url)
    await expect(page.locator(".members")).to_contain_text(call_id[:8])
    new_id = page.url.rpartition("/")[2]
    await page.goto(f"/ui/calls/{call_id}")
    await expect(page.locator(".members")).to_contain_text(new_id[:8])
    await expect(page.locator(".steps")).to_contain_text(f"Redriven as call {new_id}")


async def test_all_dead_letters_are_dismissed_after_a_dry_run(ui: Ui) -> None:
    ids = await ui.environment.fill()
    page = await ui.open("/ui/dead-letters")
    await page.click("text=Dismiss all…")
    await expect(page.locator("main")).to_contain_text("2 dead letters would be dismissed")
    assert (await ui.environment.gateway.calls.one(CallId(ids["lost"]))).dead
    await page.click("button.primary")
    await expect(page.locator(".notice")).to_contain_text("2 of 2 dismissed")


async def test_a_message_reaches_the_agent_and_a_session_closes(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await page.fill("textarea", "Whose turn is it?")
    await page.click("text=Send")
    await expect(page.locator(".timeline")).to_contain_text("Whose turn is it?")
    await page.click("text=Close session…")
    await page.click("details.menu[open] button.deny")
    await expect(page.locator(".facts")).to_contain_text("closed")


async def test_a_tab_of_a_session_that_another_tab_closed_keeps_the_text(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    first = await ui.open(f"/ui/sessions/{session_id}", java_script_enabled=False)
    second = await first.context.new_page()
    await second.goto(f"/ui/sessions/{session_id}")
    await second.fill("textarea", "Do you have\nany sevens?")
    await first.click("text=Close session…")
    await first.click("details.menu[open] button.deny")
    await expect(first.locator(".facts")).to_contain_text("closed")
    await second.click("text=Send")
    await expect(second.locator("h1")).to_have_text("The session is closed")
    await expect(second.locator("main li")).to_contain_text("session.closed")
    assert await second.input_value("main textarea") == "Do you have\nany sevens?"


async def test_a_live_page_interrupts_the_turn_that_it_shows(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}")
    await ui.live(page)
    await page.fill("textarea", "half a mess")
    for state in ("running", "idle", "running"):
        ui.environment.runtime.say(SessionMoved(state=state))
    ui.environment.runtime.say(MessagePosted(content=(Text(text="the second turn"),)))
    await expect(page.locator(".timeline")).to_contain_text("the second turn")
    assert await page.input_value("textarea") == "half a mess"
    await page.click("text=Interrupt the turn")
    await expect(page.locator(".timeline")).not_to_contain_text("turn.interrupted")
    await page.click("button:text-is('Interrupt')")
    await expect(page.locator(".timeline")).to_contain_text("turn.interrupted")


async def test_on_a_phone_the_forms_of_a_session_are_folded_below_its_timeline(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}", width=390)
    await expect(page.locator("textarea")).to_be_hidden()
    box = await page.locator(".talk").bounding_box()
    assert box is not None
    assert box["height"] < 60
    await page.click(".talk > summary")
    await page.fill("textarea", "Whose turn is it?")
    await page.click("text=Send")
    await expect(page.locator(".timeline")).to_contain_text("Whose turn is it?")


async def test_times_are_shown_in_utc_or_in_the_zone_of_the_browser(ui: Ui) -> None:
    session_id = await ui.environment.attach()
    page = await ui.open(f"/ui/sessions/{session_id}", timezone_id="Asia/Kolkata")
    moment = page.locator("time[data-abs]").last
    first = await moment.inner_text()
    await page.click("[data-zone]")
    await expect(page.locator("[data-zone]")).to_have_text("local")
    hour, minute = divmod(int(first[-12:-10]) * 60 + int(first[-9:-7]) + 330, 60)
    await expect(moment).to_contain_text(f"{hour % 24:02}:{minute:02}{first[-7:]}")
    await page.reload()
    await expect(page.locator("[data-zone]")).to_have_text("local")
    await page.click("[data-zone]")
    await expect(moment).to_have_text(first)


async def test_a_post_without_the_scope_is_refused_with_its_name(ui: Ui) -> None:
    ids = await ui.environment.fill()
    page = await ui.open("/ui", key="look-only")
    response = await page.evaluate(
        "(path) => fetch(path, {method: 'POST', body: new URLSearchParams({seen: '999'})}).then((r) => r.text())",
        f"/ui/sessions/{ids['session']}/interrupt",
    )
    assert "lacks the scope &#39;drive&#39;" in response
