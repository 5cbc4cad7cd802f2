"""A `user.*` type that Herm does not document may carry a secret: the names of its members give it away."""

import json

import pytest

from adapters.herm.codec import HermCodec
from gateway.adapter.port import Frame
from gateway.events import Opaque
from tests.adapters.herm.links import RecordingBackend, linked
from tests.adapters.herm.raw_herm import RawHerm

SAID = {"type": "user.vault_result", "request_id": "r1", "secret_value": "canary-1", "deep": [{"apiKey": "canary-2"}]}


def test_a_bare_one_is_blacked_out_as_well() -> None:
    (draft,) = HermCodec().decode(Frame("events", SAID))
    assert isinstance(draft.event, Opaque)
    assert "canary" not in repr(draft)
    assert draft.event.payload["request_id"] == "r1"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("user.vault_result", "user.vault_result"),
        ("agent.message", "user.vault_result"),
        ("user.vault_result", "agent.message"),
        ("user.vault_result", None),
    ],
)
async def test_no_page_of_the_history_and_no_news_hand_on_what_it_may_hold(outer: str, inner: str | None) -> None:
    # Before it is read, so that a frame that is rejected does not quote it either.
    record = RecordingBackend()
    async with RawHerm().serve() as server:
        said = {**SAID, "type": inner} if inner else {name: SAID[name] for name in SAID if name != "type"}
        server.stored.append({"id": "evt_1", "type": outer, "sequence": 1, "payload": said})
        async with linked(server, record):
            news = {"id": "evt_2", "type": outer, "sequence": 2, "payload": {**said, "request_id": "r2"}}
            await server.stream(news)
            await record.wait_for(2)
    assert [frame.payload["payload"]["request_id"] for frame in record.frames] == ["r1", "r2"]
    assert "canary" not in json.dumps([frame.payload for frame in record.frames])


def test_members_that_are_secret_by_name_are_blacked_out_in_an_unknown_user_event() -> None:
    said = {
        "type": "user.vault_result",
        "request_id": "r1",
        "secret_value": "canary-1",
        "deep": [{"apiKey": "canary-2"}],
    }
    frame = Frame("stream", {"id": "evt_1", "type": "user.vault_result", "payload": said})
    (draft,) = HermCodec().decode(frame)
    assert isinstance(draft.event, Opaque)
    assert "canary" not in repr(draft)
    assert draft.event.payload["payload"]["request_id"] == "r1"
