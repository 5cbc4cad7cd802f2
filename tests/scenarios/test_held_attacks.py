"""A served gateway whose held call everybody tries to run: only the allow of a person who sees this call does it."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.testing.change import Change
from gateway.testing.runtimes.huma.calls import SimCall
from tests.http.mcp_clients import Plain
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended
from tests.scenarios.hooks import Asked, Said, success
from tests.scenarios.notified import ASKED, notify
from tests.scenarios.replica_processes import Fleet, Serving, fleet

pytestmark = pytest.mark.slow

SCOPES = ["read", "drive", "operate", "answer"]
KEYS = [
    {"name": "lead", "key": API_KEY, "scopes": [*SCOPES, "approve"]},
    {"name": "maker", "key": "maker-key", "scopes": [*SCOPES, "approve"]},
    {"name": "worker", "key": "worker-key", "scopes": SCOPES},
]
NAVIGATION = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document", "sec-fetch-site": "none"}
SMALL = {"properties": {"amount": {"type": "number", "minimum": 0, "maximum": 100}}, "required": ["amount"]}
MEGABYTE = 1024**2


@pytest.fixture
def gated(newer: Scene) -> Scene:
    """A scene in which amounts up to 100 run and a person is asked about all others."""
    notify(newer, links=True)
    newer.configure(
        {
            "api": {"keys": KEYS},
            "mcp": {"hold": "100ms"},
            "tools": {"free": {"description": "Takes anything.", "parameters": {"type": "object"}}},
            "routes": [
                {"match": {"tool": "free", "arguments": SMALL}, "to": "cards"},
                {"match": {"tool": "free"}, "to": "cards", "approve": True},
                {"match": {"tool": "ask"}, "to": "cards"},
            ],
        }
    )
    return newer


@asynccontextmanager
async def served(scene: Scene) -> AsyncGenerator[tuple[Fleet, Serving]]:
    """Run `dragoman serve` on a SQLite file."""
    store = {"type": "sqlite", "path": str(scene.folder / "dragoman.db")}
    async with fleet(scene, engine=store) as gateways:
        one = await gateways.serve("gateway")
        await scene.agent.wait_connected()
        yield gateways, one


async def hold(scene: Scene, one: Running, amount: Any = 150) -> tuple[SimCall, dict[str, Any]]:
    """Let the agent call, and return its call and the question about it."""
    call = await scene.agent.call("free", {"amount": amount})
    row = await one.wait_call(call.call_id, "held")
    return call, next(asked for asked in await waiting(one) if asked["call_id"] == row["call_id"])


async def waiting(one: Running) -> list[dict[str, Any]]:
    return (await one.get("/v1/interactions", state="waiting"))["data"]


async def allow(one: Running, asked: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"decision": "allow", "binding": asked["binding"], **more}
    return await one.http.post(f"/v1/interactions/{asked['interaction_id']}/answer", json=body)


async def nothing_ran(scene: Scene, one: Running, *asked: dict[str, Any]) -> None:
    """Check that the calls wait as before, after another call has passed the same executor."""
    assert await waiting(one) == list(asked)
    await ended(await scene.agent.call("ask", GOOD))
    assert scene.hooks.of("free") == []


async def test_no_request_but_the_allow_runs_a_held_call(gated: Scene) -> None:
    async with served(gated) as (gateways, one):
        call, asked = await hold(gated, one)
        _, other = await hold(gated, one, 151)
        answer, at = f"/v1/interactions/{asked['interaction_id']}/answer", f"/v1/calls/{asked['call_id']}"
        session, yes = await one.session(), {"decision": "allow", "binding": asked["binding"]}
        worker, nobody = {"authorization": "Bearer worker-key"}, {"authorization": ""}
        binding = asked["binding"]
        tries: list[tuple[str, str, Any, dict[str, str], int]] = [
            ("POST", answer, {"decision": "allow"}, {}, 400),
            ("POST", answer, {**yes, "binding": other["binding"]}, {}, 409),
            ("POST", answer, {**yes, "binding": binding.upper()}, {}, 409),
            ("POST", answer, {**yes, "binding": f"{binding} "}, {}, 400),
            ("POST", answer, {**yes, "binding": binding.translate({ord("0"): "\uff10"})[:-1] + "\uff11"}, {}, 409),
            ("POST", answer, {**yes, "decision": "Allow"}, {}, 400),
            ("POST", answer, {**yes, "decision": "\uff41llow"}, {}, 400),
            ("POST", answer, {**yes, "arguments": {"amount": 1}, "by": "maker"}, {}, 400),
            ("POST", answer, yes, worker, 403),
            ("POST", answer, yes, nobody, 401),
            ("POST", answer, yes, {"authorization": "Bearer " + API_KEY.replace("X", "\u0425").encode().hex()}, 401),
            ("POST", f"{answer}/", yes, {}, 404),
            ("GET", answer, None, {}, 405),
            ("HEAD", answer, None, {}, 405),
            ("PUT", answer, yes, {}, 405),
            ("GET", answer, None, {"x-http-method-override": "POST"}, 405),
            ("POST", answer.replace(asked["interaction_id"], asked["interaction_id"].upper()), yes, {}, 404),
            ("POST", answer.replace(asked["interaction_id"], asked["call_id"]), yes, {}, 404),
            ("POST", f"{at}/outcome", {"outcome": "success", "result": 1}, {}, 409),
            ("POST", f"{at}/progress", {"percent": 1}, {}, 409),
            ("POST", f"{at}/redrive", {}, {}, 409),
            ("POST", f"{at}/redrive", {"new_key": True}, {}, 409),
            ("POST", f"/v1/dead-letters/{asked['call_id']}/redrive", {}, {}, 404),
        ]
        for name in (asked["call_id"], asked["interaction_id"], call.call_id):
            given = {"kind": "approval.given", "id": name, "decision": "allow"}
            tries += [
                ("POST", f"/v1/sessions/{session}/events", body, {}, 409) for body in (given, {"events": [given]})
            ]
        for method, path, body, headers, status in tries:
            got = await one.http.request(method, path, json=body, headers=headers)
            # The runtime has no approvals, and none of its ids is this one's.
            expected = {status, 422} if path.endswith("/events") else {status}
            assert got.status_code in expected, (method, path, body, got.text)
        for raw in (
            b'{"decision": "allow", "binding": NaN}',
            b'{"decision": "allow", "arguments": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
            b'{"decision": "allow", "binding": "' + b"0" * MEGABYTE + b'"}',
            f'{{"binding": "{binding}", "decision": "allow", "decision": "deny"}}'.encode(),
            f'{{"decision": "allow", "binding": "{other["binding"]}", "binding": "{binding}"}}'.encode(),
            f'{{"decision": "allow", "binding": "{binding}", "arguments": {{"amount": 1, "amount": 2}}}}'.encode(),
        ):
            got = await one.http.post(answer, content=raw, headers={"content-type": "application/json"})
            assert got.status_code == 400, (raw[:80], got.text)
        await nothing_ran(gated, one, asked, other)
        one.signal(signal.SIGKILL)
        await one.ended()
        following = await gateways.serve("following")
        await following.wait_carries(session)
        await nothing_ran(gated, following, asked, other)
        assert [(await allow(following, asked)).status_code for _ in range(3)] == [200, 409, 409]
        await ended(call)
        assert [sent.data["arguments"] for sent in gated.hooks.of("free")] == [{"amount": 150}]


async def test_nobody_allows_their_own_call_by_a_detour(gated: Scene) -> None:
    """Nor after somebody else has denied it and it was redriven, or under another way of asking."""
    maker = {"authorization": "Bearer maker-key"}
    async with served(gated) as (_, one):
        session = await one.session()
        body = {"tool": "free", "arguments": {"amount": 150}}
        made = await one.http.post(f"/v1/sessions/{session}/calls", json=body, headers=maker)
        assert (made.status_code, made.json()["state"]) == (202, "held")
        (asked,) = await waiting(one)
        again = {"decision": "allow", "binding": asked["binding"]}
        refused = await one.http.post(f"/v1/interactions/{asked['interaction_id']}/answer", json=again, headers=maker)
        assert refused.json()["type"] == "/problems/own-call"
        await one.post(f"/v1/interactions/{asked['interaction_id']}/answer", {"decision": "deny"}, status=200)
        redriven = await one.http.post(f"/v1/calls/{asked['call_id']}/redrive", json={}, headers=maker)
        assert (redriven.status_code, redriven.json()["state"]) == (202, "held")
        (asked,) = await waiting(one)
        again["binding"] = asked["binding"]
        refused = await one.http.post(f"/v1/interactions/{asked['interaction_id']}/answer", json=again, headers=maker)
        assert refused.json()["type"] == "/problems/own-call"
        await nothing_ran(gated, one, asked)


async def test_a_link_answers_nothing_unless_a_person_sends_its_form(gated: Scene) -> None:
    async with served(gated) as (_, one):
        call, asked = await hold(gated, one)
        (told,) = await gated.hooks.wait_for(name=ASKED)
        path = httpx.URL(told.data["open"]).path
        previews = [{}, NAVIGATION, {**NAVIGATION, "purpose": "prefetch"}, {**NAVIGATION, "sec-purpose": "prefetch"}]
        for method in ("HEAD", "GET", "OPTIONS", "PUT", "DELETE"):
            for headers in previews:
                query = f"?decision=allow&binding={asked['binding']}"
                got = await one.http.request(method, path + query, headers={**headers, "authorization": ""})
                assert got.status_code == (200 if method in {"HEAD", "GET"} else 405), (method, got.text)
                assert method != "HEAD" or got.content == b""
        own = {**NAVIGATION, "sec-fetch-site": "same-origin", "authorization": ""}
        twice = f"decision=allow&binding={'0' * 64}&binding={asked['binding']}"
        for form in (twice, f"decision=deny&decision=allow&binding={asked['binding']}"):
            got = await one.http.post(
                path, content=form, headers={**own, "content-type": "application/x-www-form-urlencoded"}
            )
            assert got.status_code == 400, got.text
        await nothing_ran(gated, one, asked)
        fields = {"decision": "allow", "binding": asked["binding"]}
        assert [(await one.http.post(path, data=fields, headers=own)).status_code for _ in range(2)] == [200, 409]
        assert (await ended(call)).outcome == "success"
        assert len(gated.hooks.of("free")) == 1


async def test_a_tool_that_only_looks_like_a_gated_one_does_not_run(gated: Scene) -> None:
    names = [
        "Free",
        "free ",
        " free",
        "fr\u0435e",
        "\uff46ree",
        "free\u200b",
        "free\u0301",
        "free\x00",
        "FREE",
        "free\ufe0e",
    ]
    async with served(gated) as (_, one):
        session = await one.session()
        for name in names:
            assert (await ended(await gated.agent.call(name, {"amount": 150}))).outcome == "failure", name
            body = {"tool": name, "arguments": {"amount": 150}}
            got = await one.http.post(f"/v1/sessions/{session}/calls", json=body)
            assert got.status_code in {400, 404}, (name, got.text)
    assert [asked for asked in gated.hooks.asked if asked.kind == "tool.requested"] == []


NO_SMALL_AMOUNTS = [
    *("NaN", "Infinity", "-Infinity", "1e999", "true", '"5"', "[5]", "{}", "null", "-0.5"),
    *("100.00000000000002", str(2**64), '5,"amount":150', '5,"\\u0061mount":150'),
]


async def test_an_amount_that_is_no_small_one_does_not_run_unasked(gated: Scene) -> None:
    kind = {"content-type": "application/json"}
    async with served(gated) as (_, one):
        session, texts = await one.session(), list[str]()
        mcp = Plain(one.http, f"/mcp/{session}", (await one.get(f"/v1/sessions/{session}/mcp"))["token"])
        for number, amount in enumerate(NO_SMALL_AMOUNTS):
            native, arguments = f"bad-{number}", f'{{"amount":{amount}}}'
            gated.agent.calls[native] = SimCall(native, "free", {}, change=Change())
            frame = f'{{"type":"tool-call","toolCallId":"{native}","toolName":"free","arguments":{arguments}}}'
            await gated.agent.emit_text(f'2["event",{frame}]')
            body = f'{{"tool":"free","arguments":{arguments}}}'
            api = await one.http.post(f"/v1/sessions/{session}/calls", content=body, headers=kind)
            assert api.status_code in {202, 400}, (amount, api.text)
            params = f'{{"name":"free","arguments":{arguments}}}'
            request = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
            texts.append((await mcp.send(request.encode())).text)
        await ended(await gated.agent.call("ask", GOOD))
        assert gated.hooks.of("free") == []
        held = [asked["event"]["arguments"]["amount"] for asked in await waiting(one)]
        # Values that are no numbers, and repeated members.
        assert [("Waits for a person" in text) for text in texts] == [False] * 4 + [True] * 7 + [False] * 3
        assert held.count(150) == 4
        assert 5 not in held


async def test_a_megabyte_is_bound_and_sent_as_it_was_shown(gated: Scene) -> None:
    async with served(gated) as (_, one):
        text = "\N{CJK UNIFIED IDEOGRAPH-4E0D}\u202e" * (MEGABYTE // 12)
        call, asked = await hold(gated, one, text)
        assert asked["event"]["arguments"] == {"amount": text}
        assert (await allow(one, asked)).status_code == 200
        assert (await ended(call)).outcome == "success"
        assert [sent.data["arguments"] for sent in gated.hooks.of("free")] == [{"amount": text}]


async def test_an_executor_that_answers_for_another_call_or_executor_lets_nothing_run(gated: Scene) -> None:
    questions: list[Asked] = []

    async def crossed(asked: Asked) -> Said:
        """Allow the question before this one, in the words of this one's answer."""
        questions.append(asked)
        binding = questions[-2].data["event"]["binding"] if len(questions) > 1 else "0" * 64
        return {"decision": "allow", "binding": binding, "call_id": questions[0].data["event"]["call_id"]}

    policy = {**gated.settings["executors"]["cards"], "url": f"{gated.hooks.url}/policy"}
    gated.configure(
        {
            "executors": {"policy": policy},
            "routes": [
                *gated.settings["routes"],
                {"match": {"event": "approval.asked"}, "to": "policy", "held": True},
            ],
        }
    )
    gated.hooks.scripts["approval.asked"] = crossed
    gated.hooks.scripts["free"] = success("refunded")
    async with served(gated) as (_, one):
        _, first = await hold(gated, one)
        await gated.hooks.wait_for(1, name="approval.asked")
        _, second = await hold(gated, one, 151)
        await gated.hooks.wait_for(2, name="approval.asked")
        refused = await one.wait_events("call.progressed", 2)
        assert ["the binding is not that of the question" in str(one["event"]["data"]) for one in refused] == [True] * 2
        await nothing_ran(gated, one, first, second)
