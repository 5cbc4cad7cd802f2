"""The guard of the web UI: its headers, its switch, and writes that another page has sent."""

import re
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from gateway.http.app import describe
from tests.http.conftest import serving
from tests.http.environment import VERSION, Environment, environment_of
from tests.http.ui.browser import browsing, cookie_in

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
ROUTES = [route for route in describe(VERSION).routes if isinstance(route, Route) and route.path.startswith("/ui")]


def headers_of(answer: httpx.Response) -> list[tuple[str, str]]:
    """List the headers that say how a browser treats an answer, with repeats."""
    changing = {"date", "server-timing", "content-length", "x-request-id", "set-cookie", "location"}
    return sorted((name, value) for name, value in answer.headers.multi_items() if name not in changing)


async def test_the_pages_of_the_sign_in_have_exactly_these_headers(url: str) -> None:
    common = [
        ("cache-control", "no-store"),
        ("content-security-policy", POLICY),
        ("referrer-policy", "same-origin"),
        ("x-content-type-options", "nosniff"),
    ]
    html = ("content-type", "text/html; charset=utf-8")
    async with browsing(url) as browser:
        assert headers_of(await browser.open("/ui/sign-in")) == sorted([*common, html])
        failed = await browser.send("/ui/sign-in", {"key": "guess"})
        assert headers_of(failed) == sorted([*common, html, ("www-authenticate", 'Bearer realm="dragoman"')])
        assert headers_of(await browser.send("/ui/sign-in", {"key": "all-of-it"})) == common
        assert headers_of(await browser.send("/ui/sign-out", {})) == common


async def test_the_api_keeps_its_headers(wire: httpx.AsyncClient) -> None:
    for path in ("/v1/sessions", "/healthz", "/v1/unknown"):
        answer = await wire.get(path)
        assert [value for name, value in headers_of(answer) if name != "content-type"] == [
            "no-store",
            "no-referrer",
            "nosniff",
        ]


async def test_each_path_is_unknown_while_the_ui_is_disabled() -> None:
    async with (
        environment_of({"ui": {"enabled": False}}) as made,
        serving(made.gateway) as (_, base),
        browsing(base) as browser,
    ):
        for route in ROUTES:
            path = re.sub(r"{[^}]+}", "x", route.path)
            answer = await (browser.send(path, {}) if "POST" in (route.methods or ()) else browser.open(path))
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/unknown-path"), path


async def test_a_reload_enables_and_disables_it(environment: Environment, url: str) -> None:
    async with browsing(url) as browser:
        for enabled, status in ((True, 200), (False, 404), (True, 200)):
            await environment.reload({"ui": {"enabled": enabled}})
            assert (await browser.open("/ui/sign-in")).status_code == status


HERE = "gw.internal:8080"
"""The `Host` of the requests below."""
WRITES: list[tuple[str | None, str | None, int]] = [
    # Sec-Fetch-Site, Origin
    ("same-origin", None, 303),
    ("same-origin", f"http://{HERE}", 303),
    ("cross-site", "https://evil.example", 403),
    ("cross-site", f"http://{HERE}", 403),
    ("same-site", "http://other.internal", 403),
    ("none", None, 403),
    ("none", f"http://{HERE}", 403),
    ("SAME-ORIGIN", None, 403),
    ("same-origin, cross-site", None, 403),
    ("", f"http://{HERE}", 403),
    (None, None, 403),
    (None, f"http://{HERE}", 303),
    (None, f"HTTP://{HERE.upper()}", 303),
    (None, f"https://{HERE}", 303),  # a proxy with TLS in front
    (None, "http://gateway.example", 303),  # public_url
    (None, "https://gateway.example", 403),
    (None, "http://gw.internal", 403),
    (None, "http://gw.internal:8081", 403),
    (None, "https://evil.example", 403),
    (None, f"http://{HERE}.evil.example", 403),
    (None, f"http://evil.example/http://{HERE}", 403),
    (None, "http://127.0.0.1:8080", 403),
    (None, "https://app.example.com", 403),  # api.origins
    (None, "null", 403),
    (None, "", 403),
]


