"""What operators see and do: readiness, metrics, logs without secrets, keys, and a new configuration while running."""

import asyncio
import json
import re
from typing import Any

import pytest
from fastapi import Response

from gateway.runtime.system_clock import SystemClock
from gateway.store.sqlite import SqliteEngine
from gateway.testing.runtimes.huma.rules import Dialect
from tests.scenarios.environment import AGENT_KEY, API_KEY, GOOD, Scene, ended, plain_http
from tests.scenarios.hooks import SECRET, Gate, success
from tests.scenarios.terminal import dragoman
from tests.unit.cli.test_adapters import GOOD as GOOD_ADAPTER, put_adapter

SERIES = {
    "dragoman_calls_total", "dragoman_call_seconds_count", "dragoman_executor_attempts_total",
    "dragoman_outbox_oldest_seconds", "dragoman_dead_letters", "dragoman_unknown_outcomes_total",
    "dragoman_late_outcomes_total", "dragoman_link_up", "dragoman_journal_commit_seconds_count",
    "dragoman_queue_bytes", "dragoman_losses_total", "dragoman_repeats_total",
}  # fmt: skip


async def test_a_draining_gateway_is_not_ready_and_lets_calls_in_flight_end(both: Scene) -> None:
    both.configure({"limits": {"drain": "15s"}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("in time"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for()
        assert (await gateway.http.get("/readyz")).status_code == 200
        draining = asyncio.create_task(gateway.gateway.drain())
        await asyncio.sleep(0)
        answer = await gateway.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["process"] == "draining"
        assert (await gateway.http.get("/healthz")).status_code == 200
        late = await both.agent.call("free", {})
        await gateway.wait_call(late.call_id, "queued")
        gate.open()
        assert (await ended(call)).result == "in time"
        await draining
    # What came while it was draining is the next process's to do.
    async with both.running():
        assert (await ended(late)).outcome == "success"
    assert [asked.name for asked in both.hooks.asked] == ["ask", "free"]


async def test_a_draining_gateway_reads_no_configuration_again(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "15s"}})
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("in time"))
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for()
        draining = asyncio.create_task(gateway.gateway.drain())
        await asyncio.sleep(0)
        newer.configure({"runtimes": {"finn": None}})
        problem = await gateway.post("/v1/reload", status=409)
        assert problem["type"] == "/problems/conflict"
        assert "the next process" in problem["detail"]
        gate.open()
        assert (await ended(call)).result == "in time"
        await draining


async def test_a_gateway_without_its_store_is_not_ready_and_takes_nothing(newer: Scene) -> None:
    newer.engine = engine = SqliteEngine(newer.folder / "dragoman.db", SystemClock())
    async with newer.running() as gateway:
        session_id = await gateway.session()
        await engine.__aexit__(None, None, None)
        answer = await gateway.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["engine"] != "ok"
        event = {"kind": "message.posted", "content": "hi"}
        problem = await gateway.post(f"/v1/sessions/{session_id}/events", event, status=503)
        assert problem["type"] == "/problems/unavailable"
        assert (await gateway.http.get("/healthz")).status_code == 200
        call = await newer.agent.call("ask", GOOD)
        await engine.__aenter__()
        assert (await ended(call)).outcome == "success"
        assert (await gateway.http.get("/readyz")).status_code == 200


