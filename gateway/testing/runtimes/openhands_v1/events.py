"""Builds the events of an OpenHands agent-server, in the forms of recorded conversations. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Frame = dict[str, Any]
Status = Literal["idle", "running", "waiting_for_confirmation", "paused", "finished", "error", "stuck"]
Risk = Literal["UNKNOWN", "LOW", "MEDIUM", "HIGH"]

KEPT_TEXT = 30_000
MASKED = "**********"
FOLDER = "/workspace"
INTERRUPTED = "Tool call interrupted before completion. The conversation was paused."
RESTARTED = (
    "A restart occurred while this tool was in progress. This may indicate a fatal memory error or system crash. "
    "The tool execution was interrupted and did not complete."
)
ACP_PROMPT = (
    "This conversation is powered by an ACP server. The system prompt and tools are managed by the ACP server and are "
    "not available for display."
)
_BUILT_IN = {
    "terminal": ("Terminal", False, True, False, True),
    "file_editor": ("FileEditor", False, True, False, False),
    "task_tracker": ("TaskTracker", False, False, True, False),
    "finish": ("Finish", True, False, True, False),
    "think": ("Think", True, False, True, False),
}
"""For each tool the start of its class names, and whether it reads only, destroys, may be repeated, and is open."""
USABLE_TOOLS = (
    "browser_tool_set",
    "file_editor",
    "start_child_conversation",
    "task_tool_set",
    "task_tracker",
    "terminal",
)
DEFAULT_TOOLS = ("finish", "think")
_TITLED = frozenset({"terminal", "file_editor", "finish", "think"})


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a model's response."""

    tool: str
    action: Frame | None
    """With its `kind`; None for a call that cannot be used."""
    arguments: Frame
    """The arguments of the model, without risk and summary."""
    risk: Risk = "LOW"
    """The rating of the model; the event has it only with a security analyzer."""
    summary: str | None = None


def text(content: str) -> Frame:
    """Make a text block."""
    return {"cache_prompt": False, "type": "text", "text": content}


def cut(content: str) -> str:
    """Remove the middle of a long text, as the server does."""
    if len(content) <= KEPT_TEXT:
        return content
    half = KEPT_TEXT // 2
    return f"{content[:half]}\n[... observation truncated ...]\n{content[-half:]}"


def system_prompt(tools: Sequence[Frame], prompt: str = "You are a simulated agent.") -> Frame:
    """Make the event that lists the agent's tools."""
    return {"source": "agent", "system_prompt": text(prompt), "tools": list(tools), "kind": "SystemPromptEvent"}


def built_in_tool(name: str) -> Frame:
    """Describe a tool of the server in a system prompt."""
    start, reads, destroys, repeats, is_open = _BUILT_IN.get(name, (name.title().replace("_", ""), *(False,) * 4))
    title = {"title": name} if name in _TITLED else {}
    return {
        "description": f"The simulated tool {name}.",
        "action_type": f"{start}Action",
        "observation_type": f"{start}Observation",
        "annotations": {
            **title,
            "readOnlyHint": reads,
            "destructiveHint": destroys,
            "idempotentHint": repeats,
            "openWorldHint": is_open,
        },
        "kind": f"{start}Tool",
        "title": name,
    }


def mcp_tool(name: str, tool: Frame) -> Frame:
    """Describe a tool of an MCP server in a system prompt; `name` may have the server's as a prefix."""
    return {
        "description": tool.get("description") or "",
        "action_type": "MCPToolAction",
        "observation_type": "MCPToolObservation",
        "mcp_tool": tool,
        "kind": "MCPToolDefinition",
        "title": name,
    }


def user_message(content: Sequence[Frame]) -> Frame:
    """Make the event of a client's message."""
    shown = {"role": "user", "content": [_block(one) for one in content], "thinking_blocks": list[Frame]()}
    more: Frame = {"activated_skills": [], "extended_content": []}
    return {"source": "user", "llm_message": shown, **more, "kind": "MessageEvent"}


