"""The common part of simulated conversations: the state, the lock of a running tool, and the operations of clients."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from gateway.testing.change import PATIENCE, Change, Received
from gateway.testing.runtimes.openhands_v1.events import (
    Frame,
    Status,
    state_update,
    stopped,
    streaming_delta,
    user_message,
)
from gateway.testing.runtimes.openhands_v1.log import EventLog, Listener
from gateway.testing.runtimes.openhands_v1.manners import Manners as Manners
from gateway.testing.runtimes.openhands_v1.mcp import McpClients
from gateway.testing.runtimes.openhands_v1.rules import Creation, McpEntry, Said, without_secrets
from gateway.testing.wire import Wire

KEPT_FRAMES = 10_000


class Busy(Exception):
    """The conversation is already running."""


class NoCapacity(Exception):
    """Too many conversations are running; a message has been saved all the same."""


class Host(Protocol):
    """The server of a conversation."""

    def may_run(self) -> bool:
        """Return whether another conversation may run."""
        ...

    def cut(self, conversation_id: str) -> int:
        """Reset the sockets of a conversation; return their number."""
        ...


class Conversation(ABC):
    """One conversation; its agent acts only in a run."""

    def __init__(
        self, conversation_id: str, creation: Creation, host: Host, manners: Manners, calling: Wire | None = None
    ) -> None:
        self.conversation_id = conversation_id
        self.creation = creation
        self.policy = creation.policy
        self.received: list[Received] = []
        """The messages and answers of clients, as `(operation, body)`."""
        self.violations: list[str] = []
        """What a correct client never does; the server sends no error."""
        self.connections = 0
        """The number of sockets that were ever subscribed."""
        self.status: Status = "idle"
        self.secrets: Frame = dict(creation.body.get("secrets") or {})
        self.change = Change()
        self.log = EventLog(self.change)
        self.lock = asyncio.Lock()
        """Held while a tool runs; most requests wait for it."""
        self.deleted = False
        self.manners = manners
        self.mcp = McpClients(self.reached_servers(creation), manners, calling)
        """The MCP servers of the agent, from its creation."""
        self._host = host
        self.ending = False
        """Whether the run has ended, but its `full_state` is not published yet."""
        self._running: asyncio.Task[None] | None = None
        """The run, until its `full_state` is published."""
        self._wanted = False
        """Whether a message has arrived at the end of a finished run."""
        self._created_at = _utc()
        self._last_user_message: str | None = None
        self._count = 0
        self._model_calls: int = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def events(self) -> list[Frame]:
        """All stored events, in order."""
        return self.log.events

    @property
    def runs(self) -> bool:
        """Whether a run has not ended."""
        return self._running is not None

    @property
    def sockets(self) -> int:
        """The number of sockets that follow it."""
        return len(self.log.listeners)

    # For each kind of agent

    @abstractmethod
    async def prepare(self) -> None:
        """Start the agent before its first message or run, if it is not started."""

    @abstractmethod
    async def work(self) -> None:
        """Act until the run ends; the status is `running`."""

    @abstractmethod
    async def interrupt(self) -> None:
        """Stop the run at once."""

    @abstractmethod
    def shown_agent(self) -> Frame:
        """Return the agent as states and responses show it."""

    @abstractmethod
    async def agent_calls(self, tool: str, arguments: Frame) -> Frame:
        """Let the agent call a tool of an MCP server; return the event with the result."""

    @abstractmethod
    async def agent_says(self, text: str) -> Frame:
        """Let the agent answer with a text, which ends the run; return its event."""

    @abstractmethod
    async def decide(self, accept: bool, reason: str) -> None:
        """Accept or reject the held actions; without any, an accept is a `/run`."""

    @abstractmethod
    def recover(self) -> None:
        """Start again after a crash."""

    def reached_servers(self, creation: Creation) -> Mapping[str, McpEntry]:
        """Return the MCP servers that the agent can use."""
        return creation.servers

    def state_of_agent(self) -> Frame:
        """Return the member `agent_state`."""
        return {}

    # Operations of clients

    async def hear(self, said: Said, *, body: object = None) -> None:
        """Store a client's message, and start a run if it wants one.

        Raises:
            NoCapacity: it is stored, but no run could start.
            Unusable: the agent could not start; nothing is stored.
        """
        self.note("message", said.text if body is None else body)
        if said.run and self.status == "waiting_for_confirmation":
            self.object_to("a message with run:true executes the held actions")
        async with self.lock:
            await self.prepare()
            self.store_message(said)
        if said.run:
            self.begin_for_message()

    def store_message(self, said: Said) -> Frame:
        """Store a message, after `idle` if the conversation was finished."""
        if self.status in {"finished", "stuck"}:
            self.move("idle")
        event = self.log.store(user_message(said.content))
        self._last_user_message = event["id"]
        self.update("last_user_message_id", event["id"])
        return event

    def begin_for_message(self) -> None:
        """Start a run for a stored message; a run that is ending after an error or for an approval swallows it."""
        if self._running is None:
            self.begin()
        elif self.ending and self.status == "idle":
            self._wanted = True

    def begin(self) -> None:
        """Start a run.

        Raises:
            Busy: one has not ended.
            NoCapacity: too many conversations are running.
        """
        if self._running is not None:
            raise Busy("already running")
        if not self._host.may_run():
            raise NoCapacity
        self._running = asyncio.create_task(self._run())

    async def order_run(self) -> None:
        """Start a run as `/run` does: nothing happens if the conversation is finished.

        Raises:
            Busy: a run has not ended.
            NoCapacity: too many conversations are running.
        """
        if self._running is not None:
            raise Busy("already running")
        if self.status == "finished":
            self.publish_state()
            return
        await self.prepare()
        self.begin()

    async def pause(self) -> None:
        """Pause the run when its tool has ended; an approval is still waited for."""
        async with self.lock:
            if self.status in {"idle", "running"}:
                self.stop("PauseEvent")
                if self._running is None:
                    self.publish_state()

    def stop(self, kind: Any) -> None:
        """Move to `paused`."""
        self.move("paused")
        self.log.store(stopped(kind))

    def move(self, status: Status) -> None:
        """Change the status, if it is another one."""
        if status != self.status:
            self.status = status
            self.update("execution_status", status)

    def update(self, key: str, value: Any) -> None:
        """Store a change of the state."""
        self.log.store(state_update(key, value))

    def publish_state(self) -> None:
        """Publish the whole state."""
        self.log.publish(self.full_state())

    def navigate(self, event_id: str | None) -> bool:
        """Move the leaf; later events continue from there. Return whether the event exists."""
        if event_id is not None and self.log.find(event_id) is None:
            return False
        self.log.leaf = event_id
        return True

    def note(self, operation: str, body: object) -> None:
        """Record what a client did."""
        self.received.append(Received(self._count, (operation, body)))
        self._count += 1
        del self.received[:-KEPT_FRAMES]
        self.change.tell()

    # The run

    async def _run(self) -> None:
        run = asyncio.current_task()
        try:
            await self.work()
        finally:
            # A crash has no end of its runs.
            if self._running is run:
                self.ending = True
                self.watch(self._end_run())

    async def _end_run(self) -> None:
        await asyncio.sleep(self.manners.ending.total_seconds())
        self._running, self.ending = None, False
        self.publish_state()
        self.change.tell()
        if self._wanted:
            self._wanted = False
            with contextlib.suppress(NoCapacity):
                self.begin()

    async def ended(self, within: float = PATIENCE) -> None:
        """Wait until no run is active, and its `full_state` is published."""
        await self.change.until(lambda: not self.runs or None, within, what=lambda: "an end of the run")

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the run."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel_run(self) -> None:
        """Cancel the run, and wait until it has stopped; its `full_state` follows."""
        if self._running is not None and not self._running.done():
            self._running.cancel()
            await asyncio.wait({self._running})

    def follow(self, listener: Listener) -> None:
        """Add a socket."""
        self.log.listeners.append(listener)
        self.connections += 1
        self.change.tell()

    def forget(self, listener: Listener) -> None:
        """Remove a socket."""
        if listener in self.log.listeners:
            self.log.listeners.remove(listener)
            self.change.tell()

    def close_sockets(self, code: int, reason: str) -> None:
        """Close all sockets."""
        for listener in self.log.listeners:
            listener.close(code, reason)

    def delete(self) -> None:
        """End the run without a word; the sockets stay open and silent."""
        self.deleted = True
        self.crash()

    def object_to(self, why: str) -> None:
        """Record what a correct client never does; it receives no error."""
        self.violations.append(why)
        del self.violations[:-KEPT_FRAMES]

    def final_response(self) -> str:
        """Return the agent's last answer."""
        for event in reversed(self.events):
            match event:
                case {"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": str(message)}}:
                    return message
                case {"kind": "MessageEvent", "source": "agent", "llm_message": {"content": [{"text": str(said)}]}}:
                    return said
                case _:
                    pass
        return ""

    def crash(self) -> None:
        """Forget what was only in memory, as at the end of the process."""
        stopped_tasks = [*self._tasks, *([self._running] if self._running is not None else ())]
        self._running, self._wanted, self.ending = None, False, False
        for task in stopped_tasks:
            task.cancel()
        self.lock = asyncio.Lock()
        self.log.listeners.clear()

    # Streamed texts

    def stream(
        self, item_id: str, pieces: Sequence[str], *, attempt: int = 1, order: int = 0, reasoning: bool = False
    ) -> None:
        """Publish the pieces of a text; they are never stored, and the events socket starts with an empty one."""
        kind = "reasoning" if reasoning else "text"
        if order == 0:
            anchor = len(self.events) - 1
            self.log.publish_frame(
                {"type": "item_started", "item_id": item_id, "attempt": attempt, "anchor_seq": anchor}
            )
            self.log.publish(streaming_delta("", reasoning=reasoning))
        for number, piece in enumerate(pieces, start=order):
            frame: Frame = {"type": "delta", "item_id": item_id, "attempt": attempt, "order": number}
            self.log.publish_frame(frame | {"kind": kind, "content": piece} | self.stream_details())
            self.log.publish(streaming_delta(piece, reasoning=reasoning))

    def stream_details(self) -> Frame:
        """Return the members of a piece that only a model of the server has."""
        return {}

    def abort_item(self, item_id: str, *, attempt: int = 1) -> None:
        """End a streamed text that is stored nowhere."""
        frame = {"type": "item_aborted", "item_id": item_id, "attempt": attempt, "reason": "cancelled"}
        self.log.publish_frame(frame)

    # Descriptions

    def describe(self) -> Frame:
        """Return the body of `GET /api/conversations/{id}`."""
        return {
            **self._common(),
            "security_analyzer": self.creation.analyzer,
            "last_user_message_id": self._last_user_message,
            "leaf_event_id": self.log.leaf,
            "hook_config": None,
            "title": None,
            "metrics": None,
            "created_at": self._created_at,
            "updated_at": _utc(),
            "forked_from_conversation_id": None,
            "forked_from_event_id": None,
            "parent_conversation_id": None,
            "sub_conversation_ids": [],
            "current_model_id": None,
            "available_models": [],
            "supports_runtime_model_switch": False,
            "launched_agent_profile": None,
            "client_tools": [],
            "tool_module_qualnames": {
                tool["name"]: f"openhands.tools.{tool['name']}.definition"
                for tool in self.creation.agent.get("tools", [])
            },
            "runtime_info": None,
        }

    def full_state(self) -> Frame:
        """Make the event with the whole state, which is never stored; null members are left out."""
        named = {"last_user_message_id": self._last_user_message, "leaf_event_id": self.log.leaf}
        value: Frame = {
            **self._common(),
            "activated_path_rules": [],
            **{key: member for key, member in named.items() if member is not None},
            "head_is_empty": bool(self.events) and self.log.leaf is None,
        }
        return state_update("full_state", value)

    def _common(self) -> Frame:
        return {
            "id": self.conversation_id,
            "agent": self.shown_agent(),
            "workspace": self.creation.workspace,
            "persistence_dir": f"/conversations/{self.conversation_id.replace('-', '')}",
            "max_iterations": self.creation.max_iterations,
            "stuck_detection": True,
            "execution_status": self.status,
            "confirmation_policy": self.policy,
            "activated_knowledge_skills": [],
            "invoked_skills": [],
            "blocked_actions": {},
            "blocked_messages": {},
            "stats": {"usage_to_metrics": {}},
            "secret_registry": {"secret_sources": without_secrets({"secrets": self.secrets})["secrets"]},
            "tags": self.creation.tags,
            "agent_state": self.state_of_agent(),
        }

    # For tests

    async def drop(self) -> int:
        """Reset the connections of all sockets, as a network failure does; return their number."""
        return self._host.cut(self.conversation_id)

    async def wait_connections(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until `count` sockets have subscribed in total and at least one still does."""
        await self.change.until(
            lambda: (self.connections >= count and self.sockets > 0) or None,
            within,
            what=lambda: f"{count} connections to {self.conversation_id!r}, {self.connections} arrived",
        )

    async def wait_disconnected(self, within: float = PATIENCE) -> None:
        """Wait until no socket is connected."""
        await self.change.until(lambda: not self.sockets or None, within, what=lambda: "an end of all sockets")

    async def wait_status(self, status: Status, within: float = PATIENCE) -> None:
        """Wait until a run has ended with a status, or for `running`."""
        await self.change.until(
            lambda: (self.status == status and (status == "running" or not self.runs)) or None,
            within,
            what=lambda: f"{status}; it is {self.status}",
        )

    async def wait_for(
        self, fits: Callable[[str, Any], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Received:
        """Wait for an operation of a client with a number above `after`."""
        return await self.change.until(
            lambda: next((each for each in self.received if each.number > after and fits(*each.payload)), None),
            within,
            what=lambda: f"a fitting operation; the last ones were {str(self.received[-5:])[:2000]}",
        )

    async def wait_event(self, fits: Callable[[Frame], bool], within: float = PATIENCE, *, after: int = -1) -> Frame:
        """Wait for a stored event with a sequence number above `after`."""
        return await self.log.wait(fits, within, after=after)


def new_id() -> str:
    """Return a new id."""
    return str(uuid4())


def read_id(given: str) -> str | None:
    """Return an id in its form with dashes; None if it is not one."""
    try:
        return str(UUID(given))
    except ValueError:
        return None


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
