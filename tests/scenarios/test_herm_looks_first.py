"""A gateway killed while it posts a result to Herm: the next one looks first whether it is still waited for."""

import asyncio
import signal
from pathlib import Path

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gateway.core.inbound import HAS_ANSWER
from gateway.core.resend import NOT_AWAITED, TURN_OVER
from gateway.testing.runtimes.herm.server import HermServer, Manners
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, until
from tests.scenarios.fleet import HERM_KEY, delivery, herm_environment
from tests.scenarios.hooks import success
from tests.scenarios.served import START, serving


class Hesitant(HermServer):
    """A server whose first post is answered to nobody: its client is dead before it is taken, or not."""

    def __init__(self, *, takes: bool, manners: Manners) -> None:
        super().__init__(api_key=HERM_KEY, manners=manners)
        self.posts = 0
        self.came = asyncio.Event()
        self.orphaned = asyncio.Event()
        self.dealt_with = asyncio.Event()
        self._takes = takes

    async def _post(self, session_id: str, request: Request) -> Response:
        self.posts += 1
        if self.posts > 1:
            return await super()._post(session_id, request)
        await request.body()
        self.came.set()
        await self.orphaned.wait()
        if self._takes:
            await super()._post(session_id, request)
        self.dealt_with.set()
        return JSONResponse({}, 503)


@pytest.mark.requirement("H-u")
@pytest.mark.parametrize(
    ("takes", "echoes", "ends", "posts", "fate"),
    [
        pytest.param(True, True, False, 1, ("delivered", HAS_ANSWER), id="taken, and listed"),
        pytest.param(True, False, False, 1, ("moot", NOT_AWAITED), id="taken, and the turn goes on"),
        pytest.param(True, False, True, 1, ("moot", TURN_OVER), id="taken, and the turn is over"),
        pytest.param(False, True, False, 2, ("delivered", None), id="not taken"),
    ],
)
async def test_a_result_of_a_killed_gateway_is_posted_again_only_if_it_is_still_waited_for(
    tmp_path: Path, takes: bool, echoes: bool, ends: bool, posts: int, fate: tuple[str, str | None]
) -> None:
    server = Hesitant(takes=takes, manners=Manners(echoes=echoes))
    async with herm_environment(tmp_path, server=server) as environment:
        environment.hooks.scripts["ask"] = success("two sevens")
        async with serving(environment) as first:
            await until(first.ready, within=START)
            await environment.agent.wait_streams(within=START)
            call = environment.agent.call("ask", GOOD)
            async with asyncio.timeout(PATIENCE):
                await server.came.wait()
            first.process.send_signal(signal.SIGKILL)
            await first.process.wait()
        server.orphaned.set()
        async with asyncio.timeout(PATIENCE):
            await server.dealt_with.wait()
        if ends:
            environment.agent.end_turn()
        async with environment.running() as gateway:
            settled = await delivery(gateway, (await gateway.call_of(call.asked_id))["call_id"])
            assert (settled["state"], settled["reason"]) == fate
            assert (await gateway.get("/v1/dead-letters"))["data"] == []
            assert (await call.answered())["content"] == [{"type": "text", "text": "two sevens"}]
        assert server.posts == posts
        assert len(call.answers) == 1
        assert len(environment.hooks.asked) == 1
        assert environment.agent.violations == []
