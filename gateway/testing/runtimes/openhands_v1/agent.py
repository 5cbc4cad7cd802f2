"""A simulated conversation with the built-in agent: model responses from tests and pages, tools and approvals."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.testing.change import PATIENCE
from gateway.testing.runtimes.openhands_v1.conversation import Busy, Conversation, new_id
from gateway.testing.runtimes.openhands_v1.events import (
    DEFAULT_TOOLS,
    INTERRUPTED,
    RESTARTED,
    USABLE_TOOLS,
    Call,
    Frame,
    action_event,
    agent_error,
    agent_message,
    built_in_tool,
    conversation_error,
    file_call,
    file_seen,
    finish_call,
    mcp_call,
    mcp_tool,
    observation_event,
    own_seen,
    rejection,
    security_analysis,
    stats,
    system_prompt,
    terminal_call,
    terminal_seen,
    think_call,
    unusable_call,
)
from gateway.testing.runtimes.openhands_v1.log import now
from gateway.testing.runtimes.openhands_v1.rules import Unusable, asks, without_secrets

DECISION_LIMIT = 60.0
_NEVER = 86_400.0
_KEPT = 10_000

Work = Callable[[Call], Awaitable[Frame]]


@dataclass(slots=True, eq=False)
class _Response:
    """One response of the model: calls, a text answer, or a failure."""

    calls: tuple[Call, ...] = ()
    said: str = ""
    """The answer, or the thought before the calls."""
    reasoning: str | None = None
    pieces: Sequence[str] = ()
    """The text in pieces, if the model streams."""
    held: bool = False
    """Whether its calls wait for a decision whatever the policy is."""
    failure: tuple[str, str] | None = None
    """A code and a detail; the code `stuck` has no event."""
    endless: bool = False
    """Whether its streamed text never ends."""
    work: Work | None = None
    results: asyncio.Future[list[Frame]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, results: list[Frame]) -> None:
        if not self.results.done():
            self.results.set_result(results)


class SimConversation(Conversation):
    """A conversation with the built-in agent."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.files: dict[str, str] = {}
        self.outputs: dict[str, tuple[str, int]] = {}
        """The outputs and exit codes of commands; other commands print that they were simulated."""
        self.executed: list[tuple[str, Frame]] = []
        """The executed calls, as tool and arguments, in order."""
        self._connected = False
        self._script: list[_Response] = []
        self._open: dict[str, Frame] = {}
        """The actions whose tools run, by id."""
        self._held: tuple[_Response, list[Frame]] | None = None
        self._now: _Response | None = None
        self._endings: dict[str, asyncio.Future[tuple[str, int]]] = {}
        self._working: set[asyncio.Future[Frame]] = set()

    @property
    def held(self) -> list[Frame]:
        """The actions that wait for a decision."""
        return [] if self._held is None else self._held[1]

    # Actions of the agent

    async def agent_acts(
        self,
        *calls: Call,
        work: Work | None = None,
        thought: str = "",
        pieces: Sequence[str] = (),
        gated: bool = False,
        within: float = DECISION_LIMIT,
    ) -> list[Frame]:
        """Make one response with calls; return the events with their results.

        Args:
            calls: The calls, which wait together if one needs approval.
            work: Executes a call and returns its observation; by default in memory, or at an MCP server.
            thought: The text before the calls.
            pieces: The thought in streamed pieces.
            gated: Wait for a decision, whatever the policy is.
            within: Seconds until all results are there.
        """
        said = thought or "".join(pieces)
        return await self._respond(_Response(calls, said, pieces=pieces, held=gated, work=work), within)

    async def agent_runs(
        self, command: str, output: str, exit_code: int = 0, *, gated: bool = False, within: float = DECISION_LIMIT
    ) -> Frame:
        """Run a command; return the event with its result."""
        self.outputs[command] = (output, exit_code)
        return (await self.agent_acts(terminal_call(command), gated=gated, within=within))[-1]

    async def agent_edits(self, path: str, content: str, *, gated: bool = False) -> Frame:
        """Create a file; return the event with its result."""
        return (await self.agent_acts(file_call(path, content), gated=gated))[-1]

    async def agent_thinks(self, thought: str) -> Frame:
        """Log a thought with the built-in tool; return the event with its result."""
        return (await self.agent_acts(think_call(thought)))[-1]

    async def agent_calls(self, tool: str, arguments: Frame, *, within: float = DECISION_LIMIT) -> Frame:
        """Call a tool of an MCP server; arguments that do not fit never reach it."""
        await self.prepare()
        usable = self.mcp.has(tool) and self.mcp.objection(tool, arguments) is None
        call = mcp_call(tool, self.mcp.coerced(tool, arguments)) if usable else unusable_call(tool, arguments)
        return (await self.agent_acts(call, within=within))[-1]

    async def agent_starts(self, command: str) -> Frame:
        """Start a command that ends with `agent_ends`; return its action."""
        ending: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()

        async def work(_call: Call) -> Frame:
            output, code = await ending
            return terminal_seen(command, output, code, self._observations())

        response = _Response((terminal_call(command),), work=work)
        before = len(self.events)
        await self._suggest(response)
        action = await self.wait_event(lambda event: event["kind"] == "ActionEvent", after=before - 1)
        self._endings[action["id"]] = ending
        return action

    def agent_ends(self, action: Frame, output: str, exit_code: int = 0) -> None:
        """End a command; nothing is heard of one that was interrupted."""
        ending = self._endings.pop(action["id"])
        if not ending.done():
            ending.set_result((output, exit_code))

    async def agent_says(self, text: str, *, pieces: Sequence[str] = (), reasoning: str | None = None) -> Frame:
        """Answer with a text, which ends the run; return the event."""
        return (await self._respond(_Response((), text, reasoning, pieces), PATIENCE))[-1]

    async def agent_streams(self, pieces: Sequence[str]) -> None:
        """Begin to stream a text that only an interrupt ends, and that is stored nowhere."""
        await self._suggest(_Response(pieces=pieces, endless=True))

    async def finish(self, text: str) -> Frame:
        """Finish the work with the built-in tool; return the result's event."""
        return (await self._respond(_Response((finish_call(text),)), PATIENCE))[-1]

    async def fail(self, code: str = "LLMServiceUnavailableError", detail: str = "the model is overloaded") -> None:
        """End the run with an error; with the code `stuck` no event says so."""
        await self._respond(_Response(failure=(code, detail)), PATIENCE, empty=True)

    async def drive(self) -> None:
        """Start a run for a test or a page, unless one is active, as a message of another client does."""
        await self.prepare()
        if self.ending:
            await self.ended()
        if self.status == "finished":
            self.move("idle")
        self.begin_for_message()

    async def _respond(self, response: _Response, within: float, *, empty: bool = False) -> list[Frame]:
        await self._suggest(response)
        try:
            async with asyncio.timeout(within):
                results = await response.results
        except TimeoutError as exc:
            raise TimeoutError(f"the agent's calls did not end within {within:g} s; it is {self.status}") from exc
        if not results and not empty:
            raise RuntimeError("the server crashed before the calls had ended")
        return results

    async def _suggest(self, response: _Response) -> None:
        if self._held is not None:
            raise Busy("the agent is already waiting for a decision")
        self._script.append(response)
        self.change.tell()
        await self.drive()

    # Called for clients

    async def prepare(self) -> None:
        """List the tools of the MCP servers, and tell the agent all of its tools.

        Raises:
            Unusable: a tool does not exist; then no message is stored.
        """
        if self._connected:
            return
        named = [tool["name"] for tool in self.creation.agent.get("tools", [])]
        if unknown := [name for name in named if name not in USABLE_TOOLS]:
            raise Unusable("KeyError", f"ToolDefinition '{unknown[0]}' is not registered")
        self._connected = True
        await self.mcp.begin()
        if not any(event["kind"] == "SystemPromptEvent" for event in self.events):
            own = [built_in_tool(name) for name in (*named, *DEFAULT_TOOLS)]
            self.log.store(system_prompt([*own, *(mcp_tool(*item) for item in self.mcp.listed.items())]))

    async def work(self) -> None:
        held, self._held = self._held, None
        self.move("running")
        if held is not None:
            async with self.lock:
                await self._execute(*held)
        while self.status == "running":
            response = await self._next()
            if response is None:
                return
            async with self.lock:
                if self.status != "running":
                    self._script.insert(0, response)
                    return
                await self._step(response)

    async def interrupt(self) -> None:
        if self.status == "waiting_for_confirmation":
            return
        if self.runs and self.status == "running":
            await self.cancel_run()
            errors = [self.log.store(agent_error(action, INTERRUPTED)) for action in self._open.values()]
            self._open.clear()
            if self._now is not None:
                self._now.settle(errors)
                self._now = None
            self.stop("InterruptEvent")
            self.publish_state()
            await self.ended()
        else:
            self.publish_state()

    async def decide(self, accept: bool, reason: str) -> None:
        """Accept or reject the held actions; an accept is lost until the run has ended, and then is a `/run`."""
        self.note("respond_to_confirmation", {"accept": accept, "reason": reason})
        if accept:
            if not self.runs:
                await self.order_run()
            elif self.held:
                self.object_to("an accept before the full_state, which is lost")
            return
        async with self.lock:
            held, self._held = self._held, None
            if held is None:
                return
            response, actions = held
            self.move("idle")
            response.settle([self.log.store(rejection(action, reason)) for action in actions])
            if not self.runs:
                self.publish_state()

    def recover(self) -> None:
        """Start again after a crash: a waiting state survives, a running tool is an error, but only the first one."""
        self._connected = False
        for response in (self._now, *self._script):
            if response is not None:
                response.settle([])
        self._now = None
        self._script.clear()
        if self.status == "running":
            self.move("error")
            for action in list(self._open.values())[:1]:
                self.log.store(agent_error(action, RESTARTED, kind="internal"))
        self._open.clear()

    def shown_agent(self) -> Frame:
        agent = self.creation.agent
        tools: list[Frame] = [{"params": {}, **tool} for tool in agent.get("tools", [])]
        return {
            "llm": without_secrets(agent["llm"]),
            "tools": tools,
            "mcp_config": without_secrets(agent.get("mcp_config", {})),
            "include_default_tools": ["FinishTool", "ThinkTool"],
            "system_prompt_filename": "system_prompt.j2",
            "security_policy_filename": "security_policy.j2",
            "system_prompt_kwargs": {"llm_security_analyzer": True},
            "tool_concurrency_limit": agent.get("tool_concurrency_limit", 1),
            "kind": "Agent",
        }

    def stream_details(self) -> Frame:
        return {"chunk_id": f"chatcmpl-simulated-{self._model_calls}", "choice_index": 0}

    # The steps of a run

    async def _next(self) -> _Response | None:
        """Wait for the model; None if the run was paused meanwhile."""

        def look() -> bool | None:
            return True if self._script or self.status != "running" else None

        await self.change.until(look, _NEVER, what=lambda: "a response of the model")
        return self._script.pop(0) if self.status == "running" else None

    async def _step(self, response: _Response) -> None:
        self._now = response
        self._model_calls += 1
        if response.failure is not None:
            self._now = None
            self._break(*response.failure)
            response.settle([])
            return
        item_id = new_id()
        if response.pieces:
            self.stream(item_id, response.pieces)
        if response.endless:
            try:
                await asyncio.Event().wait()
            finally:
                self.abort_item(item_id)
        response_id = f"chatcmpl-simulated-{self._model_calls}"
        # Metrics fall before the actions or after them.
        early = self._model_calls % 2 == 1
        if early:
            self._count_tokens()
        if not response.calls:
            event = agent_message(response.said, reasoning=response.reasoning, response_id=response_id)
            stored = self.log.store(event, event_id=item_id)
            self._now = None
            self.move("finished")
            response.settle([stored])
        else:
            await self._act(response, item_id, response_id)
        if not early:
            self._count_tokens()

    async def _act(self, response: _Response, item_id: str, response_id: str) -> None:
        actions: list[Frame] = []
        for number, call in enumerate(response.calls):
            event = action_event(
                call,
                call_id=f"call_{self._model_calls}_{number}",
                response_id=response_id,
                thought="" if number else response.said,
                rated=self.creation.analyzer is not None,
            )
            actions.append(self.log.store(event, event_id=None if number else item_id))
        if self._needs_decision(response, actions):
            if (analyzer := self.creation.analyzer) is not None:
                risks = {action["id"]: action["security_risk"] for action in actions}
                self.log.store(security_analysis(self.policy, analyzer, risks))
            self._held, self._now = (response, actions), None
            self.move("waiting_for_confirmation")
            return
        await self._execute(response, actions)

    def _needs_decision(self, response: _Response, actions: list[Frame]) -> bool:
        if len(response.calls) == 1 and response.calls[0].tool in DEFAULT_TOOLS:
            return False
        if all(call.action is None for call in response.calls):
            return False
        return response.held or any(asks(self.policy, action["security_risk"]) for action in actions)

    async def _execute(self, response: _Response, actions: list[Frame]) -> None:
        self._now = response
        self._open = {action["id"]: action for action in actions}
        pairs = list(zip(response.calls, actions, strict=True))
        if self.creation.agent.get("tool_concurrency_limit", 1) > 1:
            # Results are stored in the order of the calls, with the times of their creation.
            made = await asyncio.gather(*(self._result(response, *pair) for pair in pairs))
            results = [self._store_result(result, at=at) for result, at in made]
        else:
            results = [self._store_result((await self._result(response, *pair))[0]) for pair in pairs]
        self._now = None
        if any(call.tool == "finish" for call in response.calls):
            self.move("finished")
        response.settle(results)

    async def _result(self, response: _Response, call: Call, action: Frame) -> tuple[Frame, str]:
        if call.action is None:
            return agent_error(action, self._objection(call)), now()
        self.executed.append((call.tool, call.arguments))
        del self.executed[:-_KEPT]
        # An interrupt does not end what runs outside, such as an MCP request.
        working = asyncio.ensure_future((response.work or self._carry_out)(call))
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        return observation_event(action, await asyncio.shield(working)), now()

    def _store_result(self, result: Frame, *, at: str | None = None) -> Frame:
        stored = self.log.store(result, at=at)
        for name, action in list(self._open.items()):
            if action["tool_call_id"] == result["tool_call_id"]:
                del self._open[name]
        return stored

    def _objection(self, call: Call) -> str:
        if self.mcp.has(call.tool):
            return self.mcp.objection(call.tool, call.arguments) or f"Error validating tool {call.tool!r}"
        known = [*DEFAULT_TOOLS, *self.mcp.listed]
        return f"Tool '{call.tool}' not found. Available: {known}"

    async def _carry_out(self, call: Call) -> Frame:
        match call.tool:
            case "terminal":
                command = call.arguments["command"]
                output, code = self.outputs.get(command, (f"(simulated) {command}\n", 0))
                return terminal_seen(command, output, code, self._observations())
            case "file_editor":
                path, content = call.arguments["path"], call.arguments["file_text"]
                self.files[path] = content
                return file_seen(path, content)
            case "finish":
                return own_seen("Finish", call.arguments["message"])
            case "think":
                return own_seen("Think", call.arguments["thought"])
            case tool:
                return await self.mcp.call(tool, call.arguments)

    def _break(self, code: str, detail: str) -> None:
        if code == "stuck":
            self.move("stuck")
            return
        self.move("error")
        self.log.store(conversation_error(code, detail, retryable=code.startswith("LLM")))

    def _count_tokens(self) -> None:
        llm = self.creation.agent["llm"]
        event = stats(llm.get("usage_id", "default"), llm.get("model", "simulated"), self._model_calls)
        self.log.store(event)

    def _observations(self) -> str:
        return f"/conversations/{self.conversation_id.replace('-', '')}/observations"
