"""The part of the demo's game that every agent plays who asks the backend for tools, whatever its protocol."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from gateway.testing.demo.player import Ask, Player, Told, text_of
from gateway.testing.demo.report import expect

WORK = 2.5
"""Seconds the backend works while the gateway is killed."""

Asker = Callable[[str, dict[str, Any]], Awaitable[Ask]]


async def converse(
    player: Player, text: str, *, hear: Callable[[str], Awaitable[str]], answer: Callable[[str], Awaitable[None]]
) -> None:
    """Send an agent a message by the HTTP API, the same for every runtime, and find its answer in the journal."""
    async with player.step("a message by the HTTP API, answered") as note:
        began = time.monotonic()
        author = {"role": "user", "id": "alice", "name": "Alice"}
        posted = await player.drive(kind="message.posted", author=author, content=text)
        how = await hear(text)
        latency = timedelta(seconds=time.monotonic() - began)
        said = f"I have read: {text}"
        await answer(said)
        found = await player.event(
            "message.posted",
            lambda each: each["direction"] == "from_runtime" and text_of(each) == said,
            after=posted["sequence"],
        )
        note.say(f"came as {how}; the answer is event {found['sequence']}", latency)


class Game:
    """The steps that need nothing but a way to ask for a tool."""

    def __init__(self, player: Player, asker: Asker) -> None:
        self.player = player
        self._asker = asker

    async def ask(self, tool: str, arguments: dict[str, Any]) -> tuple[Ask, Told]:
        """Ask, and wait for the outcome."""
        ask = await self._asker(tool, arguments)
        self.player.asked.append(ask)
        return ask, await ask.told()

    async def begin(self, tool: str, arguments: dict[str, Any]) -> Ask:
        """Ask, and return as soon as the backend is at work."""
        executions = self.player.environment.backend.records.executions
        before = executions.total()
        ask = await self._asker(tool, arguments)
        self.player.asked.append(ask)
        await self.player.backend_has(lambda: executions.total() > before, f"the backend was not asked for {tool}")
        return ask

    async def play(self) -> None:
        """Play all that needs no crash."""
        await self.ask_for_what_is_not_there()
        await self.ask_twice_at_once()
        await self.ask_wrongly()
        await self.ask_for_an_unknown_tool()
        await self.ask_again_after_a_refusal()
        await self.accept_and_call_back()

    async def ask_for_what_is_not_there(self) -> None:
        async with self.player.step("a move the rules forbid") as note:
            ask, told = await self.ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "A"})
            expect(told.outcome == "failure", f"expected a failure, got {told.outcome}")
            expect("ranks you have" in told.text, f"the backend's text is lost: {told.text}")
            note.say(told.text, ask.latency)

    async def ask_twice_at_once(self) -> None:
        async with self.player.step("two calls at once") as note:
            first, second = await asyncio.gather(
                self.ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "K"}),
                self.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "3"}),
            )
            outcomes = [first[1].outcome, second[1].outcome]
            expect(outcomes == ["success", "success"], f"expected two successes, got {outcomes}")
            note.say(f"{first[1].text} | {second[1].text}", second[0].latency)

    async def ask_wrongly(self) -> None:
        async with self.player.step("invalid arguments") as note:
            executed = self.player.environment.backend.records.executions.total()
            ask, told = await self.ask("ask_for_cards", {"targetPlayer": 7, "rank": "7"})
            expect(told.outcome == "failure", f"expected a failure, got {told.outcome}")
            expect("/targetPlayer" in told.text, f"the text does not name the place: {told.text}")
            expect(
                self.player.environment.backend.records.executions.total() == executed,
                "the backend was asked all the same",
            )
            note.say(told.text, ask.latency)

    async def ask_for_an_unknown_tool(self) -> None:
        async with self.player.step("an unknown tool") as note:
            ask, told = await self.ask("juggle", {"balls": 3})
            expect(told.outcome == "failure", f"expected a failure, got {told.outcome}")
            expect("juggle" in told.text, f"the text does not name the tool: {told.text}")
            note.say(told.text, ask.latency)

    async def ask_again_after_a_refusal(self) -> None:
        async with self.player.step("503 with Retry-After, tried again") as note:
            ask, told = await self.ask("flaky", {})
            expect(told.outcome == "success", f"failed: {told.text}")
            times = self.player.environment.backend.records.requests[await self.player.key_of(ask)]
            expect(times == 2, f"expected two requests with one webhook-id, counted {times}")
            note.say("two requests with one webhook-id, carried out once", ask.latency)

    async def accept_and_call_back(self) -> None:
        async with self.player.step("202, progress, callback") as note:
            ask, told = await self.ask("deal_later", {})
            expect(told.outcome == "success", f"failed: {told.text}")
            history = await self.player.environment.get(f"/v1/calls/{await self.player.key_of(ask)}")
            kinds = [envelope["event"]["kind"] for envelope in history["events"]]
            expect("call.progressed" in kinds, f"no progress on record: {kinds}")
            note.say(told.text, ask.latency)

    async def lose_the_connection(self, drop: Callable[[], Awaitable[None]]) -> None:
        """Break the link during a call; `drop` returns when a new one stands."""
        async with self.player.step("the link breaks during a call") as note:
            ask = await self.begin("slow_thing", {"seconds": 0.3})
            await drop()
            told = await ask.told()
            expect(told.outcome == "success", f"failed: {told.text}")
            note.say("the outcome waited for the new connection", ask.latency)

    async def begin_before_the_crash(self) -> tuple[Ask, Ask]:
        """Ask for something that may be repeated and for something that may not."""
        repeatable = await self.begin("slow_thing", {"seconds": WORK})
        return repeatable, await self.begin("pay_once", {"seconds": WORK})

    async def check_after_the_crash(self, repeatable: Ask, unrepeatable: Ask) -> None:
        """Hold the gateway to its promises about calls that a crash has cut in two."""
        records = self.player.environment.backend.records
        async with self.player.step("a repeatable call survives") as note:
            told = await repeatable.told(12)
            expect(told.outcome == "success", f"failed: {told.text}")
            key = await self.player.key_of(repeatable)
            note.say(f"asked {records.requests[key]} times, carried out {records.executions[key]}×", repeatable.latency)
        async with self.player.step("an unrepeatable one is not repeated") as note:
            told = await unrepeatable.told(12)
            key = await self.player.key_of(unrepeatable)
            expect(records.requests[key] == 1, f"the backend was asked {records.requests[key]} times")
            expect(told.outcome == "failure", f"expected a failure, got {told.outcome}")
            expect("unknown" in told.text, f"the text does not say that the outcome is unknown: {told.text}")
            dead = (await self.player.environment.get("/v1/dead-letters"))["data"]
            expect(any(row.get("call_id") == key for row in dead), "it is not listed for the operator")
            note.say(told.text, unrepeatable.latency)

    async def look_back(self) -> None:
        """Check what must hold of all calls over the whole game."""
        asked = self.player.asked
        records = self.player.environment.backend.records
        keys = [await self.player.key_of(ask) for ask in asked]
        async with self.player.step("one outcome for each call") as note:
            for ask in asked:
                expect(bool(ask.answers), f"{ask.tool} was never answered")
                expect(all(answer == ask.answers[0] for answer in ask.answers), f"{ask.tool} has two outcomes")
            twice = [key for key in keys if records.executions[key] > 1]
            expect(not twice, f"{len(twice)} calls were carried out twice")
            repeats = sum(len(ask.answers) - 1 for ask in asked)
            note.say(f"{len(asked)} calls answered, {repeats} byte-identical repeats")
        async with self.player.step("copies of the outcomes arrived") as note:

            def complete() -> bool:
                told = [copy["data"]["event"] for copy in records.events if copy["type"] == "tool.finished"]
                return set(keys) <= {event.get("call_id") for event in told}

            await self.player.backend_has(complete, "some outcomes were not copied to the destination")
            note.say(f"{len(set(keys))} signed copies of tool.finished")


async def check_journal(player: Player) -> None:
    """Check that nothing is missing between the first event and the last."""
    async with player.step("the journal has no gaps") as note:
        sequences = [envelope["sequence"] for envelope in await player.journal()]
        expect(sequences == list(range(1, len(sequences) + 1)), f"gaps in {sequences}")
        rejected = [each for each in await player.journal() if each["event"]["kind"] in {"frame.rejected", "opaque"}]
        note.say(f"events 1 to {len(sequences)}, {len(rejected)} of them kept as they came")