async def test_only_a_page_of_the_ui_may_write(url: str) -> None:
    async with browsing(url, HERE) as browser:
        for site, origin, status in WRITES:
            sent = {"sec-fetch-site": site, "origin": origin}
            headers = {name: value for name, value in sent.items() if value is not None}
            answer = await browser.send("/ui/sign-out", {}, headers)
            assert answer.status_code == status, headers
            if status == 403:
                assert answer.json()["type"] == "/problems/foreign-origin"
                assert answer.headers.get_list("set-cookie") == []


@pytest.fixture
def configured() -> dict[str, Any]:
    """Let a page use the API, and sign-ins come from other machines."""
    return {"api": {"origins": ["https://app.example.com"]}, "ui": {"insecure": True}}


@pytest.fixture(autouse=True)
async def _laid_over(environment: Environment, configured: dict[str, Any]) -> None:
    await environment.reload(configured)


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ([("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")], "another web page sent this form"),
        ([("Origin", f"http://{HERE}"), ("Origin", "https://evil.example")], "let the proxy in front keep `Host`"),
        ([], "programs use the API at /v1"),
    ],
)
async def test_each_value_counts_and_the_refusal_names_the_reason(
    url: str, headers: list[tuple[str, str]], told: str
) -> None:
    async with browsing(url, HERE) as browser:
        answer = await browser.http.post("/ui/sign-out", headers=[("Host", HERE), *headers])
        assert (answer.status_code, told in answer.json()["detail"]) == (403, True)


async def test_a_refused_sign_in_shows_the_reason_and_sets_no_cookie(url: str) -> None:
    async with browsing(url, HERE) as browser:
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}, {}):
            answer = await browser.send("/ui/sign-in", {"key": "all-of-it"}, headers)
            assert (answer.status_code, answer.headers.get_list("set-cookie")) == (403, [])
            assert 'role="alert"' in answer.text
            assert "all-of-it" not in answer.text


async def test_behind_https_a_plain_page_may_not_write(environment: Environment, url: str) -> None:
    await environment.reload({"public_url": "https://gateway.example"})
    async with browsing(url, HERE) as browser:
        for origin, status in (
            ("https://gateway.example", 303),
            (f"https://{HERE}", 303),
            ("http://gateway.example", 403),
            (f"http://{HERE}", 403),
        ):
            answer = await browser.send("/ui/sign-out", {}, {"origin": origin})
            assert answer.status_code == status, origin
        assert "open the UI at its https:// address" in answer.json()["detail"]


async def test_signing_out_deletes_the_cookie(url: str) -> None:
    async with browsing(url) as browser:
        kept = await browser.sign_in("all-of-it")
        answer = await browser.send("/ui/sign-out", {})
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
        gone = cookie_in(answer)
        assert (gone.key, gone.value, gone["max-age"]) == (kept.key, "", "0")
        assert (gone["path"], gone["secure"]) == (kept["path"], kept["secure"])


async def test_another_page_cannot_sign_out(url: str) -> None:
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        answer = await browser.send("/ui/sign-out", {}, {"sec-fetch-site": "cross-site"})
        assert (answer.status_code, answer.headers.get_list("set-cookie")) == (403, [])
        assert await browser.is_signed_in()


async def test_the_form_of_a_page_is_bounded(url: str) -> None:
    async with browsing(url) as browser:
        await browser.sign_in("all-of-it")
        many = await browser.send("/ui/sessions/none/message", {f"field-{number}": "1" for number in range(101)})
        large = await browser.send("/ui/sessions/none/message", {"text": "x" * 1_100_000})
    assert (many.status_code, large.status_code) == (400, 413)
    assert "more than 32 fields" in many.text
