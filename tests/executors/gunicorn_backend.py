"""A WSGI backend that succeeds, and a real gunicorn that serves it with its default keep-alive of 2 s."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.pace import PATIENCE

_ROOT = Path(__file__).parents[2]
_LISTENING = re.compile(rb"Listening at: http://127\.0\.0\.1:(\d+)")
_BODY = b'{"outcome": "success", "result": "dealt"}'


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Read the whole request and succeed."""
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(_BODY)))])
    return [_BODY]


@asynccontextmanager
async def gunicorn(*options: str) -> AsyncGenerator[int]:
    """Run gunicorn on a free port; gives the port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "--no-control-socket", *options),
        "tests.executors.gunicorn_backend:application",
        cwd=_ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(60):
            while (found := _LISTENING.search(b"".join(lines))) is None or b"Booting worker" not in lines[-1]:
                line = await process.stderr.readline()
                assert line, b"".join(lines).decode()
                lines.append(line)
        draining = asyncio.create_task(process.stderr.read())
        yield int(found[1])
        draining.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
