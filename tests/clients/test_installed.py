"""Both wheels, installed by pip into empty environments.

The server has the libraries of its lock file, the SDK the oldest ones that it allows.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.pace import PATIENCE
from tests.ports import free_port
from tests.unit.packaging.test_wheel import shared_wheel_of
from tests.venvs import make_venv, pip

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / "tests/clients/sdk/requirements.txt"
SECRET = "whsec_dHdlbnR5LWZvdXItYnl0ZXMtb3ItbW9yZQ=="

pytestmark = pytest.mark.slow

BACKEND = """
import os

from fastapi import FastAPI
from pydantic import BaseModel

import gateway
from dragoman.kit import SqliteCallStore, Tools

app = FastAPI()
tools = Tools(secret=os.environ["CARDS_SECRET"], store=SqliteCallStore("calls.db"))


class Wanted(BaseModel):
    rank: str


@tools.tool("ask")
async def ask(wanted: Wanted) -> str:
    return f"{gateway.MINE} has no {wanted.rank}"


app.include_router(tools.router)
"""
CLIENT = """
import asyncio
import os

from dragoman.client import Client, Envelope


async def main() -> None:
    async with Client(os.environ["API"], os.environ["DRAGOMAN_KEY"]) as dragoman:
        session = await dragoman.open_session("finn", native_id="finn")
        done = await dragoman.call(session, "ask", {"rank": "7"})
        print(done.state, done.outcome.result)
        async for item in dragoman.follow(session, after=0):
            match item:
                case Envelope(event=event):
                    print(event.kind)
                    if event.kind == "tool.finished":
                        return


asyncio.run(main())
"""


def run(*words: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 240) -> str:
    """Run a command that must succeed, without the variables of the tests' own environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        words, cwd=cwd, env={**clean, **(env or {})}, capture_output=True, text=True, check=False, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(folder: Path, requirements: Path, *wheels: Path) -> Path:
    """Create an environment with pinned libraries and our wheels; returns its programs."""
    programs = make_venv(folder, requirements)
    pip(programs, "install", "--no-deps", *wheels)
    pip(programs, "check")
    return programs


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_wheel_of(ROOT / "gateway/sdk", "sdk-wheel", tmp_path_factory)


@pytest.fixture(scope="module")
def server(sdk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the server and the libraries of the demo."""
    folder = tmp_path_factory.mktemp("server")
    wheel = shared_wheel_of(ROOT, "wheel", tmp_path_factory)
    return install(folder / "venv", ROOT / "config/demo-requirements.txt", sdk, wheel)


@contextmanager
def running(*words: str | Path, cwd: Path, env: dict[str, str], ready: Callable[[], bool]) -> Generator[None]:
    with (cwd / "log.txt").open("a") as log:
        process = subprocess.Popen(words, cwd=cwd, env={**os.environ, **env}, stdout=log, stderr=log)
        try:
            until = time.monotonic() + PATIENCE
            while not ready():
                assert process.poll() is None, (cwd / "log.txt").read_text()
                assert time.monotonic() < until, (cwd / "log.txt").read_text()
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def responds(url: str, status: int) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return httpx.get(url, trust_env=False, timeout=5).status_code == status
        except httpx.HTTPError:
            return False

    return ready


def test_the_installed_demo_passes_in_an_empty_folder_and_leaves_nothing_there(server: Path, tmp_path: Path) -> None:
    shown = run(server / "dragoman", "demo", cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert "✗" not in shown
    assert "\x1b" not in shown
    assert all(f"✓ {runtime}" in shown for runtime in ("HUMA 0.1", "HUMA 0.2.0", "OpenHands", "Herm", "MCP"))
    assert len(shown.splitlines()) <= 36
    story, passed, _ = shown.partition("One call that survives kill -9")[2].partition("checks passed")
    assert passed
    order = [
        "agent",
        "backend",
        "gateway is killed",
        "gateway is started again",
        "again, with the same webhook-id",
        "once",
    ]
    places = [story.find(text) for text in order]
    assert -1 not in places
    assert places == sorted(places)
    assert list(tmp_path.iterdir()) == []


def test_the_sdk_with_its_oldest_libraries_serves_and_calls_the_installed_gateway(
    sdk: Path, server: Path, tmp_path: Path
) -> None:
    programs = install(tmp_path / "venv", OLDEST, sdk)
    folder, api, backend, runtime = tmp_path / "app", free_port(), free_port(), free_port()
    agents = f"http://127.0.0.1:{runtime}"
    (folder / "gateway").mkdir(parents=True)
    (folder / "gateway/__init__.py").write_text("MINE = 'Finn'\n")
    (folder / "backend.py").write_text(BACKEND)
    (folder / "client.py").write_text(CLIENT)
    home = tmp_path / "home"
    home.mkdir()
    configuration = {
        "api": {"keys": [{"name": "me", "key": "${DRAGOMAN_KEY}"}]},
        "tools": {
            "ask": {
                "description": "Ask for cards.",
                "parameters": {"type": "object", "properties": {"rank": {"type": "string"}}, "required": ["rank"]},
            }
        },
        "runtimes": {"finn": {"adapter": "huma-0.2", "url": agents, "api_key": "ak_local", "agent_id": "finn"}},
        "executors": {
            "cards": {"type": "webhook", "url": f"http://127.0.0.1:{backend}/tools", "secret": "${CARDS_SECRET}"}
        },
        "routes": [{"match": {"tool": "*"}, "to": "cards"}],
        "engine": {"type": "sqlite", "path": "dragoman.db"},
    }
    (home / "gateway.yaml").write_text(json.dumps(configuration))
    env = {"CARDS_SECRET": SECRET, "DRAGOMAN_KEY": "k" * 40, "API": f"http://127.0.0.1:{api}"}
    serve = (server / "dragoman", "serve", "--config", "gateway.yaml", "--port", str(api))
    uvicorn = (programs / "python", "-m", "uvicorn", "backend:app", "--port", str(backend))
    simulator = (server / "python", "-m", "gateway.testing.runtimes.huma", "--port", str(runtime))
    with (
        running(*simulator, cwd=home, env={}, ready=responds(agents, 404)),
        running(*serve, cwd=home, env=env, ready=responds(f"http://127.0.0.1:{api}/readyz", 200)),
        running(*uvicorn, cwd=folder, env=env, ready=responds(f"http://127.0.0.1:{backend}/openapi.json", 200)),
    ):
        said = run(programs / "python", "-W", "error", "client.py", cwd=folder, env=env).splitlines()
    assert said[0] == "succeeded Finn has no 7"
    assert said[-2:] == ["tool.requested", "tool.finished"]
