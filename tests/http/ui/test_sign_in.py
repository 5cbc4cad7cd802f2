"""The sign-in of the web UI: the form, the cookie, and all cookies that sign nobody in."""

import asyncio
import re
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.requests import Request

from gateway.http.ui.sign_in import Cookie, operator_of
from gateway.settings.model import ApiKey, Settings
from tests.http.conftest import in_process, serving
from tests.http.environment import CONFIGURATION, Environment, environment_of
from tests.http.ui.browser import OWN, Browser, browsing, cookie_in
from tests.pace import PATIENCE

KEYS: list[dict[str, Any]] = CONFIGURATION["api"]["keys"]
NOT_MINE = "another-gateway-s-key"


def signed(browser: Browser, key: dict[str, Any], *, name: str = "", host: str = "", lasts: float = 60) -> str:
    """Sign a cookie for a browser's address with any key."""
    made = Cookie(name or f"dragoman-{browser.http.base_url.port}", host or browser.host, is_secure=False)
    value = made.sign(ApiKey.model_validate(key), int(time.time() + lasts))
    return f"dragoman-{browser.http.base_url.port}={value}"


async def test_a_key_becomes_a_cookie_for_twelve_hours(url: str) -> None:
    began = time.time()
    async with browsing(url) as browser:
        assert not await browser.is_signed_in()
        kept = await browser.sign_in("look-only", "/ui/calls?state=failed")
        assert await browser.is_signed_in()
    port = browser.http.base_url.port
    assert (kept.key, kept["path"], kept["samesite"], kept["httponly"]) == (f"dragoman-{port}", "/ui", "lax", True)
    assert (kept["secure"], kept["domain"], kept["max-age"]) == ("", "", "43200")
    name, expiry, _ = kept.value.split("~")
    assert name == "viewer"
    assert began + 43_200 - 1 <= int(expiry) <= time.time() + 43_200
    assert "look-only" not in kept.value


async def test_the_form_takes_no_script_and_shows_no_key(url: str) -> None:
    async with browsing(url) as browser:
        shown = (await browser.open("/ui/sign-in")).text
        assert '<input id="key" name="key" type="password"' in shown
        failed = await browser.send("/ui/sign-in", {"key": "guess-4711", "next": "/ui/inbox"})
    assert failed.status_code == 401
    assert "This is not an API key of this gateway." in failed.text
    assert 'name="next" value="/ui/inbox"' in failed.text
    assert "guess-4711" not in failed.text
    assert failed.headers.get_list("set-cookie") == []
    assert "<script" not in shown + failed.text
    assert "style=" not in shown + failed.text


async def test_what_is_no_key_signs_nobody_in(url: str) -> None:
    async with browsing(url) as browser:
        for key in ("", " ", "ALL-OF-IT", "all-of-it2", "all-of-i", "backend", "dtt_x", "ä", "\0"):
            answer = await browser.send("/ui/sign-in", {"key": key})
            assert (answer.status_code, answer.headers.get_list("set-cookie")) == (401, []), key


async def test_a_key_of_any_letters_signs_in(environment: Environment, url: str) -> None:
    await environment.reload({"api": {"keys": [{"name": "odd", "key": "Schlüssel & +%41=~"}]}})
    async with browsing(url) as browser:
        await browser.sign_in(" Schlüssel & +%41=~\n")
        assert await browser.is_signed_in()


async def test_an_attempt_is_logged_without_its_key(url: str, lines: list[MutableMapping[str, Any]]) -> None:
    async with browsing(url) as browser:
        await browser.send("/ui/sign-in", {"key": "guess-4711"})
        await browser.sign_in("all-of-it")
    refused, served = [one for one in lines if one.get("path") == "/ui/sign-in"]
    assert (refused["event"], refused["status"], refused["problem"]) == ("request refused", 401, "unauthorized")
    assert (served["event"], served["status"], served["key"]) == ("request served", 303, "backend")
    assert "guess-4711" not in str(lines)
    assert "all-of-it" not in str(lines)


