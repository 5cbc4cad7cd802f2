"""A real gateway and a real backend whose worker is killed and stopped at random moments of a load."""

import asyncio
import random
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.runtime.tuning import Tuning
from tests.http.mcp_clients import Plain
from tests.kit.sender import SECRET, Backend
from tests.pace import PATIENCE
from tests.scenarios.environment import API_KEY, Running, running

CALLS = 200
HANGS = 2 * PATIENCE
"""Seconds after which a call hangs: longer than its deadline, which ends it with an outcome that says so."""
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
TOKEN = "desk-kills-7Hn3-0123456789"
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)


def _settings(folder: Path, gateway: socket.socket, backend: socket.socket) -> Path:
    ports = [one.getsockname()[1] for one in (gateway, backend)]
    executor = {
        "type": "webhook",
        "url": f"http://127.0.0.1:{ports[1]}/tools",
        "secret": SECRET,
        # Each death breaks several connections, and the calls behind them shall reach the next worker.
        "breaker": "off",
        "deadline": f"{PATIENCE:g}s",
        "accepted_deadline": f"{PATIENCE:g}s",
    }
    settings = {
        "public_url": f"http://127.0.0.1:{ports[0]}",
        "api": {"keys": [{"name": "backend", "key": API_KEY}]},
        "engine": {"type": "sqlite", "path": str(folder / "dragoman.db")},
        "tools": {
            "ask_for_cards": {"description": "Ask another player for all cards of a rank."},
            "look": {"description": "Look at the table."},
        },
        "runtimes": {"desk": {"adapter": "mcp", "clients": [{"name": "ada", "token": TOKEN}]}},
        "executors": {
            "once": executor,
            # The kit leaves interrupted calls of idempotent tools to the gateway, which requests them again.
            "again": {**executor, "idempotent": True, "accepted_silence": "3s", "attempts": 20},
        },
        "routes": [{"match": {"tool": "look"}, "to": "again"}, {"match": {"tool": "*"}, "to": "once"}],
        "logging": {"level": "error", "format": "json"},
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


async def _call(gateway: Running, session: str, tool: str, slots: asyncio.Semaphore) -> dict[str, Any] | None:
    """Make one call; return its outcome, or None if it hangs."""
    asked = {"tool": tool, "arguments": {"rank": "7", "wait": random.uniform(0.0, 0.6)}}
    async with slots:
        ends_at = time.monotonic() + HANGS
        shown = (await gateway.http.post(f"/v1/sessions/{session}/calls", json=asked, timeout=HANGS)).json()
        while shown["outcome"] is None and time.monotonic() < ends_at:
            path = f"/v1/calls/{shown['call_id']}"
            shown = (await gateway.http.get(path, params={"wait": PATIENCE}, timeout=HANGS)).json()
    return shown["outcome"]


async def _die(backend: Backend, listener: socket.socket, over: asyncio.Event) -> None:
    """Run a worker, end it at a random moment by each of the signals, and run the next one until all is over."""
    env = {"KIT_AT_ONCE": "0.1", "KIT_DRAIN": "0.2"}
    for number in ENDS:
        before = len(backend.ran())
        async with backend.worker_at(listener, **env) as process:
            while len(backend.ran()) < before + 30 and not over.is_set():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.02)
            # The moment of the end is what the test varies.
            await asyncio.sleep(random.uniform(0.0, 0.5))
            process.send_signal(number)
            await process.wait()
    async with backend.worker_at(listener, **env):
        await over.wait()


@pytest.mark.slow
async def test_no_call_hangs_and_none_runs_twice_while_its_backend_is_killed_and_stopped(tmp_path: Path) -> None:
    backend, over, slots = Backend(tmp_path, f"sqlite:{tmp_path / 'kit.db'}"), asyncio.Event(), asyncio.Semaphore(16)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as own, socket.create_server(("127.0.0.1", 0)) as other:
        async with (
            running(_settings(tmp_path, other, own), other, Tuning()) as gateway,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(_die(backend, own, over))
            # The session opens with the client's first request.
            await Plain(gateway.http, "/mcp/r/desk", TOKEN).send(LIST)
            session = await gateway.session("desk")
            tools = ["ask_for_cards", "look"] * (CALLS // 2)
            all_outcomes = await asyncio.gather(*(_call(gateway, session, tool, slots) for tool in tools))
            over.set()
    assert all_outcomes.count(None) == 0
    outcomes, again = all_outcomes[::2], all_outcomes[1::2]
    assert [one for one in again if one is not None and one["outcome"] != "success"] == []
    assert [run for run, count in Counter(backend.ran("ask_for_cards")).items() if count > 1] == []
    unknown = [one["error"] for one in outcomes if one is not None and one["outcome"] != "success"]
    assert len(unknown) < len(outcomes)
    assert [error for error in unknown if "unknown" not in error] == []
    # The kit has reported some: the gateway alone could not know of these.
    assert any("died" in error or "stopped" in error for error in unknown)
