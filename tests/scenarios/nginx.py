"""A real nginx in front of gateways."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.engines.postgres_server import as_server, make_folder
from tests.pace import PATIENCE
from tests.scenarios.environment import until

_MISSING = "there is no nginx: apt-get install nginx-light"


def program() -> str:
    """Find nginx, or skip the test."""
    found = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    return found


@asynccontextmanager
async def running(
    port: int, configure: Callable[[Path], str], *, written: list[str] | None = None
) -> AsyncGenerator[None]:
    """Run nginx with a configuration for its folder; `written` gets all that it has logged anywhere."""
    command, folder = program(), make_folder()
    (folder / "nginx.conf").write_text(configure(folder), encoding="utf-8")
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *as_server([command, "-e", "stderr", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    async def listens() -> bool:
        assert process.returncode is None, (folder / "output").read_text()
        with socket.socket() as knock:
            return knock.connect_ex(("127.0.0.1", port)) == 0

    try:
        await until(listens)
        yield
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.wait()
        if written is not None:
            logs = [path for path in folder.rglob("*") if path.is_file() and path.name != "nginx.conf"]
            written += [path.read_text(errors="replace") for path in logs]
    finally:
        # Its workers are of its session, and go with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        shutil.rmtree(folder)