async def test_the_form_is_bounded(url: str) -> None:
    async with browsing(url) as browser:
        large = await browser.send("/ui/sign-in", {"key": "x" * 16_400})
        assert (large.status_code, large.json()["type"]) == (413, "/problems/too-large")
        many = await browser.send("/ui/sign-in", {f"field{number}": "x" for number in range(33)})
        assert (many.status_code, many.json()["type"]) == (400, "/problems/invalid-request")


async def test_signing_out_ends_the_cookie_at_every_replica(environment: Environment, url: str) -> None:
    async with serving(environment.gateway) as (_, other), browsing(url) as browser:
        await browser.sign_in("look-only")
        kept = browser.cookie
        async with browsing(other, browser.host) as thief:
            thief.cookie = kept
            assert await thief.is_signed_in()
            left = await browser.send("/ui/sign-out", {})
            assert (left.status_code, cookie_in(left)["max-age"]) == (303, "0")
            assert not await thief.is_signed_in()
            assert (await thief.open("/ui/calls")).headers["location"].startswith("/ui/sign-in")
            assert (await thief.http.get("/ui/live", headers={"cookie": kept, "host": thief.host})).status_code == 401


async def test_signing_out_ends_an_open_stream_at_another_replica(environment: Environment, url: str) -> None:
    await environment.reload({"api": {"heartbeat": "100ms"}})
    async with serving(environment.gateway) as (_, other), browsing(url) as browser:
        await browser.sign_in("look-only")
        headers = {"cookie": browser.cookie, "host": browser.host}
        async with browser.http.stream("GET", f"{other}/ui/live", headers=headers) as live, asyncio.timeout(PATIENCE):
            lines = live.aiter_lines()
            assert await anext(lines) == ": heartbeat"
            await browser.send("/ui/sign-out", {})
            # The end of the stream ends the loop.
            assert "event: tool.finished" not in [line async for line in lines]


async def test_signing_out_leaves_other_cookies_of_the_key_alone(environment: Environment, url: str) -> None:
    async with browsing(url) as browser, browsing(url) as other:
        browser.cookie = signed(browser, KEYS[0], lasts=61)
        other.cookie = signed(other, KEYS[0], lasts=71)
        await browser.send("/ui/sign-out", {})
        assert (await browser.is_signed_in(), await other.is_signed_in()) == (False, True)


FOREIGN = [
    "https://evil.example/ui",
    "//evil.example/ui",
    "///evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/ui\\..\\evil",
    "/uix",
    "/ui.evil.example",
    "/ui@evil.example",
    "ui",
    "/v1/sessions",
    "/",
    "javascript:alert(1)//ui",
    " /ui",
    "/ui/\r\nset-cookie: a=b",
    "/ui/\t",
    "/ui/ä",
    "/ui/" + "x" * 2_000,
]


async def test_the_sign_in_leads_to_the_ui_only(url: str) -> None:
    async with browsing(url) as browser, browsing(url) as member:
        await member.sign_in("all-of-it")
        for target in FOREIGN:
            shown = await browser.http.get("/ui/sign-in", params={"next": target})
            assert 'name="next" value="/ui"' in shown.text, target
            answer = await browser.send("/ui/sign-in", {"key": "all-of-it", "next": target})
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui"), target
            skipped = await member.http.get("/ui/sign-in", params={"next": target}, headers={"cookie": member.cookie})
            assert (skipped.status_code, skipped.headers["location"]) == (303, "/ui"), target


async def test_the_sign_in_returns_to_the_page_of_the_ui(url: str) -> None:
    async with browsing(url) as browser:
        for target in ("/ui", "/ui/", "/ui?q=x", "/ui/calls/c-1?after=%2F..&state=failed", "/ui/a'b"):
            await browser.sign_in("all-of-it", target)


