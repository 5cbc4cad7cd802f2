"""The groups of dead letters: by executor or target, tool and cause."""

import re
from datetime import UTC, datetime
from html import unescape

import httpx
import pytest

from gateway.executors.port import Copied, Uncertain
from tests.engines.postgres_server import temporary_schema
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.http.ui.browser import Browser, browsing, forms_in

LETTERS, MANY = "/ui/dead-letters", "/ui/dead-letters/many"
NAME = re.compile(r"(?:at least )?(?:\d+ × )?[a-z_.]+ → [a-z]+")


async def lose(environment: Environment, number: int, tool: str, why: str) -> str:
    """Let a call end without an answer; other calls still reach the executor."""
    environment.backend.answers[tool] = Uncertain(why, by_choice=True)
    return await environment.ask(f"{tool}-{number}", tool, state="failed")


async def opened(browser: Browser, path: str) -> httpx.Response:
    page = await browser.open(path)
    assert page.status_code == 200, page.text
    return page


def groups_on(page: httpx.Response) -> list[str]:
    """Return the names of the groups on a page."""
    names = (" ".join(name.split()) for name in re.findall(r"<strong>([^<]*)</strong>", page.text))
    return [name for name in names if NAME.fullmatch(name)]


def ids_in(page: httpx.Response) -> set[str]:
    (form,) = forms_in(page, MANY)
    return set(form["seen"].split())


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_group_of_dead_letters_has_one_executor_tool_and_cause(*, is_shared: bool) -> None:
    configuration = {"limits": {"drain": "1s"}}
    schema = temporary_schema() if is_shared else None
    async with (
        environment_of(configuration, schema=schema) as environment,
        serving(environment.gateway) as (_, url),
        browsing(url) as browser,
    ):
        session_id = await environment.attach()
        refund = await lose(environment, 1, "refund", "executor answered 500 Broken")
        ended = [
            await lose(environment, number, "charge", f"executor answered {500 + number % 2} Broken: order {number}")
            for number in range(5)
        ]
        copies = {await environment.lose_copy(session_id) for _ in range(2)}
        environment.backend.copied = Copied("refused", "answered 501: gone")
        other = await environment.lose_copy(session_id)
        await browser.sign_in("all-of-it")
        page, overview = await opened(browser, LETTERS), await opened(browser, "/ui")
        groups = [
            ("charge", "cards", set(ended[::2])),
            ("charge", "cards", set(ended[1::2])),
            ("refund", "cards", {refund}),
            ("action.ordered", "log", {other}),
            ("action.ordered", "log", copies),
        ]
        names = [f"{len(ids)} × {what} → {to}".removeprefix("1 × ") for what, to, ids in groups]
        assert groups_on(page) == names
        assert [f">Call {call_id[:8]}<" in page.text for call_id in (refund, *ended)] == [True] * 6
        links = [unescape(link) for link in re.findall(rf'href="({LETTERS}\?[^"]+)"', overview.text)]
        # The overview links to the page of a single call.
        links.insert(2, f"{LETTERS}?tool=refund")
        assert f'href="/ui/calls/{refund}"' in overview.text
        confirm = page
        for link, name, (_, _, letters) in zip(links, names, groups, strict=True):
            group = await opened(browser, link)
            assert groups_on(group) == [name]
            # Those of the filter come before those of the group; both act on the same letters.
            for form in forms_in(group, MANY):
                confirm = await browser.send(MANY, form)
                assert ids_in(confirm) == letters
        await browser.send(MANY, forms_in(confirm, MANY)[0])
        assert groups_on(await opened(browser, LETTERS)) == names[:-1]


async def test_a_group_that_goes_on_beyond_the_page_says_so(environment: Environment, url: str) -> None:
    await environment.attach()
    for number in range(51):
        await lose(environment, number, "charge", "executor answered 500 Broken")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = await opened(browser, LETTERS)
        assert groups_on(page) == ["at least 50 × charge → cards"]
        (link,) = re.findall(rf'href="({LETTERS}\?after=[^"]+)" rel="next"', page.text)
        assert groups_on(await opened(browser, unescape(link))) == ["at least 1 × charge → cards"]
        confirm = await browser.send(MANY, forms_in(page, MANY)[-1])
        assert "51 dead letters would be dismissed" in confirm.text


async def test_dead_letters_are_filtered_by_a_span_of_time(environment: Environment, url: str) -> None:
    await environment.attach()
    letter = await lose(environment, 1, "charge", "executor answered 500 Broken")
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        page = await opened(browser, f"{LETTERS}?within=15")
        assert re.findall('<option value="(15|60|1440|10080)"', page.text) == ["15", "60", "1440", "10080"]
        assert groups_on(page) == ["charge → cards"]
        (form, *_) = forms_in(page, MANY)
        assert 14 < (datetime.now(UTC) - datetime.fromisoformat(form["since"])).total_seconds() / 60 < 16
        assert ids_in(await browser.send(MANY, form)) == {letter}
        late = {**form, "since": "2999-01-01T00:00:00Z"}
        assert "No dead letter matches any more" in (await browser.send(MANY, late)).text
