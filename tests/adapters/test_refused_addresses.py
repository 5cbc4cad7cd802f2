"""Runtimes that answer with a redirect, or whose names lead to refused addresses: no transport goes there."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from adapters.herm import ADAPTER as HERM
from adapters.huma import HUMA_0_1 as HUMA_1, HUMA_0_2 as HUMA_2
from adapters.openhands import ADAPTER as OPENHANDS
from gateway.adapter.port import Adapter, Order
from gateway.errors import LinkRefused
from gateway.testing.conformance.link import Collector, enter

CONVERSATION = "42ecbe9af07a4b3f925f0223b213814c"
AGENT = {"name": "f", "class_name": "Finn", "personality": "p", "instructions": "i"}
OPTIONS: dict[str, tuple[Adapter, str, dict[str, Any]]] = {
    "huma-0.1": (HUMA_1, "a1", {"api_key": "k", "agent": AGENT}),
    "huma-0.2": (HUMA_2, "a1", {"api_key": "k", "agent": AGENT}),
    "openhands": (OPENHANDS, CONVERSATION, {"conversation": {}}),
    "herm": (HERM, "session_1", {"api_key": "k", "agent_id": "agent"}),
}


class Redirecting:
    """A server that sends everybody elsewhere, and counts who comes."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.target = ""
        self.status = 302
        self.port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path_qs)
        raise_to = self.target.replace("{port}", str(self.port))
        return web.Response(status=self.status, headers={"Location": raise_to}, text="no reason")


@asynccontextmanager
async def served(server: Any, port: int = 0) -> AsyncGenerator[int]:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.port = runner.addresses[0][1]
    try:
        yield server.port
    finally:
        await runner.cleanup()


class Inner:
    """What a redirect would lead to: it must not be asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path_qs)
        return web.Response(status=418, text="the inner service")


def options_for(name: str, url: str) -> tuple[Adapter, str, Any]:
    adapter, native_id, more = OPTIONS[name]
    given = {"adapter": adapter.name, "url": url, "connect_timeout": "2s", "wait_timeout": "2s", **more}
    known = adapter.options.model_fields
    return adapter, native_id, adapter.options.model_validate({k: v for k, v in given.items() if k in known})


async def refused(name: str, url: str, *, create: bool = False) -> LinkRefused:
    adapter, native_id, options = options_for(name, url)
    async with adapter.connector(options) as connector:
        trying = connector.create(Order()) if create else enter(connector.connect(native_id, Collector()))
        with pytest.raises(LinkRefused) as caught:
            await trying
    return caught.value


TARGETS = {
    "another service": "http://127.0.0.1:{inner}/socket.io/?secret=1",
    "a refused address": "http://169.254.169.254/latest/meta-data/",
    "itself": "/socket.io/?EIO=4&transport=websocket",
    "a circle": "http://localhost:{port}/socket.io/?again",
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("create", [False, True], ids=["link", "create"])
@pytest.mark.parametrize("name", OPTIONS)
async def test_no_redirect_is_followed(name: str, target: str, *, create: bool) -> None:
    server, inner = Redirecting(), Inner()
    async with served(server) as port, served(inner):
        server.target = target.replace("{inner}", str(inner.port))
        refusal = await refused(name, f"http://127.0.0.1:{port}", create=create)
    assert (refusal.code, refusal.terminal, refusal.until_reload) == ("REDIRECT_REFUSED", False, True)
    assert inner.seen == []
    assert len(server.seen) == 1
    # The request and its status, and nothing of where the redirect leads.
    assert str(refusal).startswith(f"REDIRECT_REFUSED: {'POST' if create else 'GET'} ")
    assert f"://127.0.0.1:{port}/" in str(refusal)
    assert "HTTP 302" in str(refusal)
    # The port of the server may contain the digits that are looked for.
    told = str(refusal).replace(f":{port}/", "/")
    assert not any(shown in told for shown in ("418", "169.254", f":{inner.port}", "again", "secret"))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("name", ["huma-0.2", "openhands", "herm"])
async def test_every_kind_of_redirect_is_refused(name: str, status: int) -> None:
    server, inner = Redirecting(), Inner()
    async with served(server) as port, served(inner):
        server.status, server.target = status, f"http://127.0.0.1:{inner.port}/"
        refusal = await refused(name, f"http://127.0.0.1:{port}")
    assert (refusal.code, inner.seen, len(server.seen)) == ("REDIRECT_REFUSED", [], 1)


@pytest.mark.parametrize("create", [False, True], ids=["link", "create"])
@pytest.mark.parametrize("name", OPTIONS)
async def test_a_name_that_leads_to_refused_addresses_is_not_connected_to(
    name: str, monkeypatch: pytest.MonkeyPatch, *, create: bool
) -> None:
    server = Inner()
    async with served(server) as port:
        resolve_to(monkeypatch, "169.254.169.254", "fd00:ec2::254", "64:ff9b:1::a9fe:a9fe")
        refusal = await refused(name, f"http://runtime.example:{port}", create=create)
    assert (refusal.code, refusal.terminal, refusal.until_reload) == ("ADDRESS_REFUSED", False, True)
    assert server.seen == []


@pytest.mark.parametrize("name", ["huma-0.1", "huma-0.2", "openhands", "herm"])
async def test_a_name_that_was_good_once_is_looked_at_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Redirecting()
    async with served(server) as port:
        server.status, url = 403, f"http://runtime.example:{port}"
        resolve_to(monkeypatch, "127.0.0.1")
        assert (await refused(name, url)).code == "UNAUTHORIZED"
        seen = len(server.seen)
        resolve_to(monkeypatch, "169.254.169.254")
        assert (await refused(name, url)).code == "ADDRESS_REFUSED"
    assert len(server.seen) == seen


@pytest.mark.parametrize("name", ["huma-0.2", "herm"])
async def test_a_good_address_beside_a_refused_one_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Redirecting()
    async with served(server) as port:
        server.status = 403
        resolve_to(monkeypatch, "169.254.169.254", "127.0.0.1")
        assert (await refused(name, f"http://runtime.example:{port}")).code == "UNAUTHORIZED"


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Answer as a hostile DNS server would."""

    def resolve(_host: Any, port: Any, *_options: Any, **_more: Any) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, int(port or 0), 0, 0))
            if ":" in address
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0)))
            for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
