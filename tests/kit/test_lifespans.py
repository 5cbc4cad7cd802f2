"""The router runs where a lifespan reaches it; elsewhere it refuses requests and names the fix."""

import asyncio
import os
import shutil
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from dragoman.kit import Callback, MemoryCallStore, SqliteCallStore, Tools
from tests.kit.sender import RUNS, SECRET, Gateway, Sender, serving
from tests.pace import PATIENCE

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def uvicorn(
    folder: Path, app: str, *words: str, cwd: Path = ROOT
) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
    """Serve an application with the command of uvicorn, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", app, "--fd", str(listener.fileno()), "--log-level", "warning", *words),
            pass_fds=(listener.fileno(),),
            env={**os.environ, RUNS: str(folder / "runs"), "PYTHONPATH": str(ROOT)},
            cwd=cwd,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                await process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "paths"),
    [
        ("plain", [""]),
        ("twice", ["/x", "/y"]),
        ("own_lifespan", ["/x"]),
        ("mounted_with_lifespan", ["/x"]),
        ("mounted_in_own_lifespan", ["/x"]),
        ("both_ways", ["/x", "/y"]),
        ("starlette", ["/x"]),
    ],
)
async def test_the_router_runs_wherever_a_lifespan_reaches_it(tmp_path: Path, app: str, paths: list[str]) -> None:
    async with uvicorn(tmp_path, f"tests.kit.mounted:{app}") as (url, _), httpx.AsyncClient(timeout=PATIENCE) as http:
        for path in paths:
            answer = await Sender(url + path, http).call("echo", {"rank": "7"}, "k")
            assert (answer.status_code, answer.json()["result"]) == (200, "7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "words"),
    [("mounted", ()), ("starlette_without", ()), ("plain", ("--lifespan", "off"))],
)
async def test_a_router_without_a_lifespan_refuses_and_names_the_fix(
    tmp_path: Path, app: str, words: tuple[str, ...]
) -> None:
    path = "" if app == "plain" else "/x"
    async with (
        uvicorn(tmp_path, f"tests.kit.mounted:{app}", *words) as (url, process),
        httpx.AsyncClient(timeout=PATIENCE) as http,
    ):
        for _ in range(2):
            refused = await Sender(url + path, http).call("echo", {"rank": "7"}, "k", callback="http://127.0.0.1:9/")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.headers["content-type"] == "application/problem+json"
            assert "lifespan=tools.lifespan" in refused.json()["detail"]
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        logged = (await process.stderr.read()).decode()
    assert logged.count("refused a request: the tools are not started") == 1


@pytest.mark.slow
async def test_several_workers_and_a_reload_share_one_store(tmp_path: Path) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        async with uvicorn(tmp_path, "tests.kit.mounted:plain", "--workers", "2") as (url, _):
            for key in ("a", "b", "c", "d"):
                async with httpx.AsyncClient(timeout=PATIENCE) as fresh:
                    assert (await Sender(url, fresh).call("echo", {"rank": "7"}, key)).json()["result"] == "7"
        source = tmp_path / "app"
        source.mkdir()
        shutil.copy(ROOT / "tests/kit/mounted.py", source / "reloaded.py")
        words = ("--reload", "--reload-dir", str(source))
        async with uvicorn(tmp_path, "reloaded:plain", *words, cwd=source) as (url, _):
            assert (await Sender(url, http).call("echo", {"rank": "7"}, "e")).json()["result"] == "7"
            text = (source / "reloaded.py").read_text()
            (source / "reloaded.py").write_text(text.replace("return arguments.rank", 'return "reloaded"'))
            async with asyncio.timeout(PATIENCE):
                number = 0
                while True:
                    number += 1
                    with_new = Sender(url, http).call("echo", {"rank": "7"}, f"f-{number}")
                    try:
                        answer = await with_new
                    except httpx.TransportError:
                        continue
                    if answer.status_code == 200 and answer.json()["result"] == "reloaded":
                        break
                    await asyncio.sleep(0.1)
    file = sqlite3.connect(tmp_path / "runs.db")
    assert file.execute("SELECT count(*) FROM claims WHERE answer IS NULL").fetchone() == (0,)
    file.close()


async def test_two_applications_of_one_loop_share_the_tools_and_the_last_one_stops_them(tmp_path: Path) -> None:
    tools, there = Tools(secret=SECRET, store=SqliteCallStore(tmp_path / "kit.db")), Gateway()
    async with serving(there.app) as callback, SqliteCallStore(tmp_path / "kit.db") as left:
        await left.claim("left", "d")
        await left.accept("left", Callback(callback, "gone", time.time() + 60))
        await left.__aexit__()
        await left.__aenter__()
        async with tools.lifespan():
            one = FastAPI()
            one.include_router(tools.router)
            async with serving(one) as url, httpx.AsyncClient() as http:
                assert (await Sender(url, http).call("fly", {}, "k")).status_code == 422
            # The application is gone, and the outer lifespan still holds the tools open.
            await there.hears(1)
            async with serving(one) as url, httpx.AsyncClient() as http:
                assert (await Sender(url, http).call("fly", {}, "k")).status_code == 422
        async with tools.lifespan():
            pass


async def test_a_second_event_loop_is_refused() -> None:
    tools = Tools(secret=SECRET, store=MemoryCallStore())

    async def enter() -> None:
        async with tools.lifespan():
            pass

    async with tools.lifespan():
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, enter())
    await asyncio.to_thread(asyncio.run, enter())
