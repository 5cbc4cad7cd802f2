"""A newcomer types `dragoman init` in an empty folder and pastes what it prints: the agent's call is answered."""

import asyncio
import re
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from gateway.cli.choices import BackendChoice, RuntimeChoice
from tests.readme.newcomer import BOUND, Newcomer
from tests.scenarios.environment import until

CASES = [
    (RuntimeChoice.HUMA_0_2, BackendChoice.FASTAPI),
    # Neither depends on the other, so each is tried in turn. npm and five processes take their time.
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in zip(RuntimeChoice, cycle((BackendChoice.EXPRESS, BackendChoice.FASTAPI)), strict=False)
    ),
]


@pytest.mark.parametrize(("runtime", "backend"), CASES)
async def test_the_three_commands_that_are_printed_answer_an_agents_call(
    tmp_path: Path, runtime: RuntimeChoice, backend: BackendChoice
) -> None:
    began, newcomer = asyncio.get_running_loop().time(), Newcomer(tmp_path)

    async def until_the_runtime_was_missed() -> None:
        """Wait until the gateway has failed to reach the simulator, which is printed last."""
        if runtime is not RuntimeChoice.MCP:
            await until(lambda: _misses_its_runtime(newcomer), within=BOUND)

    async with newcomer.playing(runtime, backend, before=until_the_runtime_was_missed) as (_, heard):
        assert re.fullmatch(r"← success: Go fish! Nobody has a 7\. \(\d+ ms\)", heard)
        assert asyncio.get_running_loop().time() - began < BOUND
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {newcomer.key}"}) as http:
            calls = (await http.get(f"{newcomer.url}/v1/calls")).json()["data"]
        told = [(call["tool"], call["executor"], call["state"]) for call in calls]
        assert told == [("ask_for_cards", "cards", "succeeded")]


async def _misses_its_runtime(newcomer: Newcomer) -> bool:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {newcomer.key}"}) as http:
        answer = await http.get(f"{newcomer.url}/v1/runtimes")
    if answer.status_code == 503:
        # It still starts.
        return False
    [shown] = answer.json()["data"]
    return shown["autostart"] is not None or any(link["state"] == "down" for link in shown["links"])
