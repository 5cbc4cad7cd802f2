"""Each block of code on the client's page is run against a gateway."""

import asyncio
import os
import re
import sys
import textwrap
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

from dragoman.client import Client, RequestRefused
from gateway.events import ApprovalAsked, Outcome, QuestionAsked
from gateway.executors.port import Answered
from tests.client.test_client import world
from tests.http.environment import Environment
from tests.pace import PATIENCE
from tests.readme.pages import ROOT, text_of

PAGE = "gateway/sdk/dragoman/client/README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", text_of(PAGE), flags=re.DOTALL | re.MULTILINE)


async def run(code: str, dragoman: Client, session: str) -> list[str]:
    """Run lines of the page where `dragoman` and `session` are; returns what they print."""
    said: list[str] = []

    def say(*words: object) -> None:
        said.append(" ".join(map(str, words)))

    names: dict[str, Any] = {
        "print": say,
        "ApprovalAsked": ApprovalAsked,
        "QuestionAsked": QuestionAsked,
        "RequestRefused": RequestRefused,
    }
    exec(f"async def lines(dragoman, session):\n{textwrap.indent(code, '    ')}", names)  # noqa: S102 - it is ours
    async with asyncio.timeout(PATIENCE):
        await names["lines"](dragoman, session)
    return said


async def test_the_first_program_follows_a_session_until_a_call_has_ended(tmp_path: Path) -> None:
    async with world() as (environment, dragoman):
        environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result="Go fish!"))
        program = tmp_path / "program.py"
        program.write_text(BLOCKS[0].replace("http://127.0.0.1:8080", str(dragoman)[8:-2]))
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            program,
            env={**os.environ, "DRAGOMAN_KEY": "all-of-it", "PYTHONPATH": str(ROOT)},
            stdout=PIPE,
            stderr=STDOUT,
        )
        async with asyncio.timeout(PATIENCE):
            await environment.runtime.hears("message.posted")
            [session] = [one async for one in dragoman.sessions()]
            assert session.native_id == "finn"
            await dragoman.call(session, "ask_for_cards", {"rank": "7"})
            said, _ = await running.communicate()
        assert running.returncode == 0, said.decode()
        first, second = said.decode().splitlines()
        assert re.fullmatch(r"\d \(Text\(type='text', text='Do you have any sevens\?'\),\)", first)
        assert second == "success Go fish!"


async def test_the_lines_of_each_chapter_do_what_it_says() -> None:
    async with world() as (environment, dragoman):
        session = await environment.attach()
        listed = await run(BLOCKS[1], dragoman, session)
        assert re.fullmatch(rf"{session} (starting|idle) 2", listed[0])
        assert ["turn.steered" in line for line in listed[1:3]] == [False, True]
        assert len(listed) == 3
        environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result="Go fish!"))
        assert await run(BLOCKS[2], dragoman, session) == ["success Go fish!"]
        await is_answered(environment, dragoman, session)
        [refused] = await run(BLOCKS[4], dragoman, session)
        assert re.match(r"404 unknown-tool .*fly.* None None$", refused)
        [asking] = re.findall(r"`(await dragoman.request.*)`", text_of(PAGE))
        [answered] = await run(f"print({asking})", dragoman, session)
        assert "'alive': True" in answered
    assert len(BLOCKS) == 5


async def is_answered(environment: Environment, dragoman: Client, session: str) -> None:
    await environment.ask_person()
    environment.runtime.say(QuestionAsked(id="q-1", text="Which?", choices=("red", "blue")))
    await environment.recorded(session, "question.asked")
    await run(BLOCKS[3], dragoman, session)
    assert (await environment.runtime.hears("approval.given"))["decision"] == "deny"
    assert (await environment.runtime.hears("question.answered"))["answer"] == "red"
