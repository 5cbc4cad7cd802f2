"""Answers of a proxy in place of a runtime: the link is tried again by itself, and given up only after a long time."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.adapter.port import Link, Receiver
from gateway.errors import DownstreamError, LinkLost, LinkRefused
from gateway.runtime.tuning import Tuning
from tests.adapters.test_refused_addresses import Redirecting, served
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.fleet import HermEnvironment, herm_environment
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.test_herm import posted

QUICK = Tuning(link_first=0.01, link_longest=0.02, link_refused=0.01)
MANY = 10_000


async def test_a_redirecting_runtime_is_given_up_after_a_while_and_tried_again_by_a_reload(newer: Scene) -> None:
    newer.tuning = Tuning(link_first=0.01, link_longest=0.02, link_refused=0.01, link_gives_up=0.3)
    server = Redirecting()
    async with served(server) as port:
        away = {"adapter": "huma-0.2", "url": f"http://127.0.0.1:{port}", "api_key": "k", "agent_id": "away"}
        server.target = "/socket.io/?again"
        newer.configure({"runtimes": {"away": away}})
        async with newer.running() as gateway:
            said = await until(lambda: _given_up(gateway))
            assert said["reason"].startswith("REDIRECT_REFUSED: ")
            assert "the runtime answered with a redirect" in said["reason"]
            # Others go on meanwhile.
            assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"
            count = len(server.seen)
            assert count > 2
            again = asyncio.create_task(until(lambda: _seen(server, count + 1)))
            await gateway.post("/v1/reload", status=200)
            await again
            await until(lambda: _given_up(gateway))


async def _given_up(gateway: Running) -> dict[str, Any] | None:
    link = await gateway.link("away")
    is_over = link is not None and link["state"] == "refused" and "only a reload tries again" in link["reason"]
    return link if is_over else None


async def _seen(server: Redirecting, count: int) -> bool:
    return len(server.seen) >= count


async def test_a_huma_link_comes_back_by_itself_once_the_redirects_end(newer: Scene) -> None:
    newer.tuning = QUICK
    server = Redirecting()
    server.target = "/maintenance"
    await newer.huma.stop()
    async with newer.running(linked=False) as gateway:
        async with served(server, urlsplit(newer.huma.url).port or 0):
            await until(lambda: _seen(server, 5))
            link = await gateway.link("finn")
            assert link is not None
            assert "only a reload" not in (link["reason"] or "")
        await newer.huma.start()
        await gateway.wait_link("up")
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


@pytest.fixture
async def herm(tmp_path: Path) -> AsyncIterator[HermEnvironment]:
    async with herm_environment(tmp_path) as made:
        made.tuning = QUICK
        yield made


@pytest.mark.parametrize(
    ("status", "is_unclear"),
    [(200, True), (302, False), (303, True), (307, False), (403, False), (503, True)],
)
async def test_a_herm_session_survives_a_maintenance_page_on_every_request(
    herm: HermEnvironment, status: int, is_unclear: bool
) -> None:
    location = "/maintenance" if 300 <= status < 400 else None
    async with herm.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/events"
        for method in ("POST", "LIST", "STREAM"):
            herm.server.show_page(method, status, location=location, times=MANY)
        await gateway.post(path, {"kind": "message.posted", "content": "hello"}, status=202)
        link = await until(lambda: _is_away(gateway))
        assert "only a reload" not in link["reason"]
        herm.server.stop_pages()
        await gateway.wait_link("up")
        if is_unclear:
            # Whether the runtime has the message is unknown, so it is listed and not sent again.
            await gateway.wait_events("delivery.settled", 1, state="unknown")
            await gateway.post(path, {"kind": "message.posted", "content": "next"}, status=202)
        await herm.agent.wait_for(lambda one: one["type"] == "user.message")
    assert len(posted(herm, "user.message")) == 1


async def _is_away(gateway: Running) -> dict[str, Any] | None:
    link = await gateway.link()
    return link if link is not None and link["state"] in {"down", "refused"} else None


@pytest.mark.parametrize("method", ["LIST", "STREAM"])
async def test_a_herm_link_begins_once_the_redirects_end(herm: HermEnvironment, method: str) -> None:
    herm.server.show_page(method, 302, location="/maintenance", times=5)
    async with herm.running() as gateway:
        await gateway.wait_link("up")


@dataclass
class Proxied(PlainRuntime):
    """A runtime behind a proxy that answers in its place after the first link."""

    answers: Iterator[DownstreamError] = field(default_factory=lambda: iter(()))
    attempts: int = 0
    cut: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @asynccontextmanager
    async def _connect(self, receiver: Receiver) -> AsyncGenerator[Link]:
        self.attempts += 1
        if self.cut.done():
            raise next(self.answers)
        async with super()._connect(receiver) as link:
            yield link

    async def wait_closed(self) -> str:
        return await asyncio.shield(self.cut)


REDIRECT = LinkRefused("REDIRECT_REFUSED", "the runtime answered with a redirect", until_reload=True)


@pytest.mark.parametrize(
    "other", [LinkLost("HTTP 503"), LinkRefused("HTTP_403", "forbidden")], ids=["unavailable", "forbidden"]
)
async def test_a_redirect_between_other_answers_is_never_final(tmp_path: Path, other: DownstreamError) -> None:
    runtime = Proxied(answers=itertools.cycle([REDIRECT, other]))
    # Each redirect follows another answer, so none has been the only answer for any time.
    tuning = Tuning(link_first=0.01, link_longest=0.02, link_refused=0.02, link_gives_up=0.005)
    async with plain_gateway(tmp_path, tuning=tuning, runtime=runtime) as (gateway, _):
        runtime.cut.set_result("the proxy has closed it")

        async def tried() -> bool:
            link = await gateway.link()
            assert link is not None
            assert "only a reload" not in (link["reason"] or "")
            return runtime.attempts > 20

        await until(tried)
