"""The demo's OpenHands runtime: it works by itself, and the gateway watches, allows and orders."""

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
    """A call of an OpenHands agent at the gateway's MCP server, which has no id before it is on record there."""

    mark = '"tools/call"'

    def __init__(self, tool: str, calling: Awaitable[Frame], find: Callable[[str], Awaitable[str]]) -> None:
        self.tool = tool
        self.native_id = ""
        self.latency: timedelta | None = None
        self.answers: list[Any] = []
        self.observation: Frame = {}
        self._calling = calling
        self._find = find

    async def told(self, within: float = WAIT) -> Told:
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
        """Play all that needs no crash."""
        await converse(self.player, self.player.environment.greeting, hear=self._hear, answer=self._answer)
        await self._game.ask_for_what_is_not_there()
        await self._game.ask_again_after_a_refusal()
        await self._game.accept_and_call_back()
        await self.run_its_own_action()
        await self.be_allowed()
        await self.be_denied()
        await self.take_an_order()
        await self.be_ordered_to_write()
        await self.be_stopped()
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
            ask, told = await self._game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(told.outcome == "success", f"failed: {told.text}")
            blocks = [block["text"] for block in ask.answers[0]["content"]]
            expect(len(blocks) == 2 and "cards-asked" in blocks[0], f"expected the update first, got {blocks}")
            linked = await self.player.event("call.linked")
            expect(linked["event"]["call_id"] == await self.player.key_of(ask), "linked to another call")
            action = next(each for each in await self.player.journal() if each["sequence"] == linked["caused_by"])
            expect(action["event"]["tool"] == "call_tool_mcp", f"linked is {action['event']['tool']}")
            note.say(told.text, ask.latency)

    async def run_its_own_action(self) -> None:
        async with self.player.step("an action of its own, mirrored") as note:
            began = time.monotonic()
            executed = self.player.environment.backend.records.executions.total()
            action = (await self.work.agent_runs("ls", LISTING))["cause"]
            told = await self._finished(action)
            requested = await self._requested(told)
            expect(requested["event"]["runs_in"] == "runtime", "the gateway thinks that the host runs it")
            expect(told["event"]["outcome"] == "success", f"told as {told['event']['outcome']}")
            expect(
                self.player.environment.backend.records.executions.total() == executed,
                "the backend was asked to run it",
            )
            note.say("tool.requested and tool.finished, executed by nobody else", _since(began))

    async def be_allowed(self) -> None:
        async with self.player.step("an approval, given by the policy") as note:
            began = time.monotonic()
            last = await self._gated("rm deck.txt")
            latency = _since(began)
            expect(last["observation"] == "run", f"the agent saw {last['observation']!r}")
            asked = await self._approval("rm deck.txt")
            told = await self._finished(last["cause"])
            requested = await self._requested(told)
            expect(requested["event"].get("supersedes") is not None, "the action sent again is taken for a new one")
            note.say(f"asked in event {asked['sequence']}, allowed by the backend's route", latency)

    async def be_denied(self) -> None:
        async with self.player.step("an approval, refused by the policy") as note:
            began = time.monotonic()
            last = await self._gated("rm -rf /")
            expect(last["observation"] == "user_rejected", f"the agent saw {last['observation']!r}")
            expect((await self._finished(last["cause"]))["event"]["outcome"] != "success", "told as a success")
            note.say("the command was never run", _since(began))

    async def take_an_order(self) -> None:
        async with self.player.step("an ordered action, observed") as note:
            began = time.monotonic()
            self.work.workspace.outputs["cat rules.md"] = ("Ask for a rank that you hold.\n", 0)
            order = await self.player.drive(kind="action.ordered", action="run", arguments={"command": "cat rules.md"})
            told = await self.player.event(
                "tool.finished", lambda each: each["caused_by"] == order["sequence"], after=order["sequence"]
            )
            expect("rank that you hold" in str(told["event"]["result"]), f"the output is lost: {told['event']}")
            executed = [args["command"] for name, args in self.work.workspace.executed if name == "run"]
            expect(executed == ["cat rules.md"], f"the runtime was ordered {executed}")
            note.say(f"event {told['sequence']} is caused by order {order['sequence']}", _since(began))

    async def be_ordered_to_write(self) -> None:
        async with self.player.step("an order that would poison it") as note:
            event = {"kind": "action.ordered", "action": "write", "arguments": {"path": "/a", "content": "x"}}
            answer = await self.player.environment.http.post(
                f"/v1/sessions/{self.player.session_id}/events", json=event
            )
            expect(answer.status_code == 422, f"expected 422, got {answer.status_code}")
            detail = str(answer.json().get("detail"))
            expect("edit" in detail, f"the reason does not say what to do instead: {detail}")
            note.say(f"422: {detail}")

    async def be_stopped(self) -> None:
        async with self.player.step("an interrupt, and what ends twice") as note:
            began = time.monotonic()
            action = await self.work.agent_starts("sleep 60")
            await self.player.event("tool.requested", lambda each: _is_about(each["event"], "sleep 60"))
            await self.player.drive(kind="turn.interrupted", reason="enough")
            await self.work.wait_event(lambda event: event.get("extras", {}).get("agent_state") == "stopped", WAIT)
            await self.work.agent_ends(action, "slept after all")
            await self._finished(action["id"], times=2)
            note.say("stopped; the action ended as not executed, and then once more", _since(began))

    async def lose_the_connection(self) -> None:
        async with self.player.step("the link breaks while it works") as note:
            began = time.monotonic()
            before = self.work.connections
            expect(await self.work.drop() == 1, "there was no connection to break")
            await self.work.wait_disconnected()
            missed = await self.work.agent_runs("shuffle", "shuffled\n")
            await self.work.wait_connections(before + 1)
            told = await self._finished(missed["cause"])
            latest = self.work.handshakes[-1]["latest_event_id"]
            note.say(f"resumed after {latest}; what was missed is event {told['sequence']}", _since(began))

    # Around the crash

    async def begin_before_the_crash(self) -> int:
        self._before = self.work.connections
        return 0

    async def go_on_alone(self) -> None:
        """Run one command, and wait for permission for another, with no gateway there."""
        await self.work.wait_disconnected()
        self._missed = await self.work.agent_runs("deal --all", "dealt\n")
        gated = self.work.agent_runs("rm rules.md", "", gated=True)
        self._waiting = asyncio.create_task(gated)

    async def wait_until_back(self) -> None:
        await self.work.wait_connections(self._before + 1)

    async def check_after_the_crash(self) -> None:
        async with self.player.step("caught up, and allowed what waited") as note:
            waiting = self._waiting
            expect(waiting is not None, "nothing was missed")
            assert waiting is not None
            async with asyncio.timeout(WAIT):
                last = await waiting
            expect(last["observation"] == "run", f"the agent saw {last['observation']!r}")
            told = await self._finished(self._missed["cause"])
            expect(
                (await self._requested(told))["event"]["runs_in"] == "runtime", "history was taken for a host's call"
            )
            await self._approval("rm rules.md")
            note.say(f"what was missed is event {told['sequence']}; the permission was asked for once")
        await converse(self.player, self.player.environment.farewell, hear=self._hear, answer=self._answer)

    async def look_back(self) -> None:
        async with self.player.step("the protocol was kept") as note:
            breaches = [*self.work.violations, *self._server.violations, *self._server.refused]
            expect(not breaches, f"{len(breaches)} breaches: {breaches[:3]}")
            note.say(f"{len(self.work.received)} actions, all acknowledged")
        await self._game.look_back()
        async with self.player.step("its own work was done by nobody else") as note:
            calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
            expect(len(calls) == len(self.player.asked), f"the gateway has {len(calls)} calls of it")
            ordered = [args.get("command") for _, args in self.work.workspace.executed]
            expect(ordered == ["cat rules.md"], f"the gateway ordered {ordered}")
            mirrored = await self._commands()
            ran = [event for event in self.work.events if event.get("action") == "run" and event["source"] == "agent"]
            expect(mirrored == [event["args"]["command"] for event in ran], f"on record are {mirrored}")
            note.say(f"{len(ran)} commands of its own, all mirrored in order")
        await check_journal(self.player)

    def end(self) -> None:
        """Give up what still waits."""
        if self._waiting is not None:
            self._waiting.cancel()

    # What several steps need

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return OpenHandsAsk(tool, self.work.agent_calls(tool, arguments), self._newest)

    async def _newest(self, tool: str) -> str:
        """Find what the gateway calls the newest call of a tool."""
        calls = (await self.player.environment.get("/v1/calls", session_id=self.player.session_id))["data"]
        found = [str(call["native_call_id"]) for call in calls if call["tool"] == tool]
        known = {ask.native_id for ask in self.player.asked}
        fresh = [name for name in found if name not in known]
        expect(len(fresh) == 1, f"the gateway has {len(fresh)} new calls of {tool}")
        return fresh[0]

    async def _hear(self, text: str) -> str:
        await self.work.wait_for(lambda payload: payload["args"].get("content") == text, WAIT)
        echoes = await self.player.event("message.posted", lambda each: _says(each, text))
        expect(echoes["direction"] == "to_runtime", "the echo is taken for another client's message")
        return "oh_action"

    async def _answer(self, text: str) -> None:
        await self.work.agent_says(text)

    async def _gated(self, command: str) -> Frame:
        async with asyncio.timeout(WAIT):
            return await self.work.agent_runs(command, "", gated=True)

    async def _approval(self, command: str) -> Envelope:
        """Find the one time that permission for a command was asked for, and that the backend was asked."""
        asked = await self.player.event("approval.asked", lambda each: _is_about(each["event"], command))
        judged = [event for event in self.player.environment.backend.records.judged if _is_about(event, command)]
        expect(len(judged) == 1, f"the policy was asked {len(judged)} times")
        await self.player.event("approval.given", lambda each: each["caused_by"] == asked["sequence"])
        return asked

    async def _finished(self, action: int, *, times: int = 1) -> Envelope:
        """Find how an action ended; its native id is the action's."""
        return await self.player.event(
            "tool.finished", lambda each: _is_of(each["event"]["native_call_id"], action), times=times
        )

    async def _requested(self, told: Envelope) -> Envelope:
        found = [each for each in await self.player.journal() if each["sequence"] == told["caused_by"]]
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
