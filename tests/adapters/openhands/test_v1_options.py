"""The options of an OpenHands V1 runtime: what they accept, and what no error shows."""

from typing import Any

import pytest
from pydantic import ValidationError

from adapters.openhands.v1.options import OpenHandsV1Options

ID = "c70b4d45-e97b-43d6-84f7-8ff27032d0d5"
CANARY = "canary horse battery"
AGENT: dict[str, Any] = {"kind": "openhands", "llm": {"model": "openai/gpt-4o"}}
SERVER: dict[str, Any] = {"adapter": "openhands-v1", "url": "http://openhands:8000"}
APP: dict[str, Any] = {"adapter": "openhands-v1", "app": {"url": "http://openhands:3000/"}}

ACCEPTED: list[dict[str, Any]] = [
    {**SERVER, "conversation_id": ID},
    {**SERVER, "conversation_id": ID.replace("-", "").upper()},
    {**SERVER, "conversation": {"agent": AGENT}},
    {**SERVER, "conversation": {"agent": {"kind": "acp", "server": "codex"}}},
    {**APP, "conversation_id": ID},
    {**APP, "conversation": {"agent": AGENT}},
    {**APP, "app": {**APP["app"], "model": "user"}},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adapter": "openhands-v1", "conversation_id": ID}, "set url"),
    ({**SERVER, **APP, "conversation_id": ID}, "either url"),
    (SERVER, "exactly one"),
    ({**SERVER, "conversation_id": ID, "conversation": {"agent": AGENT}}, "exactly one"),
    ({**APP, "app": {**APP["app"], "model": "user"}, "conversation_id": ID}, "exactly one"),
    ({**SERVER, "conversation_id": "../x"}, "UUID"),
    ({**SERVER, "conversation_id": ID, "url": "ws://openhands:8000"}, "base URL"),
    ({**SERVER, "conversation_id": ID, "session_api_key": CANARY}, "printable ASCII"),
    ({**APP, "conversation_id": ID, "session_api_key": "k"}, "names the key of each sandbox"),
    ({**SERVER, "conversation_id": ID, "send_timeout": "10m"}, "less than ten minutes"),
    ({**SERVER, "conversation_id": ID, "send_timeout": "0s"}, "less than ten minutes"),
    ({**SERVER, "conversation": {"agent": {"kind": "acp", "server": "custom"}}}, "needs the command"),
    ({**SERVER, "conversation": {"agent": {"kind": "other"}}}, "does not match any of the expected tags"),
    ({**SERVER, "conversation": {"agent": AGENT, "secrets": {"a b": CANARY}}}, "name of a secret"),
    ({**SERVER, "conversation": {"agent": {**AGENT, "llm": {"model": "m", "api_key": CANARY}}}}, "printable ASCII"),
    ({**APP, "conversation_id": ID, "app": {"url": "http://a", "api_key": CANARY}}, "printable ASCII"),
    ({**APP, "conversation_id": ID, "app": {"url": "http://a", "host": "a/b"}}, "pattern"),
    ({**APP, "conversation_id": ID, "app": {}}, "Field required"),
]


@pytest.mark.parametrize("given", ACCEPTED)
def test_options_are_accepted_and_survive_a_copy(given: dict[str, Any]) -> None:
    options = OpenHandsV1Options.model_validate(given)
    assert options.creates == (options.native_id is None)
    assert options.native_id in {None, ID}
    again = options.model_dump(exclude_unset=True)
    assert OpenHandsV1Options.model_validate(again) == options


@pytest.mark.parametrize(("given", "reason"), REFUSED)
def test_what_cannot_work_is_refused_with_a_reason_that_shows_no_secret(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        OpenHandsV1Options.model_validate(given)
    messages = " ".join(error["msg"] for error in refusal.value.errors())
    assert reason in messages
    assert CANARY not in messages


def test_secrets_are_hidden() -> None:
    conversation = {"agent": {**AGENT, "llm": {"model": "m", "api_key": "canary-1"}}, "secrets": {"A": "canary-2"}}
    options = OpenHandsV1Options.model_validate({**SERVER, "session_api_key": "canary-3", "conversation": conversation})
    shown = f"{options!r} {options.model_dump_json()}"
    assert "canary" not in shown
    assert options.key == "canary-3"
    assert OpenHandsV1Options.model_validate({**SERVER, "conversation_id": ID, "session_api_key": ""}).key == ""


@pytest.mark.parametrize(
    ("agent", "takes"),
    [
        (AGENT, True),
        ({"kind": "acp", "server": "claude-code"}, True),
        ({"kind": "acp", "server": "gemini-cli"}, False),
        ({"kind": "acp", "server": "gemini-cli", "http_mcp": True}, True),
        ({"kind": "acp", "server": "codex", "http_mcp": False}, False),
    ],
)
def test_only_agents_that_take_mcp_over_http_get_the_tools(agent: dict[str, Any], takes: bool) -> None:
    options = OpenHandsV1Options.model_validate({**SERVER, "conversation": {"agent": agent}})
    assert options.takes_mcp == takes


def test_a_conversation_by_the_app_gets_no_tools_from_us() -> None:
    options = OpenHandsV1Options.model_validate({**APP, "app": {**APP["app"], "model": "user"}})
    assert (options.creates, options.takes_mcp, options.url) == (True, False, "http://openhands:3000")