async def test_markup_in_the_target_is_text(url: str) -> None:
    async with browsing(url) as browser:
        shown = await browser.open('/ui/sign-in?next=/ui?"><script>alert(1)</script>')
        assert 'value="/ui?&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"' in shown.text


async def test_a_forged_cookie_signs_nobody_in(url: str) -> None:
    async with browsing(url) as browser:
        kept = await browser.sign_in("look-only")
        name, expiry, mac = kept.value.split("~")
        forged = [
            "",
            name,
            f"backend~{expiry}~{mac}",
            f"{name}~{int(expiry) + 1}~{mac}",
            f"{name}~0{expiry}~{mac}x",
            f"{name}~{expiry}~{mac.upper()}" if mac.upper() != mac else "",
            f"{name}~{expiry}~{mac[:-1]}",
            f"{name}~{expiry}~{'0' * 64}",
            f"{name}~{expiry}~",
            f"{name}~{expiry}~{mac}~",
            f"nobody~{expiry}~{mac}",
            f"{name}~{'9' * 5_000}~{mac}",
            "x" * 10_000,
        ]
        for value in forged:
            browser.cookie = f"{kept.key}={value}"
            assert not await browser.is_signed_in(), value
        for value in (f'{kept.key}="{kept.value}"', f"other=1; {kept.key}={kept.value}; more"):
            browser.cookie = value
            assert await browser.is_signed_in(), value


async def test_an_expired_cookie_signs_nobody_in(url: str) -> None:
    async with browsing(url) as browser:
        for lasts, expected in ((60, True), (-1, False), (-43_200, False)):
            browser.cookie = signed(browser, KEYS[0], lasts=lasts)
            assert await browser.is_signed_in() is expected


async def test_a_cookie_of_another_gateway_on_this_host_signs_nobody_in(url: str) -> None:
    async with (
        environment_of({"api": {"keys": [{"name": "backend", "key": NOT_MINE}]}}) as other,
        serving(other.gateway) as (_, elsewhere),
        browsing(url) as browser,
        browsing(elsewhere) as stranger,
    ):
        kept = await stranger.sign_in(NOT_MINE)
        # As browsers send it, which ignore ports; then under the name that is expected here.
        for cookie in (f"{kept.key}={kept.value}", f"dragoman-{browser.http.base_url.port}={kept.value}"):
            browser.cookie = cookie
            assert not await browser.is_signed_in()
        # A gateway that took the port over issues it for the same address.
        stranger.host = browser.host
        await stranger.sign_in(NOT_MINE)
        browser.cookie = stranger.cookie
        assert (await stranger.is_signed_in(), await browser.is_signed_in()) == (True, False)
        mine = await browser.sign_in("all-of-it")
        browser.cookie = f"{kept.key}={kept.value}; {mine.key}={mine.value}"
        assert await browser.is_signed_in()


async def test_a_cookie_of_another_port_or_host_signs_nobody_in(url: str) -> None:
    async with browsing(url) as browser:
        for name, host, expected in (
            ("", "", True),
            ("dragoman-1", "", False),
            ("__Host-dragoman", "", False),
            ("", "localhost:1", False),
            ("", f"localhost:{browser.http.base_url.port}", False),
        ):
            browser.cookie = signed(browser, KEYS[0], name=name, host=host)
            assert await browser.is_signed_in() is expected, (name, host)


async def test_removing_or_changing_a_key_ends_its_cookies(environment: Environment, url: str) -> None:
    async with browsing(url) as browser, browsing(url) as other:
        await browser.sign_in("look-only")
        await other.sign_in("all-of-it")
        for keys in (
            [one for one in KEYS if one["name"] != "viewer"],
            [one if one["name"] != "viewer" else {**one, "key": "renewed"} for one in KEYS],
            [one if one["name"] != "viewer" else {**one, "name": "renamed"} for one in KEYS],
        ):
            await environment.reload({"api": {"keys": KEYS}})
            assert await browser.is_signed_in()
            await environment.reload({"api": {"keys": keys}})
            assert not await browser.is_signed_in()
            assert await other.is_signed_in()


