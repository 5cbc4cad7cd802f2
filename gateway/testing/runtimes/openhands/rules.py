"""The rules of an OpenHands server for its clients, as in 0.62 but slightly stricter. Pure.

Sources: the public "Socket.IO API" page of OpenHands, and measurements of a real server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

Frame = dict[str, Any]

DEPTH_LIMIT = 64
ID_LIMIT = 100
EVENT_PAGE = 100
DEFAULT_PAGE = 20
PROVIDERS = frozenset({"github", "gitlab", "bitbucket", "azure_devops", "enterprise_sso"})
SOURCES = frozenset({"agent", "user", "environment"})
CREATION_KEYS = frozenset(
    {
        *("repository", "git_provider", "selected_branch", "initial_user_msg", "image_urls", "replay_json"),
        *("suggested_task", "create_microagent", "conversation_instructions", "mcp_config"),
    }
)


class Violation(Exception):
    """A client has sent invalid data; the text is for tests only, because the server sends no error."""


@dataclass(frozen=True, slots=True)
class Arg:
    """The types and the default of one argument of an action."""

    kinds: tuple[type, ...]
    default: Any = None
    required: bool = False


_TEXT = Arg((str,), "")
_NEEDED = Arg((str,), required=True)
_NO = Arg((bool,), default=False)
_RISK = Arg((int,), -1)
_MAYBE = Arg((str, type(None)))
_TEXTS = Arg((list, type(None)), ())
_STATE = Arg((str,), "confirmed")

ACTIONS: Final[Mapping[str, Mapping[str, Arg]]] = {
    "null": {},
    "message": {
        "content": _NEEDED,
        "file_urls": _TEXTS,
        "image_urls": _TEXTS,
        "wait_for_response": _NO,
        "security_risk": _RISK,
    },
    "run": {
        "command": _NEEDED,
        "is_input": _NO,
        "thought": _TEXT,
        "blocking": _NO,
        "is_static": _NO,
        "cwd": _MAYBE,
        "hidden": _NO,
        "confirmation_state": _STATE,
        "security_risk": _RISK,
    },
    "run_ipython": {
        "code": _NEEDED,
        "thought": _TEXT,
        "include_extra": Arg((bool,), default=True),
        "confirmation_state": _STATE,
        "security_risk": _RISK,
        "kernel_init_code": _TEXT,
    },
    "read": {
        "path": _NEEDED,
        "start": Arg((int,), 0),
        "end": Arg((int,), -1),
        "thought": _TEXT,
        "security_risk": _RISK,
        "impl_source": Arg((str,), "default"),
        "view_range": Arg((list, type(None))),
    },
    "write": {
        "path": _NEEDED,
        "content": _NEEDED,
        "start": Arg((int,), 0),
        "end": Arg((int,), -1),
        "thought": _TEXT,
        "security_risk": _RISK,
    },
    "edit": {
        "path": _NEEDED,
        "command": _TEXT,
        "file_text": _MAYBE,
        "old_str": _MAYBE,
        "new_str": _MAYBE,
        "insert_line": Arg((int, type(None))),
        "content": _TEXT,
        "start": Arg((int,), 1),
        "end": Arg((int,), -1),
        "thought": _TEXT,
        "security_risk": _RISK,
        "impl_source": Arg((str,), "oh_aci"),
    },
    "browse": {"url": _NEEDED, "thought": _TEXT, "security_risk": _RISK, "return_axtree": _NO},
    "browse_interactive": {
        "browser_actions": _NEEDED,
        "thought": _TEXT,
        "browsergym_send_msg_to_user": _TEXT,
        "security_risk": _RISK,
        "return_axtree": _NO,
    },
    "call_tool_mcp": {
        "name": _NEEDED,
        "arguments": Arg((dict,), ()),
        "thought": _TEXT,
        "security_risk": _RISK,
    },
    "think": {"thought": _TEXT},
    "finish": {"final_thought": _TEXT, "outputs": Arg((dict,), ()), "thought": _TEXT},
    "reject": {"outputs": Arg((dict,), ()), "thought": _TEXT},
    "delegate": {"agent": _NEEDED, "inputs": Arg((dict,), required=True), "thought": _TEXT},
    "recall": {"recall_type": _NEEDED, "query": _TEXT, "thought": _TEXT},
    "change_agent_state": {"agent_state": _NEEDED, "thought": _TEXT},
    "condensation_request": {},
    "task_tracking": {"command": Arg((str,), "view"), "task_list": _TEXTS, "thought": _TEXT},
    "loop_recovery": {"option": Arg((int,), 1)},
}
"""The actions that a client may send, with their arguments."""

OWN_TOOLS = frozenset(
    {
        *("browser", "delegate_to_browsing_agent", "edit_file", "execute_bash", "execute_ipython_cell", "finish"),
        *("request_condensation", "str_replace_editor", "task_tracker", "think"),
    }
)
"""The agent's built-in functions; they take precedence over MCP tools of the same name."""
RUNNABLE = frozenset({"run", "run_ipython", "read", "write", "edit", "browse", "browse_interactive", "call_tool_mcp"})
"""The actions that the runtime executes, for the agent and for clients."""
GATED = frozenset({"run", "run_ipython"})
"""The actions with a confirmation state on the wire."""
_LEGACY = {"images_urls": "image_urls", "is_confirmed": "confirmation_state"}
_TOLERATED = frozenset({"timestamp", "keep_prompt", "task_completed"})


