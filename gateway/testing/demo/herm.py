"""The demo's Herm agent: it calls the same tools, and asks humans for approval, answers and secrets."""

import asyncio
import json
import secrets
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from httpx_sse import aconnect_sse

from gateway.testing.demo.environment import Environment
from gateway.testing.demo.player import WAIT, Ask, Player, Told, text_of
from gateway.testing.demo.report import Report, Unmet, expect
from gateway.testing.demo.tools import Game, check_journal, converse
from gateway.testing.runtimes.herm.rules import texts_of
from gateway.testing.runtimes.herm.server import Asked, SimSession


class HermAsk:
    """A call of a Herm agent."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    @property
    def native_id(self) -> str:
        return self.asked.asked_id

    @property
    def mark(self) -> str:
        return self.native_id

    @property
    def tool(self) -> str:
        return str(self.asked.payload["tool"])

    @property
    def latency(self) -> timedelta | None:
        return self.asked.latency

    @property
    def answers(self) -> list[Any]:
        return list(self.asked.answers)

    async def outcome(self, within: float = WAIT) -> Told:
        answer = await self.asked.answered(within)
        # The updates come first, the result is last.
        return Told("failure" if answer.get("is_error") else "success", str(answer["content"][-1]["text"]))


class HermSide:
    """A session that the gateway has created."""

    def __init__(self, environment: Environment, report: Report) -> None:
        self.player = Player(environment, report, "herm")
        self._server = environment.herm
        self._session: SimSession | None = None
        self._game = Game(self.player, self._ask)
        self._canary = f"canary-{secrets.token_urlsafe(16)}"
        self._before = 0
        self._open: tuple[Ask, Ask] | None = None

    @property
    def session(self) -> SimSession:
        """The session.

        Raises:
            Unmet: it was never created.
        """
        if self._session is None:
            raise Unmet("there is no session")
        return self._session

    async def play(self) -> None:
        """Play the steps before the crash."""
        await converse(self.player, self.player.environment.greeting, hear=self._hear, answer=self._answer)
        await self._game.play()
        await self.speak_in_chunks()
        await self.allow_action()
        await self.deny_action()
        await self.answer_question()
        await self.supply_secret()
        await self._game.lose_the_connection(self._drop)
        await self.wait_with_a_message()

    async def connect(self) -> None:
        async with self.player.step("the gateway creates a session") as note:
            session = await self.player.find_session()
            self._session = self._server.session(session["native_id"])
            await self.session.wait_streams()
            expect(len(self._server.sessions) == 1, "more than one session was created")
            note.say(f"{session['native_id']}, protocol {session['protocol']}")

    async def ask_for_cards(self) -> None:
        async with self.player.step("a call, updates first") as note:
            ask, result = await self._game.ask("ask_for_cards", {"targetPlayer": "Victoria", "rank": "7"})
            expect(result.outcome == "success", f"failed: {result.text}")
            blocks = [block["text"] for block in ask.answers[0]["content"]]
            expect(len(blocks) == 2 and "cards-asked" in blocks[0], f"expected the update first, got {blocks}")
            hand = self.player.environment.backend.games[self.player.session_id].view()["yourHand"]
            expect(json.dumps(hand, separators=(",", ":")) in blocks[0], "the update contains an outdated hand")
            note.say(result.text, ask.latency)
        self.session.end_turn()

    async def speak_in_chunks(self) -> None:
        async with self.player.step("live chunks, one recorded message") as note:
            began = time.monotonic()
            text = "It is my turn, and I still hold two kings."
            chunks: list[str] = []
            path = f"/v1/sessions/{self.player.session_id}/events/stream"
            async with aconnect_sse(self.player.environment.http, "GET", path) as source:
                self.session.says(text)
                async for event in source.aiter_sse():
                    if not event.data:
                        continue
                    shown = event.json()
                    if event.event == "message.streamed":
                        expect(shown["live"] is True, "a chunk is not marked as live")
                        chunks.append(shown["event"]["text"])
                    if event.event == "message.posted" and text_of(shown) == text:
                        break
            latency = timedelta(seconds=time.monotonic() - began)
            expect(len(chunks) > 1 and "".join(chunks) == text, f"the chunks were {chunks}")
            recorded = {each["event"]["kind"] for each in await self.player.journal()}
            expect("message.streamed" not in recorded, "chunks are in the journal")
            note.say(f"{len(chunks)} chunks, one message.posted", latency)

    async def allow_action(self) -> None:
        async with self.player.step("an approval, granted by the policy") as note:
            began = time.monotonic()
            result = await self._gated("rm deck.txt")
            latency = timedelta(seconds=time.monotonic() - began)
            expect(result["status"] == "completed", f"the tool ended as {result['status']}")
            given = [each.payload for each in self.session.received if each.payload["type"] == "user.tool_confirmation"]
            expect(given[-1].get("scope", "once") == "once", "the approval has a wider scope")
            note.say("agent.tool_use, allowed once by the backend's route", latency)

    async def deny_action(self) -> None:
        async with self.player.step("an approval, denied by the policy") as note:
            began = time.monotonic()
            result = await self._gated("rm -rf /")
            expect(result["is_error"] is True, "the tool ran although it was denied")
            note.say(texts_of(result["content"]), timedelta(seconds=time.monotonic() - began))

    async def answer_question(self) -> None:
        async with self.player.step("a question, answered by the HTTP API") as note:
            asked = self.session.clarify("Whom shall I ask?", ["Victoria", "Alice"])
            waiting = await self._interaction("question.asked")
            expect(waiting["event"]["choices"] == ["Victoria", "Alice"], "the choices are lost")
            page = f"/v1/interactions/{waiting['interaction_id']}/answer"
            done = await self.player.environment.post(page, {"answer": "Alice"})
            answer = await asked.answered(WAIT)
            expect(answer["answer"] == "Alice", f"the agent received {answer['answer']!r}")
            expect(done["state"] == "answered", f"the interaction is {done['state']}")
            again = await self.player.environment.http.post(page, json={"answer": "Victoria"})
            expect(again.status_code == 409, f"a second answer got {again.status_code}")
            note.say("answered once; a second answer gets 409", asked.latency)

    async def supply_secret(self) -> None:
        async with self.player.step("a sudo password, in memory only") as note:
            asked = self.session.ask_sudo()
            waiting = await self._interaction("secret.asked")
            page = f"/v1/interactions/{waiting['interaction_id']}/answer"
            done = await self.player.environment.http.post(page, json={"value": self._canary})
            expect(done.is_success, f"the answer got {done.status_code}")
            expect(self._canary not in done.text, "the response contains it")
            answer = await asked.answered(WAIT)
            expect(answer["password"] == self._canary, "the agent received another value")
            note.say("received by the agent", asked.latency)

    async def wait_with_a_message(self) -> None:
        async with self.player.step("a message waits for the turn's end") as note:
            text = "And when you are done, deal again."
            expect(self.session.turn, "no turn is running")
            posted = await self.player.drive(kind="message.posted", content=text)
            early = [each for each in self.session.received if text in json.dumps(each.payload)]
            expect(not early, "it was sent during the turn")
            self.session.end_turn(title="Go Fish")
            await self._hear(text)
            refused = [line for line in self.session.refused if "turn_in_progress" in line]
            expect(not refused, f"the server refused {len(refused)} messages")
            self.session.says("Dealt.")
            note.say(f"event {posted['sequence']} was sent after the turn")

    # Around the crash

    async def start_calls(self) -> int:
        self._before = self.session.streams_opened
        self._open = await self._game.start_calls()
        return 2

    async def work_offline(self) -> None:
        """Use the agent's own tool and receive from another thread, without a gateway."""
        await self.session.wait_no_stream()
        await self.session.agent_uses("terminal", {"command": "deal --all"}, "dealt")
        self.session.hear_back("thread_1", "The dealer has dealt.")

    async def wait_reconnected(self) -> None:
        await self.session.wait_streams(self._before + 1)

    async def check_calls_after_crash(self) -> None:
        if self._open is not None:
            await self._game.check_calls_after_crash(*self._open)
        async with self.player.step("replayed history was not re-executed") as note:
            received = await self.player.event("thread.received")
            used = await self.player.event(
                "tool.requested", lambda each: each["event"]["arguments"].get("command") == "deal --all"
            )
            expect(used["event"]["runs_in"] == "runtime", "the agent's own action became a call for the host")
            origins = [each["origin"] for each in await self.player.journal() if each["origin"] is not None]
            names = [str(origin["native_id"]) for origin in origins]
            incoming = [name for name in names if name.startswith("evt_")]
            expect(len(incoming) == len(set(incoming)), "some events are recorded twice")
            note.say(f"missed events recorded as {used['sequence']}–{received['sequence']}, without duplicates")
        self.session.end_turn()
        await converse(self.player, self.player.environment.farewell, hear=self._hear, answer=self._answer)
        self.session.end_turn()

    async def check_game(self) -> None:
        await self._game.check_game()
        async with self.player.step("no protocol violations") as note:
            breaches = [*self.session.violations, *self._server.violations]
            expect(not breaches, f"{len(breaches)} violations: {breaches[:3]}")
            note.say(f"{len(self.session.received)} events, none refused by the server")
        await check_journal(self.player)
        await self.search_for_secret()

    async def search_for_secret(self) -> None:
        async with self.player.step("the password is stored nowhere") as note:
            environment = self.player.environment
            pages = ["/v1/interactions", "/v1/calls", "/v1/dead-letters", "/v1/sessions", "/v1/runtimes", "/metrics"]
            texts = {page: (await environment.http.get(page)).text for page in pages}
            texts["the journal"] = json.dumps(await self.player.journal())
            texts["the copies"] = json.dumps(list(environment.backend.records.events))
            found = [name for name, text in texts.items() if self._canary in text]
            files = [path for path in sorted(environment.folder.rglob("*")) if path.is_file()]
            found += [path.name for path in files if await asyncio.to_thread(_holds, path, self._canary)]
            expect(not found, f"it is in {', '.join(found)}")
            note.say(f"not in {len(files)} files, including log and database, nor in {len(texts)} responses")

    # Helpers

    async def _ask(self, tool: str, arguments: dict[str, Any]) -> Ask:
        return HermAsk(self.session.call(tool, arguments))

    async def _gated(self, command: str) -> dict[str, Any]:
        async with asyncio.timeout(WAIT):
            return await self.session.agent_uses("terminal", {"command": command}, "done", gated=True)

    async def _interaction(self, kind: str) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            listed = (
                await self.player.environment.get(
                    "/v1/interactions", session_id=self.player.session_id, state="waiting"
                )
            )["data"]
            return next((each for each in listed if each["event"]["kind"] == kind), None)

        return await self.player.until(look, f"no {kind} is waiting for an answer")

    async def _hear(self, text: str) -> str:
        frame = await self.session.wait_for(
            lambda event: event["type"] == "user.message" and texts_of(event["content"]).endswith(text), WAIT
        )
        return str(frame.payload["type"])

    async def _answer(self, text: str) -> None:
        self.session.says(text)

    async def _drop(self) -> None:
        before = self.session.streams_opened
        expect(self.session.drop_streams() >= 1, "there was no stream to drop")
        await self.session.wait_streams(before + 1)


def _holds(path: Path, text: str) -> bool:
    return text.encode() in path.read_bytes()
