"""What the YAML may say about an OpenHands runtime, and how wrong values are answered."""

from typing import Any

import pytest
from pydantic import ValidationError

from adapters.openhands import ADAPTER
from adapters.openhands.options import OpenHandsOptions
from gateway.adapter.port import Frame
from gateway.events import Opaque


def options(**given: Any) -> OpenHandsOptions:
    usual = {"adapter": "openhands", "url": "http://openhands:3000", "conversation_id": "abc"}
    return OpenHandsOptions.model_validate({**usual, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conversation": {}}, "exactly one of conversation_id"),
        ({"conversation_id": None}, "exactly one of conversation_id"),
        ({"conversation_id": "../x"}, "no '..'"),
        ({"conversation_id": ""}, "1 to 100"),
        ({"url": "openhands:3000"}, "base URL"),
        ({"url": "http://x?session_api_key=k"}, "session_api_key"),
        ({"url": "http://user:pw@x"}, "session_api_key"),
        ({"session_api_key": "two words"}, "ASCII without spaces"),
        ({"session_api_key": "é"}, "ASCII without spaces"),
        ({"providers_set": ["git hub"]}, "provider names"),
        ({"providers_set": ["github,gitlab"]}, "provider names"),
        ({"action_event": "oh_something"}, "oh_user_action"),
        ({"path": "socket.io"}, "pattern"),
        ({"conversation_id": None, "conversation": {"repositry": "x"}}, "repositry"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        options(**given)


@pytest.mark.requirement("OH9", "OH13")
@pytest.mark.parametrize("key", [None, ""])
def test_an_empty_key_is_no_key(key: str | None) -> None:
    assert options(session_api_key=key).key is None


def test_a_key_is_never_shown() -> None:
    shown = options(session_api_key="very-secret")
    assert shown.key == "very-secret"
    assert "very-secret" not in repr(shown)
    assert "very-secret" not in str(shown.model_dump())


@pytest.mark.requirement("OH62")
@pytest.mark.parametrize(
    ("given", "rest"),
    [
        ({"url": "ws://x:1/"}, "http://x:1"),
        ({"url": "wss://x"}, "https://x"),
        ({"rest_url": "https://rest/base/"}, "https://rest/base"),
    ],
)
def test_the_rest_interface_is_found_from_the_sockets_address(given: dict[str, Any], rest: str) -> None:
    assert options(**given).rest_base == rest


@pytest.mark.requirement("OH2")
def test_an_attached_runtime_names_its_conversation_and_creates_none() -> None:
    attached = options()
    assert (attached.native_id, attached.creates, attached.action_event) == ("abc", False, "oh_action")


@pytest.mark.parametrize(("given", "kept"), [({}, False), ({"keep_system_prompt": True}, True)])
def test_a_system_prompt_is_kept_whole_only_where_the_option_says_so(given: dict[str, Any], *, kept: bool) -> None:
    args: dict[str, Any] = {"content": "You are an agent. " * 1_500, "tools": []}
    payload = {"id": 1, "timestamp": "2026-11-20T19:52:36.455772", "source": "agent", "action": "system", "args": args}
    (draft,) = ADAPTER.codec(options(**given)).decode(Frame("oh_event", payload))
    assert isinstance(draft.event, Opaque)
    assert (draft.event.payload["args"] == args) is kept
