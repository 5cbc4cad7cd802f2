"""What is only live reaches followers in its place between the events on record, however frames are batched."""

from tests.scenarios.environment import Scene

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
