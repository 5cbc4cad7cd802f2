"""The client messages of HUMA 0.1: enveloped events, and `new-message` for users. Pure."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field

from adapters.huma import wire
from adapters.huma.chat import read_chat_message, write_chat_message
from adapters.huma.codec import HumaCodec
from adapters.huma.options import MAX_FRAME
from adapters.huma.reading import refuse_invalid, settle
from adapters.huma.writing import check_context, dropped, is_chat, make_frame, wakes
from gateway.adapter.checks import check_id, check_json, check_text, dropped as dropped_members
from gateway.adapter.port import Capabilities, Encoded
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    ContextUpdated,
    Draft,
    Envelope,
    Loss,
    MessagePosted,
    OutcomeKind,
    ToolFinished,
)
from gateway.strict_json import MAX_DEPTH, json_type, read_model, unknown_fields

HUMA_EVENT = "huma-0.1-event"
NEW_MESSAGE = "new-message"

CAPABILITIES = Capabilities(
    accepts=frozenset({"context.updated", "message.posted", "tool.finished", "opaque"}),
    emits=wire.EMITS,
    turns="inferred",
    delivery="silence",
    rejects_with=frozenset({wire.REJECTED}),
    replaces_context=True,
    answers_cancel=True,
    creates_sessions=True,
    takes_tools="create",
    limits={
        "name": wire.NAME_LENGTH,
        "frame_bytes": MAX_FRAME,
        "arguments_depth": MAX_DEPTH,
        "image_bytes": wire.IMAGE_BYTES,
    },
)

_ERRORS = {
    "failure": "The tool failed.",
    "expired": "The tool did not answer in time.",
    "canceled": "The call was canceled.",
}


class _Enveloped(wire.Wire):
    content: dict[str, Any]


class _ContextEvent(wire.Part):
    """The content of a `huma-0.1-event` without its own type."""

    name: str = Field(min_length=1)
    context: dict[str, Any]
    description: str
    skip_cancel_pending_message: bool | None = Field(default=None, alias="skipCancelPendingMessage")


class _ToolResult(wire.Part):
    """The content of a `huma-0.1-event` with type `tool-result`."""

    type: Literal["tool-result"] | None = None
    tool_call_id: wire.Id = Field(alias="toolCallId")
    status: Literal["completed", "canceled"] | None = None
    success: bool
    result: Any = None
    error: str | None = None
    skip_immediate_processing: bool | None = Field(default=None, alias="skipImmediateProcessing")
    context: dict[str, Any] | None = None


class Huma01Codec(HumaCodec):
    """The codec of HUMA 0.1. A result is refused if its frame exceeds `max_frame` bytes.

    `extensions` enables undocumented fields that public clients send.
    """

    protocol: ClassVar[str] = "HUMA 0.1"
    client_types: ClassVar[frozenset[str]] = frozenset({HUMA_EVENT, NEW_MESSAGE, wire.TOOL_RESULT})
    faults_on: ClassVar[str] = wire.FROM_SERVER

    def __init__(self, max_frame: int = MAX_FRAME, *, extensions: bool = True) -> None:
        self._max_frame = max_frame
        self._extensions = extensions

    def read_client_message(self, payload: dict[str, Any]) -> Draft | None:
        """Decode a client message; None for an unknown type."""
        if payload["type"] not in self.client_types:
            return None
        refuse_invalid(payload)
        envelope = read_model(_Enveloped, payload)
        losses = unknown_fields(envelope.model_extra)
        content = envelope.content
        match payload["type"]:
            case kind if kind == NEW_MESSAGE:
                draft = read_chat_message(content)
            case wire.TOOL_RESULT:
                note = "a tool result outside its huma-0.1-event"
                losses += (Loss(how="narrowed", path="/type", note=note),)
                draft = _read_result(content, "/content")
            case _ if _is_result_in_context(content):
                note = "a tool result written as a context event"
                losses += (Loss(how="narrowed", path="/content/context", note=note),)
                losses += unknown_fields({key: None for key in content if key not in {"name", "context"}}, "/content")
                draft = _read_result(content["context"], "/content/context")
            case _ if content.get("type") is None:
                draft = _read_context(content)
            case _ if content["type"] == wire.TOOL_RESULT:
                draft = _read_result(content, "/content")
            case _ if isinstance(content["type"], str):
                return None
            case _:
                raise MalformedFrame(f"expected a string, got {json_type(content['type'])}", path="/content/type")
        return replace(draft, losses=losses + draft.losses)

    def write_client_message(self, item: Draft | Envelope) -> Encoded | None:
        """Encode a client message; None for an event that only a server sends."""
        event = item.event
        match event:
            # The most frequent kind first: the cases are tried in order.
            case ToolFinished():
                return self._check_size(self._write_result(event, plain=item.written is not None))
            case ContextUpdated():
                return self._write_context(event)
            case MessagePosted() if is_chat(event):
                return _write_chat(event, item)
            case _:
                return None

    def _write_context(self, event: ContextUpdated) -> Encoded:
        check_context(event)
        if event.name == wire.TOOL_RESULT and "toolCallId" in event.context:
            raise CannotExpress("HUMA servers would read this as a tool result; use another name", path="/name")
        losses = dropped(("message", event.message))
        content: dict[str, Any] = {"name": event.name, "context": event.context, "description": event.description}
        if not event.wakes_agent:
            if self._extensions:
                note = "0.1 can only prevent an interruption; the agent may still answer"
                losses += (Loss(how="narrowed", path="/wakes_agent", note=note),)
                content["skipCancelPendingMessage"] = True
            else:
                note = "the document of 0.1 has no quiet update, and `extensions` is false; the agent may answer"
                losses += (Loss(how="dropped", path="/wakes_agent", note=note),)
        return make_frame(wire.FROM_CLIENT, {"type": HUMA_EVENT, "content": content}, losses)

    def _write_result(self, event: ToolFinished, *, plain: bool) -> Encoded:
        # 0.1 has no field for the tool's name; the id identifies the call.
        check_id(event.native_call_id, "/native_call_id")
        losses = dropped(("unknown", event.unknown or None))
        content: dict[str, Any] = {
            "type": wire.TOOL_RESULT,
            "toolCallId": event.native_call_id,
            "status": "canceled" if event.outcome == "canceled" else "completed",
            "success": event.outcome == "success",
        }
        if event.outcome == "success":
            losses += dropped(("error", event.error))
            if event.result is not None:
                if not plain:
                    check_json(event.result, "/result")
                content["result"] = event.result
        else:
            losses += dropped(("result", event.result))
            if event.outcome == "expired":
                losses += (Loss(how="narrowed", path="/outcome", note="sent as a failure"),)
            if not event.error:
                losses += (
                    Loss(how="invented", path="/error", note=f"a {event.outcome} result requires an error text"),
                )
            content["error"] = event.error or _ERRORS[event.outcome]
            check_text(content["error"], "/error")
        if self._extensions:
            waking, narrowed = wakes(event)
            losses += narrowed
            if not waking:
                content["skipImmediateProcessing"] = True
            if event.context is not None:
                check_json(event.context, "/context")
                content["context"] = event.context
        else:
            note = "the document of 0.1 lacks it, and `extensions` is false"
            losses += dropped_members(
                ("wakes_agent", None if event.wakes_agent else False), ("context", event.context), note=note
            )
        return make_frame(wire.FROM_CLIENT, {"type": HUMA_EVENT, "content": content}, losses)

    def _check_size(self, encoded: Encoded) -> Encoded:
        for frame in encoded.frames:
            size = len(orjson.dumps(frame.payload))
            if size > self._max_frame:
                raise CannotExpress(f"a frame may have {self._max_frame} bytes, not {size}", path="/result")
        return encoded


def _is_result_in_context(content: dict[str, Any]) -> bool:
    # An early client wrapped its results incorrectly.
    inner = content.get("context")
    return content.get("name") == wire.TOOL_RESULT and isinstance(inner, dict) and "toolCallId" in inner


def _read_context(content: dict[str, Any]) -> Draft:
    native = read_model(_ContextEvent, content, "/content")
    extra = {key: value for key, value in (native.model_extra or {}).items() if key != "type"}
    losses = unknown_fields(extra, "/content")
    if native.skip_cancel_pending_message:
        note = "prevents only an interruption; read as not waking"
        losses += (Loss(how="narrowed", path="/content/skipCancelPendingMessage", note=note),)
    event = ContextUpdated(
        name=native.name,
        context=native.context,
        description=native.description,
        wakes_agent=not native.skip_cancel_pending_message,
    )
    return Draft(event, losses=losses)


def _read_result(content: dict[str, Any], path: str) -> Draft:
    native = read_model(_ToolResult, content, path)
    outcome = _outcome(native, path)
    result, error, losses = settle(outcome, result=native.result, error=native.error, path=path)
    event = ToolFinished(
        native_call_id=native.tool_call_id,
        outcome=outcome,
        result=result,
        error=error,
        wakes_agent=not native.skip_immediate_processing,
        context=native.context,
    )
    return Draft(event, losses=unknown_fields(native.model_extra, path) + losses)


def _outcome(native: _ToolResult, path: str) -> OutcomeKind:
    # Public clients omit the status of completed results.
    match native.status or "completed", native.success:
        case "completed", True:
            return "success"
        case "completed", False:
            return "failure"
        case "canceled", False:
            return "canceled"
        case _:
            raise MalformedFrame("a canceled call cannot be a success", path=f"{path}/success")


def _write_chat(event: MessagePosted, item: Draft | Envelope) -> Encoded:
    written = write_chat_message(event, item)
    losses = written.losses
    if not event.wakes_agent:
        losses += (Loss(how="dropped", path="/wakes_agent", note="in 0.1 every message may wake the agent"),)
    return make_frame(wire.FROM_CLIENT, {"type": NEW_MESSAGE, "content": written.message}, losses)
