"""One OpenHands conversation, read from its start, late, and in two halves: the same question waits each time."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.openhands.catchup import Tracker
from gateway.adapter.port import Frame
from gateway.core import inbound
from gateway.core.effects import Ask
from gateway.core.routing import Route
from gateway.core.state import SessionView
from gateway.testing.runtimes.openhands.conversation import Manners, SimConversation
from gateway.testing.runtimes.openhands.events import live_of, replay_of
from tests.unit.core.harness import OPENHANDS, Harness

CAPTURES = Path(__file__).parents[2] / "vectors" / "openhands" / "captures"
POLICY = (Route(event="approval.asked", to="chat"),)
OVERLAP = 50
DECISIONS = {"user_confirmed", "user_rejected"}
Event = dict[str, Any]


class Reader:
    """A gateway's session, link after link, and its questions to people."""

    def __init__(self, harness: Harness, view: SessionView, highest: int | None = None) -> None:
        self.shown: list[str] = []
        self.harness = harness
        self.highest = highest
        self._tracker = Tracker(self, None)
        harness.view = view

    def frame(self, frame: Frame, cursor: str | None = None) -> None:
        del cursor
        self.harness.receive(frame.payload, channel=frame.channel)
        self._note()

    def caught_up(self, *, starting: bool | None = False) -> None:
        self.harness.catch_up(is_starting=starting)
        self._note()

    def link(self, stored: list[Event], *, sorts: bool = True) -> None:
        """Make a link while the server holds these events; `sorts` says whether the replay is put in order."""
        self.harness.decide(inbound.connecting)
        self._tracker = Tracker(self, self.highest)
        latest = -1 if self.highest is None else max(-1, self.highest - OVERLAP)
        for event in replay_of(stored, latest):
            if sorts:
                self._tracker.frame(Frame("oh_event", event))
            else:
                self.frame(Frame("oh_event", event))
        self._tracker.caught_up()
        self._saw(stored)

    def hear(self, events: list[Event]) -> None:
        """Hear events live."""
        for event in events:
            if (live := live_of(event)) is not None:
                self._tracker.frame(Frame("oh_event", live))
        self._saw(events)

    @property
    def asked(self) -> list[str]:
        """The current questions."""
        return [asked.event.id for asked in self.harness.view.memory.asked]

    def _saw(self, events: list[Event]) -> None:
        self.highest = max([event["id"] for event in events], default=self.highest)

    def _note(self) -> None:
        for effect in self.harness.effects:
            if isinstance(effect, Ask) and (asked := effect.data["event"]["id"]) not in self.shown:
                self.shown.append(asked)


