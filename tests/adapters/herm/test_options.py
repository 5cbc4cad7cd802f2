"""The options of a Herm runtime: what they are by default, and what they refuse."""

from typing import Any

import pytest
from pydantic import ValidationError

from adapters.herm.options import HermOptions

BASE = {"adapter": "herm", "url": "https://herm.test/", "api_key": "hk_1"}


def read(**more: Any) -> HermOptions:
    return HermOptions.model_validate({**BASE, **more})


def test_a_session_is_attached_to_and_an_agents_sessions_are_opened() -> None:
    attached, opened = read(session_id="s"), read(agent_id="a")
    assert (attached.native_id, attached.creates) == ("s", False)
    assert (opened.native_id, opened.creates) == (None, True)
    assert attached.url == "https://herm.test"


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"session_id": "s", "agent_id": "a"},
        {"session_id": ""},
        {"session_id": "s", "url": "ftp://herm.test"},
        {"session_id": "s", "url": "https://user:pw@herm.test"},
        {"session_id": "s", "url": "https://herm.test?key=1"},
        {"session_id": "s", "api_key": ""},
        {"session_id": "s", "api_key": "two words"},
        {"session_id": "s", "api_key": "line\nbreak"},
        {"session_id": "s", "events_path": "/v1/events"},
        {"session_id": "s", "stream_path": "v1/{session_id}"},
        {"session_id": "s", "create_path": "/v1/{agent}/sessions"},
        {"session_id": "s", "headers": {"X Y": "1"}},
        {"session_id": "s", "headers": {"X-Y": "a\r\nb: c"}},
        {"session_id": "s", "idle_timeout": "0s"},
        {"session_id": "s", "list_limit": 0},
        {"session_id": "s", "body": "both"},
        {"session_id": "s", "unknown": 1},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        read(**wrong)
    assert "pw@" not in "".join(error["msg"] for error in refusal.value.errors())