def agent_message(content: str, *, reasoning: str | None = None, response_id: str | None = None) -> Frame:
    """Make the event of a text answer."""
    shown: Frame = {"role": "assistant", "content": [text(content)], "thinking_blocks": []}
    if reasoning is not None:
        shown["reasoning_content"] = reasoning
    event: Frame = {"source": "agent", "llm_message": shown, "activated_skills": [], "extended_content": []}
    return event | ({} if response_id is None else {"llm_response_id": response_id}) | {"kind": "MessageEvent"}


def action_event(
    call: Call, *, call_id: str, response_id: str, thought: str = "", reasoning: str | None = None, rated: bool = False
) -> Frame:
    """Make the event of a call; `rated` if a security analyzer is set."""
    event: Frame = {"source": "agent", "thought": [text(thought)] if thought else [], "thinking_blocks": []}
    if reasoning is not None:
        event["reasoning_content"] = reasoning
    if call.action is not None:
        event["action"] = call.action
    given = call.arguments | ({"summary": call.summary} if call.summary is not None else {})
    told = json.dumps(given if call.tool == "finish" else {**given, "security_risk": call.risk})
    event |= {
        "tool_name": call.tool,
        "tool_call_id": call_id,
        "tool_call": {"id": call_id, "name": call.tool, "arguments": told, "origin": "completion"},
        "llm_response_id": response_id,
        "security_risk": call.risk if rated else "UNKNOWN",
    }
    if call.action is not None:
        event["summary"] = call.summary or f"{call.tool}: {json.dumps(call.arguments)}"
    return {**event, "kind": "ActionEvent"}


def observation_event(action: Frame, observation: Frame) -> Frame:
    """Make the result of an action."""
    return {
        "source": "environment",
        "tool_name": action["tool_name"],
        "tool_call_id": action["tool_call_id"],
        "observation": observation,
        "action_id": action["id"],
        "extended_content": [],
        "kind": "ObservationEvent",
    }


def agent_error(action: Frame, error: str, *, kind: str = "agent_action") -> Frame:
    """Make the error of a call, which names its action only by `tool_call_id`."""
    return {
        "source": "agent",
        "tool_name": action["tool_name"],
        "tool_call_id": action["tool_call_id"],
        "error": error,
        "classification": {"kind": kind, "retryable": kind == "agent_action", "user_action": "retry"},
        "kind": "AgentErrorEvent",
    }


def rejection(action: Frame, reason: str) -> Frame:
    """Make the result of an action that a client rejected."""
    return {
        "source": "environment",
        "tool_name": action["tool_name"],
        "tool_call_id": action["tool_call_id"],
        "action_id": action["id"],
        "rejection_reason": reason,
        "rejection_source": "user",
        "kind": "UserRejectObservation",
    }


def state_update(key: str, value: Any) -> Frame:
    """Make a change of one member of the state."""
    return {"source": "environment", "key": key, "value": value, "kind": "ConversationStateUpdateEvent"}


def stopped(kind: Literal["PauseEvent", "InterruptEvent"]) -> Frame:
    """Make the event that follows `paused`."""
    return {"source": "user", "kind": kind}


def conversation_error(code: str, detail: str, *, kind: str = "internal", retryable: bool = False) -> Frame:
    """Make the event that follows `error`."""
    classification = {"kind": kind, "retryable": retryable, "user_action": "retry" if retryable else "none"}
    return {
        "source": "environment",
        "code": code,
        "detail": detail,
        "classification": classification,
        "kind": "ConversationErrorEvent",
    }


def server_error(code: str, detail: str) -> Frame:
    """Make the answer of the events socket to a bad frame; it is never stored."""
    return {"source": "environment", "code": code, "detail": detail, "kind": "ServerErrorEvent"}


def security_analysis(policy: Frame, analyzer: Frame, risks: Mapping[str, str]) -> Frame:
    """Make the event between the actions and the waiting state, which exists only with an analyzer."""
    shown: Frame = {"analyzer": analyzer["kind"], "policy": policy, "risks": dict(risks)}
    return {"source": "environment", **shown, "kind": "SecurityAnalysisEvent"}


def streaming_delta(content: str, *, reasoning: bool = False) -> Frame:
    """Make a piece of a streamed text for the events socket; it is never stored."""
    name = "reasoning_content" if reasoning else "content"
    return {"source": "agent", name: content, "kind": "StreamingDeltaEvent"}


