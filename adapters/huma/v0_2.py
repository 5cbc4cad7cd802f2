"""The client messages of HUMA 0.2.0: flat events, and confirmations of agent messages. Pure."""

from typing import Any, ClassVar, Literal, cast

from pydantic import Field

from adapters.huma import wire
from adapters.huma.chat import read_chat_message, write_chat_message
from adapters.huma.codec import HumaCodec
from adapters.huma.options import CONFIRMATION_SECONDS, FORBIDDEN_KEYS, MESSAGE_KEY
from adapters.huma.reading import refuse_invalid, settle
from adapters.huma.writing import check_context, dropped, is_chat, make_frame, wakes
from gateway.adapter.checks import check_id, check_json, check_text
from gateway.adapter.port import Capabilities, Encoded
from gateway.errors import CannotExpress, MalformedFrame
from gateway.events import (
    AddonAnswered,
    ContextUpdated,
    Draft,
    Envelope,
    Loss,
    MessageConfirmed,
    MessagePosted,
    ToolFinished,
)
from gateway.strict_json import MAX_DEPTH, json_length, read_model, unknown_fields, utf16_length

CONTEXT_UPDATE = "context-update"
ADDON_TOOL_EVENT = "addon-tool-event"
RESULT_LENGTH = 65_536

CAPABILITIES = Capabilities(
    accepts=frozenset({"context.updated", "message.confirmed", "addon.answered", "tool.finished", "opaque"}),
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
        "confirmation_seconds": CONFIRMATION_SECONDS,
        "result_utf16": RESULT_LENGTH,
        "arguments_depth": MAX_DEPTH,
        "image_bytes": wire.IMAGE_BYTES,
    },
)


class _ContextUpdate(wire.Wire):
    triggering: bool
    name: str = Field(min_length=1)
    context: dict[str, Any]
    description: str


class _ToolResult(wire.Wire):
    triggering: bool
    tool_call_id: wire.Id = Field(alias="toolCallId")
    tool_name: wire.Id = Field(alias="toolName")
    outcome: Literal["success", "failure", "canceled"]
    result: Any = None
    error: str | None = None


class _AddonToolEvent(wire.Wire):
    tool_call_id: wire.Id = Field(alias="toolCallId")
    data: dict[str, Any]


class _Confirmation(wire.Part):
    """The `data` of an addon-tool-event that confirms one message."""

    message_index: wire.Count = Field(alias="messageIndex")
    success: bool
    context: dict[str, Any] | None = None
    error: str | None = None


class Huma02Codec(HumaCodec):
    """The codec of HUMA 0.2.0. A context carries a chat message under `message_key`; with None it carries none."""

    protocol: ClassVar[str] = "HUMA 0.2.0"
    client_types: ClassVar[frozenset[str]] = frozenset({CONTEXT_UPDATE, wire.TOOL_RESULT, ADDON_TOOL_EVENT})
    faults_on: ClassVar[str] = wire.ERRORS
    client_records: ClassVar[tuple[str, ...]] = ("context", "data")
    forbidden_keys: ClassVar[frozenset[str]] = FORBIDDEN_KEYS

    def __init__(self, message_key: str | None = MESSAGE_KEY) -> None:
        self._message_key = message_key

    def read_client_message(self, payload: dict[str, Any]) -> Draft | None:
        """Decode a client message; None for an unknown type."""
        if payload["type"] not in self.client_types:
            return None
        refuse_invalid(payload)
        for name in self.client_records:
            refuse_invalid(payload.get(name), f"/{name}", forbidden=self.forbidden_keys)
        match payload["type"]:
            case wire.TOOL_RESULT:
                return _read_result(read_model(_ToolResult, payload))
            case kind if kind == CONTEXT_UPDATE:
                return _read_context(read_model(_ContextUpdate, payload), self._message_key)
            case _:
                return _read_addon_answer(read_model(_AddonToolEvent, payload))

    def write_client_message(self, item: Draft | Envelope) -> Encoded | None:
        """Encode a client message; None for an event that only a server sends."""
        event = item.event
        match event:
            # The most frequent kind first: the cases are tried in order.
            case ToolFinished():
                return _write_result(event, item.written)
            case ContextUpdated():
                return _write_context(event, item, self._message_key)
            case MessageConfirmed():
                return _write_confirmation(event)
            case AddonAnswered():
                check_id(event.native_call_id, "/native_call_id")
                check_json(event.data, "/data", forbidden=FORBIDDEN_KEYS)
                return make_frame(wire.FROM_CLIENT, _addon_tool_event(event.native_call_id, event.data))
            case MessagePosted() if is_chat(event):
                raise CannotExpress("HUMA 0.2.0 accepts a user's message only inside a context update")
            case _:
                return None


def _read_context(update: _ContextUpdate, message_key: str | None) -> Draft:
    if utf16_length(update.name) > wire.NAME_LENGTH:
        raise MalformedFrame(f"is longer than {wire.NAME_LENGTH} characters", path="/name")
    context = update.context
    message = None if message_key is None else _extract_message(context.get(message_key))
    if message is not None:
        context = {key: value for key, value in context.items() if key != message_key}
    event = ContextUpdated(
        name=update.name,
        context=context,
        description=update.description,
        wakes_agent=update.triggering,
        message=message,
    )
    return Draft(event, losses=unknown_fields(update.model_extra))


