"""Decodes the server messages on `oh_event`: actions, observations, status updates and errors. Pure."""

from dataclasses import replace
from typing import Any, Literal, cast

from adapters.openhands import wire
from adapters.openhands.observations import make_state, read_observation
from adapters.openhands.orders import read_order
from gateway.errors import MalformedFrame
from gateway.events import (
    ActionOrdered,
    Author,
    Content,
    Data,
    Draft,
    Event,
    FaultReported,
    Image,
    Loss,
    MessagePosted,
    Opaque,
    SessionTitled,
    Text,
    ThoughtShared,
    ThreadSent,
    ToolRequested,
)
from gateway.strict_json import find_fault, read_model, unknown_fields

PROMPT_NOTE = "stored as size and hash; keep_system_prompt stores it whole"
Reading = tuple[Event, tuple[Loss, ...]]
_ROLES: dict[str, Literal["agent", "user", "system"]] = {"agent": "agent", "user": "user", "environment": "system"}


def read_event(payload: dict[str, Any], *, keep_prompt: bool, plain: bool) -> Draft | None:
    """Decode a server message; None for an unknown form."""
    trimmed = wire.trim(payload)
    match payload:
        case {"status_update": True}:
            return _status(_check(trimmed, plain))
        case {"action": str()} | {"observation": str()}:
            draft = _event(trimmed, wire.correlation_of(payload), plain)
            return draft if keep_prompt else _without_prompt(draft)
        case {"error": True}:
            native = read_model(wire.Failure, _check(trimmed, plain))
            return Draft(FaultReported(message=native.message), losses=unknown_fields(native.model_extra))
        case _:
            return None


def read_client_action(payload: dict[str, Any], *, plain: bool) -> Draft | None:
    """Decode a client message; None without an equivalent event (an injected observation, internal records)."""
    if not isinstance(payload.get("action"), str):
        return None
    native = read_model(wire.ClientAction, _check(payload, plain))
    losses = unknown_fields(native.model_extra)
    if native.action == "message":
        event, more = read_message(native.args, Author(role="user"))
    elif native.action in wire.CLIENT_ACTIONS:
        event, more = read_order(native.action, native.args)
    else:
        return None
    return Draft(event, losses=losses + more)


def _check(payload: dict[str, Any], plain: bool) -> dict[str, Any]:
    if not plain and (fault := find_fault(payload)):
        raise MalformedFrame(fault.reason, path=fault.path)
    return payload


def _status(payload: dict[str, Any]) -> Draft | None:
    native = read_model(wire.StatusUpdate, payload)
    losses = unknown_fields(native.model_extra)
    match native:
        case wire.StatusUpdate(conversation_title=str(title)):
            return Draft(SessionTitled(title=title), losses=losses)
        case wire.StatusUpdate(type="error"):
            return Draft(FaultReported(message=native.message or native.id or "", code=native.id), losses=losses)
        case wire.StatusUpdate(type="info", id=str(status)):
            state = wire.state_of_status(status)
            if state is None:
                losses += (Loss(how="narrowed", path="/id", note="an unknown status, read as running"),)
            # Live only: the agent's own state arrives as an event, and status updates race with it (OH28, OH31).
            return Draft(make_state(state or "running", native.message, status), losses=losses, live=True)
        case _:
            return None


def _event(payload: dict[str, Any], correlation: str | None, plain: bool) -> Draft:
    invalid: tuple[Loss, ...] = ()
    extras = payload.get("extras")
    if not plain and "action" not in payload and (fault := find_fault(extras, "/extras")):
        # Keep the outcome of the action although its extras are invalid.
        payload = {**payload, "extras": {}}
        invalid = (Loss(how="dropped", path="/extras", note=f"{fault.path} {fault.reason}"[:300]),)
    native = read_model(wire.ServerEvent, _check(payload, plain))
    losses = invalid + unknown_fields(native.model_extra) if invalid or native.model_extra else ()
    if native.action is not None:
        losses += _misplaced(payload, _OF_OBSERVATIONS)
        event, more = _action(native, correlation)
    else:
        losses += _misplaced(payload, _OF_ACTIONS)
        event, more = read_observation(native, correlation)
    if event is None and correlation is not None:
        payload = {**payload, "tool_call_metadata": {"tool_call_id": correlation}}
    decoded = event if event is not None else Opaque(channel=wire.EVENTS, payload=payload)
    # An opaque event has lost nothing.
    return Draft(
        decoded,
        native_id=wire.native_id(native.id, native.timestamp),
        native_sequence=native.id,
        native_time=native.timestamp,
        correlation=correlation,
        losses=invalid if isinstance(decoded, Opaque) else losses + more,
        echo=native.source == "user" and native.action is not None and not isinstance(decoded, Opaque),
    )


def _without_prompt(draft: Draft) -> Draft:
    """Replace a system prompt by size and hash: every conversation sends the same 30 KB."""
    match draft.event:
        case Opaque(payload={"action": wire.PROMPT, "args": dict()}):
            payload: dict[str, Any] = draft.event.payload
        case _:
            return draft
    args, losses = dict(payload["args"]), draft.losses
    for name, whole in args.items():
        if isinstance(whole, str | list) and name in {"content", "tools"}:
            args[name] = wire.digest_of(cast("object", whole))
            losses += (Loss(how="narrowed", path=f"/args/{name}", note=PROMPT_NOTE),)
    shortened = {**payload, "args": args}
    if payload.get("message") and payload["message"] == payload["args"].get("content"):
        del shortened["message"]
        losses += (Loss(how="dropped", path="/message", note="the same text as /args/content"),)
    return replace(draft, event=Opaque(channel=draft.event.channel, payload=shortened), losses=losses)


