"""The steps of the demo that all agents with tools share."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from gateway.testing.demo.player import Ask, Player, Told, text_of
from gateway.testing.demo.report import expect

WORK = 2.5
"""Seconds for which the backend works while the gateway is killed."""

Asker = Callable[[str, dict[str, Any]], Awaitable[Ask]]


async def converse(
    player: Player, text: str, *, hear: Callable[[str], Awaitable[str]], answer: Callable[[str], Awaitable[None]]
) -> None:
    """Send an agent a message over the HTTP API, and find its answer in the journal."""
    async with player.step("a message over the HTTP API, answered") as note:
        began = time.monotonic()
        author = {"role": "user", "id": "alice", "name": "Alice"}
        posted = await player.drive(kind="message.posted", author=author, content=text)
        native_type = await hear(text)
        latency = timedelta(seconds=time.monotonic() - began)
        reply = f"I have read: {text}"
        await answer(reply)
        found = await player.event(
            "message.posted",
            lambda each: each["direction"] == "from_runtime" and text_of(each) == reply,
            after=posted["sequence"],
        )
        note.say(f"received as {native_type}; the answer is event {found['sequence']}", latency)


class Game:
    """The steps that only need a function to call a tool."""

    def __init__(self, player: Player, asker: Asker) -> None:
        self.player = player
        self._asker = asker

    async def ask(self, tool: str, arguments: dict[str, Any]) -> tuple[Ask, Told]:
        """Call a tool, and wait for the outcome."""
        ask = await self._asker(tool, arguments)
        self.player.asked.append(ask)
        return ask, await ask.outcome()

    async def begin(self, tool: str, arguments: dict[str, Any]) -> Ask:
        """Call a tool; return when the backend has started to work."""
        executions = self.player.environment.backend.records.executions
        before = executions.total()
        ask = await self._asker(tool, arguments)
        self.player.asked.append(ask)
        await self.player.backend_has(lambda: executions.total() > before, f"the backend received no call of {tool}")
        return ask

    async def play(self) -> None:
        """Play the steps before the crash."""
        await self.make_illegal_move()
        await self.make_two_calls()
        await self.send_invalid_arguments()
        await self.call_unknown_tool()
        await self.retry_after_503()
        await self.accept_and_call_back()

    async def make_illegal_move(self) -> None:
        async with self.player.step("an illegal move") as note:
            ask, result = await self.ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "A"})
            expect(result.outcome == "failure", f"expected a failure, got {result.outcome}")
            expect("ranks you have" in result.text, f"the backend's text is missing: {result.text}")
            note.say(result.text, ask.latency)

    async def make_two_calls(self) -> None:
        async with self.player.step("two calls at once") as note:
            first, second = await asyncio.gather(
                self.ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "K"}),
                self.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "3"}),
            )
            outcomes = [first[1].outcome, second[1].outcome]
            expect(outcomes == ["success", "success"], f"expected two successes, got {outcomes}")
            note.say(f"{first[1].text} | {second[1].text}", second[0].latency)

    async def send_invalid_arguments(self) -> None:
        async with self.player.step("invalid arguments") as note:
            executed = self.player.environment.backend.records.executions.total()
            ask, result = await self.ask("ask_for_cards", {"targetPlayer": 7, "rank": "7"})
            expect(result.outcome == "failure", f"expected a failure, got {result.outcome}")
            expect("/targetPlayer" in result.text, f"the error does not contain the path: {result.text}")
            expect(
                self.player.environment.backend.records.executions.total() == executed,
                "the backend received the call",
            )
            note.say(result.text, ask.latency)

    async def call_unknown_tool(self) -> None:
        async with self.player.step("an unknown tool") as note:
            ask, result = await self.ask("juggle", {"balls": 3})
            expect(result.outcome == "failure", f"expected a failure, got {result.outcome}")
            expect("juggle" in result.text, f"the error does not contain the tool's name: {result.text}")
            note.say(result.text, ask.latency)

    async def retry_after_503(self) -> None:
        async with self.player.step("503 with Retry-After, retried") as note:
            ask, result = await self.ask("flaky", {})
            expect(result.outcome == "success", f"failed: {result.text}")
            times = self.player.environment.backend.records.requests[await self.player.key_of(ask)]
            expect(times == 2, f"expected two requests with one webhook-id, counted {times}")
            note.say("two requests with one webhook-id, executed once", ask.latency)

    async def accept_and_call_back(self) -> None:
        async with self.player.step("202, progress, callback") as note:
            ask, result = await self.ask("deal_later", {})
            expect(result.outcome == "success", f"failed: {result.text}")
            history = await self.player.environment.get(f"/v1/calls/{await self.player.key_of(ask)}")
            kinds = [envelope["event"]["kind"] for envelope in history["events"]]
            expect("call.progressed" in kinds, f"no progress was recorded: {kinds}")
            note.say(result.text, ask.latency)

    async def lose_the_connection(self, drop: Callable[[], Awaitable[None]]) -> None:
        """Drop the link during a call; `drop` returns when there is a new one."""
        async with self.player.step("the link breaks during a call") as note:
            ask = await self.begin("slow_thing", {"seconds": 0.3})
            await drop()
            result = await ask.outcome()
            expect(result.outcome == "success", f"failed: {result.text}")
            note.say("the outcome waited for the new connection", ask.latency)

    async def start_calls(self) -> tuple[Ask, Ask]:
        """Start a call that may be repeated and one that may not."""
        repeatable = await self.begin("slow_thing", {"seconds": WORK})
        return repeatable, await self.begin("pay_once", {"seconds": WORK})

    async def check_calls_after_crash(self, repeatable: Ask, unrepeatable: Ask) -> None:
        """Check the gateway's promises about calls that a crash has interrupted."""
        records = self.player.environment.backend.records
        async with self.player.step("a repeatable call survives") as note:
            result = await repeatable.outcome(12)
            expect(result.outcome == "success", f"failed: {result.text}")
            key = await self.player.key_of(repeatable)
            note.say(f"{records.requests[key]} requests, {records.executions[key]} execution", repeatable.latency)
        async with self.player.step("an unrepeatable one is not repeated") as note:
            result = await unrepeatable.outcome(12)
            key = await self.player.key_of(unrepeatable)
            expect(records.requests[key] == 1, f"the backend received {records.requests[key]} requests")
            expect(result.outcome == "failure", f"expected a failure, got {result.outcome}")
            expect("unknown" in result.text, f"the text does not state that the outcome is unknown: {result.text}")
            dead = (await self.player.environment.get("/v1/dead-letters"))["data"]
            expect(any(row.get("call_id") == key for row in dead), "it is not a dead letter")
            note.say(result.text, unrepeatable.latency)

    async def check_game(self) -> None:
        """Check all calls of the whole game."""
        asked = self.player.asked
        records = self.player.environment.backend.records
        keys = [await self.player.key_of(ask) for ask in asked]
        async with self.player.step("one outcome for each call") as note:
            for ask in asked:
                expect(bool(ask.answers), f"{ask.tool} was never answered")
                expect(all(answer == ask.answers[0] for answer in ask.answers), f"{ask.tool} has two outcomes")
            twice = [key for key in keys if records.executions[key] > 1]
            expect(not twice, f"{len(twice)} calls were executed twice")
            repeats = sum(len(ask.answers) - 1 for ask in asked)
            note.say(f"{len(asked)} calls answered, {repeats} identical redeliver{'y' if repeats == 1 else 'ies'}")
        async with self.player.step("copies of the outcomes arrived") as note:

            def complete() -> bool:
                finished = [copy["data"]["event"] for copy in records.events if copy["type"] == "tool.finished"]
                return set(keys) <= {event.get("call_id") for event in finished}

            await self.player.backend_has(complete, "some outcomes were not copied to the destination")
            note.say(f"{len(set(keys))} signed copies of tool.finished")


async def check_journal(player: Player) -> None:
    """Check that the journal has no gaps."""
    async with player.step("the journal has no gaps") as note:
        sequences = [envelope["sequence"] for envelope in await player.journal()]
        expect(sequences == list(range(1, len(sequences) + 1)), f"gaps in {sequences}")
        rejected = [each for each in await player.journal() if each["event"]["kind"] in {"frame.rejected", "opaque"}]
        note.say(f"no gaps in events 1–{len(sequences)}, {len(rejected) or 'no'} unrecognized frames")
