"""The forms without a browser: each rendering is carried out once, and a stale form only lists the changes."""

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.errors import EngineUnavailable
from gateway.events import CallId, QuestionAsked, SecretAsked, SessionId, SessionMoved
from gateway.executors.port import Copied
from gateway.http.ui.guard import key_of
from gateway.runtime.clients.dead_letters import Which
from gateway.store.rows import CallFilter, Page
from tests.http.environment import Environment
from tests.http.ui.browser import Browser, browsing, forms_in


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    """A browser of an operator with all scopes."""
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        yield browser


async def form_on(browser: Browser, path: str, action: str, at: int = 0) -> dict[str, str]:
    """Open a page and read the hidden fields of a form."""
    page = await browser.open(path)
    assert page.status_code == 200, page.text
    return forms_in(page, action)[at]


async def count(environment: Environment, session_id: str, kind: str) -> int:
    return sum(one.event.kind == kind for one in await environment.journal(session_id))


def assert_stale(answer: httpx.Response, *told: str) -> None:
    assert answer.status_code == 409, answer.text
    assert [one for one in told if one not in answer.text] == [], answer.text


async def test_a_message_that_is_sent_twice_is_posted_once(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Whose turn is it?"}
    answers = await asyncio.gather(*(browser.send(f"{path}/message", form) for _ in range(3)))
    assert [(one.status_code, one.headers["location"]) for one in answers] == [(303, path)] * 3
    assert await count(environment, session_id, "message.posted") == 1
    # A browser that goes back sends other words with the same key.
    await browser.send(f"{path}/message", form | {"text": "And now?"})
    assert await count(environment, session_id, "message.posted") == 2


async def test_a_message_is_posted_once_even_if_the_page_updates_its_form_between_two_clicks(
    environment: Environment, browser: Browser
) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Whose turn is it?"}
    for seen in (int(form["seen"]), int(form["seen"]) + 1):
        assert (await browser.send(f"{path}/message", form | {"seen": f"{seen}"})).status_code == 303
    assert await count(environment, session_id, "message.posted") == 1


async def test_a_message_is_posted_once_even_if_its_form_could_not_be_remembered(
    environment: Environment, browser: Browser
) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Whose turn is it?"}
    environment.fail("remember", EngineUnavailable("the disk is full"))
    assert (await browser.send(f"{path}/message", form)).status_code == 303
    environment.fail("remember", None)
    assert (await browser.send(f"{path}/message", form)).status_code == 303
    assert await count(environment, session_id, "message.posted") == 1


async def test_the_same_words_from_two_tabs_are_two_messages(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    forms = [await form_on(browser, path, f"{path}/message") for _ in range(2)]
    for form in forms:
        assert (await browser.send(f"{path}/message", form | {"text": "yes"})).status_code == 303
    assert await count(environment, session_id, "message.posted") == 2


async def test_a_session_that_is_opened_twice_by_one_form_is_one(environment: Environment, browser: Browser) -> None:
    form = await form_on(browser, "/ui/sessions", "/ui/sessions", 1) | {"runtime": "finn", "native_id": ""}
    answers = [await browser.send("/ui/sessions", form) for _ in range(2)]
    assert len({one.headers["location"] for one in answers}) == 1
    assert environment.runtime.orders == 1


async def test_a_message_to_a_session_that_closed_meanwhile_keeps_its_text(
    environment: Environment, browser: Browser
) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Any\n<b>sevens</b>?"}
    await environment.gateway.close_session(SessionId(session_id), erase=False)
    stale = await browser.send(f"{path}/message", form)
    assert_stale(stale, "The session is closed", "session.closed", "Any\n&lt;b&gt;sevens&lt;/b&gt;?</textarea>")
    assert "Do it anyway" not in stale.text
    await environment.gateway.opening.open("finn", native_id="agent-7", labels={})
    stale = await browser.send(f"{path}/message", form)
    assert_stale(stale, "the session was opened again", "session.opened")
    (again,) = forms_in(stale, f"{path}/message")
    assert (await browser.send(f"{path}/message", again | {"text": form["text"]})).status_code == 303
    assert await count(environment, session_id, "message.posted") == 1


async def test_a_message_is_not_refused_because_the_agent_acts(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Whose turn is it?"}
    environment.runtime.say(SessionMoved(state="idle"))
    await environment.ask()
    assert (await browser.send(f"{path}/message", form)).status_code == 303


async def test_a_turn_that_ended_meanwhile_is_not_interrupted(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    environment.runtime.say(SessionMoved(state="running"))
    await environment.recorded(session_id, "session.moved")
    form = await form_on(browser, path, f"{path}/interrupt")
    environment.runtime.say(SessionMoved(state="awaiting_outcome"))
    await environment.ask("c-1")
    assert (await browser.send(f"{path}/interrupt", form)).status_code == 303
    form = await form_on(browser, path, f"{path}/interrupt")
    environment.runtime.say(SessionMoved(state="idle"))
    environment.runtime.say(SessionMoved(state="running"))
    await environment.ask("c-2")
    stale = await browser.send(f"{path}/interrupt", form)
    assert_stale(stale, "the turn ended", "session.moved: idle")
    assert await count(environment, session_id, "turn.interrupted") == 1
    assert (await browser.send(f"{path}/interrupt", forms_in(stale, f"{path}/interrupt")[0])).status_code == 303
    assert await count(environment, session_id, "turn.interrupted") == 2


async def test_a_session_with_new_open_calls_is_not_closed(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    await environment.ask("c-1")
    form = await form_on(browser, path, f"{path}/close")
    await environment.ask("c-2")
    stale = await browser.send(f"{path}/close", form)
    assert_stale(stale, "the agent called a tool", "tool.requested: ask_for_cards")
    assert (await environment.gateway.session(SessionId(session_id))).state != "closed"
    answers = [await browser.send(f"{path}/close", forms_in(stale, f"{path}/close")[0]) for _ in range(2)]
    assert [one.status_code for one in answers] == [303, 303]
    assert_stale(await browser.send(f"{path}/close", form), "The session is closed")


async def test_a_session_whose_new_calls_have_ended_is_closed(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/close")
    await environment.lose_call()
    assert (await browser.send(f"{path}/close", form)).status_code == 303
    assert (await environment.gateway.session(SessionId(session_id))).state == "closed"


async def test_a_redrive_that_is_sent_twice_makes_one_call(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    call_id = await environment.lose_call()
    path = f"/ui/calls/{call_id}"
    form = await form_on(browser, path, f"{path}/redrive") | {"new_key": "1"}
    answers = await asyncio.gather(*(browser.send(f"{path}/redrive", form) for _ in range(2)))
    assert len({one.headers["location"] for one in answers}) == 1
    rows, _ = await environment.engine.calls(CallFilter(), Page(50))
    assert len(rows) == 2


@pytest.mark.parametrize("verb", ["redrive", "dismiss"])
async def test_a_dead_call_that_another_operator_dealt_with_is_left_alone(
    environment: Environment, browser: Browser, verb: str
) -> None:
    await environment.attach()
    call_id = await environment.lose_call()
    path = f"/ui/dead-letters/{verb}"
    form = await form_on(browser, "/ui/dead-letters", path)
    await environment.gateway.dead_letters.dismiss(call_id, by="operator")
    assert_stale(
        await browser.send(path, form), "it was redriven, dismissed or answered", "call.progressed", "operator"
    )
    rows, _ = await environment.engine.calls(CallFilter(), Page(50))
    assert [one.call_id for one in rows] == [call_id]


@pytest.mark.parametrize("letter", ["", "none", "none:", "none:1:", "a:b:c:d"])
async def test_a_form_of_an_unknown_dead_letter_does_nothing(browser: Browser, letter: str) -> None:
    answer = await browser.send("/ui/dead-letters/dismiss", {"id": letter, "seen": "1"})
    assert answer.status_code in {404, 409}, answer.text


async def test_a_dead_letter_is_dismissed_from_the_story_of_its_call(
    environment: Environment, browser: Browser
) -> None:
    await environment.attach()
    call_id = await environment.lose_call()
    form = await form_on(browser, f"/ui/calls/{call_id}", "/ui/dead-letters/dismiss")
    answers = [await browser.send("/ui/dead-letters/dismiss", form) for _ in range(2)]
    assert [one.headers["location"] for one in answers] == [f"/ui/calls/{call_id}"] * 2
    assert not (await environment.gateway.calls.one(CallId(call_id))).dead


async def test_a_delivery_that_failed_again_meanwhile_is_not_redriven(
    environment: Environment, browser: Browser
) -> None:
    session_id = await environment.attach()
    letter = await environment.lose_copy(session_id)
    path = "/ui/dead-letters/redrive"
    form = await form_on(browser, "/ui/dead-letters", path)
    environment.backend.copied = Copied("dead", "the destination failed")
    await environment.gateway.dead_letters.redrive(letter, new_key=False, deliver=False)
    await environment.copied(letter, state="dead")
    stale = await browser.send(path, form)
    assert_stale(stale, "it was sent again and is dead: the destination failed")
    environment.backend.copied = Copied("delivered")
    assert (await browser.send(path, forms_in(stale, path)[0])).status_code == 303
    await environment.copied(letter)


async def test_all_dead_letters_are_only_redriven_if_they_are_those_of_the_dry_run(
    environment: Environment, browser: Browser
) -> None:
    session_id = await environment.attach()
    first, path = await environment.lose_call("c-1"), "/ui/dead-letters/many"
    await environment.lose_copy(session_id)
    filters = await form_on(browser, "/ui/dead-letters?unknown=true", path, 1)
    (form,) = forms_in(await browser.send(path, filters), path)
    assert (form["seen"], form["unknown"]) == (first, "true")
    await environment.gateway.dead_letters.dismiss(first, by="operator")
    second = await environment.lose_call("c-2")
    stale = await browser.send(path, form)
    assert_stale(stale, "1 more matched and 1 no longer did", f"<code>{second}</code> new", f"<code>{first}</code>")
    (again,) = forms_in(stale, path)
    answers = [await browser.send(path, again) for _ in range(2)]
    assert ["1 of 1 dismissed" in one.text for one in answers] == [True, True]
    letters, _ = await environment.gateway.dead_letters.list(Which(), Page(50))
    assert len(letters) == 1


async def test_an_answer_that_is_sent_twice_is_given_once(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    interaction_id = await environment.ask_person()
    path = f"/ui/inbox/{interaction_id}/answer"
    form = await form_on(browser, "/ui/inbox", path)
    answers = [await browser.send(path, form) for _ in range(2)]
    assert [one.status_code for one in answers] == [303, 303]
    assert await count(environment, session_id, "approval.given") == 1


async def test_a_late_answer_is_told_what_was_answered(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    interaction_id = await environment.ask_person(QuestionAsked(id="q-1", text="Which rank?"))
    path = f"/ui/inbox/{interaction_id}/answer"
    form = await form_on(browser, "/ui/inbox", path) | {"answer": "the nine"}
    await environment.gateway.interactions.answer(interaction_id, {"answer": "seven"}, by="operator")
    stale = await browser.send(path, form)
    assert_stale(stale, "operator answered first", "question.answered", "seven", "the nine</textarea>")


async def test_no_secret_is_kept_by_a_form(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    interaction_id = await environment.ask_person(SecretAsked(id="s-1", purpose="secret", name="TOKEN"))
    path = f"/ui/inbox/{interaction_id}/answer"
    form = await form_on(browser, "/ui/inbox", path)
    await environment.gateway.interactions.answer(interaction_id, {"value": "other"}, by="operator")
    keys = [key_of(form | {"value": value}) for value in ("hush-hush", "another")]
    assert keys[0] == keys[1] != key_of(form | {"answer": "no secret"})
    stale = await browser.send(path, form | {"value": "hush-hush"})
    assert_stale(stale, "operator answered first", "secret.supplied")
    assert "hush-hush" not in stale.text
    assert "other" not in stale.text.partition("secret.supplied")[2].partition("</ul>")[0]


async def test_a_refused_form_keeps_its_text(environment: Environment, browser: Browser) -> None:
    session_id = await environment.attach()
    path = f"/ui/sessions/{session_id}"
    form = await form_on(browser, path, f"{path}/message") | {"text": "Whose turn is it?"}
    await environment.reload({"api": {"keys": [{"name": "backend", "key": "all-of-it", "scopes": ["read"]}]}})
    refused = await browser.send(f"{path}/message", form)
    assert refused.status_code == 403
    assert "Whose turn is it?</textarea>" in refused.text


async def test_forms_are_hidden_without_their_scope(environment: Environment, url: str) -> None:
    ids = await environment.fill()
    async with browsing(url) as browser:
        for key, shown in (("all-of-it", True), ("look-only", False)):
            await browser.sign_in(key)
            for call, button in (("accepted", "Cancel the call…"), ("lost", "Redrive…")):
                page = await browser.open(f"/ui/calls/{ids[call]}")
                assert page.status_code == 200
                assert (button in page.text) is shown


async def test_each_step_that_cannot_be_undone_takes_a_second_click(environment: Environment, browser: Browser) -> None:
    ids = await environment.fill()
    await environment.lose_copy(ids["session"])
    pages = [f"/ui/sessions/{ids['session']}", f"/ui/calls/{ids['accepted']}", f"/ui/calls/{ids['lost']}"]
    texts = [(await browser.open(path)).text for path in (*pages, "/ui/dead-letters")]
    found = "\n".join(texts)
    second = re.compile(r'<details class="menu"><summary class="button">[^<]*…</summary>\s*<form [^<]*$')
    for step, least in (("close", 1), ("interrupt", 1), ("cancel", 1), ("dismiss", 4)):
        forms = [one.start() for one in re.finditer(f'action="[^"]*/{step}"', found)]
        assert len(forms) >= least, step
        for at in forms:
            assert second.search(found[:at]), step
