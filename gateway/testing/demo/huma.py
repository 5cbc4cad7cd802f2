"""The demo's HUMA agents, one per dialect."""

import json
import time
from datetime import timedelta
from typing import Any

from gateway.testing.demo.environment import Environment
from gateway.testing.demo.player import WAIT, Ask, Player, Told
from gateway.testing.demo.report import Report, Unmet, expect
from gateway.testing.demo.tools import Game, check_journal, converse
from gateway.testing.runtimes.huma.server import SimAgent, SimCall


class HumaAsk:
    """A call of a HUMA agent."""

    def __init__(self, call: SimCall) -> None:
        self.call = call

    @property
    def native_id(self) -> str:
        return self.call.call_id

    @property
    def mark(self) -> str:
        return self.native_id

    @property
    def tool(self) -> str:
        return self.call.tool

    @property
    def latency(self) -> timedelta | None:
        return self.call.latency

    @property
    def answers(self) -> list[Any]:
        return list(self.call.results)

    async def outcome(self, within: float = WAIT) -> Told:
        await self.call.result(within)
        reading = self.call.reading
        if reading is None:
            raise Unmet(f"{self.call.tool} has no result")
        return Told(reading.outcome, str(reading.result if reading.error is None else reading.error))


class HumaSide:
    """One agent's side of the game."""

    def __init__(self, environment: Environment, report: Report, dialect: str) -> None:
        self.player = Player(environment, report, f"huma {dialect}")
        self.dialect = dialect
        self.agent: SimAgent = environment.huma[dialect].agent(self.player.runtime)
        self._game = Game(self.player, self._ask)
        self._before = 0
        self._open: tuple[Ask, Ask] | None = None

    @property
    def interrupted(self) -> Ask | None:
        """The repeatable call during which the gateway was killed."""
        return None if self._open is None else self._open[0]

    async def play(self) -> None:
        """Play the steps before the crash."""
        await converse(self.player, self.player.environment.greeting, hear=self._hear, answer=self._answer)
        await self._game.play()
        await self.speak()
        await self.cancel()
        await self._game.lose_the_connection(self._drop)

    async def connect(self) -> None:
        async with self.player.step("the gateway connects") as note:
            await self.agent.wait_connected()
            session = await self.player.find_session()
            note.say(f"session {self.player.session_id}, protocol {session['protocol']}")

    async def ask_for_cards(self) -> None:
        async with self.player.step("a call, updates first") as note:
            before = len(self.agent.received)
            ask, result = await self._game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(result.outcome == "success", f"failed: {result.text}")
            frames = [frame.payload for frame in self.agent.received[before:]]
            expect(len(frames) >= 2 and frames[-1] == ask.answers[0], "the result came before the update")
            update = frames[-2].get("content", frames[-2])
            shown = self.player.environment.backend.games[self.player.session_id].view()
            expect(update.get("name") == "cards-asked", f"expected the update, got {update.get('name')!r}")
            expect(update["context"].get("yourHand") == shown["yourHand"], "the update contains an outdated hand")
            expect(update.get("triggering", False) is False, "the update would wake the agent")
            note.say(result.text, ask.latency)

    async def speak(self) -> None:
        if self.dialect == "0.1":
            async with self.player.step("a message, sent by a tool") as note:
                ask, result = await self._game.ask("send_message", {"message": "Got any 7s?"})
                expect(result.outcome == "success", f"failed: {result.text}")
                note.say(f"{result.text}: Got any 7s?", ask.latency)
            return
        async with self.player.step("a burst of messages, confirmed") as note:
            confirmations = await self.agent.say(["Hello!", "Got any 7s?", "x" * 600, "never sent"], within=10)
            expect(not any(each.assumed for each in confirmations), "a confirmation did not arrive in time")
            delivered = [each.success for each in confirmations]
            expect(delivered == [True, True, False], f"expected two delivered and one refused, got {delivered}")
            chat = str(self.agent.context.get("conversationHistory"))
            expect("Got any 7s?" in chat, "the confirmation does not contain the chat")
            error = str((confirmations[2].payload or {}).get("error"))
            expect("at most 500" in error, f"the reason of the refusal is missing: {error}")
            worst = max(each.latency for each in confirmations)
            note.say("two delivered; the third was too long and refused with a reason", worst)

    async def cancel(self) -> None:
        async with self.player.step("a cancel while the tool works") as note:
            ask = await self._game.begin("slow_thing", {"seconds": 30})
            asked = time.monotonic()
            await self.agent.cancel(self.agent.calls[ask.native_id], "the player interrupted")
            result = await ask.outcome()
            latency = timedelta(seconds=time.monotonic() - asked)
            expect(result.outcome == "canceled", f"expected canceled, got {result.outcome}")
            key = await self.player.key_of(ask)
            canceled = self.player.environment.backend.records.canceled
            await self.player.backend_has(lambda: key in canceled, "the backend received no cancellation")
            note.say("the agent has its result, the backend has stopped", latency)

    # Around the crash

    async def start_calls(self) -> int:
        self._before = self.agent.connections
        self._open = await self._game.start_calls()
        return 2

    async def work_offline(self) -> None:
        """Do nothing: HUMA has no replay, so a message to a dead gateway would be lost."""

    async def wait_reconnected(self) -> None:
        await self.agent.wait_connections(self._before + 1)

    async def check_calls_after_crash(self) -> None:
        if self._open is not None:
            await self._game.check_calls_after_crash(*self._open)
        await converse(self.player, self.player.environment.farewell, hear=self._hear, answer=self._answer)

    async def check_game(self) -> None:
        await self._game.check_game()
        async with self.player.step("no protocol violations") as note:
            expect(not self.agent.violations, f"{len(self.agent.violations)} violations: {self.agent.violations[:3]}")
            note.say(f"{len(self.agent.received)} frames, none refused by the server")
        await check_journal(self.player)

    # Helpers

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return HumaAsk(await self.agent.call(tool, arguments))

    async def _hear(self, text: str) -> str:
        frame = await self.agent.wait_for(lambda payload: text in json.dumps(payload), WAIT)
        expect(frame.payload.get("triggering", True) is True, "the message does not wake the agent")
        return str(frame.payload["type"])

    async def _answer(self, text: str) -> None:
        await self.agent.say([text], within=WAIT)

    async def _drop(self) -> None:
        before = self.agent.connections
        expect(await self.agent.drop() >= 1, "there was no connection to drop")
        await self.agent.wait_connections(before + 1)
