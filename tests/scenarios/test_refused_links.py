"""A runtime whose address is at fault: its link is refused once, and tried again only after a reload."""

import asyncio

from gateway.runtime.tuning import Tuning
from tests.adapters.test_refused_addresses import Redirecting, served
from tests.scenarios.environment import GOOD, Running, Scene, ended, until


async def test_a_redirecting_runtime_is_asked_once_until_the_next_reload(newer: Scene) -> None:
    newer.tuning = Tuning(link_first=0.01, link_longest=0.01, link_refused=0.01)
    server = Redirecting()
    async with served(server) as port:
        away = {"adapter": "huma-0.2", "url": f"http://127.0.0.1:{port}", "api_key": "k", "agent_id": "away"}
        server.target = "/socket.io/?again"
        newer.configure({"runtimes": {"away": away}})
        async with newer.running() as gateway:
            said = await until(lambda: _refused(gateway))
            assert said["reason"].startswith("REDIRECT_REFUSED: the runtime answered with a redirect")
            # Others go on meanwhile.
            assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
            assert len(server.seen) == 1
            first = asyncio.create_task(until(lambda: _seen(server, 2)))
            await gateway.post("/v1/reload", status=200)
            await first
            await until(lambda: _refused(gateway))
            assert len(server.seen) == 2


async def _refused(gateway: Running) -> dict[str, str] | None:
    link = await gateway.link("away")
    return link if link is not None and link["state"] == "refused" else None


async def _seen(server: Redirecting, count: int) -> bool:
    return len(server.seen) >= count
