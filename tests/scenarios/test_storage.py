"""The commands about the database beside a gateway at work, each in a process of its own."""

import asyncio
import sys

import pytest

from tests.scenarios.environment import GOOD, Scene, ended, until
from tests.scenarios.hooks import success
from tests.scenarios.served import ROOT, START, serving


async def dragoman(scene: Scene, *words: str) -> tuple[int, str]:
    """Run a command over the scene's configuration; answers its code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *words, "--config", str(scene.config)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    async with asyncio.timeout(START):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.slow
async def test_a_backup_is_made_while_calls_are_answered_and_can_be_gone_back_to(newer: Scene) -> None:
    backup, database = newer.folder / "backup.db", newer.folder / "dragoman.db"
    newer.hooks.scripts["ask"] = success("7")
    async with serving(newer) as served:
        await until(served.ready, within=START)
        await newer.agent.wait_connected()
        for _ in range(10):
            assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        copying = asyncio.ensure_future(dragoman(newer, "backup", str(backup)))
        answered = 0
        while not copying.done():
            assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
            answered += 1
        code, said = await copying
        assert code == 0, said
        assert f"{backup}: 1 session, " in said
        assert "copied from" in said
        assert answered > 0
        code, said = await dragoman(newer, "restore", str(backup))
        assert code == 1
        assert f"process {served.process.pid} uses the database" in said
        assert "stop that gateway" in said
        assert (await dragoman(newer, "migrate", "--check"))[0] == 0
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
        assert await served.stop() == 0
        assert "Traceback" not in served.log.read_text()
    code, said = await dragoman(newer, "restore", str(backup))
    assert code == 0, said
    assert f"{database}.before-restore: the previous database" in said
    async with newer.running() as gateway:
        assert len(await gateway.events(kind="tool.finished")) >= 10
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
