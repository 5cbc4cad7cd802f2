"""What is wrong with the options of a simulated runtime is said in a line, and its key may stand in a file."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from gateway.testing.serving import Served

BOUND = 60.0


def _run(runtime: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"gateway.testing.runtimes.{runtime}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--call", "deal", "{"), "--call: the arguments are not JSON"),
        (("--call", "deal", "[]"), "--call: the arguments must be a JSON object"),
        (("--env-file", "nowhere"), "--env-file: there is no file 'nowhere'"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: tuple[str, ...], words: str) -> None:
    done = _run("huma", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = _run("herm", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert done.stderr == "cannot listen: Address already in use; select another address with --host and --port\n"


async def _refuse(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Know nobody's token."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
    await send({"type": "http.response.body", "body": b""})


async def test_an_mcp_client_with_a_wrong_token_says_so_and_fails() -> None:
    async with Served(_refuse) as served:
        options = ("--url", f"{served.url}/mcp/r/desk", "--token", "t", "--call", "deal", "{}")
        done = await asyncio.to_thread(_run, "mcp", *options)
    assert (done.returncode, done.stderr) == (1, "")
    waiting, heard = done.stdout.splitlines()
    assert waiting == "waiting for a gateway"
    assert heard.startswith("← no result: invalid token; ")


async def test_an_mcp_client_of_what_is_no_gateway_says_so_and_fails() -> None:
    async with Served(FastAPI()) as served:
        done = await asyncio.to_thread(_run, "mcp", "--url", f"{served.url}/mcp/r/desk", "--token", "t")
    assert (done.returncode, done.stderr) == (1, "")
    assert "← no result: " in done.stdout
    assert "sub-exception" not in done.stdout


@pytest.mark.parametrize(("given", "works"), [("", "from-the-file"), ("from-outside", "from-outside")])
async def test_a_key_stands_in_a_file_and_the_environment_wins(tmp_path: Path, given: str, works: str) -> None:
    (tmp_path / "env").write_text("HERM_API_KEY=from-the-file\n")
    environment = {**os.environ, "HERM_API_KEY": given} if given else dict(os.environ)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.testing.runtimes.herm", "--env-file", str(tmp_path / "env")),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND), httpx.AsyncClient() as http:
            url = (await process.stdout.readline()).decode().split()[2].rstrip(",")
            for key, status in ((works, 200), ("another", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                assert (await http.get(f"{url}/v1/sessions/session_1", headers=headers)).status_code == status
    finally:
        process.kill()
        await process.wait()