async def test_each_replica_verifies_the_cookie_of_the_other(environment: Environment, url: str) -> None:
    public = {"public_url": "https://gateway.example"}
    await environment.reload(public)
    async with (
        environment_of(public) as second,
        serving(second.gateway) as (_, elsewhere),
        # The proxy in front writes the name of each upstream.
        browsing(url, "one.internal:8080") as browser,
        browsing(elsewhere, "two.internal:8080") as other,
    ):
        kept = await browser.sign_in("all-of-it")
        assert (kept.key, kept["path"], kept["secure"], kept["domain"]) == ("__Host-dragoman", "/", True, "")
        assert not await other.is_signed_in()
        other.cookie = browser.cookie
        assert await other.is_signed_in()
        # One replica forgets the key; the other still knows it.
        await second.reload({"api": {"keys": KEYS[1:]}})
        assert (await other.is_signed_in(), await browser.is_signed_in()) == (False, True)


async def test_replicas_at_one_loopback_address_share_a_cookie(environment: Environment, url: str) -> None:
    del environment
    async with (
        environment_of() as second,
        serving(second.gateway) as (_, elsewhere),
        browsing(url, "127.0.0.1:8080") as browser,
        browsing(elsewhere, "127.0.0.1:8080") as other,
    ):
        await browser.sign_in("all-of-it")
        other.cookie = browser.cookie
        assert await other.is_signed_in()


async def test_over_https_the_cookie_is_secure(environment: Environment) -> None:
    async with in_process(environment.gateway, {"host": "gw.internal", **OWN}) as client:
        client.base_url = "https://gw.internal"
        answer = await client.post("/ui/sign-in", data={"key": "all-of-it"})
        kept = cookie_in(answer)
        assert (answer.status_code, kept.key, kept["secure"], kept["path"]) == (303, "__Host-dragoman", True, "/")
        client.cookies.clear()
        # A cookie without protection is not accepted in its place.
        for name, expected in (("__Host-dragoman", 303), ("dragoman-443", 200), ("dragoman-80", 200)):
            shown = await client.get("/ui/sign-in", headers={"cookie": f"{name}={kept.value}"})
            assert shown.status_code == expected


async def test_beyond_this_machine_plain_http_takes_no_key_and_says_why(
    url: str, lines: list[MutableMapping[str, Any]]
) -> None:
    for host in ("gw.internal", "gw.internal:8080", "10.0.0.7:8080", "127.0.0.1.evil.example", ""):
        await refuses_keys_at(url, host)
    assert "all-of-it" not in str(lines)


async def refuses_keys_at(url: str, host: str) -> None:
    async with browsing(url, host) as browser:
        for answer in (await browser.open("/ui/sign-in"), await browser.send("/ui/sign-in", {"key": "all-of-it"})):
            assert answer.status_code == 403
            assert answer.headers.get_list("set-cookie") == []
            assert "<form" not in answer.text
            for told in ("plain HTTP", "public_url", "ui: {insecure: true}", "ssh -L"):
                assert told in answer.text
        browser.cookie = signed(browser, KEYS[0], host=host, name="dragoman-8080").replace(
            f"dragoman-{browser.http.base_url.port}", "dragoman-8080"
        )
        assert not await browser.is_signed_in()


async def test_insecure_allows_it_with_a_warning(environment: Environment, url: str) -> None:
    async with browsing(url, "gw.internal") as browser:
        await environment.reload({"ui": {"insecure": True}})
        shown = await browser.open("/ui/sign-in")
        assert (shown.status_code, "This connection is not encrypted" in shown.text) == (200, True)
        # Such a page is no secure context, so browsers send no Sec-Fetch-Site.
        answer = await browser.send("/ui/sign-in", {"key": "all-of-it"}, {"origin": "http://gw.internal"})
        kept = cookie_in(answer)
        assert (answer.status_code, kept.key, kept["secure"], kept["httponly"]) == (303, "dragoman-80", "", True)
        browser.cookie = f"{kept.key}={kept.value}"
        assert await browser.is_signed_in()
        await environment.reload({"ui": {"insecure": False}})
        assert not await browser.is_signed_in()
    async with browsing(url, "localhost:8080") as browser:
        assert "This connection is not encrypted" not in (await browser.open("/ui/sign-in")).text


