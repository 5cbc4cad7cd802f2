"""A simulated Herm session: its agent's turns, what it asks of the application, and what it is answered."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from uuid import uuid4

from gateway.testing.change import PATIENCE, Change, Received
from gateway.testing.runtimes.herm.asked import Asked as Asked, Interrupted as Interrupted, Kind
from gateway.testing.runtimes.herm.rules import ANSWERS, Frame, Objection, same_answer, without_secrets
from gateway.testing.runtimes.herm.stream import Log

KEPT_FRAMES = 10_000
KEPT_QUESTIONS = 10_000
ANSWER_LIMIT = 60.0
CHUNKS = 3


class Wire(Protocol):
    """How a session reaches the connections of those who stream it."""

    def cut_streams(self, session_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Manners:
    """How the simulated server behaves where the documents are silent."""

    echoes: bool = True
    """Whether what the application posts is listed and streamed as well; secrets never are."""
    replays: bool = False
    """Whether a stream begins with what came after `Last-Event-ID` or `after`."""
    keepalive: float = 15.0
    answers_late: bool = False
    """Whether a post is answered only when its turn has ended, or waits, and all streams were written that."""


class SimSession:
    """One session; what it emits goes to all streams, what is durable stays in the list."""

    def __init__(self, session_id: str, agent_id: str, *, wire: Wire, manners: Manners) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self.created: Frame = {}
        """What the session was created with."""
        self.gone: Literal["archived", "deleted"] | None = None
        self.received: list[Received] = []
        """Every event that was posted and taken, secrets included."""
        self.refused: list[str] = []
        """The code and text of every request that was not carried out."""
        self.violations: list[str] = []
        """Those of them that a careful client would never send."""
        self.turn = False
        """Whether a turn was begun and has not ended; it may wait for answers."""
        self._wire = wire
        self._manners = manners
        self._change = Change()
        self._log = Log(session_id, self._change, keepalive=manners.keepalive)
        self._asked: dict[str, Asked] = {}
        self._count = 0

    @property
    def events(self) -> list[Frame]:
        """The envelopes that a list shows."""
        return self._log.events

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._log.listeners)

    @property
    def streams_opened(self) -> int:
        """How many streams were ever opened."""
        return self._log.opened

    @property
    def open(self) -> list[Asked]:
        """What the agent waits for, in the order it was asked."""
        return [asked for asked in self._asked.values() if asked.settled is None and not asked.closed]

    # What the agent asks

    def call(self, tool: str, arguments: Frame, *, call_id: str | None = None) -> Asked:
        """Ask for a custom tool."""
        return self.call_all([(tool, arguments)], call_ids=[call_id])[0]

    def call_all(self, wanted: list[tuple[str, Frame]], *, call_ids: list[str | None] | None = None) -> list[Asked]:
        """Ask for several custom tools in one step, and wait for all of them at once."""
        given = call_ids or [None] * len(wanted)
        asked: list[Asked] = []
        for (tool, arguments), call_id in zip(wanted, given, strict=True):
            name = call_id or f"custom_toolu_{uuid4().hex[:16]}"
            payload = {"type": "agent.custom_tool_use", "id": name, "tool": tool, "input": arguments}
            asked.append(self._ask(name, "tool", payload))
        self._pause()
        return asked

    async def agent_calls(self, tool: str, arguments: Frame, *, within: float = ANSWER_LIMIT) -> Frame:
        """Ask for a custom tool and wait; returns the posted result."""
        return await self.call(tool, arguments).answered(within)

    def ask_approval(
        self, tool: str, arguments: Frame, *, mcp: bool = False, preview: str | None = None, use_id: str | None = None
    ) -> Asked:
        """Use a tool of its own that needs the application's permission."""
        name = use_id or f"{'mcptoolu' if mcp else 'toolu'}_{uuid4().hex[:16]}"
        payload = _use(name, tool, arguments, mcp=mcp, preview=preview) | {"requires_action": True}
        asked = self._ask(name, "approval", payload)
        self._pause()
        return asked

    def clarify(self, question: str, choices: list[str] | None = None) -> Asked:
        """Ask a person something."""
        name = f"clarify_{uuid4().hex[:8]}"
        payload = {"type": "agent.clarify_request", "request_id": name, "question": question, "choices": choices}
        asked = self._ask(name, "clarify", payload)
        self._pause()
        return asked

    def ask_sudo(self) -> Asked:
        """Ask for a password; how Herm does it is not documented."""
        name = f"sudo_{uuid4().hex[:8]}"
        asked = self._ask(name, "sudo", {"type": "agent.sudo_request", "request_id": name})
        self._pause()
        return asked

    def ask_secret(self, prompt: str, env_var: str) -> Asked:
        """Ask for a secret; how Herm does it is not documented."""
        name = f"secret_{uuid4().hex[:8]}"
        payload = {"type": "agent.secret_request", "request_id": name, "prompt": prompt, "env_var": env_var}
        asked = self._ask(name, "secret", payload)
        self._pause()
        return asked

    # What the agent does by itself

    async def agent_uses(
        self,
        tool: str,
        arguments: Frame,
        output: str,
        *,
        gated: bool = False,
        mcp: bool = False,
        within: float = ANSWER_LIMIT,
    ) -> Frame:
        """Use a tool of its own, with permission where it is gated; returns the payload of the result."""
        denied = False
        if gated:
            asked = self.ask_approval(tool, arguments, mcp=mcp)
            name = asked.asked_id
            if (await asked.answered(within))["result"] == "deny":
                output, denied = "The user denied this.", True
        else:
            name = f"{'mcptoolu' if mcp else 'toolu'}_{uuid4().hex[:16]}"
            self.begin_turn()
            self.emit(_use(name, tool, arguments, mcp=mcp))
        result: Frame = {
            "type": f"agent.{'mcp_' if mcp else ''}tool_result",
            "tool_use_id": name,
            "tool": tool,
            "status": "failed" if denied else "completed",
            "content": [{"type": "text", "text": output}],
            "is_error": denied,
        }
        self.emit(result)
        return result

    def says(self, text: str, *, whole: bool = True) -> None:
        """Say something: in chunks, which are live only, and then whole."""
        self._stream("agent.message", text, whole=whole)

    def thinks(self, text: str) -> None:
        """Show its reasoning, chunks first."""
        self._stream("agent.thinking", text, whole=True)

    def delegate(self, thread_id: str, task: str) -> None:
        """Hand work to another thread."""
        self.emit({"type": "agent.thread_message_sent", "thread_id": thread_id, "content": _text(task)})

    def hear_back(self, thread_id: str, result: str) -> None:
        """Get the result of another thread, maybe long after the turn."""
        self.emit({"type": "agent.thread_message_received", "thread_id": thread_id, "content": _text(result)})

    def begin_turn(self) -> None:
        """Begin a turn where none runs."""
        if not self.turn:
            self.turn = True
            self.emit({"type": "session.status_running"})

    def end_turn(self, *, title: str | None = None) -> None:
        """End the turn; a title comes after that, and is live only."""
        self._idle({"type": "end_turn"})
        if title is not None:
            self.emit({"type": "session.title_updated", "title": title}, durable=False)

    def fail(self, message: str) -> None:
        """End the turn in an error."""
        self._idle({"type": "error", "message": message})

    def emit(self, payload: Frame, *, durable: bool = True) -> Frame:
        """Emit any payload in an envelope."""
        return self._log.add(payload, durable=durable)

    def emit_envelope(self, envelope: Frame) -> None:
        """Stream any envelope as it is, without keeping it."""
        self._log.send(envelope, durable=True)

    # Streams

    def hold_events(self) -> None:
        """Stream nothing until `release_events`; what happens is listed all the same."""
        self._log.hold()

    def release_events(self) -> int:
        """Stream what was held back, in its order; returns how many events that were."""
        return self._log.let_go()

    def drop_streams(self) -> int:
        """Reset the connections of all streams, as a cut cable would; returns how many."""
        return self._wire.cut_streams(self.session_id)

    def close_streams(self) -> int:
        """End all streams in the orderly way; returns how many."""
        return self._log.close()

    async def wait_streams(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until `count` streams were ever opened and one of them still is."""
        await self._change.until(
            lambda: (self.streams_opened >= count and self.streams > 0) or None,
            within,
            what=lambda: f"{count} streams of {self.session_id!r}, {self.streams_opened} came",
        )

    async def wait_no_stream(self, within: float = PATIENCE) -> None:
        """Wait until nobody streams."""
        await self._change.until(lambda: self.streams == 0 or None, within, what=lambda: "no stream")

    async def wait_for(
        self, predicate: Callable[[Any], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Received:
        """Wait for a posted event that fits, among those numbered above `after`."""
        return await self._change.until(
            lambda: next((each for each in self.received if each.number > after and predicate(each.payload)), None),
            within,
            what=lambda: f"a fitting event; the last ones were {str(self._shown())[:2000]}",
        )

    # What the server tells the session

    def listen(self, replay_after: str | None) -> AsyncGenerator[str]:
        """Stream the session."""
        return self._log.listen(replay_after if self._manners.replays else None)

    def page(self, query: dict[str, str]) -> Frame:
        """List the session.

        Raises:
            Objection: a parameter makes no sense.
        """
        return self._log.page(query)

    def accept(self, events: list[Frame]) -> list[Frame]:
        """Take a request: all of its events, or none.

        Raises:
            Objection: with the answer for the client.
        """
        self._check(events)
        return [self._take(event) for event in events]

    async def wait_told(self, within: float = ANSWER_LIMIT) -> None:
        """Wait until no turn works, and all streams were written everything that happened."""
        await self._change.until(
            lambda: ((not self.turn or bool(self.open)) and self._log.streamed) or None,
            within,
            what=lambda: "the end of the turn",
        )

    def object_to(self, objection: Objection, *, careless: bool = True) -> None:
        """Record a request that was not carried out."""
        line = f"{objection.code}: {objection}"
        for record in (self.refused, self.violations) if careless else (self.refused,):
            record.append(line)
            del record[:-KEPT_FRAMES]

    def _check(self, events: list[Frame]) -> None:
        busy = self.turn
        answered: set[str] = set()
        for event in events:
            kind = event["type"]
            if kind == "user.interrupt":
                busy = False
            elif kind == "user.message":
                if busy:
                    # Whoever posts at the very moment a turn begins could not know, so it is no breach.
                    self._refuse(409, "turn_in_progress", "a turn is running or waits for answers", careless=False)
                busy = True
            elif kind in ANSWERS:
                field, wanted = ANSWERS[kind]
                name = event[field]
                if name in answered:
                    self._refuse(400, "validation_error", f"{name[:64]!r} is answered twice in one request")
                answered.add(name)
                self._check_answer(event, self._asked.get(name), wanted)

    def _check_answer(self, event: Frame, asked: Asked | None, wanted: str) -> None:
        kind = event["type"]
        if asked is None:
            self._refuse(404, "not_found", f"{kind} answers nothing that was asked")
        elif asked.kind != wanted:
            self._refuse(400, "validation_error", f"{kind} does not answer a {asked.kind}")
        elif asked.closed:
            self._refuse(409, "already_settled", "the turn was interrupted", careless=False)
        elif asked.answers and not same_answer(asked.answers[0], event):
            self._refuse(409, "already_settled", f"{kind} differs from the answer that was given")

    def _refuse(self, status: int, code: str, message: str, *, careless: bool = True) -> None:
        objection = Objection(status, code, message)
        self.object_to(objection, careless=careless)
        raise objection

    def _take(self, event: Frame) -> Frame:
        self.received.append(Received(self._count, event))
        self._count += 1
        if len(self.received) > KEPT_FRAMES:
            del self.received[: KEPT_FRAMES // 10]
        shown = without_secrets(event)
        if self._manners.echoes and shown is event:
            envelope = self.emit(event)
        else:
            envelope = {
                "id": f"in_{self._count}",
                "type": event["type"],
                "sessionId": self.session_id,
                "payload": shown,
            }
        match event["type"]:
            case "user.message":
                self.begin_turn()
            case "user.interrupt":
                self._interrupt()
            case kind if kind in ANSWERS:
                self._settle(self._asked[event[ANSWERS[kind][0]]], event)
            case _:
                pass
        self._change.tell()
        return envelope

    def _settle(self, asked: Asked, event: Frame) -> None:
        repeated = bool(asked.answers)
        asked.settle(event)
        if repeated:
            return
        if self.open:
            self._pause()
        elif self.turn:
            self.emit({"type": "session.status_running"})

    def _interrupt(self) -> None:
        for asked in self.open:
            asked.closed = True
        if self.turn:
            self._idle({"type": "end_turn"})

    def _ask(self, asked_id: str, kind: Kind, payload: Frame) -> Asked:
        self.begin_turn()
        asked = Asked(asked_id, kind, payload, self._change)
        self._asked[asked_id] = asked
        while len(self._asked) > KEPT_QUESTIONS:
            del self._asked[next(iter(self._asked))]
        self.emit(payload)
        return asked

    def _pause(self) -> None:
        names = [asked.asked_id for asked in self.open]
        reason = {"type": "requires_action", "event_ids": names}
        self.emit({"type": "session.status_idle", "stop_reason": reason})

    def _idle(self, reason: Frame) -> None:
        self.turn = False
        self.emit({"type": "session.status_idle", "stop_reason": reason})

    def _stream(self, kind: str, text: str, *, whole: bool) -> None:
        self.begin_turn()
        step = max(1, -(-len(text) // CHUNKS))
        for start in range(0, len(text), step):
            self.emit({"type": kind, "content": _text(text[start : start + step]), "delta": True}, durable=False)
        if whole:
            self.emit({"type": kind, "content": _text(text), "delta": False})

    def _shown(self) -> list[Frame]:
        return [without_secrets(each.payload) for each in self.received[-5:]]


def _use(name: str, tool: str, arguments: Frame, *, mcp: bool, preview: str | None = None) -> Frame:
    kind = f"agent.{'mcp_' if mcp else ''}tool_use"
    more = {} if preview is None else {"preview": preview}
    return {"type": kind, "id": name, "tool": tool, "input": arguments, "status": "running", **more}


def _text(text: str) -> list[Frame]:
    return [{"type": "text", "text": text}]
