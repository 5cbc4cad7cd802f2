"""Event copies: what is on the wire, and what each answer means for the schedule."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import structlog
from standardwebhooks.webhooks import Webhook

from gateway.errors import OperatorError
from gateway.executors.port import Copied
from gateway.executors.webhook.destination import WebhookDestination
from gateway.settings.model import DestinationSpec
from tests.executors.peers import SystemClock, hang, http, serve, serve_bytes
from tests.pace import PATIENCE

SECRET = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LWNhbmFyeQ=="
AT = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_destination(url: str, **options: Any) -> WebhookDestination:
    return WebhookDestination(DestinationSpec.model_validate({"url": url} | options), clock=SystemClock())


async def copy(url: str, *, attempt: int = 1, data: dict[str, Any] | None = None, **options: Any) -> Copied:
    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(PATIENCE), make_destination(url, **options) as destination:
            copied = await destination.copy(
                key="evt-1", kind="message.posted", at=AT, data=data or {"sequence": 1}, attempt=attempt
            )
    assert "canary" not in repr(copied)
    assert "canary" not in repr(logs)
    return copied


async def test_a_copy_is_one_signed_post_with_the_time_of_the_event() -> None:
    async with serve_bytes(http(204)) as peer:
        copied = await copy(peer.url, secret=SECRET, attempt=3, headers={"X-Tenant": "acme"})
    assert copied == Copied("delivered")
    [seen] = peer.seen
    assert seen.json == {"type": "message.posted", "timestamp": "2020-01-02T03:04:05Z", "data": {"sequence": 1}}
    assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == "evt-1"
    assert seen.headers["dragoman-attempt"] == "3"
    assert seen.headers["x-tenant"] == "acme"
    Webhook(SECRET).verify(seen.body, dict(seen.headers))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http(200, b"<html>"), Copied("delivered")),
        (http(200, b"x" * 1_000_000), Copied("delivered")),
        (http(410), Copied("gone", "destination answered 410 Gone")),
        (http(302, location="http://169.254.169.254/"), Copied("refused", "destination answered 302 Found")),
        (http(401, b"canary"), Copied("refused", "destination answered 401 Unauthorized")),
        (http(409), Copied("again", "destination answered 409 Conflict")),
        (http(500, b"canary"), Copied("again", "destination answered 500 Internal Server Error")),
        (
            http(429, retry_after="60"),
            Copied("again", "destination answered 429 Too Many Requests", timedelta(minutes=1)),
        ),
        (b"garbage", Copied("again", "the response is not HTTP")),
        (b"", Copied("again", "the connection was lost before a response arrived")),
    ],
)
async def test_an_answer_is_delivered_gone_refused_or_to_be_tried_again(answer: bytes, expected: Copied) -> None:
    async with serve_bytes(answer) as peer:
        assert await copy(peer.url, secret=SECRET) == expected


async def test_a_copy_to_a_destination_that_is_not_there_is_not_sent() -> None:
    copied = await copy("http://no-such-host.invalid/", secret=SECRET)
    assert copied == Copied("unsent", "host name cannot be resolved")


async def test_a_destination_that_never_answers_is_tried_again() -> None:
    async with serve(hang) as peer:
        assert await copy(peer.url, timeout="1s") == Copied("again", "no answer within 1 s")


async def test_data_that_cannot_be_json_is_refused() -> None:
    assert (await copy("http://127.0.0.1:9/", data={"odd": "\ud800"})).state == "refused"


def test_a_configuration_that_can_never_work_is_an_operator_error() -> None:
    with pytest.raises(OperatorError):
        make_destination(url="http://169.254.169.254/")
