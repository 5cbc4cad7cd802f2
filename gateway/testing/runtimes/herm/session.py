"""A simulated Herm session: the turns and requests of its agent, and the application's answers."""

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
    """Resets the connections that stream a session."""

    def cut_streams(self, session_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Manners:
    """The server's behavior in points that the documents leave open."""

    echoes: bool = True
    """Whether the application's events are listed and streamed too; secrets never are."""
    replays: bool = False
    """Whether a stream starts with the events after `Last-Event-ID` or `after`."""
    keepalive: float = 15.0
    answers_late: bool = False
    """Whether the response to a post is delayed until its turn has ended or waits, and all streams have its events."""


class SimSession:
    """One session; it emits to all streams, and lists the durable events."""

    def __init__(self, session_id: str, agent_id: str, *, wire: Wire, manners: Manners) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self.created: Frame = {}
        """The body of the request that created the session."""
        self.gone: Literal["archived", "deleted"] | None = None
        self.received: list[Received] = []
        """Every accepted event of the application, including secrets."""
        self.refused: list[str] = []
        """The code and text of every refused request."""
        self.violations: list[str] = []
        """The refused requests that a correct client never sends."""
        self.turn = False
        """Whether a turn is open; it may be waiting for answers."""
        self._wire = wire
        self._manners = manners
        self._change = Change()
        self._log = Log(session_id, self._change, keepalive=manners.keepalive)
        self._asked: dict[str, Asked] = {}
        self._count = 0

    @property
    def events(self) -> list[Frame]:
        """The listed envelopes."""
        return self._log.events

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._log.listeners)

    @property
    def streams_opened(self) -> int:
        """The number of streams that were ever opened."""
        return self._log.opened

    @property
    def open(self) -> list[Asked]:
        """The agent's open requests, oldest first."""
        return [asked for asked in self._asked.values() if asked.settled is None and not asked.closed]

    # Requests of the agent

    def call(self, tool: str, arguments: Frame, *, call_id: str | None = None) -> Asked:
        """Call a custom tool."""
        return self.call_all([(tool, arguments)], call_ids=[call_id])[0]

    def call_all(self, calls: list[tuple[str, Frame]], *, call_ids: list[str | None] | None = None) -> list[Asked]:
        """Call several custom tools in one step."""
        given = call_ids or [None] * len(calls)
        asked: list[Asked] = []
        for (tool, arguments), call_id in zip(calls, given, strict=True):
            name = call_id or f"custom_toolu_{uuid4().hex[:16]}"
            payload = {"type": "agent.custom_tool_use", "id": name, "tool": tool, "input": arguments}
            asked.append(self._ask(name, "tool", payload))
        self._pause()
        return asked

    async def agent_calls(self, tool: str, arguments: Frame, *, within: float = ANSWER_LIMIT) -> Frame:
        """Call a custom tool and wait; return the posted result."""
        return await self.call(tool, arguments).answered(within)

    def ask_approval(
        self, tool: str, arguments: Frame, *, mcp: bool = False, preview: str | None = None, use_id: str | None = None
    ) -> Asked:
        """Use the agent's own tool, which needs the application's approval."""
        name = use_id or f"{'mcptoolu' if mcp else 'toolu'}_{uuid4().hex[:16]}"
        payload = _use(name, tool, arguments, mcp=mcp, preview=preview) | {"requires_action": True}
        asked = self._ask(name, "approval", payload)
        self._pause()
        return asked

    def clarify(self, question: str, choices: list[str] | None = None) -> Asked:
        """Ask a human a question."""
        name = f"clarify_{uuid4().hex[:8]}"
        payload = {"type": "agent.clarify_request", "request_id": name, "question": question, "choices": choices}
        asked = self._ask(name, "clarify", payload)
        self._pause()
        return asked

    def ask_sudo(self) -> Asked:
        """Ask for a password; Herm does not document the event."""
        name = f"sudo_{uuid4().hex[:8]}"
        asked = self._ask(name, "sudo", {"type": "agent.sudo_request", "request_id": name})
        self._pause()
        return asked

    def ask_secret(self, prompt: str, env_var: str) -> Asked:
        """Ask for a secret; Herm does not document the event."""
        name = f"secret_{uuid4().hex[:8]}"
        payload = {"type": "agent.secret_request", "request_id": name, "prompt": prompt, "env_var": env_var}
        asked = self._ask(name, "secret", payload)
        self._pause()
        return asked

    # The agent's own actions

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
        """Use the agent's own tool, after approval if it is gated; return the payload of the result."""
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
        """Send a message: live chunks first, then the complete message."""
        self._stream("agent.message", text, whole=whole)

    def thinks(self, text: str) -> None:
        """Send the agent's reasoning, live chunks first."""
        self._stream("agent.thinking", text, whole=True)

    def delegate(self, thread_id: str, task: str) -> None:
        """Delegate work to another thread."""
        self.emit({"type": "agent.thread_message_sent", "thread_id": thread_id, "content": _text(task)})

    def hear_back(self, thread_id: str, result: str) -> None:
        """Receive the result of another thread, possibly long after the turn."""
        self.emit({"type": "agent.thread_message_received", "thread_id": thread_id, "content": _text(result)})

    def begin_turn(self) -> None:
        """Start a turn if none is open."""
        if not self.turn:
            self.turn = True
            self.emit({"type": "session.status_running"})

    def end_turn(self, *, title: str | None = None) -> None:
        """End the turn; then send a title as a live event."""
        self._idle({"type": "end_turn"})
        if title is not None:
            self.emit({"type": "session.title_updated", "title": title}, durable=False)

    def fail(self, message: str) -> None:
        """End the turn with an error."""
        self._idle({"type": "error", "message": message})

    def emit(self, payload: Frame, *, durable: bool = True) -> Frame:
        """Emit a payload in an envelope."""
        return self._log.add(payload, durable=durable)

    def emit_envelope(self, envelope: Frame) -> None:
        """Stream an envelope unchanged, without storing it."""
        self._log.send(envelope, durable=True)

    # Streams

    def hold_events(self) -> None:
        """Stream nothing until `release_events`; events are still listed."""
        self._log.hold()

    def release_events(self) -> int:
        """Stream the held events in order; return their number."""
        return self._log.release()

    def drop_streams(self) -> int:
        """Reset the connections of all streams, as a network failure does; return their number."""
        return self._wire.cut_streams(self.session_id)

    def close_streams(self) -> int:
        """Close all streams gracefully; return their number."""
        return self._log.close()

    async def wait_streams(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until `count` streams were ever opened and one is still open."""
        await self._change.until(
            lambda: (self.streams_opened >= count and self.streams > 0) or None,
            within,
            what=lambda: f"{count} streams of {self.session_id!r}, {self.streams_opened} arrived",
        )

    async def wait_no_stream(self, within: float = PATIENCE) -> None:
        """Wait until no stream is open."""
        await self._change.until(lambda: self.streams == 0 or None, within, what=lambda: "no stream")

    async def wait_for(
        self, predicate: Callable[[Any], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Received:
        """Wait for a matching posted event with a number above `after`."""
        return await self._change.until(
            lambda: next((each for each in self.received if each.number > after and predicate(each.payload)), None),
            within,
            what=lambda: f"a matching event; the last ones were {str(self._shown())[:2000]}",
        )

    # Called by the server

    def listen(self, replay_after: str | None) -> AsyncGenerator[str]:
        """Stream the session."""
        return self._log.listen(replay_after if self._manners.replays else None)

    def page(self, query: dict[str, str]) -> Frame:
        """List the session.

        Raises:
            Objection: a parameter is invalid.
        """
        return self._log.page(query)

    def accept(self, events: list[Frame]) -> list[Frame]:
        """Accept all events of a request, or none.

        Raises:
            Objection: with the response to the client.
        """
        self._check(events)
        return [self._take(event) for event in events]

    async def wait_streamed(self, within: float = ANSWER_LIMIT) -> None:
        """Wait until the turn has ended or waits, and all streams have every event."""
        await self._change.until(
            lambda: ((not self.turn or bool(self.open)) and self._log.streamed) or None,
            within,
            what=lambda: "the end of the turn",
        )

    def object_to(self, objection: Objection, *, careless: bool = True) -> None:
        """Record a refused request."""
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
                    # Not a violation: a client cannot know that a turn has just started.
                    self._refuse(409, "turn_in_progress", "a turn is running or waits for answers", careless=False)
                busy = True
            elif kind in ANSWERS:
                field, expected = ANSWERS[kind]
                name = event[field]
                if name in answered:
                    self._refuse(400, "validation_error", f"{name[:64]!r} is answered twice in one request")
                answered.add(name)
                self._check_answer(event, self._asked.get(name), expected)

    def _check_answer(self, event: Frame, asked: Asked | None, expected: str) -> None:
        kind = event["type"]
        if asked is None:
            self._refuse(404, "not_found", f"{kind} answers an unknown request")
        elif asked.kind != expected:
            self._refuse(400, "validation_error", f"{kind} does not answer a {asked.kind}")
        elif asked.closed:
            self._refuse(409, "already_settled", "the turn was interrupted", careless=False)
        elif asked.answers and not same_answer(asked.answers[0], event):
            self._refuse(409, "already_settled", f"{kind} differs from the first answer")

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