def read_action(payload: object) -> tuple[str, Frame]:
    """Parse a client's action; return its name and all arguments.

    Raises:
        Violation: a real server would drop it silently.
    """
    if not isinstance(payload, dict):
        raise Violation(f"a payload is an object, not {type(payload).__name__}")
    frame = cast("Frame", payload)
    _scan(frame)
    name = frame.get("action")
    if not isinstance(name, str):
        raise Violation('a client sends {"action", "args"}')
    if name not in ACTIONS:
        raise Violation(f"action {name[:64]!r} is not defined")
    if frame.get("source", "user") not in SOURCES:
        raise Violation(f"{frame['source']!r} is no source")
    if frame.get("id") not in {None, -1}:
        raise Violation("a client gives no ids")
    args: object = frame.get("args", {})
    if not isinstance(args, dict):
        raise Violation(f"args of {name} must be an object")
    return name, _complete(name, cast("Frame", args))


def _complete(name: str, given: Frame) -> Frame:
    """Fill in the omitted arguments, as the server's classes do."""
    args = {_LEGACY.get(key, key): value for key, value in given.items() if key not in _TOLERATED}
    known = ACTIONS[name]
    if unknown := sorted(args.keys() - known.keys()):
        raise Violation(f"{name} has no argument {unknown[0][:64]!r}")
    for key, arg in known.items():
        if key not in args:
            if arg.required:
                raise Violation(f"{name} needs {key!r}")
            continue
        value = args[key]
        if not isinstance(value, arg.kinds) or (isinstance(value, bool) and bool not in arg.kinds):
            raise Violation(f"{key!r} of {name} cannot be {type(value).__name__}")
    return {key: args.get(key, _fresh(arg)) for key, arg in known.items()}


def _fresh(arg: Arg) -> Any:
    """Return the default, as a new object for each event."""
    if arg.default == ():
        return {} if dict in arg.kinds else []
    return arg.default


def complete(name: str, /, **given: Any) -> Frame:
    """Return all arguments of an action of the agent."""
    return _complete(name, given)


def read_creation(body: object) -> Frame:
    """Parse the body of `POST /api/conversations`.

    Raises:
        Violation: it has an unknown key.
    """
    if not isinstance(body, dict):
        raise Violation("the body must be an object")
    creation = cast("Frame", body)
    _scan(creation)
    if unknown := sorted(creation.keys() - CREATION_KEYS):
        raise Violation(f"extra inputs are not permitted: {unknown[0][:64]!r}")
    if not isinstance(creation.get("initial_user_msg"), str | None):
        raise Violation("initial_user_msg must be a string")
    return creation


def read_latest(given: str) -> int:
    """Parse `latest_event_id`; return -1, for no event, if it is not a number."""
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        return -1
    return max(-1, int(given))


def is_conversation_id(name: str) -> bool:
    """Return whether REST accepts an id; a real server's socket accepts any id, but a client must not rely on that."""
    return 1 <= len(name) <= ID_LIMIT and ".." not in name and not any(c in "/\\" or ord(c) < 33 for c in name)


def _scan(frame: Frame) -> None:
    """Reject non-JSON values and excessive nesting, without recursion."""
    waiting: list[tuple[object, int]] = [(frame, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEPTH_LIMIT:
            raise Violation(f"nested deeper than {DEPTH_LIMIT}")
        if isinstance(value, dict):
            waiting.extend((member, depth + 1) for member in cast("Frame", value).values())
        elif isinstance(value, list):
            waiting.extend((item, depth + 1) for item in cast("list[object]", value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise Violation("NaN and Infinity are not JSON")
        elif isinstance(value, bytes):
            raise Violation("binary attachments are not part of the protocol")
