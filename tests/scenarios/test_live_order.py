"""What is only live reaches followers in its place between the events on record, however frames are batched."""

from pathlib import Path

from tests.scenarios.environment import Scene
from tests.scenarios.fleet import herm_environment

PAIRS = 30


async def test_live_events_keep_their_place_between_recorded_ones(both: Scene) -> None:
    async with both.running() as gateway, gateway.stream(await gateway.session()) as follower:
        # All of this arrives at once, and is decided upon in a few steps.
        for number in range(PAIRS):
            burst = {"type": "messaging", "toolCallId": f"burst-{number}"}
            await both.agent.emit("event", {**burst, "event": "typing_start"})
            await both.agent.emit("event", {"type": "status", "status": f"status {number}"})
        seen: list[str] = []
        while len(seen) < 2 * PAIRS:
            told = await follower.next()
            if told["event"] in {"typing.changed", "session.moved"}:
                seen.append(told["event"])
        assert seen == ["typing.changed", "session.moved"] * PAIRS


async def test_pieces_of_a_message_keep_their_place_although_they_take_no_step(tmp_path: Path) -> None:
    async with herm_environment(tmp_path) as made, made.running() as gateway:
        async with gateway.stream(await gateway.session()) as follower:
            for number in range(PAIRS):
                made.agent.emit(
                    {"type": "agent.message", "content": [{"type": "text", "text": f"{number}"}], "delta": True},
                    durable=False,
                )
                made.agent.emit({"type": "session.title_updated", "title": f"{number}"}, durable=False)
                made.agent.emit({"type": "agent.thinking", "content": [{"type": "text", "text": f"{number}"}]})
            seen: list[str] = []
            while len(seen) < 3 * PAIRS:
                told = await follower.next()
                if told["event"] in {"message.streamed", "session.titled", "thought.shared"}:
                    seen.append(told["event"])
        assert seen == ["message.streamed", "session.titled", "thought.shared"] * PAIRS
