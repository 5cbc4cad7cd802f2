"""Links of notices: who has one answers one question once, opening it does nothing, and its token is stored nowhere."""

import asyncio
import base64
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from fastapi.responses import JSONResponse

from tests.pace import PATIENCE
from tests.scenarios.collector import collector
from tests.scenarios.environment import Running, Scene, ended, until
from tests.scenarios.hooks import Asked, Said
from tests.scenarios.notified import ASKED, CLOSED, GIVEN, deny, held, notify
from tests.scenarios.replicas import cluster, owner_and_other
from tests.scenarios.terminal import dragoman
from tests.scenarios.test_storage import dragoman as in_process

NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-site": "none"}
DENY = {"decision": "deny"}
OWN = {**NAVIGATION, "sec-fetch-site": "same-origin"}
TEXT = "a <b>canary</b> of the arguments"


@pytest.fixture
def linked(newer: Scene) -> Scene:
    return notify(newer, links=True)


async def path_in(scene: Scene, count: int = 1) -> str:
    """Wait for a notice, and return the path of its link."""
    told = (await scene.hooks.wait_for(count, name=ASKED))[-1]
    return path_of(told)


def path_of(told: Asked) -> str:
    address: str = told.data["open"]
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/a/dlk_[A-Za-z0-9_-]+", address), address
    return f"/a/{address.rpartition('/')[2]}"


async def load(one: Running, path: str, headers: dict[str, str] = NAVIGATION) -> httpx.Response:
    """Open a page without the key of the API."""
    return await one.http.get(path, headers={**headers, "authorization": ""})


async def send(
    one: Running, path: str, fields: Mapping[str, str] = DENY, headers: Mapping[str, str] = OWN
) -> httpx.Response:
    return await one.http.post(path, data=dict(fields), headers={**headers, "authorization": ""})


def allow(asked: Mapping[str, Any]) -> dict[str, str]:
    return {"decision": "allow", "binding": asked["event"]["binding"]}


def fields_of(page: str) -> dict[str, str]:
    """Read the hidden fields of the form that allows the call."""
    form = next(one for one in re.findall(r"<form.*?</form>", page, re.DOTALL) if "Allow" in one)
    return dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))


async def waiting(one: Running) -> list[dict[str, Any]]:
    return (await one.get("/v1/interactions", state="waiting"))["data"]


async def test_who_opens_a_link_allows_the_call_once(linked: Scene) -> None:
    async with linked.running() as gateway:
        call, asked = await held(linked, gateway, {"text": TEXT})
        path = await path_in(linked)
        page = await load(gateway, path)
        assert page.status_code == 200
        assert "a &lt;b&gt;canary&lt;/b&gt; of the arguments" in page.text
        assert await waiting(gateway) == [asked]
        fields = fields_of(page.text)
        assert fields == allow(asked)
        assert (await send(gateway, path, fields)).status_code == 200
        assert "refunded" in str((await ended(call)).result)
        (given,) = await gateway.events(kind="approval.given")
        assert (given["event"]["by"], given["event"]["decision"]) == ("link ops", "allow")
        when = given["recorded_at"][:10]
        for again in (await load(gateway, path), await send(gateway, path, fields)):
            assert again.status_code == 409
            assert "answered: by &#39;link ops&#39; at " in again.text
            assert when in again.text
        (closed,) = await linked.hooks.wait_for(name=CLOSED)
        assert closed.data["answered_by"] == "link ops"
        assert "/ui/inbox#" in closed.data["open"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**NAVIGATION, "sec-fetch-mode": "no-cors"},
        {**NAVIGATION, "sec-fetch-dest": "iframe"},
        {**NAVIGATION, "sec-purpose": "prefetch;prerender"},
    ],
)
async def test_a_preview_gets_no_arguments(linked: Scene, headers: dict[str, str]) -> None:
    async with linked.running() as gateway:
        await held(linked, gateway, {"text": TEXT})
        page = await load(gateway, await path_in(linked), headers)
        assert page.status_code == 200
        assert "canary" not in page.text
        assert "<form" not in page.text
        assert "free" not in page.text


async def test_the_page_may_be_neither_framed_nor_kept(linked: Scene) -> None:
    async with linked.running() as gateway:
        await held(linked, gateway)
        path = await path_in(linked)
        for page in (await load(gateway, path), await load(gateway, "/a/dlk_unknown")):
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'; style-src 'self'" in policy
            assert "form-action 'self'; frame-ancestors 'none'" in policy
            assert "script-src" not in policy
            assert "<script" not in page.text
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["referrer-policy"] == "same-origin"
            assert "noindex" in page.headers["x-robots-tag"]


