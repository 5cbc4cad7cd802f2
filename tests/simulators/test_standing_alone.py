"""Each simulated server runs by itself, and says how to play with it."""

import asyncio
import re
import signal
import sys

import httpx
import pytest

BOUND = 60.0


@pytest.mark.parametrize(
    ("module", "options", "page", "order", "headers"),
    [
        ("openhands", ["--session-api-key", "k"], "run", {"command": "ls"}, {"X-Session-API-Key": "k"}),
        ("openhands", [], "say", {"text": "hello"}, {}),
        ("openhands_v1", ["--session-api-key", "k"], "run", {"command": "ls"}, {"X-Session-API-Key": "k"}),
        ("openhands_v1", ["--acp", "codex", "--server-version", "1.44.0"], "say", {"text": "hello"}, {}),
        ("herm", ["--api-key", "k"], "say", {"text": "hello"}, {"Authorization": "Bearer k"}),
    ],
)
async def test_a_server_runs_alone_until_it_is_interrupted(
    module: str, options: list[str], page: str, order: dict[str, str], headers: dict[str, str]
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-u", "-m", f"gateway.testing.runtimes.{module}", *options), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            told = b""
            while b"curl" not in told:
                told += await process.stdout.readline()
            url = re.search(r"http://\S+/simulator/\S+/", told.decode())
            assert url is not None
            async with httpx.AsyncClient(headers=headers) as http:
                assert (await http.post(url[0] + page, json=order)).is_success
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
