"""What HUMA 0.1 can do, as data. Pure."""

from adapters.huma_v0_1 import wire
from gateway.adapter.port import Capabilities
from gateway.json_values import MAX_DEPTH

CAPABILITIES = Capabilities(
    accepts=frozenset({"context.updated", "message.posted", "tool.finished", "opaque"}),
    emits=frozenset({"tool.requested", "tool.canceled", "message.posted", "typing.changed", "session.moved"}),
    turns="inferred",
    delivery="silence",
    rejects_with=frozenset({wire.REJECTED}),
    replaces_context=True,
    hydrates=False,
    answers_cancel=True,
    creates_sessions=True,
    limits={
        "name": wire.NAME_LENGTH,
        "frame_bytes": wire.MAX_FRAME,
        "arguments_depth": MAX_DEPTH,
        "image_bytes": wire.IMAGE_BYTES,
    },
)
