"""The demo's script: the game as both agents play it, and what must come true at each step."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gateway.simulators.demo_board import Board, Unmet, expect
from gateway.simulators.demo_stage import RUNTIMES, Stage
from gateway.simulators.huma import SimAgent, SimCall
from gateway.simulators.huma_rules import ResultFrame

WORK = 2.5
"""Seconds the backend works while the gateway is killed."""


class Side:
    """One agent's side of the game."""

    def __init__(self, stage: Stage, board: Board, dialect: str) -> None:
        self.stage = stage
        self.board = board
        self.dialect = dialect
        self.runtime = RUNTIMES[dialect]
        self.agent: SimAgent = stage.huma[dialect].agent(self.runtime)
        self.asked: list[SimCall] = []
        self.session_id = ""

    async def play(self) -> None:
        """Play all that needs no crash."""
        await self.connect()
        await self.ask_for_cards()
        await self.ask_for_what_is_not_there()
        await self.ask_twice_at_once()
        await self.speak()
        await self.ask_wrongly()
        await self.ask_for_an_unknown_tool()
        await self.ask_again_after_a_refusal()
        await self.cancel()
        await self.accept_and_call_back()
        await self.lose_the_connection()

    async def connect(self) -> None:
        async with self.board.step(self.dialect, "the gateway connects") as note:
            await self.agent.wait_connected()
            session = await self._session()
            self.session_id = session["session_id"]
            note.say(f"session {self.session_id}, protocol {session['protocol']}")

    async def ask_for_cards(self) -> None:
        async with self.board.step(self.dialect, "a call, updates first") as note:
            before = len(self.agent.received)
            call, read = await self._ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(read.outcome == "success", f"failed: {read.error}")
            frames = [frame.payload for frame in self.agent.received[before:]]
            expect(len(frames) >= 2 and frames[-1] == call.results[0], "the result came before the update")
            update = frames[-2].get("content", frames[-2])
            shown = self.stage.backend.games[self.session_id].view()
            expect(update.get("name") == "cards-asked", f"expected the update, got {update.get('name')!r}")
            expect(update["context"].get("yourHand") == shown["yourHand"], "the update shows an old hand")
            expect(update.get("triggering", False) is False, "the update would wake the agent")
            note.say(str(read.result), call.latency)

    async def ask_for_what_is_not_there(self) -> None:
        async with self.board.step(self.dialect, "a move the rules forbid") as note:
            call, read = await self._ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "A"})
            expect(read.outcome == "failure", f"expected a failure, got {read.outcome}")
            expect("ranks you have" in (read.error or ""), f"the backend's text is lost: {read.error}")
            note.say(str(read.error), call.latency)

    async def ask_twice_at_once(self) -> None:
        async with self.board.step(self.dialect, "two calls at once") as note:
            first, second = await asyncio.gather(
                self._ask("ask_for_cards", {"targetPlayer": "Alice", "rank": "K"}),
                self._ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "3"}),
            )
            outcomes = [first[1].outcome, second[1].outcome]
            expect(outcomes == ["success", "success"], f"expected two successes, got {outcomes}")
            note.say(f"{first[1].result} | {second[1].result}", second[0].latency)

    async def speak(self) -> None:
        if self.dialect == "0.1":
            async with self.board.step(self.dialect, "a message, said by a tool") as note:
                call, read = await self._ask("send_message", {"message": "Got any 7s?"})
                expect(read.outcome == "success", f"failed: {read.error}")
                note.say(f"{read.result!s}: Got any 7s?", call.latency)
            return
        async with self.board.step(self.dialect, "a burst of messages, confirmed") as note:
            confirmations = await self.agent.say(["Hello!", "Got any 7s?", "x" * 600, "never sent"], within=10)
            expect(not any(each.assumed for each in confirmations), "a confirmation did not come in time")
            delivered = [each.success for each in confirmations]
            expect(delivered == [True, True, False], f"expected two delivered and one refused, got {delivered}")
            chat = str(self.agent.context.get("conversationHistory"))
            expect("Got any 7s?" in chat, "the confirmation does not carry the chat")
            error = str((confirmations[2].payload or {}).get("error"))
            expect("at most 500" in error, f"the reason of the refusal is lost: {error}")
            worst = max(each.latency for each in confirmations)
            note.say("two delivered; the third, too long, refused with its reason", worst)

    async def ask_wrongly(self) -> None:
        async with self.board.step(self.dialect, "invalid arguments") as note:
            executed = self.stage.backend.records.executions.total()
            call, read = await self._ask("ask_for_cards", {"targetPlayer": 7, "rank": "7"})
            expect(read.outcome == "failure", f"expected a failure, got {read.outcome}")
            expect("/targetPlayer" in (read.error or ""), f"the text does not name the place: {read.error}")
            expect(self.stage.backend.records.executions.total() == executed, "the backend was asked all the same")
            note.say(str(read.error), call.latency)

    async def ask_for_an_unknown_tool(self) -> None:
        async with self.board.step(self.dialect, "an unknown tool") as note:
            call, read = await self._ask("juggle", {"balls": 3})
            expect(read.outcome == "failure", f"expected a failure, got {read.outcome}")
            expect("juggle" in (read.error or ""), f"the text does not name the tool: {read.error}")
            note.say(str(read.error), call.latency)

    async def ask_again_after_a_refusal(self) -> None:
        async with self.board.step(self.dialect, "503 with Retry-After, tried again") as note:
            call, read = await self._ask("flaky", {})
            expect(read.outcome == "success", f"failed: {read.error}")
            times = self.stage.backend.records.requests[await self._key_of(call)]
            expect(times == 2, f"expected two requests with one webhook-id, counted {times}")
            note.say("two requests with one webhook-id, carried out once", call.latency)

    async def cancel(self) -> None:
        async with self.board.step(self.dialect, "a cancel while the tool works") as note:
            call = await self._begin("slow_thing", {"seconds": 30})
            asked = time.monotonic()
            await self.agent.cancel(call, "the player interrupted")
            await call.result(10)
            latency = timedelta(seconds=time.monotonic() - asked)
            expect(_read(call).outcome == "canceled", f"expected canceled, got {_read(call).outcome}")
            key = await self._key_of(call)
            canceled = self.stage.backend.records.canceled
            await self._until(lambda: key in canceled, "the backend was not told")
            note.say("the agent has its answer, the backend has stopped", latency)

    async def accept_and_call_back(self) -> None:
        async with self.board.step(self.dialect, "202, progress, callback") as note:
            call, read = await self._ask("deal_later", {})
            expect(read.outcome == "success", f"failed: {read.error}")
            story = await self.stage.get(f"/v1/calls/{await self._key_of(call)}")
            kinds = [envelope["event"]["kind"] for envelope in story["events"]]
            expect("call.progressed" in kinds, f"no progress on record: {kinds}")
            note.say(str(read.result), call.latency)

    async def lose_the_connection(self) -> None:
        async with self.board.step(self.dialect, "the link breaks during a call") as note:
            call = await self._begin("slow_thing", {"seconds": 0.3})
            before = self.agent.connections
            expect(await self.agent.drop() >= 1, "there was no connection to break")
            await self.agent.wait_connections(before + 1)
            await call.result(10)
            expect(_read(call).outcome == "success", f"failed: {_read(call).error}")
            note.say("the outcome waited for the new connection", call.latency)

    async def hear_a_message(self) -> None:
        async with self.board.step(self.dialect, "a message by the HTTP API") as note:
            text = f"Your turn, Finn ({self.dialect})"
            author = {"role": "user", "id": "alice", "name": "Alice"}
            began = time.monotonic()
            event = {"kind": "message.posted", "author": author, "content": text}
            await self.stage.post(f"/v1/sessions/{self.session_id}/events", event)
            frame = await self.agent.wait_for(lambda payload: text in json.dumps(payload), 10)
            latency = timedelta(seconds=time.monotonic() - began)
            expect(frame.payload.get("triggering", True) is True, "the message does not wake the agent")
            note.say(f"the agent got it as {frame.payload['type']}", latency)

    async def look_back(self) -> None:
        """Check what must hold over the whole game."""
        async with self.board.step(self.dialect, "one outcome for each call") as note:
            for call in self.asked:
                expect(bool(call.results), f"{call.tool} was never answered")
                expect(all(frame == call.results[0] for frame in call.results), f"{call.tool} has two outcomes")
            repeats = sum(len(call.results) - 1 for call in self.asked)
            note.say(f"{len(self.asked)} calls answered, {repeats} byte-identical repeats")
        async with self.board.step(self.dialect, "the protocol was kept") as note:
            expect(not self.agent.violations, f"{len(self.agent.violations)} breaches: {self.agent.violations[:3]}")
            note.say(f"{len(self.agent.received)} frames, none refused by the server")
        async with self.board.step(self.dialect, "the journal has no gaps") as note:
            sequences = await self._sequences()
            expect(sequences == list(range(1, len(sequences) + 1)), f"gaps in {sequences}")
            note.say(f"events 1 to {len(sequences)}")
        async with self.board.step(self.dialect, "copies of the outcomes arrived") as note:
            missing = {await self._key_of(call) for call in self.asked}
            events = self.stage.backend.records.events

            def complete() -> bool:
                told = [copy["data"]["event"] for copy in events if copy["type"] == "tool.finished"]
                return missing <= {event.get("call_id") for event in told}

            await self._until(complete, "some outcomes were not copied to the destination")
            note.say(f"{len(missing)} signed copies of tool.finished")

    # What several steps need

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> tuple[SimCall, ResultFrame]:
        call = await self.agent.call(tool, arguments)
        self.asked.append(call)
        await call.result(10)
        return call, _read(call)

    async def _begin(self, tool: str, arguments: dict[str, Any]) -> SimCall:
        """Ask, and return as soon as the backend is at work."""
        executions = self.stage.backend.records.executions
        before = executions.total()
        call = await self.agent.call(tool, arguments)
        self.asked.append(call)
        await self._until(lambda: executions.total() > before, f"the backend was not asked for {tool}")
        return call

    async def _until(self, held: Callable[[], bool], otherwise: str) -> None:
        try:
            await self.stage.backend.changed.until(lambda: held() or None, 10, what=lambda: otherwise)
        except TimeoutError as exc:
            raise Unmet(otherwise) from exc

    async def _session(self) -> dict[str, Any]:
        sessions = (await self.stage.get("/v1/sessions"))["data"]
        found = [session for session in sessions if session["runtime"] == self.runtime]
        expect(len(found) == 1, f"expected one session of {self.runtime}, found {len(found)}")
        return found[0]

    async def _key_of(self, call: SimCall) -> str:
        """Return the gateway's own id of a call, which is also its webhook-id."""
        calls = (await self.stage.get("/v1/calls", session_id=self.session_id, limit=100))["data"]
        found = [row["call_id"] for row in calls if row["native_call_id"] == call.call_id]
        expect(len(found) == 1, f"the gateway has {len(found)} records of {call.tool}")
        return str(found[0])

    async def _sequences(self) -> list[int]:
        sequences: list[int] = []
        while True:
            after = sequences[-1] if sequences else 0
            page = (await self.stage.get(f"/v1/sessions/{self.session_id}/events", after=after, limit=500))["data"]
            if not page:
                return sequences
            sequences.extend(envelope["sequence"] for envelope in page)

    async def begin_before_the_crash(self) -> tuple[SimCall, SimCall]:
        """Ask for something that may be repeated and for something that may not."""
        repeatable = await self._begin("slow_thing", {"seconds": WORK})
        unrepeatable = await self._begin("pay_once", {"seconds": WORK})
        return repeatable, unrepeatable

    async def check_after_the_crash(self, repeatable: SimCall, unrepeatable: SimCall) -> None:
        """Hold the gateway to its promises about calls that a crash has cut in two."""
        records = self.stage.backend.records
        async with self.board.step(self.dialect, "a repeatable call survives") as note:
            await repeatable.result(12)
            expect(_read(repeatable).outcome == "success", f"failed: {_read(repeatable).error}")
            key = await self._key_of(repeatable)
            note.say(f"asked {records.requests[key]} times, carried out {records.executions[key]}×", repeatable.latency)
        async with self.board.step(self.dialect, "an unrepeatable one is not repeated") as note:
            await unrepeatable.result(12)
            read = _read(unrepeatable)
            key = await self._key_of(unrepeatable)
            expect(records.requests[key] == 1, f"the backend was asked {records.requests[key]} times")
            expect(read.outcome == "failure", f"expected a failure, got {read.outcome}")
            expect("unknown" in (read.error or ""), f"the text does not say that the outcome is unknown: {read.error}")
            dead = (await self.stage.get("/v1/dead-letters"))["data"]
            expect(any(row.get("call_id") == key for row in dead), "it is not listed for the operator")
            note.say(str(read.error), unrepeatable.latency)


def _read(call: SimCall) -> ResultFrame:
    if call.reading is None:
        raise Unmet(f"{call.tool} has no result")
    return call.reading


async def crash_in_the_middle(stage: Stage, board: Board, sides: list[Side]) -> None:
    """Kill the gateway while it waits for the backend, start it again, and see what became of the calls."""
    open_calls: list[tuple[SimCall, SimCall]] = []
    connections = [side.agent.connections for side in sides]
    async with board.step("both", "kill -9 in the middle of calls") as note:
        open_calls = [await side.begin_before_the_crash() for side in sides]
        await stage.kill_gateway()
        note.say(f"the gateway is dead, {2 * len(open_calls)} calls are open")
    if not open_calls:
        return
    async with board.step("both", "started again", within=30) as note:
        began = time.monotonic()
        await stage.start_gateway()
        for side, before in zip(sides, connections, strict=True):
            await side.agent.wait_connections(before + 1)
        note.say("ready, and both agents are connected again", timedelta(seconds=time.monotonic() - began))
    for side, (repeatable, unrepeatable) in zip(sides, open_calls, strict=True):
        await side.check_after_the_crash(repeatable, unrepeatable)
        await side.hear_a_message()
