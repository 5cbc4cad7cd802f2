"""The conformance suite for codecs: inherit `CodecSuite`, set the adapter and its vectors, and run pytest.

A vector is one JSON object (a file contains one, or a list of them):

    {"name": "a tool call", "source": "HUMA 0.2.0, tool-call", "requirements": ["N53"],
     "frame": {"channel": "event", "payload": {…}},
     "drafts": [{"event": {"kind": …}, "losses": [{"how", "path"}], "live": false, "native_id": null}],
     "encodes_back": true}

`encodes_back` is the expected result of encoding the drafts: true means the same frame without losses, otherwise
`{"frames": […], "losses": […]}` or `{"refused_at": "/path"}`. A vector with `"malformed_at": "/path"` instead of
drafts must be refused at this path; one with `"event"` instead of a frame is only encoded.

It needs pytest and hypothesis, the extra `testing`.
"""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gateway.adapter.port import PORTS_VERSION, Adapter, Codec, Encoded, Frame
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import EVENT, Draft, Envelope, Event, EventId, Loss, MessagePosted, SessionId

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "\ud800", "__proto__", "🂡" * 40, b"bytes", 2**70, math.nan, math.inf, 0.0, -1]),
)
_KEYS = st.one_of(st.text(max_size=10), st.sampled_from(["__proto__", "constructor", "type", "\ud800", "id"]))
_JSON: st.SearchStrategy[Any] = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=12,
)
_IN_CONTEXTS = frozenset({"message.posted", "context.updated"})
# Several classes inherit the suite, so hypothesis sees the same test in each.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])


def nested(depth: int) -> list[Any]:
    """Build a list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "no text": "",
    "text": "text",
    "bytes": b"bytes",
    "empty list": [],
    "empty object": {},
    "not a number": math.nan,
    "infinity": -math.inf,
    "a huge integer": 2**200,
    "a lone surrogate": "\ud800",
    "a foreign object": object(),
    "a deep list": nested(2_000),
    "a deep list in an object": {"a": nested(2_000)},
    "a key that is no text": {1: "x"},
    "a null type": {"type": None},
    "a list of types": {"type": ["tool-call"]},
    "a type with a lone surrogate": {"type": "\udfff"},
}
"""Payloads that a broken or hostile peer may send."""


def load_vectors(folder: Path) -> list[dict[str, Any]]:
    """Read all vectors of a folder, sorted by file name."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        found.extend(cast("list[Any]", content) if isinstance(content, list) else [content])
    return found


