"""Builds the events of an OpenHands server: actions, observations, states and tool-call metadata. Pure."""

from dataclasses import dataclass, field
from typing import Any

from gateway.testing.runtimes.openhands.rules import Frame

LIVE_FROM_ENVIRONMENT = frozenset({"run", "agent_state_changed", "recall", "error"})
DEFAULT_FINISH = "All done! What's next on the agenda?"
NOT_EXECUTED = "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_STOPPED"
NOT_EXECUTED_ERROR = "AGENT_ERROR$ERROR_ACTION_NOT_EXECUTED_ERROR"
TOO_MANY = "AGENT_ERROR$TOO_MANY_CONVERSATIONS"
STOPPED_TEXT = "Stop button pressed. The action has not been executed."
BROKEN_TEXT = "The action has not been executed due to a runtime error."
_FUNCTIONS = {
    "run": "execute_bash",
    "run_ipython": "execute_ipython_cell",
    "read": "str_replace_editor",
    "edit": "str_replace_editor",
    "task_tracking": "task_tracker",
    "delegate": "delegate_to_browsing_agent",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of an action."""

    observation: str
    content: str
    extras: Frame = field(default_factory=dict[str, Any])
    success: bool | None = None


def action_event(name: str, args: Frame, *, source: str, share: Frame | None = None) -> Frame:
    """Make an action; `share` is its tool-call metadata."""
    return {"source": source, "message": _describe(name, args), "action": name, **(share or {}), "args": args}


def observation_event(
    seen: Seen, *, source: str = "agent", cause: int | None = None, share: Frame | None = None
) -> Frame:
    """Make an observation; one that results from a tool call has the metadata of its action."""
    event: Frame = {"source": source, "message": _describe_seen(seen)}
    if cause is not None:
        event["cause"] = cause
    event["observation"] = seen.observation
    if share is not None and "tool_call_metadata" in share:
        event["tool_call_metadata"] = share["tool_call_metadata"]
    event |= {"content": seen.content, "extras": seen.extras}
    if seen.success is not None:
        event["success"] = seen.success
    return event


def state_event(state: str, reason: str = "") -> Frame:
    """Make a change of the agent's state, with the environment as its source."""
    return observation_event(
        Seen("agent_state_changed", "", {"agent_state": state, "reason": reason}), source="environment"
    )


def is_state(event: Frame, state: str) -> bool:
    """Return whether an event reports this state of the agent."""
    return event.get("observation") == "agent_state_changed" and event["extras"]["agent_state"] == state


def system_event(tools: list[Frame]) -> Frame:
    """Make the system prompt of a conversation; the real one has 25 KB and built-in tools."""
    content = "You are a simulated agent."
    args: Frame = {"content": content, "tools": tools, "openhands_version": "0.62.0", "agent_class": "CodeActAgent"}
    return {"source": "agent", "message": content, "action": "system", "args": args}


def recall_seen() -> Seen:
    """Make the recall of a conversation's first message."""
    extras: Frame = {
        "recall_type": "workspace_context",
        **dict.fromkeys(("repo_name", "repo_directory", "repo_branch", "repo_instructions"), ""),
        "runtime_hosts": {},
        "additional_agent_instructions": "",
        "date": "2026-11-20",
        "custom_secrets_descriptions": {},
        "conversation_instructions": "",
        "working_dir": "/workspace",
        "microagent_knowledge": [],
    }
    return Seen("recall", "Added workspace context", extras)


def rejected_seen() -> Seen:
    """Make the result of an action that the user has rejected."""
    return Seen("user_rejected", "Action has been rejected by the user! Waiting for further user input.")


def error_seen(text: str, error_id: str = "") -> Seen:
    """Make an error observation."""
    return Seen("error", text, {"error_id": error_id})


def model_share(name: str, number: int) -> Frame:
    """Make the tool-call metadata of an action or of a function with this name; it is most of the traffic."""
    function = _FUNCTIONS.get(name, name)
    tokens = {"completion_tokens": 10, "prompt_tokens": 100, "total_tokens": 110}
    call = {"index": 0, "id": f"call_{number}_0", "type": "function", "function": {"name": function, "arguments": "{}"}}
    message = {"content": None, "role": "assistant", "tool_calls": [call], "function_call": None}
    response = {
        "id": f"chatcmpl-simulated-{number}",
        "created": 1_795_204_356,
        "model": "simulated",
        "object": "chat.completion",
        "system_fingerprint": None,
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}],
        "usage": tokens,
        "service_tier": None,
    }
    metadata = {
        "function_name": function,
        "tool_call_id": f"call_{number}_0",
        "model_response": response,
        "total_calls_in_response": 1,
    }
    metrics: Frame = {"accumulated_cost": 0.001 * number, "max_budget_per_task": None, "accumulated_token_usage": {}}
    return {"tool_call_metadata": metadata, "llm_metrics": {**metrics, "costs": [], "token_usages": []}}


def live_of(event: Frame) -> Frame | None:
    """Return the live form of an event: the environment's events have the agent as source, or are not sent."""
    if event.get("action") == "null" or event.get("observation") == "null":
        return None
    if event["source"] != "environment":
        return event
    if "action" in event or event["observation"] not in LIVE_FROM_ENVIRONMENT:
        return None
    return {**event, "source": "agent"}


def replay_of(events: list[Frame], latest: int) -> list[Frame]:
    """Choose the events to replay to a socket: of all states only the last, at the end."""
    states: list[Frame] = []
    shown: list[Frame] = []
    for event in events:
        if event["id"] <= latest:
            continue
        if event.get("action") in {"null", "recall"} or event.get("observation") == "null":
            continue
        (states if event.get("observation") == "agent_state_changed" else shown).append(event)
    return shown + states[-1:]


def _describe(name: str, args: Frame) -> str:
    match name:
        case "message":
            return str(args["content"])
        case "run":
            return f"Running command: {args['command']}"
        case "run_ipython":
            return f"Running Python code interactively: {args['code']}"
        case "read":
            return f"Reading file: {args['path']}"
        case "write":
            return f"Writing file: {args['path']}"
        case "browse":
            return f"I am browsing the URL: {args['url']}"
        case "browse_interactive":
            return f"I am interacting with the browser:\n```\n{args['browser_actions']}\n```"
        case "think":
            return f"I am thinking...: {args['thought']}"
        case "finish":
            return str(args["thought"]) or DEFAULT_FINISH
        case "delegate":
            return f"I'm asking {args['agent']} for help with this task."
        case "recall":
            return f"Retrieving content for: {args['query']}"
        case "call_tool_mcp":
            named = f"name:\n```\n{args['name']}\n```\nand arguments:\n```\n{args['arguments']}\n```"
            return f"I am interacting with the MCP server with {named}"
        case "change_agent_state":
            return f"Agent state changed to {args['agent_state']}"
        case _:
            return ""


def _describe_seen(seen: Seen) -> str:
    match seen.observation:
        case "run":
            code = seen.extras["metadata"]["exit_code"]
            return f"Command `{seen.extras['command']}` executed with exit code {code}."
        case "read":
            return f"I read the file {seen.extras['path']}."
        case "edit":
            return f"I edited the file {seen.extras['path']}."
        case "agent_state_changed" | "delegate" | "null":
            return ""
        case _:
            return seen.content
