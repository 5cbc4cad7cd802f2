"""Traces over a real gateway, received and decoded by a collector on a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Response

from tests.scenarios.collector import Collector, Seen, collector
from tests.scenarios.environment import GOOD, Scene, ended
from tests.scenarios.hooks import Asked, success


@pytest.fixture
async def received(newer: Scene) -> AsyncIterator[Collector]:
    """A collector that the gateway of the scene exports to."""
    async with collector() as made:
        newer.configure({"traces": {"endpoint": made.url}})
        yield made


def parent_of(asked: Asked) -> tuple[str, str]:
    """Read the trace and the span in which a webhook was sent."""
    version, trace, span, flags = asked.headers["traceparent"].split("-")
    assert (version, flags) == ("00", "01")
    return trace, span


def place(span: Seen) -> tuple[str, str]:
    return span.trace_id, span.span_id


async def test_a_call_and_its_attempts_are_spans_of_the_trace_that_its_webhooks_carry(
    newer: Scene, received: Collector
) -> None:
    answers: list[Any] = [Response(status_code=503, headers={"retry-after": "0"}), success("seven")]
    newer.hooks.scripts["ask"] = lambda _: answers.pop(0)
    newer.configure({"executors": {"cards": {"url": f"{newer.hooks.url}/tools?token=hidden-query"}}})
    async with newer.running() as gateway:
        session_id = await gateway.session()
        call = await newer.agent.call("ask", GOOD)
        await ended(call)
        [tool] = await received.wait("execute_tool ask")
        posts = await received.wait("POST", 2)
        row = await gateway.call_of(call.call_id)
    assert (tool.kind, tool.failed) == ("internal", False)
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "ask",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": row["call_id"],
    }
    assert tool.start < posts[0].start <= posts[0].end <= posts[1].start <= posts[1].end <= tool.end
    assert [place(post) for post in posts] == [parent_of(asked) for asked in newer.hooks.asked]
    assert {(post.trace_id, post.parent, post.kind) for post in posts} == {(tool.trace_id, tool.span_id, "client")}
    host, _, port = newer.hooks.url.removeprefix("http://").partition(":")
    common = {
        "http.request.method": "POST",
        "url.full": f"{newer.hooks.url}/tools",
        "server.address": host,
        "server.port": int(port),
    }
    assert posts[0].attributes == {**common, "http.response.status_code": 503, "error.type": "503"}
    assert posts[1].attributes == {**common, "http.response.status_code": 200, "http.request.resend_count": 1}
    assert [post.failed for post in posts] == [True, False]
    assert tool.resource["service.name"] == "dragoman"
    assert session_id