def acp_tool_call(call: Frame, *, is_error: bool = False) -> Frame:
    """Make the start or the end of a tool call of an ACP agent."""
    shown = {key: value for key, value in call.items() if value is not None}
    return {"source": "agent", **shown, "is_error": is_error, "kind": "ACPToolCallEvent"}


def stats(usage_id: str, model: str, calls: int, *, tokens: int = 100, window: int = 128_000) -> Frame:
    """Make the metrics after a number of model calls."""
    used = {
        "model": model,
        "prompt_tokens": tokens * calls,
        "completion_tokens": 10 * calls,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "context_window": window,
        "per_turn_token": tokens + 10,
        "response_id": "",
    }
    metrics: Frame = {"model_name": model, "accumulated_cost": 0.0005 * calls, "max_budget_per_task": None}
    return state_update("stats", {"usage_to_metrics": {usage_id: {**metrics, "accumulated_token_usage": used}}})


# Observations


def terminal_seen(command: str, output: str, exit_code: int, folder: str) -> Frame:
    """Make the result of a command; a failed one is no error."""
    metadata: Frame = {
        "exit_code": exit_code,
        "pid": -1,
        "username": "root",
        "hostname": "host",
        "working_dir": FOLDER,
        "py_interpreter_path": "python",
        "prefix": "",
        "suffix": f"\n[The command completed with exit code {exit_code}.]",
    }
    return {
        "content": [text(cut(output))],
        "is_error": False,
        "command": command,
        "exit_code": exit_code,
        "timeout": False,
        "metadata": metadata,
        "full_output_save_dir": folder,
        "kind": "TerminalObservation",
    }


def file_seen(path: str, content: str) -> Frame:
    """Make the result of the creation of a file."""
    return {
        "content": [text(f"File created successfully at: {path}")],
        "is_error": False,
        "command": "create",
        "path": path,
        "prev_exist": False,
        "new_content": content,
        "kind": "FileEditorObservation",
    }


def own_seen(kind: Literal["Finish", "Think"], said: str) -> Frame:
    """Make the result of `finish` or `think`."""
    content = said if kind == "Finish" else "Your thought has been logged."
    return {"content": [text(content)], "is_error": False, "kind": f"{kind}Observation"}


def mcp_seen(tool: str, blocks: Sequence[Frame], *, is_error: bool) -> Frame:
    """Make the result of an MCP tool."""
    content = [text(f"[Tool '{tool}' executed.]"), *blocks]
    return {"content": content, "is_error": is_error, "tool_name": tool, "kind": "MCPToolObservation"}


def mcp_failed(tool: str, why: str) -> Frame:
    """Make the result of an MCP call that broke or timed out."""
    return {"content": [text(why)], "is_error": True, "tool_name": tool, "kind": "MCPToolObservation"}


def _block(block: Frame) -> Frame:
    return {"cache_prompt": False, **block}


# Calls


def terminal_call(command: str, *, risk: Risk = "LOW") -> Call:
    """Make the call of a command."""
    action: Frame = {"command": command, "is_input": False, "reset": False, "kind": "TerminalAction"}
    return Call("terminal", action, {"command": command}, risk)


def file_call(path: str, content: str, *, risk: Risk = "LOW") -> Call:
    """Make the call that creates a file."""
    given = {"command": "create", "path": path, "file_text": content}
    return Call("file_editor", {**given, "kind": "FileEditorAction"}, given, risk)


def finish_call(message: str) -> Call:
    """Make the call that ends the work."""
    return Call("finish", {"message": message, "kind": "FinishAction"}, {"message": message})


def think_call(thought: str) -> Call:
    """Make the call that logs a thought."""
    return Call("think", {"thought": thought, "kind": "ThinkAction"}, {"thought": thought})


def mcp_call(tool: str, arguments: Frame, *, risk: Risk = "LOW") -> Call:
    """Make the call of an MCP tool."""
    return Call(tool, {"data": arguments, "kind": "MCPToolAction"}, arguments, risk)


def unusable_call(tool: str, arguments: Frame) -> Call:
    """Make a call that the server cannot use: an unknown tool, or arguments that do not fit."""
    return Call(tool, None, arguments)