async def test_without_keys_there_is_no_sign_in_on_this_machine_only() -> None:
    async with (
        environment_of({"api": {"keys": []}}) as made,
        serving(made.gateway) as (_, base),
        browsing(base) as browser,
    ):
        shown = await browser.open("/ui/sign-in")
        sent = await browser.send("/ui/sign-in", {"key": "x"})
        left = await browser.send("/ui/sign-out", {})
        for answer in (shown, sent, left):
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
        assert shown.headers.get_list("set-cookie") == sent.headers.get_list("set-cookie") == []
        browser.host = "evil.example"
        refused = await browser.open("/ui/sign-in")
        assert (refused.status_code, refused.json()["type"]) == (403, "/problems/foreign-origin")


def request_of(**headers: str) -> Request:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/ui", "scheme": "http", "headers": encoded})


def test_the_operator_has_the_name_scopes_and_key_of_the_configuration() -> None:
    settings = Settings.model_validate({"api": {"keys": KEYS}})
    now = datetime(2026, 1, 1, tzinfo=UTC)
    expiry = now + timedelta(hours=12)
    value = Cookie("dragoman-80", "localhost", is_secure=False).sign(settings.api.keys[1], int(expiry.timestamp()))
    request = request_of(host="localhost", cookie=f"dragoman-80={value}")
    found = operator_of(request, settings, now=expiry - timedelta(seconds=1))
    assert found is not None
    assert (found.name, found.scopes) == ("viewer", {"read"})
    assert found.key is not None
    assert found.key.get_secret_value() == "look-only"
    assert "look-only" not in repr(found)
    assert operator_of(request, settings, now=expiry) is None
    renewed = Settings.model_validate({"api": {"keys": [{**KEYS[1], "scopes": ["read", "operate"]}]}})
    changed = operator_of(request, renewed, now=now)
    assert changed is not None
    assert changed.scopes == {"read", "operate"}


def test_without_keys_the_operator_is_local() -> None:
    found = operator_of(request_of(host="localhost"), Settings(), now=datetime.now(UTC))
    assert found is not None
    assert (found.name, found.key) == ("local", None)
    assert found.scopes == {"read", "drive", "answer", "approve", "operate"}


@pytest.mark.parametrize("public_url", ["https://gateway.example/dragoman", "http://127.0.0.1:8080/dragoman"])
async def test_under_a_path_the_cookie_is_for_that_path_only(
    environment: Environment, url: str, public_url: str
) -> None:
    await environment.reload({"public_url": public_url})
    async with browsing(url, public_url.split("/")[2]) as browser:
        # The proxy in front strips the path, or keeps it.
        for path in ("/ui/sign-in", "/dragoman/ui/sign-in"):
            answer = await browser.send(path, {"key": "all-of-it", "next": "/ui/inbox"})
            kept = cookie_in(answer)
            assert answer.headers["location"] == "/dragoman/ui/inbox"
            is_secure = public_url.startswith("https")
            assert (kept.key, kept["path"]) == ("__Secure-dragoman" if is_secure else "dragoman-8080", "/dragoman/ui")
            assert bool(kept["secure"]) == is_secure
            browser.cookie = f"{kept.key}={kept.value}"
            shown = await browser.open(path.replace("/sign-in", ""))
            assert shown.status_code == 200
            assert re.findall(r'(?:href|action|src)="(?!/dragoman/ui|#|data:)([^"]*)', shown.text) == []
