"""A simulated OpenHands conversation: its event store, its agent and its clients."""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.testing.change import PATIENCE, Change, Received
from gateway.testing.runtimes.openhands.events import (
    BROKEN_TEXT,
    NOT_EXECUTED,
    NOT_EXECUTED_ERROR,
    STOPPED_TEXT,
    TOO_MANY,
    Seen,
    action_event,
    error_seen,
    is_state,
    model_share,
    observation_event,
    recall_seen,
    rejected_seen,
    state_event,
    system_event,
)
from gateway.testing.runtimes.openhands.mcp import McpBroken, McpServer, McpServers
from gateway.testing.runtimes.openhands.progress import Manners as Manners, Progress
from gateway.testing.runtimes.openhands.rules import GATED, OWN_TOOLS, RUNNABLE, Frame, Violation, complete, read_action
from gateway.testing.runtimes.openhands.store import Store, Wire
from gateway.testing.runtimes.openhands.workspace import Workspace, run_seen
from gateway.testing.wire import Wire as CallWire

KEPT_FRAMES = 10_000
DECISION_LIMIT = 60.0


class SimConversation:
    """One conversation; it emits to all joined sockets."""

    def __init__(self, conversation_id: str, wire: Wire, manners: Manners, calling: CallWire | None = None) -> None:
        self.conversation_id = conversation_id
        self.received: list[Received] = []
        """The payloads of clients, from `oh_user_action`, `oh_action` and REST."""
        self.violations: list[str] = []
        """Every protocol violation by a client; the server sends no error."""
        self.unheard: list[Frame] = []
        """Actions that arrived while the agent was loading: echoed and acknowledged, but never processed."""
        self.sockets: set[str] = set()
        self.connections = 0
        self.looks = 0
        """The number of REST requests for its status."""
        self.handshakes: list[Frame] = []
        """The queries of all accepted connections."""
        self.workspace = Workspace()
        self.mcp = McpServers(conversation_id, ())
        """The MCP servers of the agent loop, from its creation or the settings."""
        self._wire = wire
        self._manners = manners
        self._calling = calling
        self._now = Progress()
        self._count = 0
        self._change = Change()
        self.store = Store(conversation_id, wire, self._change, reorders=manners.reorders)
        self._may_listen = asyncio.Event()

    @property
    def events(self) -> list[Frame]:
        """All stored events, including null events, with their stored source."""
        return self.store.events

    @property
    def state(self) -> str:
        """The agent's last reported state."""
        return self._now.state

    @property
    def waits(self) -> bool:
        """Whether an action is waiting for the user's decision."""
        return self._now.waiting

    # Actions of the agent

    async def agent_runs(
        self, command: str, output: str, exit_code: int = 0, *, gated: bool = False, within: float = DECISION_LIMIT
    ) -> Frame:
        """Run a command, after the user's approval if it is gated; return the last observation."""
        seen = run_seen(command, output, exit_code)
        return await self.agent_acts("run", {"command": command}, lambda: seen, gated=gated, within=within)

    async def agent_edits(self, path: str, text: str, *, gated: bool = False) -> Frame:
        """Create a file; a gated edit is executed before the answer, and again after it."""
        args = {"path": path, "command": "create", "file_text": text}
        return await self.agent_acts("edit", args, gated=gated)

    async def agent_acts(
        self,
        name: str,
        given: Frame,
        carry_out: Callable[[], Seen] | None = None,
        *,
        gated: bool = False,
        within: float = DECISION_LIMIT,
    ) -> Frame:
        """Execute one action; return the last observation."""
        share = await self._begin_step(name)
        args = complete(name, **given)
        act = carry_out or (lambda: self.workspace.carry_out(name, args))
        if gated:
            return await self._act_gated(name, args, act, share=share, within=within)
        event = await self.store.say(action_event(name, args, source="agent", share=share))
        return await self.store.say(observation_event(act(), cause=event["id"], share=share))

    async def agent_calls(self, tool: str, arguments: Frame) -> Frame:
        """Call a tool of an MCP server; return the observation, or the error state if the call broke."""
        if tool in OWN_TOOLS:
            raise ValueError(f"an agent calls its built-in {tool!r} instead of an MCP server's")
        share = await self._begin_step(tool)
        if not self.mcp.has(tool):
            advice = "Please check the tool name and retry with an existing tool."
            seen = error_seen(f"Tool {tool} is not registered. (arguments: {arguments}). {advice}")
            return await self.store.say(observation_event(seen))
        args = complete("call_tool_mcp", name=tool, arguments=arguments)
        event = await self.store.say(action_event("call_tool_mcp", args, source="agent", share=share))
        now = self._now
        now.open[event["id"]] = event
        try:
            seen = await self.mcp.call(tool, arguments)
        except McpBroken as exc:
            if self._manners.tells_broken_calls:
                error = error_seen(f"Error executing MCP tool {tool}: {exc.text}")
                return await self.store.say(observation_event(error, cause=event["id"], share=share))
            await self._give_up(BROKEN_TEXT, NOT_EXECUTED_ERROR)
            await self.change_state("error")
            await self.status("STATUS$ERROR", str(exc), kind="error")
            return self.events[-1]
        finally:
            now.open.pop(event["id"], None)
        return await self.store.say(observation_event(seen, cause=event["id"], share=share))

    async def agent_starts(self, command: str) -> Frame:
        """Start a long command; return the action for `agent_ends`."""
        share = await self._begin_step("run")
        event = await self.store.say(action_event("run", complete("run", command=command), source="agent", share=share))
        self._now.open[event["id"]] = event
        return event

    async def agent_ends(self, action: Frame, output: str, exit_code: int = 0) -> Frame:
        """End a command; one that was already reported as stopped ends a second time."""
        self._now.open.pop(action["id"], None)
        seen = run_seen(action["args"]["command"], output, exit_code)
        return await self.store.say(observation_event(seen, cause=action["id"], share=action))

    async def agent_says(self, text: str, *, waits: bool = True) -> Frame:
        """Send a message, and wait for the user if `waits`."""
        await self._begin_step("message", share=False)
        args = complete("message", content=text, wait_for_response=waits)
        event = await self.store.say(action_event("message", args, source="agent"))
        if waits:
            await self.change_state("awaiting_user_input")
        return event

    async def finish(self, text: str) -> Frame:
        """Finish the work; this action has no observation."""
        share = await self._begin_step("finish")
        event = await self.store.say(
            action_event("finish", complete("finish", final_thought=text), source="agent", share=share)
        )
        await self.change_state("finished")
        return event

    async def delegate(self, agent: str, task: str, outputs: Frame) -> Frame:
        """Delegate to another agent; its state events cannot be distinguished from this agent's."""
        share = await self._begin_step("delegate")
        await self.store.say(
            action_event(
                "delegate", complete("delegate", agent=agent, inputs={"task": task}), source="agent", share=share
            )
        )
        await self.store.say(action_event("message", complete("message", content=f"TASK: {task}"), source="user"))
        for state in ("running", "finished"):
            await self.store.say(state_event(state))
        # It has no cause; only the tool-call metadata links it to its action.
        return await self.store.say(observation_event(Seen("delegate", "", {"outputs": outputs}), share=share))

    async def change_state(self, state: str, reason: str = "") -> None:
        """Change the agent's state; send nothing if it is the current one."""
        if state != self._now.state:
            self._now.state = state
            await self.store.say(state_event(state, reason))

    async def fail(self, reason: str) -> None:
        """Report an error with a state and a status update, as a stuck agent does."""
        await self.change_state("error", reason)
        await self.status("STATUS$ERROR", reason, kind="error")

    async def status(self, status: str, message: str = "", *, kind: str = "info") -> None:
        """Send a status update, which is not an event and is never replayed."""
        await self.emit({"status_update": True, "type": kind, "id": status, "message": message})

    async def title(self, title: str) -> None:
        """Send the conversation's title as a status update without an id."""
        message = self.conversation_id
        await self.emit({"status_update": True, "type": "info", "message": message, "conversation_title": title})

    async def emit(self, payload: Any) -> None:
        """Send a payload unchanged, without storing it."""
        await self.store.emit(payload)

    async def emit_text(self, packet: str) -> None:
        """Send the text of a Socket.IO packet, which may be malformed."""
        await self._wire.broadcast_text(self.conversation_id, packet)

    async def add(self, event: Frame, *, live: bool = True) -> Frame:
        """Store an event with the next id; with `live=False` it is not sent, so clients miss an id."""
        return await self.store.say(event) if live else self.store.keep(event)

    # Connections

    async def drop(self) -> int:
        """Reset the connections of all sockets, as a network failure does; return their number."""
        return self._wire.cut(self.conversation_id)

    async def disconnect(self) -> None:
        """Close all sockets gracefully, as a stop over REST does."""
        for sid in list(self.sockets):
            await self._wire.disconnect(sid)

    async def wait_connections(self, count: int = 1, within: float = PATIENCE) -> None:
        """Wait until `count` sockets have joined in total and at least one is still connected."""
        await self._change.until(
            lambda: (self.connections >= count and self.sockets and True) or None,
            within,
            what=lambda: f"{count} connections to {self.conversation_id!r}, {self.connections} arrived",
        )

    async def wait_disconnected(self, within: float = PATIENCE) -> None:
        """Wait until no socket is connected."""
        await self._change.until(
            lambda: not self.sockets or None, within, what=lambda: f"{self.conversation_id!r} left alone"
        )

    async def wait_for(
        self, predicate: Callable[[Any], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Received:
        """Wait for a client's matching payload with a number above `after`."""
        return await self._change.until(
            lambda: next((each for each in self.received if each.number > after and predicate(each.payload)), None),
            within,
            what=lambda: f"a fitting payload of a client; the last ones were {str(self.received[-5:])[:2000]}",
        )

    async def wait_event(
        self, predicate: Callable[[Frame], bool], within: float = PATIENCE, *, after: int = -1
    ) -> Frame:
        """Wait for a matching stored event with an id above `after`."""
        return await self.store.wait(predicate, within, after=after)

    def end_loading(self) -> None:
        """End the loading of the agent if `Manners.loading` is None."""
        self._may_listen.set()

    # Called by the server

    @property
    def runs(self) -> bool:
        """Whether the agent loop is running or loading."""
        return self._now.started

    def begin(self, servers: tuple[McpServer, ...] = ()) -> bool:
        """Start the agent loop if it is not running; return whether it was started."""
        if self._now.started:
            return False
        self.mcp = McpServers(self.conversation_id, servers, self._manners.mcp_patience, self._calling)
        self._now = Progress(started=True, steps=self._now.steps, poisoned=self._now.poisoned)
        self.store.keep(state_event("loading"))
        return True

    async def warm_up(self, first: str | None = None) -> None:
        """Send the first events of an agent loop; `loading` was stored before and is repeated."""
        begun = self._now
        await self.store.send(next(event for event in reversed(self.events) if is_state(event, "loading")))
        await self.status("STATUS$STARTING_RUNTIME")
        if self._manners.loading is None:
            await self._may_listen.wait()
        else:
            await asyncio.sleep(self._manners.loading.total_seconds())
        if self._now is not begun or not begun.started or begun.state != "loading":
            # It was stopped in the meantime, or a test has set its state.
            return
        begun.has_runtime = True
        await self.status("STATUS$READY")
        await self.mcp.begin()
        if not self.store.has("system"):
            await self.store.say(system_event(self.mcp.listed))
        moved = "awaiting_user_input" if first is None else "running"
        if first is not None:
            await self.store.say(action_event("message", complete("message", content=first), source="user"))
        # The environment's action is stored but never sent live.
        order = complete("change_agent_state", agent_state=moved)
        await self.store.say(action_event("change_agent_state", order, source="environment"))
        await self.change_state(moved)

    def end(self) -> None:
        """End the agent loop together with the server's process."""
        self._now.started = False
        self._may_listen.clear()

    async def stop(self) -> None:
        """Stop the agent loop; the clients are disconnected first, so they do not see it."""
        await self.disconnect()
        await self._give_up(STOPPED_TEXT, NOT_EXECUTED)
        await self.change_state("stopped")
        self.end()

    async def evict(self) -> None:
        """End the agent loop to make a slot for another one."""
        await self.status(TOO_MANY, "Too many conversations at once", kind="error")
        await self.stop()

    @property
    def status_name(self) -> str:
        """The status of the agent loop as in REST; an agent with RUNNING may still be loading."""
        if not self._now.started:
            return "STOPPED"
        loading = self._now.state == "loading" and not self._now.has_runtime
        return "STARTING" if loading else "RUNNING"

    def describe(self) -> Frame:
        """Return the body of `GET /api/conversations/{id}`."""
        status = self.status_name
        return {
            "conversation_id": self.conversation_id,
            "status": status,
            "runtime_status": "STATUS$READY" if status == "RUNNING" else None,
            "url": f"/api/conversations/{self.conversation_id}",
            "num_connections": len(self.sockets),
            "conversation_version": "V0",
        }

    def join(self, sid: str, handshake: Frame) -> None:
        """Add an accepted socket."""
        self.sockets.add(sid)
        self.connections += 1
        self.handshakes.append(handshake)
        del self.handshakes[:-KEPT_FRAMES]
        self._change.tell()

    def leave(self, sid: str) -> None:
        """Remove a disconnected socket."""
        self.sockets.discard(sid)
        self._change.tell()

    async def accept(self, payload: object) -> None:
        """Process a client's payload.

        Raises:
            Violation: it was dropped silently; the caller must not acknowledge it.
        """
        self.received.append(Received(self._count, payload))
        self._count += 1
        if len(self.received) > KEPT_FRAMES:
            del self.received[: KEPT_FRAMES // 10]
        try:
            name, args = read_action(payload)
        except Violation as exc:
            self.object_to(str(exc))
            raise
        finally:
            self._change.tell()
        echo = await self.store.say(action_event(name, args, source="user"))
        if self._now.state == "loading":
            # The agent is not listening yet, and never processes missed actions later.
            self.unheard.append({"action": name, "args": args})
            del self.unheard[:-KEPT_FRAMES]
            return
        await self._react(name, args, echo)

    def object_to(self, why: str) -> None:
        """Record a violation; the client receives no error."""
        self.violations.append(f"frame {self._count - 1}: {why}")
        del self.violations[:-KEPT_FRAMES]

    async def _react(self, name: str, args: Frame, echo: Frame) -> None:
        match name:
            case "message":
                await self._hear(args["content"])
            case "change_agent_state":
                await self._obey(args["agent_state"])
            case "finish" | "reject":
                await self.change_state("finished" if name == "finish" else "rejected")
            case _ if name in RUNNABLE:
                await self._run_for_client(name, args, echo)
            case _:
                pass

    async def _hear(self, text: str) -> None:
        if not self._manners.recalls:
            await self.change_state("running")
            return
        first = not self.store.has("recall")
        recall = complete("recall", recall_type="workspace_context" if first else "knowledge", query=text)
        cause = (await self.store.say(action_event("recall", recall, source="user")))["id"]
        # The second message recalls nothing new: its null observation is never sent, so clients miss an id.
        seen = recall_seen() if first else Seen("null", "")
        recalled = observation_event(seen, source="environment", cause=cause)
        if self._now.state == "running":
            await self.store.say(recalled)
            return
        self._now.state = "running"
        await self.store.say(state_event("running"))
        await self.store.say(recalled)

    async def _obey(self, state: str) -> None:
        now = self._now
        if now.waiting and state in {"user_confirmed", "user_rejected", "stopped"}:
            # The waiting step continues and sends the following events.
            now.decision = (
                "stopped" if state == "stopped" else "user_confirmed" if state == "user_confirmed" else "user_rejected"
            )
            self._change.tell()
            return
        if state in {"user_confirmed", "user_rejected"}:
            self.object_to(f"{state}, but nothing waits for it")
        if state == "stopped":
            await self._give_up(STOPPED_TEXT, NOT_EXECUTED)
        await self.change_state(state)

    async def _give_up(self, text: str, error_id: str) -> None:
        """Report the running actions as not executed."""
        given_up, self._now.open = self._now.open, {}
        for number, event in given_up.items():
            await self.store.say(observation_event(error_seen(text, error_id), cause=number, share=event))

    async def _run_for_client(self, name: str, args: Frame, echo: Frame) -> None:
        match args.get("confirmation_state", "confirmed"):
            case "awaiting_confirmation":
                self.object_to(f"{name} waits for a confirmation that no client can give")
                return
            case "rejected":
                seen = rejected_seen()
            case _:
                seen = self.workspace.carry_out(name, args)
        if name == "write":
            self.object_to("a write by a client; the agent can never read its history again")
            self._now.poisoned = True
        await self.store.say(observation_event(seen, source="user", cause=echo["id"]))

    async def _act_gated(
        self, name: str, args: Frame, act: Callable[[], Seen], *, share: Frame, within: float
    ) -> Frame:
        now = self._now
        now.waiting, now.decision = True, None
        await self.change_state("awaiting_user_confirmation")
        gated = args | {"confirmation_state": "awaiting_confirmation"} if name in GATED else args
        event = await self.store.say(action_event(name, gated | {"security_risk": 2}, source="agent", share=share))
        if name not in GATED:
            # The runtime has no gate for such actions and executes them at once.
            await self.store.say(observation_event(act(), cause=event["id"], share=share))
        try:
            decision = await self._change.until(lambda: now.decision, within, what=lambda: f"a decision about {name}")
        finally:
            now.waiting = False
        if decision == "stopped":
            seen = error_seen(STOPPED_TEXT, NOT_EXECUTED)
            last = await self.store.say(observation_event(seen, cause=event["id"], share=share))
            await self.change_state("stopped")
            return last
        allowed = decision == "user_confirmed"
        decided = args | {"thought": "", "security_risk": 2}
        if name in GATED:
            decided["confirmation_state"] = "confirmed" if allowed else "rejected"
        again = await self.store.say(action_event(name, decided, source="agent", share=share))
        await self.change_state(decision)
        seen = act() if allowed else rejected_seen()
        last = await self.store.say(observation_event(seen, cause=again["id"], share=share))
        await self.change_state("running" if allowed else "awaiting_user_input")
        return last

    async def _begin_step(self, name: str, *, share: bool = True) -> Frame:
        now = self._now
        if now.poisoned:
            await self.change_state("error", "ValueError: Unknown observation type: WriteObservation")
            raise RuntimeError("the conversation is poisoned by a client's write; its agent takes no more steps")
        await self.change_state("running")
        now.steps += 1
        return model_share(name, now.steps) if share else {}