_OF_ACTIONS = ("args",)
_OF_OBSERVATIONS = ("observation", "content", "extras", "success")


def _misplaced(payload: dict[str, Any], names: tuple[str, ...]) -> tuple[Loss, ...]:
    if payload.keys().isdisjoint(names):
        return ()
    return tuple(
        Loss(how="dropped", path=f"/{name}", note="not a member of this type") for name in names if name in payload
    )


def _action(native: wire.ServerEvent, correlation: str | None) -> tuple[Event | None, tuple[Loss, ...]]:
    name = native.action or ""
    if name == "message":
        return _message(native)
    if name in wire.BOOKKEEPING:
        return None, ()
    if native.source == "user":
        return read_order(name, native.args or {})
    if name == "change_agent_state":
        # The runtime orders itself; the resulting state has its own event.
        losses = (Loss(how="narrowed", path="/source", note=f"ordered by {native.source!r}"),)
        return ActionOrdered(action=name, arguments=native.args or {}), losses
    reading = _agent_action(name, native, correlation)
    if reading is None:
        return None, ()
    event, losses = reading
    return event, losses + source_losses(native.source)


def source_losses(source: str | None) -> tuple[Loss, ...]:
    """List a source other than the agent for events that always belong to the agent."""
    if source == "agent":
        return ()
    how = "defaulted" if source is None else "narrowed"
    return (Loss(how=how, path="/source", note="read as the agent's"),)


def _agent_action(name: str, native: wire.ServerEvent, correlation: str | None) -> Reading | None:
    args = native.args or {}
    match name:
        case "think":
            thought = read_model(wire.ThinkArgs, args, "/args")
            return ThoughtShared(text=thought.thought), unknown_fields(thought.model_extra, "/args")
        case "finish" | "reject":
            return _final_message(name, read_model(wire.FinishArgs, args, "/args"))
        case "delegate":
            return _delegate(native.id, read_model(wire.DelegateArgs, args, "/args"), correlation)
        case _ if name in wire.TOOLS:
            return _tool(name, native), ()
        case _:
            return None


def _message(native: wire.ServerEvent) -> Reading:
    role = _ROLES.get(native.source or "agent", "system")
    losses: tuple[Loss, ...] = ()
    if native.source not in _ROLES:
        how = "defaulted" if native.source is None else "narrowed"
        losses = (Loss(how=how, path="/source", note=f"read as the {role}'s"),)
    event, more = read_message(native.args or {}, Author(role=role))
    return event, losses + more


def read_message(args: dict[str, Any], author: Author) -> Reading:
    """Decode the arguments of a message by any author."""
    native = read_model(wire.MessageArgs, args, "/args")
    losses = unknown_fields(native.model_extra, "/args")
    text = native.content if native.content is not None else native.thought
    if text is None:
        raise MalformedFrame("a message requires a text", path="/args/content")
    if native.content is not None and native.thought:
        losses += (Loss(how="dropped", path="/args/thought", note="the message has a content"),)
    images = native.image_urls if native.image_urls is not None else (native.images_urls or [])
    blocks: list[Content] = [Text(text=text)] if text or not images else []
    blocks.extend(Image(url=url) for url in images)
    rest = {name: args[name] for name, usual in wire.MESSAGE_DEFAULTS.items() if args.get(name, usual) != usual}
    if "image_urls" in args and native.image_urls is None:
        rest["image_urls"] = None
    return MessagePosted(author=author, content=tuple(blocks), extra_args=rest or None), losses


def _final_message(name: str, native: wire.FinishArgs) -> Reading:
    text = native.final_thought if name == "finish" else native.thought
    rest: dict[str, Any] = {"action": name}
    if name == "finish" and native.thought:
        rest["thought"] = native.thought
    if name == "reject" and native.final_thought:
        rest["final_thought"] = native.final_thought
    if native.outputs:
        rest["outputs"] = native.outputs
    # Older servers send `task_completed`; newer ones drop it (OH35).
    event = MessagePosted(author=Author(role="agent"), content=(Text(text=text),), extra_args=rest)
    return event, unknown_fields(native.model_extra, "/args")


def _delegate(number: int, native: wire.DelegateArgs, correlation: str | None) -> Reading:
    work: dict[str, Any] = {"agent": native.agent, "inputs": native.inputs}
    if native.thought:
        work["thought"] = native.thought
    task = native.inputs.get("task")
    text = (Text(text=task),) if isinstance(task, str) else ()
    event = ThreadSent(thread_id=correlation or str(number), content=(*text, Data(data=work)))
    return event, unknown_fields(native.model_extra, "/args")


def _tool(name: str, native: wire.ServerEvent) -> Event:
    arguments = dict(native.args or {})
    thought = arguments.get("thought")
    if isinstance(thought, str):
        del arguments["thought"]
    needs_approval = False
    if name in wire.GATED:
        needs_approval = arguments.get("confirmation_state") == wire.AWAITING
        if arguments.get("confirmation_state") in (wire.AWAITING, wire.CONFIRMED):
            del arguments["confirmation_state"]
    return ToolRequested(
        native_call_id=str(native.id),
        tool=name,
        arguments=arguments,
        runs_in="runtime",
        needs_approval=needs_approval,
        thought=thought if isinstance(thought, str) and thought else None,
        preview=native.message or None,
    )
