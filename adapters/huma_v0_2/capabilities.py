"""What HUMA 0.2.0 can do, as data. Pure."""

from datetime import timedelta

from adapters.huma_v0_2 import wire
from gateway.adapter.port import Capabilities
from gateway.json_values import MAX_DEPTH

CAPABILITIES = Capabilities(
    accepts=frozenset({"context.updated", "message.confirmed", "addon.answered", "tool.finished", "opaque"}),
    emits=frozenset({"tool.requested", "tool.canceled", "message.posted", "typing.changed", "session.moved"}),
    turns="inferred",
    delivery="silence",
    rejects_with=frozenset({wire.REJECTED}),
    replaces_context=True,
    hydrates=True,
    confirms_messages=timedelta(seconds=wire.CONFIRMATION_SECONDS),
    answers_cancel=True,
    creates_sessions=True,
    limits={
        "name": wire.NAME_LENGTH,
        "result_utf16": wire.RESULT_LENGTH,
        "arguments_depth": MAX_DEPTH,
        "image_bytes": wire.IMAGE_BYTES,
    },
)
