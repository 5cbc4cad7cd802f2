"""More sessions on one runtime than HTTP clients hold connections by default."""

import pytest

from tests.scenarios.environment import GOOD, Scene, ended

MANY = 120


@pytest.mark.slow
async def test_a_runtime_carries_more_than_a_hundred_sessions(newer: Scene) -> None:
    async with newer.running() as gateway:
        agents = [newer.huma.agent(f"agent-{number}") for number in range(MANY)]
        for number in range(MANY):
            await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": f"agent-{number}"}, status=201)
        for agent in agents:
            await agent.wait_connected()
        calls = [await agent.call("ask", GOOD) for agent in agents]
        for call in calls:
            assert (await ended(call)).outcome == "success"
