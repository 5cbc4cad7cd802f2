"""The demo's OpenHands V1 runtime: an agent-server, whose agent calls the backend's tools over MCP."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from gateway.testing.demo.environment import V1, Environment
from gateway.testing.demo.player import WAIT, Ask, Envelope, Player, Told
from gateway.testing.demo.report import Report, Unmet, expect
from gateway.testing.demo.tools import Game, check_journal, converse
from gateway.testing.runtimes.openhands_v1.events import Frame, file_call, terminal_call
from gateway.testing.runtimes.openhands_v1.server import AgentServer, SimConversation

LISTING = "deck.txt\nrules.md\n"


class OpenHandsV1Ask:
    """A call of the agent at the gateway's MCP server; the gateway assigns its id when it records the call."""

    mark = '"tools/call"'

    def __init__(self, tool: str, calling: Awaitable[Frame], find: Callable[[str], Awaitable[str]]) -> None:
        self.tool = tool
        self.native_id = ""
        self.latency: timedelta | None = None
        self.answers: list[Any] = []
        self._calling = calling
        self._find = find

    async def outcome(self, within: float = WAIT) -> Told:
        began = time.monotonic()
        async with asyncio.timeout(within):
            event = await self._calling
        self.latency = _since(began)
        self.native_id = await self._find(self.tool)
        expect(event["kind"] == "ObservationEvent", f"the agent saw {event['kind']}: {event.get('error')}")
        seen = event["observation"]
        self.answers.append(seen)
        return Told("failure" if seen["is_error"] else "success", str(seen["content"][-1]["text"]))


