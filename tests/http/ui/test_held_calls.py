"""Held calls in the inbox: shown whole, allowed by the binding of the page, edited, denied with a reason, grouped."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from gateway.events import ToolCanceled, ToolRequested
from gateway.store.rows import Page
from tests.http.conftest import bearer
from tests.http.environment import Environment, environment_of
from tests.http.test_approvals import DONE, GATED, hold
from tests.http.ui.browser import Browser, browsing, forms_in

SCOPES = ["read", "answer", "approve", "operate"]
KEYS = [
    {"name": "lead", "key": "lead-key", "scopes": SCOPES},
    {"name": "viewer", "key": "view-key", "scopes": SCOPES[:2]},
    {"name": "maker", "key": "maker-key", "scopes": ["read", "drive"]},
]


@pytest.fixture
async def environment() -> AsyncIterator[Environment]:
    async with environment_of({**GATED, "api": {"keys": KEYS}}) as made:
        made.backend.answers["refund"] = DONE
        yield made


@pytest.fixture
async def browser(url: str) -> AsyncIterator[Browser]:
    async with browsing(url) as browser:
        await browser.sign_in("lead-key")
        yield browser


async def forms(browser: Browser) -> tuple[str, str, list[dict[str, str]]]:
    """The text of the inbox, the address of its only answer, and the forms: allow, then deny."""
    page = await browser.open("/ui/inbox")
    action = page.text.partition('action="')[2]
    while not action.startswith("/ui/inbox/"):
        action = action.partition('action="')[2]
    action = action.partition('"')[0]
    return page.text, action, forms_in(page, action)


async def test_the_inbox_allows_what_it_shows(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    await hold(environment, amount=1.0, id=2**60, note="\u202eevil")
    text, action, (allow, _) = await forms(browser)
    for part in ("refund", str(2**60), "1.0", "\\u202e", "Held by routes[1]", allow["binding"]):
        assert part in text
    assert "\u202e" not in text
    assert len(allow["binding"]) == 64
    stale = await browser.send(action, allow | {"binding": "0" * 64})
    assert stale.status_code == 409
    sent = await browser.send(action, allow)
    assert sent.status_code == 303, sent.text
    await environment.call("c-1", "succeeded")


async def test_pages_show_what_nobody_has_heard(environment: Environment, browser: Browser, url: str) -> None:
    session_id = await environment.attach()
    async with httpx.AsyncClient(base_url=url, headers=bearer("maker-key"), verify=False) as maker:  # noqa: S501
        body = {"tool": "refund", "arguments": {"amount": 1}}
        call_id = (await maker.post(f"/v1/sessions/{session_id}/calls", json=body)).json()["call_id"]
        text, action, (_, deny) = await forms(browser)
        assert "its caller last waited" in text
        assert "nobody waits for the outcome now" in (await browser.open(f"/ui/calls/{call_id}")).text
        assert (await browser.send(action, deny)).status_code == 303
        page = (await browser.open(f"/ui/calls/{call_id}")).text
        assert "its caller has not heard the outcome" in page
        assert "Not heard, last waited" in page
        assert "not heard" in (await browser.open("/ui/calls")).text
        await maker.get(f"/v1/calls/{call_id}")
        assert "not heard" not in (await browser.open("/ui/calls")).text
        assert "not heard" not in (await browser.open(f"/ui/calls/{call_id}")).text


async def test_the_inbox_denies_with_a_reason(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    await hold(environment)
    _, action, (_, deny) = await forms(browser)
    assert (await browser.send(action, deny | {"reason": "ask first"})).status_code == 303
    call = await environment.call("c-1", "failed")
    assert call.error == "The call was not made: a person denied it: ask first"


async def own_page(environment: Environment, browser: Browser) -> tuple[str, httpx.Response]:
    """The address of the answer of the first interaction, and its own page."""
    rows, _ = await environment.engine.interactions(Page())
    path = f"/ui/inbox/{rows[0].interaction_id}"
    page = await browser.open(path)
    assert page.status_code == 200, page.text
    return f"{path}/answer", page


def typed(page: httpx.Response) -> str:
    """The arguments in the form of a page."""
    (text,) = re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", page.text, re.DOTALL)
    return unescape(text)


async def test_the_arguments_are_edited_on_the_page_of_the_request(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    arguments: dict[str, Any] = {"amount": 1.0, "id": 2**60, "note": "\u202e\x1b\x7f\U000e0041<b>é"}
    await hold(environment, **arguments)
    action, page = await own_page(environment, browser)
    assert "refund" in page.text
    text = typed(page)
    assert json.loads(text) == arguments
    assert "1.0" in text
    assert r'"\u202e\u001b\u007f\udb40\udc41<b>é"' in text
    form = forms_in(page, action)[2]
    sent = await browser.send(action, form | {"arguments": text.replace("1.0", "50").replace("\n", "\r\n")})
    assert sent.status_code == 303, sent.text
    await environment.call("c-1", "succeeded")
    (asked,) = environment.backend.asked
    assert (asked.data["arguments"], asked.data["edited"]) == (arguments | {"amount": 50}, True)


async def test_arguments_that_are_sent_unchanged_are_no_edit(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    await hold(environment, amount=1.0, note="\u202e")
    action, page = await own_page(environment, browser)
    sent = await browser.send(action, forms_in(page, action)[2] | {"arguments": typed(page)})
    assert sent.status_code == 303, sent.text
    await environment.call("c-1", "succeeded")
    assert "edited" not in environment.backend.asked[0].data


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ('{"amount": 5000}', 422, "Nobody refunds so much."),
        ('{"amount": "<much>"}', 422, "amount"),
        ('{"amount": 1', 400, "not JSON"),
        ('{"amount": 1, "amount": 2}', 400, "is repeated"),
        ('{"amount": NaN}', 400, "not JSON"),
        ('{"amount": 18446744073709551616}', 400, "not JSON"),
        ("[1]", 400, "arguments"),
        ("<script>", 400, "not JSON"),
        ("[" * 70 + "]" * 70, 400, "not JSON"),
    ],
)
async def test_a_refused_edit_is_told_at_the_form_and_keeps_what_was_typed(
    environment: Environment, browser: Browser, text: str, status: int, told: str
) -> None:
    await environment.attach()
    await hold(environment)
    action, page = await own_page(environment, browser)
    refused = await browser.send(action, forms_in(page, action)[2] | {"arguments": text})
    assert refused.status_code == status, refused.text
    alert = refused.text.partition('role="alert"')[2].partition("</section>")[0]
    assert told in alert
    assert "Go back" not in alert
    assert typed(refused) == text
    assert '<details class="edit" open>' in refused.text
    assert environment.backend.asked == []
    # The same page takes the corrected arguments.
    sent = await browser.send(action, forms_in(refused, action)[2] | {"arguments": '{"amount": 7}'})
    assert sent.status_code == 303, sent.text
    await environment.call("c-1", "succeeded")
    assert environment.backend.asked[0].data["arguments"] == {"amount": 7}


async def test_an_edit_of_a_call_that_was_answered_meanwhile_keeps_what_was_typed(
    environment: Environment, browser: Browser
) -> None:
    await environment.attach()
    await hold(environment)
    action, page = await own_page(environment, browser)
    allow, deny, edit = forms_in(page, action)
    assert (await browser.send(action, deny)).status_code == 303
    stale = await browser.send(action, edit | {"arguments": '{"amount": 7}'})
    assert stale.status_code == 409
    assert "lead answered first" in stale.text
    assert unescape(stale.text).count('{"amount": 7}') == 1
    assert (await browser.send(action, allow)).status_code == 409
    assert environment.backend.asked == []


async def test_a_request_that_ended_while_its_page_was_open_says_how(url: str, environment: Environment) -> None:
    await environment.attach()
    await hold(environment)
    async with browsing(url) as browser:
        await browser.sign_in("lead-key")
        action, page = await own_page(environment, browser)
        environment.runtime.say(ToolCanceled(native_call_id="c-1"))
        await environment.call("c-1", "canceled")
        late = await browser.send(action, forms_in(page, action)[0])
        assert (late.status_code, "Already withdrawn" in late.text) == (409, True)
        assert "After you opened the page, the request was withdrawn, so nothing was done." in late.text
        await environment.reload({"approvals": {"timeout": "1s"}})
        environment.runtime.say(ToolRequested(native_call_id="c-2", tool="refund", arguments={"amount": 1}))
        await environment.call("c-2", "held")
        rows, _ = await environment.engine.interactions(Page())
        path = f"/ui/inbox/{next(row.interaction_id for row in rows if row.state == 'waiting')}"
        page = await browser.open(path)
        await environment.call("c-2", "expired")
        late = await browser.send(f"{path}/answer", forms_in(page, f"{path}/answer")[0])
        assert (late.status_code, "Already expired" in late.text) == (409, True)
        assert "After you opened the page, the request expired, so nothing was done." in late.text
    assert environment.backend.asked == []


async def test_a_text_does_not_look_like_another_value(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    texts = {"ref": "150", "exact": "1.50", "flag": "true", "none": "null", "empty": "", "blank": " ", "quoted": '"x"'}
    await hold(environment, amount=120, note="150 euros", script='{"a": 1}', **texts)
    _, page = await own_page(environment, browser)
    shown = dict(re.findall(r'<th scope="row">(\w+)</th><td>(.*?)</td>', page.text, re.DOTALL))
    read = {name: unescape(re.sub("<[^>]*>", "", markup)) for name, markup in shown.items()}
    plain = {"amount": "120", "note": "150 euros", "script": '{"a": 1}'}
    assert read == plain | {name: json.dumps(text) for name, text in texts.items()}


async def test_equal_calls_are_shown_once_and_each_is_allowed_by_its_own_binding(
    environment: Environment, browser: Browser
) -> None:
    await environment.attach()
    await environment.attach("agent-8")
    for native, room, amount in (("c-1", "agent-7", 1), ("c-2", "agent-8", 1), ("c-3", "agent-7", 1.0)):
        asked = ToolRequested(native_call_id=native, tool="refund", arguments={"amount": amount, "note": "twice"})
        environment.runtime.say(asked, room=room)
        await environment.call(native, "held")
    page = await browser.open("/ui/inbox")
    assert (page.text.count('<li class="card">'), page.text.count("twice</td>")) == (2, 2)
    assert "2 equal calls, each with its own answer" in page.text
    rows, _ = await environment.engine.interactions(Page())
    actions = [f"/ui/inbox/{row.interaction_id}/answer" for row in rows]
    allows = [forms_in(page, action)[0] for action in actions]
    assert len({one["binding"] for one in allows}) == 3
    assert (await browser.send(actions[0], allows[0] | {"binding": allows[1]["binding"]})).status_code == 409
    assert (await browser.send(actions[1], allows[1])).status_code == 303
    await environment.call("c-2", "succeeded")
    after = await browser.open(f"/ui/inbox?seen={rows[1].interaction_id}")
    assert (after.text.count('<li class="card">'), after.text.count('class="asked gone"')) == (2, 1)
    assert len(environment.backend.asked) == 1


async def test_a_call_that_an_agent_cancels_and_makes_again_says_so(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    for number in (1, 2, 3):
        environment.runtime.say(ToolRequested(native_call_id=f"c-{number}", tool="refund", arguments={"amount": 1}))
        await environment.call(f"c-{number}", "held")
        if number < 3:
            environment.runtime.say(ToolCanceled(native_call_id=f"c-{number}"))
            await environment.call(f"c-{number}", "canceled")
    page = await browser.open("/ui/inbox")
    assert page.text.count("asked again, 3rd time") == 1
    (row,) = (await browser.http.get("/v1/interactions?state=waiting", headers=bearer("lead-key"))).json()["data"]
    assert row["asked_before"] == 2


async def test_the_story_of_a_held_call_leads_to_its_request(environment: Environment, browser: Browser) -> None:
    await environment.attach()
    call_id = await hold(environment)
    action, _ = await own_page(environment, browser)
    assert f'href="{action.removesuffix("/answer")}">Decide on it' in (await browser.open(f"/ui/calls/{call_id}")).text
    assert "Send again" not in (await browser.open(f"/ui/calls/{call_id}")).text
    # Another rule asks again: the first question is moot.
    narrower = {"match": {"tool": "refund", "runtime": "finn"}, "to": "cards", "approve": True}
    await environment.reload({"routes": [narrower]})
    page = await browser.open(action.removesuffix("/answer"))
    assert (await browser.send(action, forms_in(page, action)[0])).status_code == 409
    rows, _ = await environment.engine.interactions(Page(), state="waiting")
    again = f"/ui/inbox/{rows[0].interaction_id}"
    assert f'href="{again}">Decide on it' in (await browser.open(f"/ui/calls/{call_id}")).text
    allow = forms_in(await browser.open(again), f"{again}/answer")[0]
    assert (await browser.send(f"{again}/answer", allow)).status_code == 303
    await environment.call("c-1", "succeeded")
    assert "Decide on it" not in (await browser.open(f"/ui/calls/{call_id}")).text


async def test_without_the_scope_the_inbox_only_shows(environment: Environment, url: str) -> None:
    await environment.attach()
    await hold(environment)
    async with browsing(url) as viewer:
        await viewer.sign_in("view-key")
        page = await viewer.open("/ui/inbox")
        assert "Your key lacks the scope <code>approve</code>" in page.text
        assert "/answer" not in page.text
        _, own = await own_page(environment, viewer)
        assert "/answer" not in own.text
