"""How a frame is written for the store: what is masked, what is omitted, and what a feed keeps of it."""

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from gateway.adapter.port import Frame
from gateway.events import Draft, Envelope, MessagePosted, Opaque, SecretSupplied, Text
from gateway.events.ids import EventId, SessionId
from gateway.runtime.feeds.feed import Feed
from gateway.runtime.masking import register_secret
from gateway.runtime.session.native_frames import LARGEST, keep_frame
from gateway.strict_json import Malformed

CANARY = 'native"canary\\1-Zr'
SAID = Draft(MessagePosted(content=(Text(text="hello"),)))


def kept(payload: Any, *drafts: Draft, written: bytes | None = None) -> dict[str, Any]:
    return json.loads(keep_frame(Frame("event", payload, written=written), drafts or (SAID,)))


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("payload", [{"a": [1, "x", None, True, 1.5]}, "text", 7, None, [], {}])
def test_a_frame_is_kept_as_it_is(payload: Any, *, is_written: bool) -> None:
    written = orjson.dumps(payload) if is_written else None
    assert kept(payload, written=written) == {"channel": "event", "payload": payload, "omitted": None}


def test_registered_secrets_are_masked_in_keys_texts_and_numbers() -> None:
    for secret in (CANARY, "90817263", "n-canary"):
        register_secret(secret)
    # The text of the last member has the letters of a secret only as JSON.
    payload = {CANARY: f"so {CANARY}", "deep": [[{"n": 90817263, "m": 1}]], "t": "dtt_Ab12-", "n": "\n-canary"}
    assert kept(payload)["payload"] == {"***": "so ***", "deep": [[{"n": "***", "m": 1}]], "t": "***", "n": "\n-canary"}


def test_the_secret_of_a_decoded_event_is_masked() -> None:
    supplied = Draft(SecretSupplied(id="s", value=SecretStr("pw1")))
    assert kept({"id": "s", "password": "pw1", "note": "pw1!"}, supplied)["payload"] == {
        "id": "s", "password": "***", "note": "***!",
    }  # fmt: skip


def test_an_opaque_payload_is_kept_as_its_codec_has_masked_it() -> None:
    masked = {"type": "user.later", "token": "********"}
    draft = Draft(Opaque(channel="events", payload=masked))
    assert kept({"type": "user.later", "token": "abc"}, draft)["payload"] == masked


def test_a_payload_that_no_link_could_read_is_kept_as_its_beginning() -> None:
    assert kept(Malformed("is no JSON", "{oops"))["payload"] == "{oops"


def test_what_is_too_large_is_omitted_with_its_size() -> None:
    assert kept("x" * (LARGEST - 2))["omitted"] is None
    omitted = {"channel": "event", "payload": None, "omitted": "it has 65,537 bytes; at most 65,536 are kept"}
    assert kept("x" * (LARGEST - 1)) == omitted


@pytest.mark.parametrize("payload", [2**70, "\ud800", object()])
def test_what_cannot_be_written_is_omitted_with_the_reason(payload: object) -> None:
    frame = kept({"value": payload})
    assert frame["payload"] is None
    assert frame["omitted"].startswith("it cannot be written as JSON: ")


def test_nesting_that_orjson_refuses_is_omitted() -> None:
    endless: list[Any] = []
    for _ in range(5_000):
        endless = [endless]
    assert kept(endless)["omitted"].startswith("it cannot be written as JSON: ")


def test_a_feed_keeps_no_frame() -> None:
    feed = Feed(0)
    place = feed.join()
    event, at = MessagePosted(content=(Text(text="hello"),)), datetime(2026, 1, 2, tzinfo=UTC)
    feed.extend([Envelope(EventId("e"), SessionId("s"), 1, at, "from_runtime", event, native=b"{}")])
    news, _, _ = feed.since(place)
    assert news is not None
    [item] = news.items
    assert isinstance(item, Envelope)
    assert item.native is None
