"""A recorded OpenHands conversation, cut at every frame and taken up again: nothing is lost and nothing doubled."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.openhands import ADAPTER
from gateway.adapter.port import Connector, Frame
from gateway.testing.conformance.link import Collector, within
from tests.adapters.openhands.raw_openhands import CONVERSATION, RawOpenHands, thought

CAPTURES = sorted((Path(__file__).parents[2] / "vectors" / "openhands" / "captures").glob("*.jsonl"))
AWAY = 3
"""How many frames pass while nobody is connected."""
LANES = 8
"""How many servers are cut off at the same time; each waits more than it works."""
CODEC = ADAPTER.codec()


def recorded(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def native_ids(frames: Sequence[Frame]) -> list[str]:
    drafts = [draft for frame in frames for draft in CODEC.decode(frame)]
    return [draft.native_id for draft in drafts if draft.native_id is not None]


async def play(server: RawOpenHands, payloads: Sequence[dict[str, Any]]) -> None:
    """Let the conversation go on; what is no event is told and never stored (OH31)."""
    for payload in payloads:
        known = [event for event in server.store if (event["id"], event["timestamp"]) == _mark(payload)]
        if "timestamp" in payload and not known:
            server.keep(payload)
        await server.say(Frame("oh_event", payload))


def _mark(payload: dict[str, Any]) -> tuple[Any, Any]:
    return payload.get("id"), payload.get("timestamp")


def events(payloads: Sequence[dict[str, Any]]) -> int:
    """Count what a link hands on: twins once, everything that is no event each time."""
    return len({_mark(payload) for payload in payloads if "timestamp" in payload}) + sum(
        "timestamp" not in payload for payload in payloads
    )


async def cut_and_resume(
    server: RawOpenHands, connector: Connector, conversation: list[dict[str, Any]], at: int
) -> None:
    server.store.clear()
    before, after = Collector(), Collector()
    async with connector.connect(CONVERSATION, before) as link:
        await within(server.connected())
        await play(server, conversation[:at])
        await before.wait_for(events(conversation[:at]))
        await server.drop()
        await within(link.wait_closed())
    for payload in conversation[at : at + AWAY]:
        if "timestamp" in payload and _mark(payload) not in {_mark(event) for event in server.store}:
            server.keep(payload)
    cursor = next((cursor for cursor in reversed(before.cursors) if cursor is not None), None)
    async with connector.connect(CONVERSATION, after, resume_after=cursor):
        await within(server.connected())
        count = len(after.frames)
        rest = conversation[at + AWAY :]
        fresh = [payload for payload in rest if _mark(payload) not in {_mark(e) for e in server.store}]
        await play(server, rest)
        await after.wait_for(count + events(fresh))
    check(conversation, before.frames, after.frames)


def check(conversation: list[dict[str, Any]], before: Sequence[Frame], after: Sequence[Frame]) -> None:
    for frames in (before, after):
        assert len(set(native_ids(frames))) == len(native_ids(frames)), "one link never brings an event twice"
    kept = set(native_ids(before)) | set(native_ids(after))
    said = set(native_ids([Frame("oh_event", payload) for payload in conversation]))
    states = [p for p in conversation if p.get("observation") == "agent_state_changed"]
    recalls = [p for p in conversation if p.get("action") == "recall"]
    # A replay withholds the states gone by and the runtime's own recalls (OH15); nothing else may be missing.
    withheld = set(native_ids([Frame("oh_event", payload) for payload in (*states[:-1], *recalls)]))
    assert kept <= said
    assert said - kept <= withheld


async def cut_at(conversation: list[dict[str, Any]], places: Sequence[int]) -> list[int]:
    """Cut and resume a conversation at these places; returns what each link asked to begin after."""
    async with RawOpenHands().serve() as server:
        options = ADAPTER.options.model_validate(
            {"adapter": "openhands", "url": server.url, "conversation_id": CONVERSATION}
        )
        async with ADAPTER.connector(options) as connector:
            for at in places:
                await cut_and_resume(server, connector, conversation, at)
        return [int(query["latest_event_id"][0]) for query in server.queries]


@pytest.mark.requirement("OH14", "OH15", "OH17", "OH18", "OH20")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
async def test_a_conversation_cut_at_any_frame_and_resumed_loses_and_doubles_nothing(path: Path) -> None:
    conversation = recorded(path)
    lanes = [range(lane, len(conversation) + 1, LANES) for lane in range(LANES)]
    asked = await asyncio.gather(*(cut_at(conversation, lane) for lane in lanes))
    assert {latest for lane in asked for latest in lane} == {-1}
    assert sum(map(len, asked)) == 2 * (len(conversation) + 1)


@pytest.mark.requirement("OH14", "OH18")
async def test_a_long_conversation_is_resumed_fifty_behind_with_each_event_known_once() -> None:
    conversation = [thought(number) for number in range(200)]
    asked = await cut_at(conversation, (1, 49, 50, 51, 100, 199))
    assert asked[1::2] == [-1, -1, -1, 0, 49, 148]
