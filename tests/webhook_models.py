"""Holds requests to executors and destinations against their models, and against the document that is published."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from pydantic import ValidationError

from dragoman.models.webhooks import (
    ApprovalBody,
    CopyBody,
    InteractionAskedBody,
    InteractionClosedBody,
    InteractionRemindedBody,
    LiveCopyBody,
    MessageBody,
    QuestionBody,
    ToolCanceledBody,
    ToolRequestedBody,
    WebhookBody,
)
from gateway.events import KINDS
from gateway.http.webhooks import WebhookHeaders

MODELS: dict[str, type[WebhookBody]] = {
    "tool.requested": ToolRequestedBody,
    "tool.canceled": ToolCanceledBody,
    "message.posted": MessageBody,
    "approval.asked": ApprovalBody,
    "question.asked": QuestionBody,
    "interaction.asked": InteractionAskedBody,
    "interaction.reminded": InteractionRemindedBody,
    "interaction.closed": InteractionClosedBody,
    "event.copied": CopyBody,
    "live_event.copied": LiveCopyBody,
}
_OF_HTTP = {"accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"}
_DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "config/openapi.json").read_text(encoding="utf-8"))


def name_webhook(body: bytes) -> str:
    """Say which of the webhooks a request is; copies have an id of their own, whatever their type."""
    said = json.loads(body)
    if "live" in said["data"]:
        return "live_event.copied"
    return "event.copied" if "event_id" in said["data"] else str(said["type"])


def check_webhook(body: bytes) -> str:
    """Check a request, and return the name of its webhook.

    Raises:
        ValueError: it is not as it is described.
    """
    name = name_webhook(body)
    if name == "event.copied" and json.loads(body)["type"] not in KINDS:
        return name
    try:
        MODELS[name].model_validate_json(body)
        _published(name).validate(json.loads(body))
    except (ValidationError, jsonschema_rs.ValidationError) as exc:
        raise ValueError(f"{name} is not as it is described: {exc}") from exc
    return name


@cache
def _published(name: str) -> jsonschema_rs.Validator:
    """Compile the published schema of a body, which takes longer than a whole call."""
    schema = _DOCUMENT["webhooks"][name]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": _DOCUMENT["components"]})


def check_headers(name: str, headers: Mapping[str, str]) -> None:
    """Check the headers of a request to which the configuration has added none.

    Raises:
        ValueError: they are not those that are described.
    """
    ours = {header: value for header, value in headers.items() if header not in _OF_HTTP}
    described = {one["name"] for one in _DOCUMENT["webhooks"][name]["post"]["parameters"] if one["in"] == "header"}
    if strange := ours.keys() - described:
        raise ValueError(f"{name} has headers that are not described: {sorted(strange)}")
    WebhookHeaders.model_validate({header.replace("-", "_"): value for header, value in ours.items()})