class CodecSuite:
    """Inherit this as `class TestMyCodec(CodecSuite)` and set the class attributes."""

    adapter: Adapter
    vectors: Path
    channels: tuple[str, ...] = ("message", "event", "error")
    """The protocol's channels; the property tests use all of them."""
    derived: frozenset[str] = frozenset({"call_id"})
    """Event fields that frames omit because the other side knows them."""

    @property
    def codec(self) -> Codec:
        return self.adapter.codec()

    def test_the_adapter_names_itself_and_its_ports(self) -> None:
        assert self.adapter.name
        assert self.adapter.protocol
        assert self.adapter.ports == PORTS_VERSION
        assert self.adapter.options.model_json_schema()["properties"]["adapter"]

    def test_there_are_vectors_and_their_names_differ(self) -> None:
        names = [vector["name"] for vector in load_vectors(self.vectors)]
        assert names
        assert len(set(names)) == len(names)

    def test_every_vector_holds(self, subtests: pytest.Subtests) -> None:
        for vector in load_vectors(self.vectors):
            with subtests.test(vector["name"]):
                check_vector(self.codec, vector)

    @pytest.mark.parametrize("name", HOSTILE)
    def test_a_hostile_payload_raises_nothing_but_malformed_frame(self, name: str) -> None:
        payload = HOSTILE[name]
        for channel in (*self.channels, "unheard of"):
            decode_or_refuse(self.codec, Frame(channel, payload))

    def test_a_hostile_value_anywhere_in_a_known_message_raises_nothing_but_malformed_frame(self) -> None:
        for frame in self.known_frames():
            for path in places(frame.payload):
                for value in HOSTILE.values():
                    decode_or_refuse(self.codec, Frame(frame.channel, replaced(frame.payload, path, value)))

    @_PATIENT
    @given(payload=_JSON, data=st.data())
    def test_any_json_raises_nothing_but_malformed_frame(self, payload: Any, data: st.DataObject) -> None:
        channel = data.draw(st.one_of(st.sampled_from(self.channels), st.text(max_size=5)))
        decode_or_refuse(self.codec, Frame(channel, payload))

    @_PATIENT
    @given(data=st.data())
    def test_a_decoded_event_survives_encoding_except_for_its_losses(self, data: st.DataObject) -> None:
        frame = self.draw_near_frame(data)
        for draft in decode_or_refuse(self.codec, frame):
            check_survival(self.codec, draft, self.derived)

    @_PATIENT
    @given(data=st.data())
    def test_encoding_the_same_item_again_gives_the_same_bytes(self, data: st.DataObject) -> None:
        for draft in decode_or_refuse(self.codec, self.draw_near_frame(data)):
            once, again = encode_or_refuse(self.codec, draft), encode_or_refuse(self.codec, draft)
            assert repr(once) == repr(again)

    def test_a_draft_and_its_envelope_are_encoded_alike(self) -> None:
        able = self.adapter.capabilities
        # A message inside a context is always encoded from its envelope.
        kinds = able.accepts - (_IN_CONTEXTS if able.replaces_context else set())
        for vector in load_vectors(self.vectors):
            events = [vector["event"]] if "event" in vector else [draft["event"] for draft in vector.get("drafts", [])]
            for event in map(_of_a_client, map(read_event, events)):
                if event is not None and event.kind in kinds:
                    first, again = (encode_or_refuse(self.codec, one) for one in (Draft(event), _recorded(event)))
                    assert first == again, f"{event.kind}: a draft has no event_id, so a frame must not contain one"

    def test_a_call_that_a_resumed_link_may_repeat_has_a_native_id(self) -> None:
        drafts = [draft for vector in load_vectors(self.vectors) for draft in vector.get("drafts", [])]
        calls = [one for one in drafts if one["event"]["kind"] == "tool.requested" and not one.get("live")]
        ours = [one for one in calls if one["event"].get("runs_in", "host") == "host"]
        if self.adapter.capabilities.resumes:
            assert all(one.get("native_id") for one in ours), "without a native_id a replayed call is never executed"

    def test_every_accepted_kind_is_encoded_in_a_vector(self) -> None:
        encoded: set[str] = set()
        for vector in load_vectors(self.vectors):
            drafts = vector.get("drafts", []) + ([{"event": vector["event"]}] if "event" in vector else [])
            for event in (read_event(draft["event"]) for draft in drafts):
                if isinstance(encode_or_refuse(self.codec, Draft(event)), Encoded):
                    encoded.add(event.kind)
        assert self.adapter.capabilities.accepts <= encoded

    def test_vectors_decode_only_to_kinds_of_the_capabilities(self) -> None:
        able = self.adapter.capabilities
        read = {draft["event"]["kind"] for vector in load_vectors(self.vectors) for draft in vector.get("drafts", [])}
        assert read <= able.emits | able.accepts | {"opaque", "fault.reported"}

    def test_every_emitted_kind_is_decoded_from_a_vector(self) -> None:
        read = {draft["event"]["kind"] for vector in load_vectors(self.vectors) for draft in vector.get("drafts", [])}
        assert self.adapter.capabilities.emits <= read

    def test_echoes_are_marked_where_the_runtime_sends_them(self) -> None:
        drafts = [draft for frame in self.known_frames() for draft in decode_or_refuse(self.codec, frame)]
        marked = any(draft.echo for draft in drafts)
        assert marked or not self.adapter.capabilities.echoes, (
            "the capabilities have `echoes`, and no vector is read with `echo=True`: mark clients' messages in `decode`"
        )
        assert not marked or self.adapter.capabilities.echoes, (
            "a draft has `echo=True`, and the capabilities lack `echoes`, so it would be recorded twice: set both"
        )

    def test_every_decoded_kind_is_encoded_or_refused(self) -> None:
        for vector in load_vectors(self.vectors):
            for kind in (draft["event"] for draft in vector.get("drafts", [])):
                encode_or_refuse(self.codec, Draft(read_event(kind)))

    def known_frames(self) -> list[Frame]:
        """Return the frames of the vectors, as seeds for almost valid frames."""
        frames = [vector["frame"] for vector in load_vectors(self.vectors) if "frame" in vector]
        return [Frame(frame["channel"], frame["payload"]) for frame in frames]

    def draw_near_frame(self, data: st.DataObject) -> Frame:
        """Draw a known message with up to two values changed, removed or added."""
        frame = data.draw(st.sampled_from(self.known_frames()))
        payload = frame.payload
        for _ in range(data.draw(st.integers(0, 2))):
            path = data.draw(st.sampled_from(places(payload)))
            payload = replaced(payload, path, data.draw(st.one_of(st.just(LEFT_OUT), _JSON)))
            if isinstance(payload, dict) and data.draw(st.booleans()):
                payload = {**cast("dict[str, Any]", payload), data.draw(_KEYS): data.draw(_JSON)}
        return Frame(frame.channel, None if payload is LEFT_OUT else payload)


LEFT_OUT = object()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the paths of a value and of all values inside it."""
    found = [path]
    match value:
        case dict():
            for key, inner in cast("dict[Any, Any]", value).items():
                found.extend(places(inner, (*path, key)))
        case list():
            for index, inner in enumerate(cast("list[Any]", value)):
                found.extend(places(inner, (*path, index)))
        case _:
            pass
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Copy a value with the value at one path replaced or removed."""
    if not path:
        return new
    copy: Any = value.copy()
    inner = replaced(value[path[0]], path[1:], new)
    if inner is LEFT_OUT:
        del copy[path[0]]
    else:
        copy[path[0]] = inner
    return copy