class OpenHandsV1Side:
    """A conversation that the gateway has created."""

    def __init__(self, environment: Environment, report: Report, server: AgentServer) -> None:
        self.player = Player(environment, report, V1)
        self._server = server
        self._game = Game(self.player, self._ask)
        self._work: SimConversation | None = None
        self._waiting: asyncio.Task[list[Frame]] | None = None
        self._missed: Frame = {}
        self._before = 0

    @property
    def work(self) -> SimConversation:
        """The conversation.

        Raises:
            Unmet: it was never created.
        """
        if self._work is None:
            raise Unmet("there is no conversation")
        return self._work

    async def play(self) -> None:
        """Play the steps before the crash."""
        await converse(self.player, self.player.environment.greeting, hear=self._hear, answer=self._answer)
        await self._game.make_illegal_move()
        await self._game.retry_after_503()
        await self._game.accept_and_call_back()
        await self.run_its_own_action()
        await self.allow_action()
        await self.deny_actions()
        await self.interrupt_turn()
        await self.lose_the_connection()

    async def connect(self) -> None:
        async with self.player.step("the gateway creates a conversation") as note:
            session = await self.player.find_session()
            work = self._server.conversations[session["native_id"]]
            assert isinstance(work, SimConversation)
            self._work = work
            await work.wait_connections()
            expect(len(self._server.conversations) == 1, "more than one conversation was created")
            expect(work.events == [], "something was stored before the first message")
            note.say(f"{session['native_id']}, protocol {session['protocol']}")

    async def ask_for_cards(self) -> None:
        async with self.player.step("a call at our MCP server, linked") as note:
            ask, result = await self._game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(result.outcome == "success", f"failed: {result.text}")
            linked = await self.player.event("call.linked")
            expect(linked["event"]["call_id"] == await self.player.key_of(ask), "linked to another call")
            action = next(each for each in await self.player.journal() if each["sequence"] == linked["caused_by"])
            expect(action["event"]["tool"] == "ask_for_cards", f"linked is {action['event']['tool']}")
            note.say(result.text, ask.latency)

    async def run_its_own_action(self) -> None:
        async with self.player.step("the agent's own action, recorded") as note:
            began = time.monotonic()
            executed = self.player.environment.backend.records.executions.total()
            seen = await self.work.agent_runs("ls", LISTING)
            finished = await self._finished(seen["action_id"])
            requested = await self._requested(finished)
            expect(requested["event"]["runs_in"] == "runtime", "the gateway took it for a call to the host")
            expect(finished["event"]["outcome"] == "success", f"recorded as {finished['event']['outcome']}")
            expect(
                self.player.environment.backend.records.executions.total() == executed,
                "the backend was asked to run it",
            )
            note.say("tool.requested and tool.finished, executed only by the runtime", _since(began))

    async def allow_action(self) -> None:
        async with self.player.step("an approval, granted by the policy") as note:
            began = time.monotonic()
            (seen,) = await self._gated("rm hand.txt")
            latency = _since(began)
            expect(seen["kind"] == "ObservationEvent", f"the agent saw {seen['kind']}")
            asked = await self._approval(seen["action_id"])
            await self._finished(seen["action_id"])
            expect(not self.work.violations, f"answered too early: {self.work.violations}")
            note.say(f"requested in event {asked['sequence']}, allowed by the backend's route", latency)

    async def deny_actions(self) -> None:
        async with self.player.step("one approval for two actions, denied") as note:
            began = time.monotonic()
            first, second = await self._gated("rm -rf /workspace", more=True)
            expect("rejection_reason" in first, f"the agent saw {first['kind']}")
            expect("rejection_reason" in second, f"the agent saw {second['kind']}")
            await self._approval(first["action_id"])
            for event in (first, second):
                expect((await self._finished(event["action_id"]))["event"]["outcome"] != "success", "it succeeded")
            ran = [arguments.get("command") for _, arguments in self.work.executed]
            expect("rm -rf /workspace" not in ran, "the command ran")
            # The gateway lets the agent continue with the reason.
            await self.work.wait_status("running", WAIT)
            note.say("neither ran, and the agent continues with the reason", _since(began))

    async def interrupt_turn(self) -> None:
        async with self.player.step("an interrupt during a command") as note:
            began = time.monotonic()
            action = await self.work.agent_starts("sleep 60")
            await self.player.event("tool.requested", lambda each: each["event"].get("native_call_id") == action["id"])
            await self.player.drive(kind="turn.interrupted", reason="enough")
            await self.work.wait_status("paused", WAIT)
            finished = await self._finished(action["id"])
            self.work.agent_ends(action, "slept after all")
            expect(finished["event"]["outcome"] != "success", "an interrupted command succeeded")
            note.say("paused; the command ended as interrupted, once", _since(began))

    async def lose_the_connection(self) -> None:
        async with self.player.step("the link breaks while it works") as note:
            began = time.monotonic()
            before = self.work.connections
            expect(await self.work.drop() == 1, "there was no connection to drop")
            await self.work.wait_disconnected()
            missed = await self.work.agent_runs("shuffle", "shuffled\n")
            await self.work.wait_connections(before + 1)
            finished = await self._finished(missed["action_id"])
            note.say(f"resumed; the missed action is event {finished['sequence']}", _since(began))

    # Around the crash

    async def start_calls(self) -> int:
        self._before = self.work.connections
        return 0

    async def work_offline(self) -> None:
        """Run one command, and wait for approval of another, without a gateway."""
        await self.work.wait_disconnected()
        self._missed = await self.work.agent_runs("deal --all", "dealt\n")
        gated = self.work.agent_acts(terminal_call("rm notes.md"), gated=True)
        self._waiting = asyncio.create_task(gated)

    async def wait_reconnected(self) -> None:
        await self.work.wait_connections(self._before + 1)

    async def check_calls_after_crash(self) -> None:
        async with self.player.step("caught up; waiting action approved") as note:
            waiting = self._waiting
            expect(waiting is not None, "no action is waiting")
            assert waiting is not None
            async with asyncio.timeout(WAIT):
                (seen,) = await waiting
            expect(seen["kind"] == "ObservationEvent", f"the agent saw {seen['kind']}")
            finished = await self._finished(self._missed["action_id"])
            expect(
                (await self._requested(finished))["event"]["runs_in"] == "runtime",
                "the agent's own action became a call for the host",
            )
            await self._approval(seen["action_id"])
            note.say(f"the missed action is event {finished['sequence']}; approval was requested once")
        await converse(self.player, self.player.environment.farewell, hear=self._hear, answer=self._answer)

    async def check_game(self) -> None:
        async with self.player.step("no protocol violations") as note:
            breaches = [*self.work.violations, *self._server.violations, *self._server.sockets.refused]
            expect(not breaches, f"{len(breaches)} violations: {breaches[:3]}")
            note.say(f"{len(self.work.received)} operations, none lost")
        await self._game.check_game()
        async with self.player.step("its own actions ran in the runtime") as note:
            calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
            expect(len(calls) == len(self.player.asked), f"the gateway recorded {len(calls)} calls")
            mirrored = [
                each["event"]["arguments"]["command"]
                for each in await self.player.journal()
                if each["event"]["kind"] == "tool.requested" and each["event"]["tool"] == "terminal"
            ]
            asked = [
                event["action"]["command"]
                for event in self.work.events
                if event["kind"] == "ActionEvent" and event["tool_name"] == "terminal"
            ]
            expect(mirrored == asked, f"recorded are {mirrored}")
            note.say(f"{len(asked)} commands, all recorded in order")
        await check_journal(self.player)

    def end(self) -> None:
        """Cancel the waiting command."""
        if self._waiting is not None:
            self._waiting.cancel()

    # Helpers

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return OpenHandsV1Ask(tool, self.work.agent_calls(tool, arguments), self._newest)

    async def _newest(self, tool: str) -> str:
        """Return the native id of the newest call of a tool."""
        calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
        known = {ask.native_id for ask in self.player.asked}
        fresh = [str(call["native_call_id"]) for call in calls if call["tool"] == tool]
        fresh = [name for name in fresh if name not in known]
        expect(len(fresh) == 1, f"the gateway has {len(fresh)} new calls of {tool}")
        return fresh[0]

    async def _hear(self, text: str) -> str:
        await self.work.wait_for(lambda what, body: what == "message" and body == text, WAIT)
        await self.player.event(
            "message.posted",
            lambda each: (
                each["direction"] == "to_runtime"
                and any(block.get("text") == text for block in each["event"]["content"])
            ),
        )
        return "POST events"

    async def _answer(self, text: str) -> None:
        await self.work.agent_says(text, pieces=[text[:6], text[6:]])

    async def _gated(self, command: str, *, more: bool = False) -> list[Frame]:
        calls = [terminal_call(command, risk="HIGH"), *([file_call("/workspace/log.txt", "x")] if more else ())]
        async with asyncio.timeout(WAIT):
            return await self.work.agent_acts(*calls, gated=True)

    async def _approval(self, action_id: str) -> Envelope:
        """Find the single request for approval that starts with an action, and check that the backend saw it once."""
        asked = await self.player.event("approval.asked", lambda each: each["event"]["native_call_id"] == action_id)
        judged = [
            event for event in self.player.environment.backend.records.judged if event["native_call_id"] == action_id
        ]
        expect(len(judged) == 1, f"the policy received {len(judged)} requests")
        await self.player.event("approval.given", lambda each: each["caused_by"] == asked["sequence"])
        return asked

    async def _finished(self, action_id: str) -> Envelope:
        """Wait for the `tool.finished` of an action."""
        return await self.player.event("tool.finished", lambda each: each["event"]["native_call_id"] == action_id)

    async def _requested(self, finished: Envelope) -> Envelope:
        found = [each for each in await self.player.journal() if each["sequence"] == finished["caused_by"]]
        expect(bool(found) and found[0]["event"]["kind"] == "tool.requested", "the outcome has no cause")
        return found[0]


def _since(began: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - began)
