"""Orders to an OpenHands agent; checked here because the server rejects invalid ones without an error. Pure."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adapters.openhands import wire
from gateway.errors import CannotExpress
from gateway.events import ActionOrdered, ApprovalGiven, Event, Loss, TurnInterrupted
from gateway.strict_json import pointer, read_model, unknown_fields

Risk = Annotated[int, Field(ge=-1, le=2)]
ConfirmationState = Literal["confirmed", "rejected", "awaiting_confirmation"]
"""The server rejects a `rejected` order at once, and one that is `awaiting_confirmation` waits forever (OH54)."""


class ActionOrder(BaseModel):
    """The base of all arguments; the server drops an action with an unknown or missing one (OH56)."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    thought: str = ""


class RunOrder(ActionOrder):
    command: str
    is_input: bool = False
    blocking: bool = False
    is_static: bool = False
    cwd: str | None = None
    hidden: bool = False
    confirmation_state: ConfirmationState = "confirmed"
    security_risk: Risk = -1


class PythonOrder(ActionOrder):
    code: str
    include_extra: bool = True
    kernel_init_code: str = ""
    confirmation_state: ConfirmationState = "confirmed"
    security_risk: Risk = -1


class ReadOrder(ActionOrder):
    path: str = Field(min_length=1)
    start: int = 0
    end: int = -1
    security_risk: Risk = -1
    impl_source: Literal["default", "oh_aci"] = "default"
    view_range: list[int] | None = None


class WriteOrder(ActionOrder):
    path: str = Field(min_length=1)
    content: str
    start: int = 0
    end: int = -1
    security_risk: Risk = -1


class EditOrder(ActionOrder):
    path: str = Field(min_length=1)
    command: str = ""
    file_text: str | None = None
    old_str: str | None = None
    new_str: str | None = None
    insert_line: int | None = None
    content: str = ""
    start: int = 1
    end: int = -1
    security_risk: Risk = -1
    impl_source: Literal["default", "oh_aci", "llm_based_edit"] = "oh_aci"


class BrowseOrder(ActionOrder):
    url: str = Field(min_length=1)
    security_risk: Risk = -1
    return_axtree: bool = False


class InteractiveOrder(ActionOrder):
    browser_actions: str
    browsergym_send_msg_to_user: str = ""
    security_risk: Risk = -1
    return_axtree: bool = False


class StateOrder(ActionOrder):
    agent_state: Literal["paused", "running"]


ORDERS: dict[str, type[ActionOrder]] = {
    "run": RunOrder,
    "run_ipython": PythonOrder,
    "read": ReadOrder,
    "edit": EditOrder,
    "browse": BrowseOrder,
    "browse_interactive": InteractiveOrder,
    "change_agent_state": StateOrder,
}
"""The actions that `action.ordered` may name."""
_UNSAFE_ORDERS = {**ORDERS, "write": WriteOrder}

_OTHER_KINDS = {
    wire.STOPPED: "send turn.interrupted to stop the agent",
    wire.ALLOWED: "send approval.given to allow the action",
    wire.DENIED: "send approval.given to deny the action",
}
WRITE_REASON = (
    "OpenHands must not be ordered to `write`: the agent cannot read its observation, and every later step of the"
    " conversation fails; order `edit` with command `create` or `str_replace` instead, or set `unsafe_orders`"
)


def read_order(name: str, args: dict[str, Any]) -> tuple[Event, tuple[Loss, ...]]:
    """Decode an action of a client, or its echo, except messages."""
    if name != "change_agent_state":
        return ActionOrdered(action=name, arguments=args), ()
    native = read_model(wire.StateArgs, args, "/args")
    losses = unknown_fields(native.model_extra, "/args")
    match native.agent_state:
        case wire.STOPPED:
            return TurnInterrupted(reason=native.thought or None), losses
        case wire.ALLOWED | wire.DENIED:
            if native.thought:
                losses += (Loss(how="dropped", path="/args/thought", note="a decision has no text"),)
            return ApprovalGiven(id="", decision="allow" if native.agent_state == wire.ALLOWED else "deny"), losses
        case _:
            return ActionOrdered(action=name, arguments=args), ()


def check_order(event: ActionOrdered, *, unsafe: bool) -> None:
    """Check that the server will accept an order; `unsafe` also allows those that can spoil a conversation.

    Raises:
        CannotExpress: the server would reject it without an error, or it would break the conversation.
    """
    orders = _UNSAFE_ORDERS if unsafe else ORDERS
    order = orders.get(event.action)
    if order is None:
        known = f"OpenHands cannot be ordered to {event.action[:100]!r}; orders are {', '.join(orders)}"
        raise CannotExpress(WRITE_REASON if event.action == "write" else known, path="/action")
    if not unsafe and event.arguments.get("confirmation_state", "confirmed") != "confirmed":
        reason = (
            "only 'confirmed' runs; another state rejects the order or waits forever, unless `unsafe_orders` is set"
        )
        raise CannotExpress(reason, path="/arguments/confirmation_state")
    match event.arguments.get("agent_state"):
        case str(state) if order is StateOrder and state in _OTHER_KINDS:
            raise CannotExpress(_OTHER_KINDS[state], path="/arguments/agent_state")
        case _:
            pass
    try:
        order.model_validate(event.arguments)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
        path = pointer("/arguments", *first["loc"])
        raise CannotExpress(f"{path} of {event.action}: {first['msg']}", path=path) from exc


def write_decision(event: ApprovalGiven) -> dict[str, Any]:
    """Encode the arguments of an approval; the agent's state determines its action (OH44)."""
    return {"agent_state": wire.ALLOWED if event.decision == "allow" else wire.DENIED, "thought": ""}


def write_interrupt(event: TurnInterrupted) -> dict[str, Any]:
    """Encode the arguments of a stop."""
    return {"agent_state": wire.STOPPED, "thought": event.reason or ""}
