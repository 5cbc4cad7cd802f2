"""The demo's OpenHands runtime: it runs its own actions; the gateway records, approves and orders them."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from gateway.testing.demo.environment import Environment
from gateway.testing.demo.player import WAIT, Ask, Envelope, Player, Told
from gateway.testing.demo.report import Report, Unmet, expect
from gateway.testing.demo.tools import Game, check_journal, converse
from gateway.testing.runtimes.openhands.rules import Frame
from gateway.testing.runtimes.openhands.server import SimConversation

LISTING = "deck.txt\nrules.md\n"


class OpenHandsAsk:
    """A call of an OpenHands agent at the gateway's MCP server; the gateway assigns its id when it records the call."""

    mark = '"tools/call"'

    def __init__(self, tool: str, calling: Awaitable[Frame], find: Callable[[str], Awaitable[str]]) -> None:
        self.tool = tool
        self.native_id = ""
        self.latency: timedelta | None = None
        self.answers: list[Any] = []
        self.observation: Frame = {}
        self._calling = calling
        self._find = find

    async def outcome(self, within: float = WAIT) -> Told:
        began = time.monotonic()
        async with asyncio.timeout(within):
            self.observation = await self._calling
        self.latency = _since(began)
        self.native_id = await self._find(self.tool)
        expect(self.observation["observation"] == "mcp", f"the agent saw {self.observation['observation']!r}")
        answer = json.loads(self.observation["content"])
        self.answers.append(answer)
        return Told("failure" if answer["isError"] else "success", str(answer["content"][-1]["text"]))


