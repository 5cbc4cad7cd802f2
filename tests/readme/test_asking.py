"""The commands of the chapter "Human input" work: the agent asks, a person answers, and the agent gets the answer."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from gateway.cli.choices import BackendChoice, RuntimeChoice
from gateway.testing.runtimes.asking import MOST_OPEN
from gateway.testing.runtimes.herm.server import HermServer
from tests.readme.newcomer import BOUND, Newcomer, until_line
from tests.readme.pages import block

KINDS = {"--allow": "approval.asked", "--text": "question.asked", "--secret": "secret.asked"}
HEARD = {
    "--allow": "← approved; the tool's output: done",
    "--text": "← answer: Victoria",
    "--secret": "← password of 9 characters",
}


async def _waiting(newcomer: Newcomer, count: int) -> dict[str, str]:
    """Wait until so many questions wait; their ids by kind."""
    headers = {"Authorization": f"Bearer {newcomer.key}"}
    async with httpx.AsyncClient(base_url=newcomer.url, headers=headers) as http, asyncio.timeout(BOUND):
        while True:
            rows = (await http.get("/v1/interactions", params={"state": "waiting"})).json()["data"]
            if len(rows) == count:
                return {row["kind"]: row["interaction_id"] for row in rows}
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_reader_lets_the_agent_ask_and_answers(tmp_path: Path) -> None:
    lines = block("gateway/http/README.md", "sh", "/simulator/ask/").splitlines()
    asking, listing, answering = lines[:3], lines[3], lines[4:]
    newcomer = Newcomer(tmp_path)
    async with newcomer.playing(RuntimeChoice.HERM, BackendChoice.FASTAPI) as (agent, _):
        for line in asking:
            told = json.loads((await newcomer.type(line.replace("curl", "curl -s"))).strip())
            assert f"/ask/{told['asked']} " in line
        waiting = await _waiting(newcomer, len(asking))
        listed = await newcomer.type(listing)
        assert listing.startswith("dragoman inbox ")
        assert {name for name in waiting.values() if name not in listed} == set()
        assert len(answering) == len(KINDS)
        for line in answering:
            [option] = [option for option in KINDS if option in line]
            typed = "swordfish\n" if option == "--secret" else None
            assert "swordfish" not in await newcomer.type(line.replace("ID", waiting[KINDS[option]][:8]), typed)
            heard = await until_line(agent, "← ")
            assert heard == HEARD[option]
        assert await _waiting(newcomer, 0) == {}


@pytest.mark.slow
async def test_an_openhands_agent_asks_for_a_permission_and_hears_a_denial(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    asking = block("gateway/http/README.md", "sh", "/simulator/ask/").splitlines()
    async with newcomer.playing(RuntimeChoice.OPENHANDS, BackendChoice.FASTAPI) as (agent, _):
        await newcomer.type(asking[0])
        waiting = await _waiting(newcomer, 1)
        again = await newcomer.type(asking[0])
        assert "already waiting for a decision" in again
        await newcomer.type(f"dragoman answer {waiting['approval.asked']} --deny")
        assert (await until_line(agent, "← ")).startswith("← the action ended: user_rejected: ")
        assert "cannot ask for 'sudo'; available: approval" in await newcomer.type(asking[2])


async def test_so_many_questions_may_wait_and_no_more() -> None:
    async with HermServer() as server, httpx.AsyncClient(headers={"Authorization": f"Bearer {server.api_key}"}) as http:
        server.session("session_1")
        async with http.stream("GET", f"{server.url}/v1/sessions/session_1/events/stream"):
            asked = [await http.post(f"{server.url}/simulator/ask/question") for _ in range(MOST_OPEN + 1)]
    assert [answer.status_code for answer in asked] == [202] * MOST_OPEN + [409]


@pytest.mark.parametrize(
    ("page", "body", "status", "words"),
    [
        ("lunch", "", 404, "cannot ask for 'lunch'; available: approval, question, sudo"),
        ("question", "x" * 9_000, 413, "at most 8000 bytes"),
        ("sudo", "", 409, "no gateway streams a session yet"),
    ],
)
async def test_what_cannot_be_asked_is_said_so(page: str, body: str, status: int, words: str) -> None:
    async with HermServer() as server, httpx.AsyncClient() as http:
        answer = await http.post(f"{server.url}/simulator/ask/{page}", content=body)
    assert answer.status_code == status
    assert re.search(re.escape(words), answer.json()["message"])