def _extract_message(given: object) -> MessagePosted | None:
    """Decode a chat message inside a context; None unless it has exactly the documented form."""
    match given:
        case {"type": "message"}:
            try:
                draft = read_chat_message(cast("dict[str, Any]", given))
            except MalformedFrame:
                return None
            return draft.event if isinstance(draft.event, MessagePosted) and not draft.losses else None
        case _:
            return None


def _read_result(native: _ToolResult) -> Draft:
    result, error, losses = settle(native.outcome, result=native.result, error=native.error)
    event = ToolFinished(
        native_call_id=native.tool_call_id,
        tool=native.tool_name,
        outcome=native.outcome,
        result=result,
        error=error,
        wakes_agent=native.triggering,
    )
    return Draft(event, losses=unknown_fields(native.model_extra) + losses)


def _read_addon_answer(native: _AddonToolEvent) -> Draft:
    losses = unknown_fields(native.model_extra)
    if not ("messageIndex" in native.data and "success" in native.data):
        return Draft(AddonAnswered(native_call_id=native.tool_call_id, data=native.data), losses=losses)
    confirmed = read_model(_Confirmation, native.data, "/data")
    losses += unknown_fields(confirmed.model_extra, "/data")
    if confirmed.success and confirmed.error is not None:
        losses += (Loss(how="dropped", path="/data/error", note="the message was delivered"),)
    if not confirmed.success and confirmed.context is not None:
        losses += (Loss(how="dropped", path="/data/context", note="the message was not delivered"),)
    event = MessageConfirmed(
        native_call_id=native.tool_call_id,
        index=confirmed.message_index,
        delivered=confirmed.success,
        error=None if confirmed.success else confirmed.error,
        context=confirmed.context if confirmed.success else None,
    )
    return Draft(event, losses=losses)


def _write_context(event: ContextUpdated, item: Draft | Envelope, message_key: str | None) -> Encoded:
    check_context(event, forbidden=FORBIDDEN_KEYS)
    context = event.context
    losses: tuple[Loss, ...] = ()
    if event.message is not None and message_key is None:
        losses = (Loss(how="dropped", path="/message", note="`message` is off; the description has its text"),)
    elif event.message is not None:
        written = write_chat_message(event.message, item, "/message")
        path = f"/context/{message_key}"
        if message_key in context:
            losses = (Loss(how="dropped", path=path, note="replaced by the message"),)
        else:
            losses = (Loss(how="invented", path=path, note="the document of 0.2.0 has no member for a message"),)
        context = {**context, message_key: written.message}
        losses += written.losses
    update = {
        "type": CONTEXT_UPDATE,
        "triggering": event.wakes_agent,
        "name": event.name,
        "context": context,
        "description": event.description,
    }
    return make_frame(wire.FROM_CLIENT, update, losses)


def _write_result(event: ToolFinished, written: bytes | None) -> Encoded:
    if not event.tool:
        raise CannotExpress("HUMA 0.2.0 requires the tool's name on a result", path="/tool")
    check_id(event.native_call_id, "/native_call_id")
    check_id(event.tool, "/tool")
    losses: tuple[Loss, ...] = ()
    if event.context is not None or event.unknown:
        losses = dropped(("context", event.context), ("unknown", event.unknown or None))
    answer: dict[str, Any] = {}
    error = event.error
    match event.outcome:
        case "success":
            if error is not None:
                losses += dropped(("error", error))
            if event.result is not None:
                _check_result(event.result, written)
                answer["result"] = event.result
        case "failure" | "expired":
            losses += dropped(("result", event.result))
            if event.outcome == "expired":
                losses += (Loss(how="narrowed", path="/outcome", note="sent as a failure"),)
            if not error:
                losses += (Loss(how="invented", path="/error", note="a failure requires an error text"),)
                error = "The tool did not answer in time." if event.outcome == "expired" else "The tool failed."
            answer["error"] = error
        case "canceled":
            losses += dropped(("result", event.result))
            if error is not None:
                answer["error"] = error
    check_text(answer.get("error", ""), "/error")
    waking, narrowed = wakes(event)
    native = {
        "type": wire.TOOL_RESULT,
        "triggering": waking,
        "toolCallId": event.native_call_id,
        "toolName": event.tool,
        "outcome": "failure" if event.outcome == "expired" else event.outcome,
        **answer,
    }
    return make_frame(wire.FROM_CLIENT, native, losses + narrowed, result=written if "result" in answer else None)


def _check_result(result: object, written: bytes | None) -> None:
    if written is None:
        check_json(result, "/result")
    length = json_length(result, written)
    if length > RESULT_LENGTH:
        raise CannotExpress(f"a result may have {RESULT_LENGTH} characters as JSON, not {length}", path="/result")


def _write_confirmation(event: MessageConfirmed) -> Encoded:
    check_id(event.native_call_id, "/native_call_id")
    rest: dict[str, Any] = {}
    if event.delivered:
        losses = dropped(("error", event.error))
        if event.context is not None:
            check_json(event.context, "/context", forbidden=FORBIDDEN_KEYS)
            rest["context"] = event.context
    else:
        losses = dropped(("context", event.context))
        if not event.error:
            losses += (Loss(how="invented", path="/error", note="a failed delivery requires an error text"),)
        rest["error"] = event.error or "The message was not delivered."
        check_text(rest["error"], "/error")
    data = {"messageIndex": event.index, "success": event.delivered, **rest}
    return make_frame(wire.FROM_CLIENT, _addon_tool_event(event.native_call_id, data), losses)


def _addon_tool_event(call: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": ADDON_TOOL_EVENT, "toolCallId": call, "data": data}
