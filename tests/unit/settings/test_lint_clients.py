"""What the check of a configuration says of clients that come to us."""

import sys
from collections.abc import Mapping

import pytest

from adapters.mcp import ADAPTER
from adapters.mcp.options import McpOptions
from gateway.adapter.port import Adapter, RuntimeOptions
from gateway.settings.schema import build_schema
from gateway.settings.secret_values import secrets_in
from tests.unit.settings.conftest import Complain, Load

TOKEN = "ada-token-0123456789"
ABOUT_LINKS = "concerns connecting to a runtime, but MCP clients connect to the gateway; remove it"
HEAD = """
api: {keys: [{name: backend, key: backend-key-0123456789}]}
tools: {ask: {description: Ask.}}
executors: {cards: {type: static}}
routes: [{match: {runtime: desk}, to: cards}]
runtimes:
  desk:
    adapter: mcp
    clients:
"""
ADA = f"      - {{name: ada, token: {TOKEN}}}\n"
MORE = "which grants more than tools; use another token"
FIRST = HEAD.count("\n") + 1
"""The line of the first client."""


@pytest.fixture
def adapters() -> Mapping[str, Adapter]:
    return {"mcp": ADAPTER}


def test_a_client_with_a_token_is_all_that_is_needed(complaints: Complain) -> None:
    assert complaints(HEAD + ADA) == []


def test_names_and_tokens_are_one_clients_each(complaints: Complain) -> None:
    again = f"      - {{name: ada, token: {TOKEN}}}\n      - {{name: bob, token: backend-key-0123456789}}\n"
    assert complaints(HEAD + ADA + again) == [
        f"{FIRST + 1}: runtimes.desk.clients[1].name: 'ada' is also the name of clients[0]; rename one",
        f"{FIRST + 1}: runtimes.desk.clients[1].token: this is also the token of 'ada'; give each client its own",
        f"{FIRST + 2}: runtimes.desk.clients[2].token: this is also the API key 'backend', {MORE}",
    ]


@pytest.mark.parametrize("token", ["short", "a token with spaces in it", "tökentökentökentöken", ""])
@pytest.mark.parametrize("outside", [False, True])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(
    complaints: Complain, token: str, *, outside: bool
) -> None:
    written = "${ADA_MCP_TOKEN}" if outside else token
    (said,) = complaints(f'{HEAD}      - {{name: ada, token: "{written}"}}\n', ADA_MCP_TOKEN=token)
    assert said.startswith(f"{FIRST}: runtimes.desk.clients[0].token: ")
    assert "openssl rand -hex 32" in said
    assert not token or token not in said


@pytest.mark.parametrize("name", ["", "ada lovelace", "-ada", "a" * 65, "ada/bob"])
def test_a_name_is_plain(complaints: Complain, name: str) -> None:
    (said,) = complaints(f"{HEAD}      - {{name: '{name}', token: {TOKEN}}}\n")
    assert said.startswith(f"{FIRST}: runtimes.desk.clients[0].name: ")


def test_labels_of_a_client_are_checked(complaints: Complain) -> None:
    (said,) = complaints(f"{HEAD}      - {{name: ada, token: {TOKEN}, labels: {{' team': shop}}}}\n")
    assert "a label's name must be" in said


@pytest.mark.parametrize("option", sorted(RuntimeOptions.model_fields.keys() - {"adapter", "labels", "keep_native"}))
def test_what_is_about_links_is_refused_and_not_in_the_schema(
    complaints: Complain, adapters: Mapping[str, Adapter], option: str
) -> None:
    value = {"url": "http://127.0.0.1", "autostart": "true", "hydrate": "true"}.get(option, "5s")
    assert complaints(f"{HEAD}{ADA}    {option}: {value}\n") == [f"{FIRST + 1}: runtimes.desk.{option}: {ABOUT_LINKS}"]
    assert option not in build_schema(adapters)["$defs"]["runtime:mcp"]["properties"]


def test_who_is_shown_no_tool_is_named(complaints: Complain) -> None:
    labelled = HEAD.replace("{runtime: desk}", "{runtime: desk, label: {team: shop}}")
    shop = f"      - {{name: ada, token: {TOKEN}, labels: {{team: shop}}}}\n"
    bob = "      - {name: bob, token: bob-token-0123456789}\n"
    (said,) = complaints(labelled + shop + bob)
    assert said.startswith(f"{FIRST + 1}: warning: runtimes.desk.clients[1]: no route with the labels of 'bob' leads")
    # Labels of the runtime are its clients' too.
    assert complaints(labelled + shop + bob + "    labels: {team: shop}\n") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{runtime: desk}", "{runtime: desk, tool: other}"), ("{runtime: desk}", "{event: message.posted}"),
        ("tools: {ask: {description: Ask.}}", "tools: {}"),
    ],
)  # fmt: skip
def test_a_desk_without_tools_is_named(complaints: Complain, old: str, new: str) -> None:
    said = complaints(HEAD.replace(old, new) + ADA)
    assert any(
        "warning: runtimes.desk: no route leads a declared tool to an executor, so clients see none" in one
        for one in said
    )


def test_a_desk_without_clients_is_named(complaints: Complain) -> None:
    (said,) = complaints(HEAD.replace("    clients:\n", ""))
    assert "warning: runtimes.desk.clients: no client may connect; add one with `clients: [{name: ada," in said


def test_without_the_library_the_check_names_the_command(complaints: Complain, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if it were not installed.
    monkeypatch.setitem(sys.modules, "mcp", None)
    (said,) = complaints(HEAD + ADA)
    assert said.endswith(
        "runtimes.desk: its library is not installed; in a clone of Dragoman, run pip install ./gateway/sdk '.[mcp]'"
    )


def test_tokens_are_among_what_is_shown_nowhere(load_text: Load) -> None:
    loaded = load_text(HEAD + ADA)
    assert TOKEN in loaded.secrets
    assert TOKEN in set(secrets_in(loaded.settings))
    desk = loaded.settings.runtimes["desk"]
    assert isinstance(desk, McpOptions)
    assert TOKEN not in f"{desk!r} {desk} {desk.model_dump_json()}"