class OpenHandsSide:
    """A conversation that the gateway has created over REST."""

    def __init__(self, environment: Environment, report: Report) -> None:
        self.player = Player(environment, report, "openhands")
        self._server = environment.openhands
        self._game = Game(self.player, self._ask)
        self._work: SimConversation | None = None
        self._waiting: asyncio.Task[Frame] | None = None
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
        await self.deny_action()
        await self.order_action()
        await self.refuse_order()
        await self.interrupt_turn()
        await self.lose_the_connection()

    async def connect(self) -> None:
        async with self.player.step("the gateway creates a conversation") as note:
            session = await self.player.find_session()
            self._work = self._server.conversation(session["native_id"])
            await self.work.wait_connections()
            await self.work.wait_event(lambda event: event.get("action") == "system")
            expect(len(self._server.conversations) == 1, "more than one conversation was created")
            note.say(f"{session['native_id']}, protocol {session['protocol']}")

    async def ask_for_cards(self) -> None:
        async with self.player.step("a call at our MCP server, linked") as note:
            ask, result = await self._game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(result.outcome == "success", f"failed: {result.text}")
            blocks = [block["text"] for block in ask.answers[0]["content"]]
            expect(len(blocks) == 2 and "cards-asked" in blocks[0], f"expected the update first, got {blocks}")
            linked = await self.player.event("call.linked")
            expect(linked["event"]["call_id"] == await self.player.key_of(ask), "linked to another call")
            action = next(each for each in await self.player.journal() if each["sequence"] == linked["caused_by"])
            expect(action["event"]["tool"] == "call_tool_mcp", f"linked is {action['event']['tool']}")
            note.say(result.text, ask.latency)

    async def run_its_own_action(self) -> None:
        async with self.player.step("the agent's own action, recorded") as note:
            began = time.monotonic()
            executed = self.player.environment.backend.records.executions.total()
            action = (await self.work.agent_runs("ls", LISTING))["cause"]
            finished = await self._finished(action)
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
            last = await self._gated("rm deck.txt")
            latency = _since(began)
            expect(last["observation"] == "run", f"the agent saw {last['observation']!r}")
            asked = await self._approval("rm deck.txt")
            finished = await self._finished(last["cause"])
            requested = await self._requested(finished)
            expect(requested["event"].get("supersedes") is not None, "the repeated action was taken for a new one")
            note.say(f"requested in event {asked['sequence']}, allowed by the backend's route", latency)

    async def deny_action(self) -> None:
        async with self.player.step("an approval, denied by the policy") as note:
            began = time.monotonic()
            last = await self._gated("rm -rf /")
            expect(last["observation"] == "user_rejected", f"the agent saw {last['observation']!r}")
            expect((await self._finished(last["cause"]))["event"]["outcome"] != "success", "recorded as a success")
            note.say("the command did not run", _since(began))

    async def order_action(self) -> None:
        async with self.player.step("an ordered action and its result") as note:
            began = time.monotonic()
            self.work.workspace.outputs["cat rules.md"] = ("Ask for a rank that you hold.\n", 0)
            order = await self.player.drive(kind="action.ordered", action="run", arguments={"command": "cat rules.md"})
            finished = await self.player.event(
                "tool.finished", lambda each: each["caused_by"] == order["sequence"], after=order["sequence"]
            )
            expect(
                "rank that you hold" in str(finished["event"]["result"]), f"the output is missing: {finished['event']}"
            )
            executed = [args["command"] for name, args in self.work.workspace.executed if name == "run"]
            expect(executed == ["cat rules.md"], f"the runtime was ordered {executed}")
            note.say(f"order {order['sequence']} caused event {finished['sequence']}", _since(began))

    async def refuse_order(self) -> None:
        async with self.player.step("an action OpenHands would choke on") as note:
            event = {"kind": "action.ordered", "action": "write", "arguments": {"path": "/a", "content": "x"}}
            answer = await self.player.environment.http.post(
                f"/v1/sessions/{self.player.session_id}/events", json=event
            )
            expect(answer.status_code == 422, f"expected 422, got {answer.status_code}")
            detail = str(answer.json().get("detail"))
            expect("edit" in detail, f"the reason does not name the alternative: {detail}")
            note.say(f"422: {detail}")

    async def interrupt_turn(self) -> None:
        async with self.player.step("an interrupt; an action ends twice") as note:
            began = time.monotonic()
            action = await self.work.agent_starts("sleep 60")
            await self.player.event("tool.requested", lambda each: _is_about(each["event"], "sleep 60"))
            await self.player.drive(kind="turn.interrupted", reason="enough")
            await self.work.wait_event(lambda event: event.get("extras", {}).get("agent_state") == "stopped", WAIT)
            await self.work.agent_ends(action, "slept after all")
            await self._finished(action["id"], times=2)
            note.say("stopped; the action ended as not executed, then again with its result", _since(began))

    async def lose_the_connection(self) -> None:
        async with self.player.step("the link breaks while it works") as note:
            began = time.monotonic()
            before = self.work.connections
            expect(await self.work.drop() == 1, "there was no connection to drop")
            await self.work.wait_disconnected()
            missed = await self.work.agent_runs("shuffle", "shuffled\n")
            await self.work.wait_connections(before + 1)
            finished = await self._finished(missed["cause"])
            latest = self.work.handshakes[-1]["latest_event_id"]
            note.say(f"resumed after {latest}; the missed action is event {finished['sequence']}", _since(began))

    # Around the crash

    async def start_calls(self) -> int:
        self._before = self.work.connections
        return 0

    async def work_offline(self) -> None:
        """Run one command, and wait for approval of another, without a gateway."""
        await self.work.wait_disconnected()
        self._missed = await self.work.agent_runs("deal --all", "dealt\n")
        gated = self.work.agent_runs("rm rules.md", "", gated=True)
        self._waiting = asyncio.create_task(gated)

    async def wait_reconnected(self) -> None:
        await self.work.wait_connections(self._before + 1)

    async def check_calls_after_crash(self) -> None:
        async with self.player.step("caught up; waiting action approved") as note:
            waiting = self._waiting
            expect(waiting is not None, "no action is waiting")
            assert waiting is not None
            async with asyncio.timeout(WAIT):
                last = await waiting
            expect(last["observation"] == "run", f"the agent saw {last['observation']!r}")
            finished = await self._finished(self._missed["cause"])
            expect(
                (await self._requested(finished))["event"]["runs_in"] == "runtime",
                "the agent's own action became a call for the host",
            )
            await self._approval("rm rules.md")
            note.say(f"the missed action is event {finished['sequence']}; approval was requested once")
        await converse(self.player, self.player.environment.farewell, hear=self._hear, answer=self._answer)

    async def check_game(self) -> None:
        async with self.player.step("no protocol violations") as note:
            breaches = [*self.work.violations, *self._server.violations, *self._server.refused]
            expect(not breaches, f"{len(breaches)} violations: {breaches[:3]}")
            note.say(f"{len(self.work.received)} actions, all acknowledged")
        await self._game.check_game()
        async with self.player.step("its own actions ran in the runtime") as note:
            calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
            expect(len(calls) == len(self.player.asked), f"the gateway recorded {len(calls)} calls")
            ordered = [args.get("command") for _, args in self.work.workspace.executed]
            expect(ordered == ["cat rules.md"], f"the gateway ordered {ordered}")
            mirrored = await self._commands()
            ran = [event for event in self.work.events if event.get("action") == "run" and event["source"] == "agent"]
            expect(mirrored == [event["args"]["command"] for event in ran], f"recorded are {mirrored}")
            note.say(f"{len(ran)} commands, all recorded in order")
        await check_journal(self.player)

    def end(self) -> None:
        """Cancel the waiting command."""
        if self._waiting is not None:
            self._waiting.cancel()

    # Helpers

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return OpenHandsAsk(tool, self.work.agent_calls(tool, arguments), self._newest)

    async def _newest(self, tool: str) -> str:
        """Return the native id of the newest call of a tool."""
        calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
        found = [str(call["native_call_id"]) for call in calls if call["tool"] == tool]
        known = {ask.native_id for ask in self.player.asked}
        fresh = [name for name in found if name not in known]
        expect(len(fresh) == 1, f"the gateway has {len(fresh)} new calls of {tool}")
        return fresh[0]

    async def _hear(self, text: str) -> str:
        await self.work.wait_for(lambda payload: payload["args"].get("content") == text, WAIT)
        echoes = await self.player.event("message.posted", lambda each: _says(each, text))
        expect(echoes["direction"] == "to_runtime", "the echo was taken for another client's message")
        return "oh_action"

    async def _answer(self, text: str) -> None:
        await self.work.agent_says(text)

    async def _gated(self, command: str) -> Frame:
        async with asyncio.timeout(WAIT):
            return await self.work.agent_runs(command, "", gated=True)

    async def _approval(self, command: str) -> Envelope:
        """Find the single request for approval of a command, and check that the backend received it once."""
        asked = await self.player.event("approval.asked", lambda each: _is_about(each["event"], command))
        judged = [event for event in self.player.environment.backend.records.judged if _is_about(event, command)]
        expect(len(judged) == 1, f"the policy received {len(judged)} requests")
        await self.player.event("approval.given", lambda each: each["caused_by"] == asked["sequence"])
        return asked

    async def _finished(self, action: int, *, times: int = 1) -> Envelope:
        """Wait for the `tool.finished` of an action."""
        return await self.player.event(
            "tool.finished", lambda each: _is_of(each["event"]["native_call_id"], action), times=times
        )

    async def _requested(self, finished: Envelope) -> Envelope:
        found = [each for each in await self.player.journal() if each["sequence"] == finished["caused_by"]]
        expect(bool(found) and found[0]["event"]["kind"] == "tool.requested", "the outcome has no cause")
        return found[0]

    async def _commands(self) -> list[str]:
        return [
            each["event"]["arguments"]["command"]
            for each in await self.player.journal()
            if each["event"]["kind"] == "tool.requested" and each["event"]["tool"] == "run"
        ]


def _is_of(native_call_id: str, action: int) -> bool:
    return native_call_id.partition("@")[0] == str(action)


def _is_about(event: dict[str, Any], command: str) -> bool:
    return event["arguments"].get("command") == command


def _says(envelope: Envelope, text: str) -> bool:
    return any(block.get("text") == text for block in envelope["event"]["content"])


def _since(began: float) -> timedelta:
    return timedelta(seconds=time.monotonic() - began)
