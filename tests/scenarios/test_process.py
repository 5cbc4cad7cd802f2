"""The real command in a process of its own: how it starts, reloads, drains, stops, and what it says when it cannot."""

import asyncio
import fcntl
import os
import pty
import select
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import pytest

from tests.faults import shim
from tests.scenarios.environment import AGENT_KEY, API_KEY, GOOD, Scene, ended, plain_http, until
from tests.scenarios.hooks import Gate, success
from tests.scenarios.served import START, serving


async def refused(scene: Scene, *options: str) -> tuple[int, str]:
    """Expect the process to end by itself; returns its code and what it said."""
    async with serving(scene, *options) as served, asyncio.timeout(START):
        code = await served.process.wait()
        return code, served.log.read_text()


async def test_sigterm_lets_a_call_in_flight_end_and_sighup_reads_the_file_again(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "15s"}})
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("to the end"))
    async with serving(newer) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        newer.configure(
            {
                "executors": {"words": {"type": "static", "result": "new"}},
                "routes": [{"match": {"tool": "free"}, "to": "words"}, {"match": {"tool": "*"}, "to": "cards"}],
            }
        )
        served.process.send_signal(signal.SIGHUP)
        await served.wait_log("configuration reloaded")
        assert (await ended(await newer.agent.call("free", {}))).result == "new"
        newer.config.write_text("routes: 5\n")
        served.process.send_signal(signal.SIGHUP)
        await served.wait_log("configuration not reloaded")
        assert (await ended(await newer.agent.call("free", {}))).result == "new"
        call = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        served.process.send_signal(signal.SIGTERM)
        await served.wait_log("draining")
        gate.open()
        assert (await ended(call)).result == "to the end"
        # It is told once: a process that is gone already takes no signal.
        assert await served.ended() == 0
        said = served.log.read_text()
        assert "gateway stopped" in said
        assert "routes" in said
        assert "Traceback" not in said
        for secret in (API_KEY, AGENT_KEY):
            assert secret not in said
    assert len(call.results) == 1


async def test_a_sighup_while_calls_are_waited_for_does_not_cut_them_off(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "15s"}})
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("to the end"))
    async with serving(newer) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        call = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        served.process.send_signal(signal.SIGTERM)
        await served.wait_log("draining")
        newer.configure({"runtimes": {"finn": None}})
        served.process.send_signal(signal.SIGHUP)
        await served.wait_log("configuration not reloaded")
        gate.open()
        assert (await ended(call)).result == "to the end"
        assert await served.ended() == 0
        assert "configuration reloaded" not in served.log.read_text()


_LATE_TOOLS = """
import time
from pathlib import Path

folder = Path(__file__).parent
(folder / "loading").touch()
while not (folder / "loaded").exists():
    time.sleep(0.01)


async def lend(request):
    return {"outcome": "success", "result": "old"}
"""


async def test_a_sighup_while_the_gateway_starts_is_carried_out_once_it_is_up(newer: Scene) -> None:
    (newer.folder / "late_tools.py").write_text(_LATE_TOOLS)
    newer.configure({"executors": {"late": {"type": "python", "call": "late_tools:lend"}}})
    newer.configure({"routes": [{"match": {"tool": "free"}, "to": "late"}]})
    loading, loaded = newer.folder / "loading", newer.folder / "loaded"

    async def is_loading() -> bool:
        return loading.exists()

    async with serving(newer, environment={"PYTHONPATH": str(newer.folder)}) as served:
        await until(is_loading, within=START)
        newer.configure({"executors": {"words": {"type": "static", "result": "new"}}})
        newer.configure({"routes": [{"match": {"tool": "free"}, "to": "words"}]})
        served.process.send_signal(signal.SIGHUP)
        loaded.touch()
        await until(served.ready, within=START)
        await served.wait_log("configuration reloaded")
        await newer.agent.wait_connected()
        assert (await ended(await newer.agent.call("free", {}))).result == "new"
        assert await served.stop() == 0


_HANGS_UP = """
import os
import signal
import sys


class WhenLoaded:
    def find_spec(name, path=None, target=None):
        if name == "gateway.serve":
            os.kill(os.getpid(), signal.SIGHUP)


sys.meta_path.insert(0, WhenLoaded)
"""


async def test_a_sighup_while_the_gateway_is_loaded_does_not_end_it(newer: Scene) -> None:
    (newer.folder / "sitecustomize.py").write_text(_HANGS_UP)
    async with serving(newer, environment={"PYTHONPATH": str(newer.folder)}) as served:
        await until(served.ready, within=START)
        assert await served.stop() == 0


Place = Literal["pipe", "socket", "terminal"]


@contextmanager
def unread(place: Place) -> Generator[tuple[int, int]]:
    """Make a pair of descriptors, to read from and to write to, that hold little."""
    match place:
        case "pipe":
            reader, writer = os.pipe()
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        case "socket":
            ours, theirs = socket.socketpair()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            reader, writer = ours.detach(), theirs.detach()
        case "terminal":
            reader, writer = pty.openpty()
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("place", ["pipe", "socket", "terminal"])
async def test_a_log_that_nobody_reads_any_more_holds_up_no_call_and_no_end(newer: Scene, place: Place) -> None:
    # Each request is a line.
    newer.configure({"limits": {"drain": "1s"}, "logging": {"level": "debug"}})
    with unread(place) as (reader, writer):
        async with serving(newer, out=writer) as served, plain_http() as http:

            async def is_stuck() -> bool:
                path = f"{served.url}/v1/runtimes?{'x' * 500}"
                await http.get(path, headers={"authorization": f"Bearer {API_KEY}"})
                return not select.select([], [writer], [], 0)[1]

            await until(served.ready, within=START)
            await newer.agent.wait_connected()
            in_a_row = 0
            async with asyncio.timeout(START):
                # The kernel empties a terminal's buffer into its reader's queue in its own time.
                while in_a_row < 30:
                    in_a_row = in_a_row + 1 if await is_stuck() else 0
            assert await served.ready()
            assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
            assert await served.stop() == 0
        assert b"listening" in os.read(reader, 4096)