def recorded(name: str) -> list[Event]:
    """The questions of a recorded conversation's server."""
    lines = [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {line["id"]: line for line in lines if "timestamp" in line}
    return [found[number] for number in sorted(found)]


class Nobody:
    """A wire without listeners."""

    async def broadcast(self, conversation_id: str, payload: Any) -> None: ...
    async def broadcast_text(self, conversation_id: str, packet: str) -> None: ...
    async def disconnect(self, sid: str) -> None: ...
    def cut(self, conversation_id: str) -> int:
        del conversation_id
        return 0


Script = Callable[[SimConversation], Awaitable[None]]


async def gated(talk: SimConversation, work: Awaitable[Any], state: str) -> None:
    """Let the agent do something that waits for a decision, and decide."""
    before = talk.events[-1]["id"]
    working = asyncio.ensure_future(work)
    asks = {"agent_state": "awaiting_user_confirmation", "reason": ""}
    waits = await talk.wait_event(lambda event: event.get("extras") == asks, after=before)
    # The action is stored behind the state that says it waits.
    await talk.wait_event(lambda event: "action" in event, after=waits["id"])
    await talk.accept({"action": "change_agent_state", "args": {"agent_state": state}})
    await working


async def send(talk: SimConversation, text: str) -> None:
    await talk.accept({"action": "message", "args": {"content": text}})


async def a_command_and_an_edit(talk: SimConversation) -> None:
    await send(talk, "go")
    await gated(talk, talk.agent_runs("rm x", "", gated=True), "user_confirmed")
    await talk.agent_edits("/free", "1")
    await gated(talk, talk.agent_edits("/a", "1", gated=True), "user_confirmed")
    await talk.finish("done")


async def two_edits_one_denied(talk: SimConversation) -> None:
    await send(talk, "go")
    await gated(talk, talk.agent_edits("/a", "1", gated=True), "user_rejected")
    await send(talk, "try again")
    await gated(talk, talk.agent_edits("/b", "1", gated=True), "user_confirmed")
    await talk.agent_says("done")


async def a_command_stopped_while_it_waits(talk: SimConversation) -> None:
    await send(talk, "go")
    await gated(talk, talk.agent_runs("rm x", "", gated=True), "stopped")
    await send(talk, "go on")
    await talk.agent_runs("ls", "a")
    await gated(talk, talk.agent_edits("/b", "1", gated=True), "user_confirmed")


async def an_edit_behind_a_delegate(talk: SimConversation) -> None:
    await send(talk, "go")
    await talk.delegate("BrowsingAgent", "look", {})
    await gated(talk, talk.agent_edits("/a", "1", gated=True), "user_confirmed")
    await gated(talk, talk.agent_runs("rm y", "", gated=True), "user_rejected")


SCRIPTS: tuple[Script, ...] = (
    a_command_and_an_edit,
    two_edits_one_denied,
    a_command_stopped_while_it_waits,
    an_edit_behind_a_delegate,
)


async def played(script: Script) -> list[Event]:
    """The questions of a simulated conversation's server."""
    talk = SimConversation("c", Nobody(), Manners())
    talk.begin()
    await talk.warm_up()
    await script(talk)
    return talk.events


def waits(stored: list[Event]) -> list[str]:
    """Find the waiting action by the native events alone: the newest one behind the state for a waiting action."""
    states = [event for event in stored if event.get("observation") == "agent_state_changed"]
    if not states or states[-1]["extras"]["agent_state"] != "awaiting_user_confirmation":
        return []
    behind = [event for event in stored if event["id"] > states[-1]["id"] and "action" in event]
    if any(event["action"] == "change_agent_state" and event["args"]["agent_state"] in DECISIONS for event in behind):
        return []
    return [str(event["id"]) for event in behind if event["source"] == "agent"]


def hold_all_readings_to_one_question(stored: list[Event]) -> list[str]:
    """Read a conversation in all ways, up to each of its events; returns all that was asked on the way."""
    harness = Harness(OPENHANDS, routes=POLICY)
    begin = harness.view
    early = Reader(harness, begin)
    early.link([])
    first_parts: list[tuple[SessionView, int]] = []
    waited: list[str] = []
    for length, event in enumerate(stored, 1):
        held, told = stored[:length], f"after {event}"
        wanted = waits(held)
        waited += [number for number in wanted if number not in waited]
        early.harness.view = first_parts[-1][0] if first_parts else early.harness.view
        early.hear([event])
        assert (early.asked, early.shown) == (wanted, waited), told
        first_parts.append((harness.view, event["id"]))
        for sorts in (True, False):
            late = Reader(harness, begin)
            late.link(held, sorts=sorts)
            assert (late.asked, late.shown) == (wanted, wanted), told
        # If nothing waits, a sample is enough: all pairs take long.
        for view, highest in first_parts[:-1] if wanted or length % 5 == 0 else ():
            second = Reader(harness, view, highest)
            second.link(held)
            assert (second.asked, second.shown) == (wanted, wanted), told
        harness.view = first_parts[-1][0]
    return early.shown


@pytest.mark.requirement("OH14", "OH15", "OH44")
@pytest.mark.parametrize(
    ("name", "asked"), [("basic", []), ("confirm_user_confirmed", ["9", "16"]), ("delegate", []), ("mcp", [])]
)
def test_a_recorded_conversation_asks_the_same_however_it_is_read(name: str, asked: list[str]) -> None:
    assert hold_all_readings_to_one_question(recorded(name)) == asked


@pytest.mark.requirement("OH14", "OH15", "OH44")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_a_simulated_conversation_asks_the_same_however_it_is_read(script: Script) -> None:
    stored = await played(script)
    asked = hold_all_readings_to_one_question(stored)
    assert len(asked) == sum(
        event.get("extras", {}).get("agent_state") == "awaiting_user_confirmation" for event in stored
    )


@pytest.mark.requirement("OH15", "OH16")
async def test_the_same_is_put_on_record_live_and_replayed() -> None:
    stored = await played(a_command_and_an_edit)
    assert any(event["source"] == "environment" and event.get("action") for event in stored)

    def put_down(reader: Reader) -> list[tuple[int | None, str, str]]:
        # A replay withholds all states but the last, and recalls (OH15).
        known = [(new.origin.native_sequence, new.event.kind, new.direction) for new, _ in reader.harness.journal
                 if new.origin is not None and new.event.kind not in {"session.moved", "opaque"}]  # fmt: skip
        return sorted(known)

    early = Reader(Harness(OPENHANDS), Harness(OPENHANDS).view)
    early.link([])
    early.hear(stored)
    late = Reader(Harness(OPENHANDS), Harness(OPENHANDS).view)
    late.link(stored)
    assert put_down(early) == put_down(late)
    assert "action.ordered" not in {kind for _, kind, _ in put_down(late)}