async def test_metrics_have_every_series_and_no_label_that_a_peer_chose(both: Scene) -> None:
    both.hooks.scripts["ask"] = success("x" * 70_000)
    both.configure({"routes": [{"match": {"tool": "*"}, "to": "cards", "undeclared": True}]})
    async with both.running() as gateway:
        for tool in ("ask", "free", "peer-chose-this-tool"):
            await ended(await both.agent.call(tool, GOOD))
        await both.agent.emit_text('2["event",{"type":"tool-call"}]')
        await both.agent.emit("peer-chose-this-channel", {"type": "peer-chose-this-type"})
        await ended(await both.agent.call("free", {}))
        series = await gateway.metrics()
        text = (await gateway.http.get("/metrics")).text
    names = {name.partition("{")[0] for name in series}
    wanted = SERIES if both.dialect == "0.2" else SERIES - {"dragoman_losses_total"}
    assert wanted <= names, wanted - names
    assert series['dragoman_calls_total{outcome="success",runtime="finn",tool="free"}'] == 2
    assert series['dragoman_calls_total{outcome="success",runtime="finn",tool="_other"}'] == 1
    assert series['dragoman_executor_attempts_total{executor="cards",result="answered"}'] == 4
    assert series['dragoman_link_up{runtime="finn"}'] == 1
    assert "peer-chose" not in text
    values = {value for name in series for value in re.findall(r'(?<!le)="([^"]*)"', name)}
    numbers = {value for value in values if re.fullmatch(r"[0-9.]+", value)}
    known = {"finn", "cards", "ask", "free", "_other", "success", "failure", "answered", f"huma-{both.dialect}",
             "from_runtime", "to_runtime", "dropped", "narrowed", "defaulted", "invented",
            "part", "runtime", "autostart", "link", "session", "executor", "accepted", "refused", "never_sent",
            "not_processed", "uncertain", "canceled",
             "unreachable", "nobody", "unsure"}  # fmt: skip
    assert values - numbers <= known