def decode_or_refuse(codec: Codec, frame: Frame) -> tuple[Draft, ...]:
    """Decode a frame; return no drafts for a valid refusal, and let other exceptions pass."""
    try:
        drafts = codec.decode(frame)
    except MalformedFrame as exc:
        refusal = exc
    else:
        assert drafts, "a frame must decode to at least one draft"
        return drafts
    assert refusal.reason
    assert refusal.path == "" or refusal.path.startswith("/")
    return ()


def _of_a_client(event: Event) -> Event | None:
    """Return an event as a client posts it, without a message id; None for a message of the agent."""
    if not isinstance(event, MessagePosted):
        return event
    is_of_agent = event.author.role == "agent" or event.burst is not None
    return None if is_of_agent else event.model_copy(update={"message_id": None})


def _recorded(event: Event) -> Envelope:
    """Return the envelope of an event that was sent to the runtime."""
    session_id, at = SessionId("57b0a7b8-8e5b-4b0e-9a55-1f3f5b3a3c11"), datetime(2026, 1, 2, tzinfo=UTC)
    return Envelope(EventId("01JGH0A2N0AAAAAAAAAAAAAAAA"), session_id, 7, at, "to_runtime", event)


def encode_or_refuse(codec: Codec, item: Draft | Envelope) -> Encoded | str:
    """Encode an item; return the text of a refusal."""
    try:
        return codec.encode(item)
    except CannotExpress as refusal:
        return f"{refusal.path}: {refusal.reason}"


def read_event(given: Any) -> Event:
    """Parse the canonical event of a vector."""
    return EVENT.validate_python(given)


def check_vector(codec: Codec, vector: dict[str, Any]) -> None:
    """Check a codec against one vector, in the vector's directions."""
    if "event" in vector:
        _check_encoding(codec, [Draft(read_event(vector["event"]))], vector["encodes_back"], None)
        return
    frame = Frame(vector["frame"]["channel"], vector["frame"]["payload"])
    if "malformed_at" in vector:
        with pytest.raises(MalformedFrame) as refusal:
            codec.decode(frame)
        assert refusal.value.path == vector["malformed_at"]
        return
    drafts = codec.decode(frame)
    assert [_shape(draft) for draft in drafts] == [_expected(draft) for draft in vector["drafts"]]
    _check_encoding(codec, drafts, vector["encodes_back"], frame)


def _shape(draft: Draft) -> dict[str, Any]:
    return {
        "event": draft.event,
        "losses": sorted((loss.how, loss.path) for loss in draft.losses),
        "live": draft.live,
        "native_id": draft.native_id,
    }


def _expected(draft: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": read_event(draft["event"]),
        "losses": sorted((loss["how"], loss["path"]) for loss in draft.get("losses", [])),
        "live": draft.get("live", False),
        "native_id": draft.get("native_id"),
    }


def _check_encoding(codec: Codec, drafts: Sequence[Draft], expected: Any, frame: Frame | None) -> None:
    match expected:
        case {"refused_at": path}:
            for draft in drafts:
                with pytest.raises(CannotExpress) as refusal:
                    codec.encode(draft)
                assert refusal.value.path == path
            return
        case True:
            frames, losses = ([] if frame is None else [frame]), []
        case _:
            frames = [Frame(one["channel"], one["payload"]) for one in expected["frames"]]
            losses = [(loss["how"], loss["path"]) for loss in expected.get("losses", [])]
    encoded = [codec.encode(draft) for draft in drafts]
    assert [frame for one in encoded for frame in one.frames] == frames
    assert sorted((loss.how, loss.path) for one in encoded for loss in one.losses) == sorted(losses)


def check_survival(codec: Codec, draft: Draft, derived: frozenset[str]) -> None:
    """Encode and decode one draft; the result may differ only in the listed losses."""
    encoded = encode_or_refuse(codec, draft)
    if isinstance(encoded, str):
        return
    if not encoded.frames:
        return  # the frame of another event contains it
    decoded = [found for frame in encoded.frames for found in codec.decode(frame)]
    # A frame may decode to a second event, for example a tool use that waits for an approval.
    back = [found for found in decoded if found.event.kind == draft.event.kind] or decoded
    assert len(back) == 1, "one encoded event must decode to one event"
    before, after = leaves(draft.event), leaves(back[0].event)
    for path, value in before.items():
        if value is None or path.split("/")[1] in derived or _is_lost(path, encoded.losses):
            continue
        assert after.get(path) == value, f"{path} changed without a loss: {value!r} became {after.get(path)!r}"


def leaves(event: Event) -> dict[str, Any]:
    """Flatten an event to a mapping from pointer to value."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("", event.model_dump())]
    while waiting:
        path, value = waiting.pop()
        match value:
            case dict() if value:
                waiting.extend((f"{path}/{key}", inner) for key, inner in cast("dict[Any, Any]", value).items())
            case list() | tuple() if value:
                items = cast("Sequence[Any]", value)
                waiting.extend((f"{path}/{index}", inner) for index, inner in enumerate(items))
            case _:
                found[path] = value
    return found


def _is_lost(path: str, losses: Sequence[Loss]) -> bool:
    return any(path == loss.path or path.startswith(f"{loss.path}/") for loss in losses)