async def test_a_form_of_another_page_answers_nothing(linked: Scene) -> None:
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked)
        fields = allow(asked)
        for headers in (
            {},
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site", "origin": gateway.url},
        ):
            refused = await send(gateway, path, fields, headers)
            assert refused.status_code == 403, headers
        assert await waiting(gateway) == [asked]
        assert (await send(gateway, path, fields, {"origin": gateway.url})).status_code == 200


async def test_an_allow_needs_the_binding_of_the_question(linked: Scene) -> None:
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked)
        for fields, status in (
            ({"decision": "allow"}, 400),
            ({"decision": "allow", "binding": "0" * 64}, 409),
            ({"decision": "perhaps"}, 400),
            ({}, 400),
            ({"decision": "deny", "reason": "x" * 2_001}, 400),
        ):
            assert (await send(gateway, path, fields)).status_code == status, fields
        assert await waiting(gateway) == [asked]
        # Longer than a body without credentials may be.
        assert (await send(gateway, path, {**DENY, "reason": "\N{CJK UNIFIED IDEOGRAPH-4E0D}" * 2_000})).is_success


async def test_a_link_that_was_guessed_or_has_ended_shows_nothing(linked: Scene) -> None:
    linked.configure({"approvals": {"timeout": "3s"}})
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked)
        last = "A" if path[-20] != "A" else "B"
        guesses = [
            "x",
            "dlk_",
            "dlk_" + "A" * 200,
            "dlk_" + "A" * 5_000,
            path[3:-1],
            path[3:-20] + last + path[-19:],
            "%00",
        ]
        for guess in guesses:
            page = await load(gateway, f"/a/{guess}")
            assert (page.status_code, "Unknown link" in page.text) == (404, True), guess
            assert (await send(gateway, f"/a/{guess}")).status_code == 404, guess
        linked.configure({"approvals": {"links": False}})
        await gateway.gateway.reload()
        assert (await load(gateway, path)).status_code == 410
        linked.configure({"approvals": {"links": True}})
        await gateway.gateway.reload()
        assert (await load(gateway, path)).status_code == 200

        async def over() -> bool:
            return await waiting(gateway) == []

        await until(over)
        page = await load(gateway, path)
        assert page.status_code == 410
        assert "this link has expired" in page.text
        assert (await gateway.get(f"/v1/interactions/{asked['interaction_id']}"))["state"] == "expired"


async def test_the_links_of_a_call_that_ended_otherwise_and_of_a_rotation_have_ended(linked: Scene) -> None:
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        first = await path_in(linked)
        done = await dragoman(gateway, "links", "rotate")
        assert (done.code, done.out) == (0, "all links have ended\n")
        page = await load(gateway, first)
        assert (page.status_code, "was withdrawn" in page.text) == (410, True)
        assert (await send(gateway, first)).status_code == 410
        await gateway.post(f"/v1/calls/{asked['call_id']}/cancel", {}, status=202)
        await linked.hooks.wait_for(name=CLOSED)
        await held(linked, gateway, {"amount": 1})
        second = await path_in(linked, 2)
        assert (await load(gateway, second)).status_code == 200
        assert linked.hooks.of(ASKED)[-1].data["asked_before"] == 0
        (row,) = await waiting(gateway)
        await gateway.post(f"/v1/calls/{row['call_id']}/cancel", {}, status=202)
        await linked.hooks.wait_for(2, name=CLOSED)
        assert (await load(gateway, second)).status_code == 410
        await held(linked, gateway, {"amount": 1})
        third = await path_in(linked, 3)
        assert linked.hooks.of(ASKED)[-1].data["asked_before"] == 1
        assert "asked again, 2nd time" in (await load(gateway, third)).text


async def test_the_rule_names_who_may_answer(linked: Scene) -> None:
    linked.settings["routes"][0]["approve"] = {"by": ["lead"]}
    linked.configure({})
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked)
        refused = await send(gateway, path)
        assert (refused.status_code, "routes[0] names who may answer: lead" in refused.text) == (403, True)
        await deny(gateway, asked)
    linked.settings["routes"][0]["approve"] = {"by": ["link ops"]}
    linked.configure({})
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway, {"amount": 2})
        path = await path_in(linked, 2)
        body = {"decision": "deny"}
        await gateway.post(f"/v1/interactions/{asked['interaction_id']}/answer", body, status=403)
        assert (await send(gateway, path)).status_code == 200


async def test_arguments_that_are_too_long_to_show_can_only_be_denied(linked: Scene) -> None:
    async with linked.running() as gateway:
        call, asked = await held(linked, gateway, {"text": "x" * 66_000})
        path = await path_in(linked)
        page = (await load(gateway, path)).text
        assert "xxx" not in page
        assert ">Deny</button>" in page
        assert ">Allow</button>" not in page
        assert "/ui/inbox" in page
        refused = await send(gateway, path, allow(asked))
        assert refused.status_code == 403
        assert (await send(gateway, path, {**DENY, "reason": "Too long."})).status_code == 200
        assert (await ended(call)).error == "The call was not made: a person denied it: Too long."


