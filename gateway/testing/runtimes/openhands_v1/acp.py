"""A simulated conversation whose agent is a program with the Agent Client Protocol, such as a command-line agent.

The server prompts each user message of the branch that has no answer yet, in order: after an interrupt, an error or a
crash also the last one again.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from gateway.testing.change import PATIENCE
from gateway.testing.runtimes.openhands_v1.conversation import Conversation, new_id
from gateway.testing.runtimes.openhands_v1.events import (
    ACP_PROMPT,
    Frame,
    acp_tool_call,
    action_event,
    agent_message,
    conversation_error,
    cut,
    finish_call,
    observation_event,
    own_seen,
    stats,
    stopped,
    system_prompt,
)
from gateway.testing.runtimes.openhands_v1.rules import Creation, McpEntry, Said, without_secrets

REACHES_HTTP: Mapping[str, bool] = {"claude-code": True, "codex": True, "gemini-cli": False}
"""Whether a known agent can use MCP servers over HTTP."""
_NEVER = 86_400.0


class AcpConversation(Conversation):
    """A conversation with an ACP agent; requests never wait for its tools."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.prompts: list[str] = []
        """The texts that the agent was prompted with, with all repeats."""
        self.server = str(self.creation.agent.get("acp_server", "custom"))
        self._session: str | None = None
        self._up = False
        self._shows_prompt = False
        self._answered: set[str] = set()
        self._inflight: Frame | None = None
        self._last: str | None = None
        self._superseding = False
        self._pausing = False
        self._open: dict[str, Frame] = {}
        self._said: list[str] = []
        self._thought: list[str] = []
        self._item, self._attempt = new_id(), 1
        self._outcome: Literal["end", "error", "crash"] | None = None
        self._calls = 0

    @property
    def prompted(self) -> bool:
        """Whether the agent works on a prompt."""
        return self._inflight is not None and self._outcome is None

    # Actions of the agent, in a turn

    async def wait_prompt(self, text: str, *, times: int = 1, within: float = PATIENCE) -> None:
        """Wait until the agent has been prompted with a text, and works on it."""

        def look() -> bool | None:
            return (self.prompts.count(text) >= times and self.prompted) or None

        await self.change.until(look, within, what=lambda: f"the prompt {text!r}; there were {self.prompts}")

    def starts_tool(
        self, title: str, *, kind: str = "execute", raw_input: Frame | None = None, status: str = "in_progress"
    ) -> str:
        """Start a tool; return its id."""
        self._calls += 1
        call: Frame = {"tool_call_id": f"tc{self._calls}", "title": title, "status": status, "tool_kind": kind}
        call["raw_input"] = raw_input
        self._open[call["tool_call_id"]] = call
        self.log.store(acp_tool_call(call))
        return call["tool_call_id"]

    def ends_tool(
        self, call_id: str, output: str | None = None, *, failed: bool = False, raw_input: Frame | None = None
    ) -> Frame:
        """End a tool; return the event. Arguments may arrive only now."""
        call = self._open.pop(call_id)
        more: Frame = {} if raw_input is None else {"raw_input": raw_input}
        if output is not None:
            block: Frame = {"annotations": None, "text": output, "field_meta": None, "type": "text"}
            content = [{"content": block, "field_meta": None, "type": "content"}]
            more |= {"raw_output": cut(output), "content": content}
        ended = {**call, **more, "status": "failed" if failed else "completed"}
        return self.log.store(acp_tool_call(ended, is_error=failed))

    def uses_tool(self, title: str, *, kind: str = "read", raw_input: Frame | None = None) -> Frame:
        """Use a tool that ends at once, which is a single event."""
        self._calls += 1
        call: Frame = {"tool_call_id": f"tc{self._calls}", "title": title, "status": "completed", "tool_kind": kind}
        return self.log.store(acp_tool_call({**call, "raw_input": raw_input}))

    def says(self, text: str) -> None:
        """Say a piece of the turn's text."""
        self.stream(self._item, [text], attempt=self._attempt, order=len(self._said))
        self._said.append(text)

    def thinks(self, text: str) -> None:
        """Think; the thoughts are only in the event at the end."""
        self._thought.append(text)

    def ends_turn(self) -> None:
        """End the turn; open tools get an invented success."""
        self._settle("end")

    async def agent_calls(self, tool: str, arguments: Frame) -> Frame:
        """Call a tool of an MCP server, in the form of the agent's program; return the event with the result.

        Raises:
            LookupError: the agent does not know the tool.
        """
        await self._begin_turn()
        if not self.mcp.has(tool):
            raise LookupError(f"the agent has no tool {tool!r}")
        server, name = self.mcp.owner(tool)
        if self.server == "codex":
            shown: Frame = {"server": server, "tool": name, "arguments": arguments}
            call_id = self.starts_tool(f"mcp.{server}.{name}", kind="other", raw_input=shown)
        else:
            shown = arguments
            call_id = self.starts_tool(f"mcp__{server}__{name}", kind="other", raw_input={}, status="pending")
        seen = await self.mcp.call(tool, arguments)
        said = "\n".join(block["text"] for block in seen["content"] if "text" in block)
        return self.ends_tool(call_id, said, failed=seen["is_error"], raw_input=shown)

    async def agent_says(self, text: str) -> Frame:
        """Say a text and end the turn; return the event at its end."""
        await self._begin_turn()
        before = len(self.events) - 1
        self.says(text)
        self.ends_turn()
        return await self.wait_event(lambda event: event.get("tool_name") == "finish", after=before)

    def fails(self, detail: str, *, code: str = "ACPPromptError") -> None:
        """End the turn with an error of the agent."""
        self.log.store(agent_message(f"ACP error: {detail}"))
        self.log.store(conversation_error(code, detail))
        self._settle("error")

    def dies(self) -> None:
        """Let the agent's program end; its tools are never reported again."""
        self._up = False
        self._settle("crash")

    def loses_connection(self) -> None:
        """Lose the connection to the model: open tools get an invented failure, and the same prompt is sent again."""
        self._close_open(failed=True)
        self._said.clear()
        self._attempt += 1
        assert self._inflight is not None
        self.prompts.append(_text_of(self._inflight))
        self.change.tell()

    # Called for clients

    def reached_servers(self, creation: Creation) -> Mapping[str, McpEntry]:
        """Return the MCP servers that the program can reach; others are dropped silently."""
        server = str(creation.agent.get("acp_server", "custom"))
        return creation.servers if REACHES_HTTP.get(server, self.manners.acp_http) else {}

    async def prepare(self) -> None:
        """Start nothing; the run starts the program."""

    async def hear(self, said: Said, *, body: object = None) -> None:
        self.note("message", said.text if body is None else body)
        self.store_message(said)
        if not said.run:
            return
        if self.runs and self.status == "running" and not self.ending:
            await self._supersede()
        self.begin_for_message()

    async def pause(self) -> None:
        if self.status == "running":
            # The work goes on.
            self._pausing = True
            self.stop("PauseEvent")
        elif self.status == "idle":
            self.stop("PauseEvent")
            self.publish_state()

    async def interrupt(self) -> None:
        if self.runs and self.status == "running":
            await self._cancel_turn(answered=False)
        else:
            self.publish_state()

    def recover(self) -> None:
        self._up = False
        self._pausing = self._superseding = False
        if self.status in {"running", "paused"}:
            self.move("error")
        self._inflight = None
        self._open.clear()

    async def decide(self, accept: bool, reason: str) -> None:
        """Do nothing for a rejection, and run for an acceptance: nothing is ever held."""
        self.note("respond_to_confirmation", {"accept": accept, "reason": reason})
        if accept and not self.runs:
            await self.order_run()

    async def work(self) -> None:
        if not self._up:
            await self._start()
        self.move("running")
        while (message := self._unanswered()) is not None:
            self.move("running")
            self._inflight, self._outcome = message, None
            self._said.clear()
            self._thought.clear()
            self._item, self._attempt = new_id(), 1
            self._show_agent_state()
            if self._shows_prompt:
                self._shows_prompt = False
                self.log.store(system_prompt([], ACP_PROMPT))
            self.prompts.append(_text_of(message))
            self.change.tell()
            outcome = await self.change.until(lambda: self._outcome, _NEVER, what=lambda: "an end of the turn")
            if outcome != "end":
                self.move("error")
                return
            await asyncio.sleep(self.manners.acp_end.total_seconds())
            self._finish_turn(message)
            if self.status == "paused":
                return
        if self.status == "running":
            self.move("finished")

    def state_of_agent(self) -> Frame:
        if self._session is None:
            return {}
        named = {
            "acp_last_prompt_user_message_id": self._last,
            "acp_inflight_prompt_user_message_id": None if self._inflight is None else self._inflight["id"],
            "acp_supersede_inflight_prompt": True if self._superseding else None,
        }
        return {
            "acp_agent_name": self.server,
            "acp_agent_version": "1",
            "acp_session_id": self._session,
            "acp_session_cwd": self.creation.workspace["working_dir"],
            "acp_supports_runtime_model_switch": False,
            "acp_model_via_config_option": False,
            **{key: value for key, value in named.items() if value is not None},
        }

    def shown_agent(self) -> Frame:
        agent = self.creation.agent
        return {
            "llm": {"model": "acp-managed", "usage_id": "acp-managed"},
            "tools": [],
            "mcp_config": without_secrets(agent.get("mcp_config", {})),
            "include_default_tools": [],
            "system_prompt_filename": "system_prompt.j2",
            "security_policy_filename": "security_policy.j2",
            "system_prompt_kwargs": {},
            "tool_concurrency_limit": 1,
            "acp_command": agent.get("acp_command", [self.server]),
            "acp_server": self.server,
            "acp_args": agent.get("acp_args", []),
            "acp_prompt_timeout": 1800.0,
            "acp_startup_timeout": 90.0,
            "acp_file_secrets": [],
            "acp_isolate_data_dir": False,
            "kind": "ACPAgent",
        }

    # The steps of a turn

    async def _begin_turn(self) -> None:
        """Prompt the agent for a test or a page, unless it works already."""
        if not self.prompted:
            if not self.runs:
                await self.hear(Said([{"type": "text", "text": "(simulated)"}], run=True))
            await self.change.until(lambda: self.prompted or None, PATIENCE, what=lambda: "a prompt")

    async def _start(self) -> None:
        await self.mcp.begin()
        self._up = True
        self._session = self._session or f"as_{new_id()[:8]}"
        self.update("agent_state", self.state_of_agent())
        self.log.store(system_prompt([], ACP_PROMPT))

    def _unanswered(self) -> Frame | None:
        """Return the first user message of the branch without an answer."""
        messages = (
            event for event in self.log.branch() if event["kind"] == "MessageEvent" and event["source"] == "user"
        )
        return next((message for message in messages if message["id"] not in self._answered), None)

    def _settle(self, outcome: Literal["end", "error", "crash"]) -> None:
        assert self.prompted, "the agent has no turn"
        self._outcome = outcome
        self.change.tell()

    def _finish_turn(self, message: Frame) -> None:
        self._close_open(failed=False)
        said = "".join(self._said)
        reasoning = "".join(self._thought) or None
        event = action_event(finish_call(said), call_id=new_id(), response_id=new_id(), reasoning=reasoning)
        # The event at the end of a turn has no summary.
        action = self.log.store({key: value for key, value in event.items() if key != "summary"}, event_id=self._item)
        self.log.store(observation_event(action, own_seen("Finish", said)))
        self._mark_answered(message)
        self._model_calls += 1
        paused, self._pausing = self._pausing, False
        self.move("finished")
        self.log.store(stats("acp-managed", "acp-managed", self._model_calls, tokens=10, window=0))
        self._show_agent_state()
        if paused:
            self.move("paused")

    def _mark_answered(self, message: Frame) -> None:
        self._answered.add(message["id"])
        self._last, self._inflight = message["id"], None

    def _close_open(self, *, failed: bool) -> None:
        for call_id in list(self._open):
            self.ends_tool(call_id, failed=failed)

    async def _supersede(self) -> None:
        """Replace the turn: the message in flight counts as answered."""
        self._superseding = True
        self._show_agent_state()
        await self._cancel_turn(answered=True)
        self._shows_prompt = True

    async def _cancel_turn(self, *, answered: bool) -> None:
        await asyncio.sleep(self.manners.acp_cancel.total_seconds())
        if self.ending or not self.runs:
            return
        await self.cancel_run()
        self._close_open(failed=True)
        if self._said:
            self.abort_item(self._item, attempt=self._attempt)
        message, self._inflight = self._inflight, None
        self._superseding = False
        if answered and message is not None:
            self._mark_answered(message)
            self._show_agent_state()
        self.move("paused")
        self.log.store(stopped("InterruptEvent"))
        self.publish_state()
        await self.ended()

    def _show_agent_state(self) -> None:
        self.update("agent_state", self.state_of_agent())


def _text_of(message: Frame) -> str:
    return "".join(block["text"] for block in message["llm_message"]["content"] if block["type"] == "text")
