"""The request on paper: headers, bytes, and the configuration that would spoil them."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from pydantic import AnyHttpUrl, SecretStr

from gateway.executors.webhook.request import RequestWriter
from tests.executors.peers import Seen, SystemClock, headers_of

URL = AnyHttpUrl("http://cards/tools")


def make_writer(url: str = "http://cards/tools", **headers: str) -> RequestWriter:
    return RequestWriter(
        AnyHttpUrl(url),
        secrets=[SecretStr("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")],
        headers=headers,
        clock=SystemClock(),
    )


def request_of(writer: RequestWriter, key: str, kind: str, **more: Any) -> Seen:
    """Write a request and take it apart again; no header stands in it twice."""
    head, end, body = writer.write(key, kind, **more).partition(b"\r\n\r\n")
    headers = headers_of(head + end)
    assert len(dict(headers)) == len(headers)
    assert dict(headers)["content-length"] == str(len(body))
    return Seen(head, dict(headers), body)


def test_the_body_is_compact_json_with_type_timestamp_and_data() -> None:
    request = request_of(make_writer(), "call-1", "tool.requested", data={"tool": "é"}, attempt=1)
    body = orjson.loads(request.body)
    assert list(body) == ["type", "timestamp", "data"]
    assert body["type"] == "tool.requested"
    assert body["data"] == {"tool": "é"}
    assert body["timestamp"].endswith("Z")
    assert datetime.fromisoformat(body["timestamp"]).tzinfo is not None
    assert b", " not in request.body


def test_an_event_keeps_its_own_time_in_utc_while_the_signature_is_of_now() -> None:
    at = datetime(2020, 1, 2, 5, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    request = request_of(make_writer(), "evt-1", "message.posted", data={}, at=at, attempt=1)
    assert orjson.loads(request.body)["timestamp"] == "2020-01-02T03:04:05Z"
    assert abs(int(request.headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60


def test_every_attempt_has_the_same_key_and_trace_and_its_own_span() -> None:
    writer = make_writer()
    one, two = (request_of(writer, "call-1", "tool.requested", data={}, attempt=number).headers for number in (1, 2))
    other = request_of(writer, "call-2", "tool.requested", data={}, attempt=1).headers
    assert one["webhook-id"] == one["idempotency-key"] == two["webhook-id"] == two["idempotency-key"] == "call-1"
    assert (one["dragoman-attempt"], two["dragoman-attempt"]) == ("1", "2")
    version, trace, span, flags = one["traceparent"].split("-")
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
    assert two["traceparent"].split("-")[1] == trace
    assert two["traceparent"].split("-")[2] != span
    assert other["traceparent"].split("-")[1] != trace


def test_extra_headers_are_sent() -> None:
    request = request_of(make_writer(**{"X-Tenant": "acme"}), "call-1", "tool.requested", data={}, attempt=1)
    assert request.headers["x-tenant"] == "acme"
    assert request.headers["content-type"] == "application/json"


def test_the_user_agent_is_dragoman_unless_another_is_configured() -> None:
    assert request_of(make_writer(), "k", "x", data={}).headers["user-agent"].startswith("dragoman/")
    acme = make_writer(**{"User-Agent": "acme/1"})
    assert request_of(acme, "k", "x", data={}).headers["user-agent"] == "acme/1"


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\rb", "a\0b"])
def test_a_key_that_would_split_the_request_is_never_written(value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent as a header"):
        make_writer().write(value, "x", data={})


@pytest.mark.parametrize("odd", [2**80, "\ud800", {1: 2}, object(), float])
def test_what_json_cannot_hold_is_a_value_error_that_does_not_quote_it(odd: Any) -> None:
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        make_writer().write("call-1", "tool.requested", data={"odd": odd})


def test_secrets_header_values_credentials_and_query_values_are_known_as_hidden() -> None:
    url = "http://user:p%40ssword-canary@cards/tools?token=query-canary&v=2"
    hidden = make_writer(url, **{"X-Key": "Bearer token-canary", "X-Tenant": "acme"}).hidden.texts
    assert {"whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "p@ssword-canary", "token-canary", "query-canary"} <= set(hidden)
    assert "dXNlcjpwQHNzd29yZC1jYW5hcnk=" in hidden
    assert "acme" not in hidden
    assert "2" not in hidden
