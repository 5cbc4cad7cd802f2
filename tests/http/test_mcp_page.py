"""Each block of the page of MCP clients, taken as it stands there, leads the official client to the tools."""

import json
import os
import re
import shlex
import socket
import tomllib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.runtime.tuning import Tuning
from tests.http.mcp_clients import MODES, Mode, connected_with, texts
from tests.readme.pages import text_of
from tests.scenarios.environment import API_KEY, running

PAGE = "adapters/mcp/README.md"
HOST = "https://gateway.example.com"
TOKENS = {"ADA_MCP": "ada-token-0123456789", "CI_MCP": "ci-token-0123456789"}
Address = tuple[str, dict[str, str]]
"""Where a block leads, and the headers that go with each request."""


def blocks(language: str, heading: str | None = None) -> list[str]:
    """The blocks of a language, under a heading."""
    page = text_of(PAGE)
    part = page if heading is None else page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)


def filled(text: str, pattern: str) -> str:
    return re.sub(pattern, lambda found: TOKENS[found[1]], text)


def of_command(block: str) -> Address:
    """Read `claude mcp add`, as a shell and then the command do."""
    words = shlex.split(filled(block, r"\$(\w+)"))
    assert words[:6] == ["claude", "mcp", "add", "--transport", "http", "dragoman"]
    url, option, header = words[6:]
    assert option == "--header"
    name, _, value = header.partition(": ")
    return url, {name: value}


def of_json(pattern: str, kind: str | None) -> Callable[[str], Address]:
    """Read a file of `mcpServers`, whose variables are written in this way."""

    def read(block: str) -> Address:
        (server,) = json.loads(block)["mcpServers"].values()
        assert server.pop("type", None) == kind
        assert server.keys() == {"url", "headers"}
        return server["url"], {name: filled(value, pattern) for name, value in server["headers"].items()}

    return read


def of_toml(block: str) -> Address:
    """Read a table of `mcp_servers`; a variable holds the token alone."""
    (server,) = tomllib.loads(block)["mcp_servers"].values()
    headers: dict[str, str] = server.pop("http_headers", {})
    if (variable := server.pop("bearer_token_env_var", None)) is not None:
        headers["Authorization"] = f"Bearer {TOKENS[variable]}"
    assert server.keys() == {"url"}
    return server["url"], {n: v.replace("PUT-THE-TOKEN-HERE", TOKENS["ADA_MCP"]) for n, v in headers.items()}


WAYS: list[tuple[str, str, Callable[[str], Address]]] = [
    *(("Claude Code", block, of_command) for block in blocks("sh", "Claude Code")),
    *(("Claude Code", block, of_json(r"\$\{(\w+)\}", "http")) for block in blocks("json", "Claude Code")),
    *(("Cursor", block, of_json(r"\$\{env:(\w+)\}", None)) for block in blocks("json", "Cursor")),
    *(("Codex", block, of_toml) for block in blocks("toml", "Codex")),
]


def test_the_page_has_a_block_for_each_way() -> None:
    assert [name for name, *_ in WAYS] == ["Claude Code", "Claude Code", "Cursor", "Codex", "Codex"]
    shown = sum(len(blocks(language)) for language in ("sh", "json", "toml"))
    assert shown == len(WAYS)


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A gateway with the runtime of the page."""
    for name, token in TOKENS.items():
        monkeypatch.setitem(os.environ, name, token)
    (runtime,) = blocks("yaml")
    config = tmp_path / "gateway.yaml"
    settings: dict[str, Any] = {
        "api": {"keys": [{"name": "backend", "key": API_KEY}]},
        "engine": {"type": "sqlite", "path": str(tmp_path / "dragoman.db")},
        "tools": {"find_booking": {"description": "Find a booking."}},
        "executors": {"bookings": {"type": "static", "result": {"found": True}}},
        "routes": [{"match": {"runtime": "desk", "label": {"team": "shop"}}, "to": "bookings"}],
        "limits": {"drain": "1s"},
    }
    config.write_text(yaml.safe_dump(settings) + runtime)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running(config, listener, Tuning()) as gateway:
            yield gateway.url


@pytest.mark.parametrize("mode", MODES)
async def test_each_block_leads_the_official_client_to_the_tools(url: str, mode: Mode) -> None:
    for name, block, read in WAYS:
        address, headers = read(block)
        assert address.startswith(HOST), name
        async with connected_with(address.replace(HOST, url), headers, mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["find_booking"], name
            assert texts(await client.call_tool("find_booking", {"number": "7"})) == ['{"found":true}'], name


def test_the_command_of_codex_says_what_its_table_says() -> None:
    (said,) = re.findall(r"`(codex mcp add [^`]+)`", text_of(PAGE))
    words = shlex.split(said)
    table = tomllib.loads(blocks("toml", "Codex")[0])["mcp_servers"]["dragoman"]
    assert words[3:] == ["dragoman", "--url", table["url"], "--bearer-token-env-var", table["bearer_token_env_var"]]