@pytest.mark.requirement("A40")
@pytest.mark.parametrize("form", ["json", "console"])
async def test_no_secret_is_in_any_line_of_anybody_at_the_most_talkative_level(
    both: Scene, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    both.configure({"logging": {"level": "debug", "format": form}})
    both.hooks.scripts["ask"] = Response(status_code=202)
    both.hooks.scripts["free"] = Response(f"you sent {SECRET} and {AGENT_KEY}", status_code=400)
    both.huma.refuse("finn", "AGENT_EXPIRED")
    async with both.running(linked=False) as gateway:
        await gateway.wait_link("refused")
        both.huma.refuse("finn", None)
    async with both.running() as gateway:
        accepted = await both.agent.call("ask", GOOD)
        [asked] = await both.hooks.wait_for()
        token = asked.data["callback_url"].partition("token=")[2]
        assert token
        async with plain_http() as http:
            assert (await http.post(asked.data["callback_url"], json=success())).status_code == 200
            stray = {"authorization": "Bearer stray-canary-key", "x-api-key": "stray-canary-key"}
            assert (await http.get(f"{gateway.url}/v1/sessions?key=stray-canary-key", headers=stray)).status_code == 401
        await ended(accepted)
        await ended(await both.agent.call("free", {}))
        await both.agent.drop()
        await gateway.wait_events("link.changed", state="down")
    said = capsys.readouterr().err
    assert "call succeeded" in said
    assert "link up" in said
    for secret in (API_KEY, AGENT_KEY, SECRET, SECRET.removeprefix("whsec_"), token, "stray-canary-key"):
        assert secret not in said, next(line for line in said.splitlines() if secret in line)


@pytest.mark.parametrize("level", ["debug", "info"])
async def test_debug_shows_each_frame_and_info_shows_none(
    newer: Scene, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    newer.configure({"logging": {"level": level, "format": "json"}})
    async with newer.running():
        await ended(await newer.agent.call("free", {}))
    said = capsys.readouterr().err
    assert ('"event":"frame <"' in said) == (level == "debug")
    assert ('"event":"frame >"' in said) == (level == "debug")


async def test_only_who_has_a_key_with_the_scope_gets_in(newer: Scene) -> None:
    newer.configure({"api": {"keys": [{"name": "all", "key": API_KEY},
                                      {"name": "viewer", "key": "viewer-key", "scopes": ["read"]}]}})  # fmt: skip
    async with newer.running() as gateway, plain_http() as http:
        url = f"{gateway.url}/v1/sessions"
        assert (await http.get(url)).status_code == 401
        assert (await http.get(url, headers={"x-api-key": "wrong"})).status_code == 401
        viewer = {"x-api-key": "viewer-key"}
        assert (await http.get(url, headers=viewer)).status_code == 200
        answer = await http.post(url, headers=viewer, json={"runtime": "finn", "native_id": "x"})
        assert (answer.status_code, answer.json()["scope"]) == (403, "drive")
        for path in ("/metrics", "/version", "/openapi.json"):
            assert (await http.get(gateway.url + path)).status_code == 401
            assert (await http.get(gateway.url + path, headers=viewer)).status_code == 200
        problem = (await gateway.http.get("/v1/sessions/no-such-session")).json()
        assert (problem["status"], problem["type"]) == (404, "/problems/not-found")
        await gateway.post("/v1/sessions/no-such/events", {"kind": "message.posted", "content": "x"}, status=404)


async def test_a_reload_changes_routes_tools_and_executors_for_the_next_call(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("asked before"))
    async with both.running() as gateway:
        before = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for()
        both.configure(
            {
                "executors": {"words": {"type": "static", "result": "from the file"}},
                "routes": [{"match": {"tool": "*"}, "to": "words"}],
                "tools": {"ask": {"parameters": {"required": ["player"]}}},
            }
        )
        answer = await gateway.post("/v1/reload", status=200)
        assert {"executors.words", "routes", "tools.ask"} <= set(answer["changed"])
        assert (await ended(await both.agent.call("ask", {"player": "Bob"}))).result == "from the file"
        gate.open()
        assert (await ended(before)).result == "asked before"
        assert both.agent.connections == 1


async def test_a_reload_starts_and_stops_runtimes_without_touching_the_others(both: Scene) -> None:
    other = both.huma.agent("other")
    finn = both.settings["runtimes"]["finn"]
    async with both.running() as gateway:
        both.configure({"runtimes": {"other": {**finn, "agent_id": "other"}}})
        await gateway.post("/v1/reload", status=200)
        await other.wait_connected()
        assert (await ended(await other.call("ask", GOOD))).outcome == "success"
        both.configure({"runtimes": {"other": None}})
        await gateway.post("/v1/reload", status=200)
        await other.wait_disconnected()
        assert [one["name"] for one in (await gateway.get("/v1/runtimes"))["data"]] == ["finn"]
        assert both.agent.connections == 1
        both.configure({"runtimes": {"other": {**finn, "agent_id": "other"}}})
        await gateway.post("/v1/reload", status=200)
        await other.wait_connections(2)
        assert (await ended(await other.call("ask", GOOD))).outcome == "success"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"routes": [{"match": {"tool": "*"}, "to": "nobody"}]}, "nobody"),
        ({"exekutors": {}}, "exekutors"),
        ({"engine": {"type": "memory", "path": None}}, "engine"),
        ({"runtimes": {"finn": {"api_key": "${NO_SUCH_VARIABLE}"}}}, "NO_SUCH_VARIABLE"),
        ({"api": {"keys": []}}, "api.keys"),
        ({"executors": {"cards": {"url": "http://169.254.169.254/"}}}, "169.254.169.254"),
        ({"executors": {"cards": {"secret": "whsec_not-base64!"}}}, "executors.cards"),
        ({"tools": {"ask": {"parameters": {"properties": {"rank": {"type": "no such type"}}}}}}, "tools.ask"),
    ],
    ids=[
        "executor unknown",
        "key unknown",
        "engine",
        "variable missing",
        "keys gone",
        "address refused",
        "secret",
        "schema",
    ],
)
async def test_a_bad_file_changes_nothing_and_says_why(newer: Scene, over: dict[str, Any], words: str) -> None:
    async with newer.running() as gateway:
        newer.configure(over)
        problem = await gateway.post("/v1/reload", status=422)
        assert problem["type"] == "/problems/invalid-configuration"
        assert words in str(problem["errors"])
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        assert newer.agent.connections == 1