@pytest.mark.slow
@pytest.mark.skipif(shim.missing() is not None, reason=shim.missing() or "")
async def test_a_process_leaves_within_the_drain_of_its_last_reload(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "10m"}})
    async with serving(newer) as served:
        await until(served.ready, within=START)
        newer.configure({"limits": {"drain": "1s"}})
        served.process.send_signal(signal.SIGHUP)
        await served.wait_log("configuration reloaded")
        _, writer = await asyncio.open_connection("127.0.0.1", newer.port)
        # A request whose body never ends.
        writer.write(f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n".encode())
        writer.write(b'Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"runtime":')
        await writer.drain()
        assert await served.stop() == 0
        writer.close()


@pytest.mark.slow
async def test_a_gateway_whose_disk_hangs_leaves_all_the_same(newer: Scene) -> None:
    newer.configure({"limits": {"drain": "1s"}})
    hang = newer.folder / "hang"
    environment = await shim.preload(newer.folder) | shim.hang_while(hang)
    async with serving(newer, environment=environment) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        hang.touch()
        call = await newer.agent.call("free", {})
        assert await served.stop() == 1
        assert "shutdown timed out; exiting at once" in served.log.read_text()
        assert call.results == []
    hang.unlink()
    async with serving(newer) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        assert (await ended(await newer.agent.call("free", {}))).outcome == "success"
        assert await served.stop() == 0
        assert "shutdown timed out; exiting at once" not in served.log.read_text()


async def test_a_taken_address_is_one_clear_line(newer: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        newer.port = taken.getsockname()[1]
        code, said = await refused(newer)
    assert code == 1
    assert f"127.0.0.1:{newer.port}" in said
    assert "--port" in said
    assert "Traceback" not in said
    assert not (newer.folder / "dragoman.db").exists()


async def test_without_keys_only_loopback_is_served(newer: Scene) -> None:
    newer.configure({"api": None})
    code, said = await refused(newer, "--host", "0.0.0.0")  # noqa: S104 - this is what must be refused
    assert code == 1
    assert "keys" in said
    assert "Traceback" not in said
    async with serving(newer) as served:
        await until(served.ready, within=START)
        async with plain_http() as http:
            assert (await http.get(f"{served.url}/v1/sessions")).status_code == 200
            answer = await http.get(f"{served.url}/v1/sessions", headers={"host": "evil.example"})
            assert answer.status_code == 403
        assert await served.stop(signal.SIGINT) == 0


async def test_a_second_process_on_the_same_file_is_turned_away_and_the_first_goes_on(newer: Scene) -> None:
    async with serving(newer) as first:
        await until(first.ready, within=START)
        await newer.agent.wait_connected()
        port, newer.port = newer.port, 0
        log = first.log.rename(first.log.with_suffix(".first"))
        code, said = await refused(newer)
        assert code == 1
        assert "dragoman.db" in said
        assert "Traceback" not in said
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        newer.port, first.log = port, log
        assert await first.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_type_memory_deletes_its_folder_at_the_end_unless_it_is_killed(
    newer: Scene, number: signal.Signals
) -> None:
    newer.configure({"engine": {"type": "memory", "path": None}})
    folder = newer.folder / "temporary"
    folder.mkdir()
    async with serving(newer, environment={"TMPDIR": str(folder)}) as gateway:
        await until(gateway.ready)
        assert len([*folder.glob("dragoman-*/dragoman.db")]) == 1
        await gateway.stop(number)
    assert bool([*folder.glob("dragoman-*")]) == (number == signal.SIGKILL)


async def test_a_reload_that_raises_what_nobody_foresaw_is_told_and_the_next_one_works(newer: Scene) -> None:
    (newer.folder / "odd_tools.py").write_text("def __getattr__(name):\n    raise ValueError('no such thing')\n")
    async with serving(newer, environment={"PYTHONPATH": str(newer.folder)}) as served, plain_http() as http:
        await until(served.ready, within=START)
        odd = {"executors": {"odd": {"type": "python", "call": "odd_tools:lend"}}}
        newer.configure({**odd, "routes": [{"match": {"tool": "free"}, "to": "odd"}]})
        served.process.send_signal(signal.SIGHUP)

        async def counted() -> bool:
            text = (await http.get(f"{served.url}/metrics", headers={"authorization": f"Bearer {API_KEY}"})).text
            return 'dragoman_faults_total{part="reload"} 1.0' in text

        await until(counted)
        assert "no such thing" in served.log.read_text()
        newer.configure({"executors": {"odd": None, "words": {"type": "static", "result": "new"}}})
        newer.configure({"routes": [{"match": {"tool": "free"}, "to": "words"}]})
        served.process.send_signal(signal.SIGHUP)
        await served.wait_log("configuration reloaded")
        await newer.agent.wait_connected()
        assert (await ended(await newer.agent.call("free", {}))).result == "new"
        assert await served.stop() == 0
