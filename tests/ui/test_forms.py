"""The forms: what they change, who may use them, and what happens if the page is stale."""

import pytest
from playwright.async_api import expect

from gateway.events import CallId, QuestionAsked, SecretAsked
from gateway.store.rows import Page
from tests.ui.conftest import Ui
from tests.ui.test_pages import busy

pytestmark = pytest.mark.slow


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
    rows = (await ui.environment.engine.interactions(Page()))[0]
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
    await page.click("text=Cancel the call")
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
    ids = await busy(ui)
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
    await page.click("details[open] button.deny")
    await expect(page.locator(".facts")).to_contain_text("closed")


@pytest.mark.parametrize(("key", "hidden"), [("look-only", "Cancel the call"), ("look-only", "Redrive…")])
async def test_forms_are_hidden_without_their_scope(ui: Ui, key: str, hidden: str) -> None:
    ids = await busy(ui)
    page = await ui.open(f"/ui/calls/{ids['accepted' if 'Cancel' in hidden else 'lost']}", key=key)
    await expect(page.locator("h1")).to_be_visible()
    await expect(page.get_by_text(hidden)).to_have_count(0)


async def test_a_post_without_the_scope_is_refused_with_its_name(ui: Ui) -> None:
    ids = await busy(ui)
    page = await ui.open("/ui", key="look-only")
    response = await page.evaluate(
        "(path) => fetch(path, {method: 'POST', body: new URLSearchParams({seen: ''})}).then((r) => r.text())",
        f"/ui/sessions/{ids['session']}/interrupt",
    )
    assert "lacks the scope &#39;drive&#39;" in response