async def test_an_adapter_that_is_installed_meanwhile_waits_for_a_restart(
    newer: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with newer.running() as gateway:
        put_adapter(newer.folder, GOOD_ADAPTER, monkeypatch)
        newer.configure({"runtimes": {"other": {"adapter": "pigeon", "url": "http://127.0.0.1:9"}}})
        problem = await gateway.post("/v1/reload", status=422)
        assert "no adapter is called 'pigeon'" in str(problem["errors"])
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


@pytest.mark.requirement("A34")
async def test_each_link_speaks_the_dialect_that_its_configuration_names(both: Scene) -> None:
    async with both.running() as gateway:
        await ended(await both.agent.call("ask", GOOD))
        [runtime] = (await gateway.get("/v1/runtimes"))["data"]
        expected: dict[Dialect, tuple[str, str]] = {
            "0.1": ("huma/0.1", "huma-0.1-event"),
            "0.2": ("huma/0.2.0", "tool-result"),
        }
        assert (runtime["protocol"], both.agent.received[-1].payload["type"]) == expected[both.dialect]


@pytest.mark.requirement("A28")
async def test_one_agent_has_one_link_however_often_it_is_asked_for(both: Scene) -> None:
    finn = both.settings["runtimes"]["finn"]
    async with both.running() as gateway:
        session_id = await gateway.session()
        for _ in range(3):
            again = await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "finn"}, status=200)
            assert again["session_id"] == session_id
        both.configure({"runtimes": {"twin": finn}})
        problem = await gateway.post("/v1/reload", status=422)
        assert "twin" in str(problem["errors"])
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"
    assert both.agent.connections == 1
    assert len(both.hooks.asked) == 1


async def test_a_call_in_flight_survives_the_reload_of_its_runtimes_options(both: Scene) -> None:
    both.configure({"executors": {"cards": {"idempotent": False}}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("asked before"))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for()
        both.configure({"runtimes": {"finn": {"connect_timeout": "9s"}}})
        problem = await gateway.post("/v1/reload", status=409)
        assert "finn" in problem["detail"]
        assert "cannot replay" in problem["detail"]
        wanted = {"changed": ["runtimes.finn"], "restarted": ["finn"]}
        assert await gateway.post("/v1/reload?dry_run=true", status=200) == wanted
        assert both.agent.connections == 1
        assert await gateway.post("/v1/reload?force=true", status=200) == wanted
        await both.agent.wait_connections(2)
        gate.open()
        assert (await ended(call)).result == "asked before"
    assert len(both.hooks.asked) == 1


async def test_the_command_reloads_shows_what_would_change_and_asks_for_force(newer: Scene) -> None:
    async with newer.running() as gateway:
        nothing = await dragoman(gateway, "reload")
        assert (nothing.code, nothing.out) == (0, "changed: nothing\n")
        newer.configure({"runtimes": {"finn": {"connect_timeout": "9s"}}})
        shown = await dragoman(gateway, "reload", "--dry-run")
        assert (shown.code, shown.out) == (0, "would change: runtimes.finn\nwould restart: finn\n")
        refused = await dragoman(gateway, "reload")
        assert (refused.code, refused.out) == (1, "")
        assert "--force" in refused.err
        done = await dragoman(gateway, "reload", "--force", "--json")
        assert json.loads(done.out) == {"changed": ["runtimes.finn"], "restarted": ["finn"]}
        await newer.agent.wait_connections(2)


async def test_a_reload_that_needs_a_restart_is_refused_with_the_line_and_a_fix_for_the_terminal(newer: Scene) -> None:
    async with newer.running() as gateway:
        newer.configure({"engine": {"path": str(newer.config.with_name("other.db"))}})
        line = next(n for n, text in enumerate(newer.config.read_text().splitlines(), 1) if "other.db" in text)
        refused = await dragoman(gateway, "reload")
        assert (refused.code, refused.out) == (1, "")
        error, fix = refused.err.splitlines()
        assert f"{newer.config}:{line}: engine.path: cannot change while the gateway runs; restart it" in error
        assert "dragoman reload" in fix
        assert "`errors`" not in fix
