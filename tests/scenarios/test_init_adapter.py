"""`dragoman init --adapter` writes a package that installs, passes its own tests, and serves an agent's call."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.readme.newcomer import PROGRAMS, until_line, until_open

BOUND = 180.0
RUNTIME = """
  parrot:
    adapter: parrot-1
    url: http://127.0.0.1:{port}
    api_key: parrot-1-key-for-tests
    session_id: session-1
"""


async def run(folder: Path, *command: str, env: Mapping[str, str]) -> str:
    """Run a command to its end; return its output."""
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT)
    try:
        async with asyncio.timeout(BOUND):
            output, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, output.decode()
    return output.decode()


@asynccontextmanager
async def running(folder: Path, *command: str, env: Mapping[str, str]) -> AsyncGenerator[Process]:
    """Run a command until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=env, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, str]]:
    """Write the package into an empty folder and install it; return the folder and an environment that finds it."""
    folder, site = tmp_path_factory.mktemp("parrot"), tmp_path_factory.mktemp("site")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAGOMAN", "PYTEST"))}
    env |= {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}

    async def install() -> None:
        await run(folder, str(PROGRAMS / "dragoman"), "init", "--adapter", "parrot-1", env=env)
        pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), ".")
        await run(folder, sys.executable, *pip, env=env)

    asyncio.run(install())
    return folder, env


@pytest.mark.slow
async def test_it_passes_its_own_tests_as_generated(installed: tuple[Path, Mapping[str, str]]) -> None:
    folder, env = installed
    output = await run(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", env=env)
    assert "failed" not in output
    assert "passed" in output


async def test_it_passes_the_default_rules_of_ruff(installed: tuple[Path, Mapping[str, str]]) -> None:
    folder, env = installed
    ruff = (str(PROGRAMS / "ruff"), "check", "--isolated", "--no-cache")
    assert "All checks passed" in await run(folder, *ruff, ".", env=env)
    await run(folder, *ruff, "--select", "I,UP,B", ".", env=env)


async def test_it_has_its_name_in_every_form_and_nothing_of_the_template(
    installed: tuple[Path, Mapping[str, str]],
) -> None:
    folder, _ = installed
    paths = [path for path in folder.rglob("*") if path.is_file() and ".hypothesis" not in path.parts]
    texts = {str(path.relative_to(folder)): path.read_text() for path in paths}
    assert {"parrot_1_adapter/codec.py", "tests/peer.py", "tests/vectors/vectors.json", ".gitignore"} <= texts.keys()
    for name, text in texts.items():
        assert "pigeon" not in (name + text).lower(), name
        assert "TODO" not in text


@pytest.mark.slow
async def test_a_gateway_with_it_answers_a_call(installed: tuple[Path, Mapping[str, str]], tmp_path: Path) -> None:
    folder, env = installed
    dragoman = str(PROGRAMS / "dragoman")
    await run(tmp_path, dragoman, "init", env=env)
    backend, gateway, agents = free_port(), free_port(), free_port()
    config = tmp_path / "gateway.yaml"
    text = config.read_text().replace("9000", str(backend)).replace("8080", str(gateway))
    start, end = text.index("runtimes:\n") + len("runtimes:\n"), text.index("\n# Your backend, which runs the calls")
    config.write_text(text[:start] + RUNTIME.format(port=agents) + text[end:])
    env = {**env, "DRAGOMAN_URL": f"http://127.0.0.1:{gateway}"}
    await run(tmp_path, dragoman, "check", "--strict", env=env)
    uvicorn = ("uvicorn", "backend:app", "--port", str(backend), "--env-file", ".env")
    async with (
        running(tmp_path, sys.executable, "-m", *uvicorn, env=env) as answering,
        running(folder, sys.executable, "tests/peer.py", str(agents), env=env) as peer,
    ):
        await until_open(str(backend), answering)
        async with running(tmp_path, dragoman, "serve", "--port", str(gateway), env=env):
            received = await until_line(peer, "received")
            told = await run(tmp_path, dragoman, "doctor", "--json", env=env)
    assert json.loads(received.removeprefix("received ")) == {
        "type": "result",
        "id": "c1",
        "result": "Go fish! Nobody has a 7.",
    }
    checks = [json.loads(line) for line in told.splitlines()]
    adapters = [check["text"] for check in checks if check["about"] == "Adapters"]
    assert "parrot-1 speaks parrot-1/1, ports 3, from dragoman-parrot-1 0.1.0" in adapters
    links = [check["text"] for check in checks if check["about"] == "Links"]
    assert links == [f"1 of 1 up at http://127.0.0.1:{gateway}"]
    assert all(check["state"] in {"ok", "note"} for check in checks), checks