async def test_a_link_lasts_24_hours_at_most(linked: Scene) -> None:
    linked.configure({"approvals": {"timeout": "48h"}})
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        (told,) = await linked.hooks.wait_for(name=ASKED)
        ends = orjson.loads(base64.urlsafe_b64decode(path_of(told)[7:] + "==")[:-32])[3]
        left = ends - datetime.fromisoformat(asked["asked_at"]).timestamp()
        assert timedelta(hours=24).total_seconds() - 1 <= left < timedelta(hours=24).total_seconds() + PATIENCE


async def test_a_token_is_in_no_table_log_trace_and_backup(linked: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    def quote(one: Asked) -> Said:
        if one.kind == ASKED and one.attempt == 1:
            return JSONResponse({"detail": f"not now: {one.data['open']}"}, 503)
        return JSONResponse({"detail": f"never: {one.data['open']}"}, 400)

    linked.hooks.scripts["/ops"] = quote
    linked.configure({"logging": {"level": "debug"}})
    async with collector() as traces:
        linked.configure({"traces": {"endpoint": traces.url, "content": True}})
        found = await use_link(linked)
        assert any(span.attributes for span in traces.spans)
    out, err = capfd.readouterr()
    assert '"path":"/a/…"' in out + err
    kept = {**found, "log": out + err, "traces": str(traces.spans)}
    tokens = {path_of(one)[3:] for one in linked.hooks.of(ASKED)}
    # The MAC alone would be enough to make the token again.
    assert [name for name, text in kept.items() for token in tokens if token in text or token[-40:] in text] == []


async def use_link(linked: Scene) -> dict[str, str]:
    """Make all requests that a link can be in; return the content of all files."""
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked, 2)

        async def dead() -> list[dict[str, Any]] | None:
            return (await gateway.get("/v1/dead-letters"))["data"] or None

        (letter,) = await until(dead)
        assert "never: " in letter["reason"]
        assert path[3:] not in str(letter)
        assert (await load(gateway, path)).status_code == 200
        assert (await load(gateway, f"{path}x")).status_code == 404
        assert (await load(gateway, f"{path}/more")).status_code == 404
        assert (await load(gateway, f"/gateway{path}")).status_code == 404
        assert (await send(gateway, path, headers={})).status_code == 403
        assert (await send(gateway, path, allow(asked))).status_code == 200
        assert (await load(gateway, path)).status_code == 409
        code, said = await in_process(linked, "backup", str(linked.folder / "backup.db"))
        assert code == 0, said
        found = await asyncio.to_thread(contents, linked.folder)
    assert {"dragoman.db", "backup.db"} <= found.keys()
    assert any(asked["interaction_id"] in text for text in found.values())
    return found


def contents(folder: Path) -> dict[str, str]:
    return {one.name: one.read_bytes().decode("latin-1") for one in folder.rglob("*") if one.is_file()}


@pytest.mark.slow
async def test_a_restore_ends_all_links(linked: Scene) -> None:
    async with linked.running() as gateway:
        _, asked = await held(linked, gateway)
        path = await path_in(linked)
        code, said = await in_process(linked, "backup", str(linked.folder / "backup.db"))
        assert code == 0, said
    code, said = await in_process(linked, "restore", str(linked.folder / "backup.db"))
    assert code == 0, said
    async with linked.running() as gateway:
        (again,) = await waiting(gateway)
        assert again["interaction_id"] != asked["interaction_id"]
        assert "restored from a backup of " in again["event"]["warning"]
        page = await load(gateway, path)
        assert (page.status_code, "restored" in page.text) == (410, True)
        assert (await send(gateway, path)).status_code == 410
    linked.configure({"engine": {"path": str(linked.folder / "other.db")}})
    async with linked.running() as gateway:
        assert (await load(gateway, path)).status_code == 404


@pytest.mark.slow
async def test_of_two_answers_with_one_link_at_two_replicas_one_counts(linked: Scene) -> None:
    store = cluster(linked)
    async with store.replica() as a, store.replica() as b:
        owner, other = await owner_and_other(await a.session(), [a, b])
        _, asked = await held(linked, owner)
        path = await path_in(linked)
        assert (await load(other, path)).status_code == 200
        fields = allow(asked)
        answers = await asyncio.gather(send(other, path, fields), send(owner, path))
        assert sorted(one.status_code for one in answers) == [200, 409]
        refused = next(one for one in answers if one.status_code == 409)
        assert "by &#39;link ops&#39; at " in refused.text
        (given,) = await owner.events(kind="approval.given")
        assert (given["event"]["by"], given["event"]["decision"]) == (
            "link ops",
            "allow" if answers[0].status_code == 200 else "deny",
        )
        if given["event"]["decision"] == "allow":
            assert given["event"]["arguments"] == GIVEN
