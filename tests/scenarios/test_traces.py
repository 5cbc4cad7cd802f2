"""Traces over a real gateway, received and decoded by a collector on a real socket."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import Response
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_tracer_provider, set_tracer_provider

from gateway.core.trace_context import TraceContext
from gateway.serve import VERSION, make_traces
from gateway.settings.model import TracesSpec
from gateway.traces.otlp import OtlpExporter
from gateway.traces.spans import Span
from tests.http.mcp_clients import Plain, call
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.collector import Collector, Seen, collector
from tests.scenarios.environment import API_KEY, GOOD, Scene, ended, until
from tests.scenarios.hooks import Asked, Gate, success
from tests.scenarios.replica_processes import fleet
from tests.scenarios.replicas import LEASE, cluster, owner_and_other

_LOST = 'dragoman_spans_dropped_total{reason="export_failed"}'


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
        asked = await newer.agent.call("ask", GOOD)
        await ended(asked)
        [tool] = await received.wait("execute_tool ask")
        posts = await received.wait("POST", 2)
        row = await gateway.call_of(asked.call_id)
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
    assert (tool.resource["service.name"], tool.resource["service.version"]) == ("dragoman", VERSION)


async def test_the_proxy_of_the_environment_does_not_get_spans(
    newer: Scene, received: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    newer.hooks.scripts["ask"] = lambda _: success("seven")
    async with newer.running():
        await ended(await newer.agent.call("ask", GOOD))
        await received.wait("execute_tool ask")


@pytest.mark.parametrize(("name", "value"), [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "TRUE")])
def test_a_variable_of_opentelemetry_disables_the_export(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv(name, value)
    for spec in (None, TracesSpec()):
        assert make_traces(spec, "http://127.0.0.1", Counter()) is None


async def test_a_turn_is_the_root_of_the_calls_in_it(newer: Scene, received: Collector) -> None:
    newer.configure({"runtimes": {"finn": {"turn_timeout": "300ms"}}})
    async with newer.running() as gateway:
        session_id = await gateway.session()
        calls = [await newer.agent.call("ask", GOOD), await newer.agent.call("free", {"n": 1})]
        for call in calls:
            await ended(call)
        [turn] = await received.wait("invoke_agent finn")
        tools = [*await received.wait("execute_tool ask"), *await received.wait("execute_tool free")]
        first = await newer.agent.call("ask", GOOD)
        await ended(first)
        second = (await received.wait("invoke_agent finn", 2))[1]
    assert (turn.kind, turn.parent, turn.failed) == ("client", "", False)
    assert turn.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "huma",
        "gen_ai.agent.name": "finn",
        "gen_ai.conversation.id": session_id,
        "dragoman.adapter": "huma-0.2",
    }
    assert {(tool.trace_id, tool.parent) for tool in tools} == {place(turn)}
    assert turn.start <= min(tool.start for tool in tools) <= max(tool.end for tool in tools) <= turn.end
    assert second.trace_id != turn.trace_id


@pytest.mark.parametrize(
    ("said", "attributes"),
    [
        (Response(status_code=401), {"http.response.status_code": 401, "error.type": "401"}),
        (
            Response("no JSON"),
            {"http.response.status_code": 200, "error.type": "invalid_response", "dragoman.unknown": True},
        ),
        (
            Response(status_code=500),
            {"http.response.status_code": 500, "error.type": "500", "dragoman.unknown": True},
        ),
    ],
)
async def test_a_failed_attempt_says_why(
    newer: Scene, received: Collector, said: Response, attributes: dict[str, Any]
) -> None:
    newer.hooks.scripts["ask"] = said
    newer.configure({"executors": {"cards": {"attempts": 1}}})
    async with newer.running():
        await ended(await newer.agent.call("ask", GOOD))
        [post] = await received.wait("POST")
        [tool] = await received.wait("execute_tool ask")
    assert post.failed
    assert {name: post.attributes.get(name) for name in attributes} == attributes
    assert ("dragoman.unknown" in post.attributes) == ("dragoman.unknown" in attributes)
    assert tool.failed
    assert tool.attributes["error.type"] == ("unknown" if "dragoman.unknown" in attributes else "failure")


async def test_unsent_requests_have_spans_of_their_own(newer: Scene, received: Collector) -> None:
    newer.configure({"executors": {"cards": {"url": f"http://127.0.0.1:{free_port()}/tools", "deadline": "1s"}}})
    async with newer.running():
        await ended(await newer.agent.call("ask", GOOD))
        await received.wait("POST", 2)
        [tool] = await received.wait("execute_tool ask")
    posts = received.named("POST")
    assert len({post.span_id for post in posts}) == len(posts)
    assert {post.attributes["error.type"] for post in posts} == {"never_sent"}
    assert {(post.trace_id, post.parent) for post in posts} == {place(tool)}


async def test_a_refused_call_has_a_span_and_no_attempt(newer: Scene, received: Collector) -> None:
    async with newer.running():
        await ended(await newer.agent.call("ask", {"player": "Victoria", "rank": "1"}))
        [tool] = await received.wait("execute_tool ask")
    assert (tool.failed, tool.attributes["error.type"]) == (True, "failure")
    assert received.named("POST") == []


async def test_a_redrive_continues_the_trace_of_the_first_call(newer: Scene, received: Collector) -> None:
    newer.hooks.scripts["ask"] = Response(status_code=500)
    newer.configure({"executors": {"cards": {"attempts": 1}}})
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        await ended(call)
        [first] = await received.wait("execute_tool ask")
        newer.hooks.scripts["ask"] = success("seven")
        row = await gateway.call_of(call.call_id)
        await gateway.post(f"/v1/calls/{row['call_id']}/redrive", status=202)
        again = next(tool for tool in await received.wait("execute_tool ask", 2) if tool.span_id != first.span_id)
        posts = await received.wait("POST", 2)
    assert (again.trace_id, again.parent) == place(first)
    assert (first.failed, again.failed) == (True, False)
    assert [place(post) for post in posts] == [parent_of(asked) for asked in newer.hooks.asked]
    assert [post.parent for post in posts] == [first.span_id, again.span_id]


@pytest.mark.parametrize("content", [False, True])
async def test_content_is_exported_only_on_request_and_without_secrets(
    newer: Scene, received: Collector, content: bool
) -> None:
    newer.hooks.scripts["free"] = success({"said": f"the key is {API_KEY}", "long": "x" * 50_000})
    newer.configure({"traces": {"content": content}})
    async with newer.running():
        await ended(await newer.agent.call("free", {"key": API_KEY, "n": 1}))
        [tool] = await received.wait("execute_tool free")
    names = {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result"}
    assert (names & tool.attributes.keys()) == (names if content else set())
    assert API_KEY not in str(received.spans)
    if content:
        assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"key": "***", "n": 1}
        assert len(tool.attributes["gen_ai.tool.call.result"]) == 16 * 1024


async def test_a_caller_of_the_api_is_the_parent_of_its_call_and_decides_about_sampling(
    newer: Scene, received: Collector
) -> None:
    async with newer.running() as gateway:
        path = f"/v1/sessions/{await gateway.session()}/calls?wait=20s"
        unsampled = f"00-{'b' * 32}-{'2' * 16}-00"
        await gateway.post(path, {"tool": "ask", "arguments": GOOD}, status=200, traceparent=unsampled)
        sampled = f"00-{'a' * 32}-{'1' * 16}-01"
        await gateway.post(path, {"tool": "ask", "arguments": GOOD}, status=200, traceparent=sampled)
        # The queue keeps the order, so that the first call can have no span any more.
        [tool] = await received.wait("execute_tool ask")
    assert (tool.trace_id, tool.parent) == ("a" * 32, "1" * 16)
    first, second = newer.hooks.asked
    assert first.headers["traceparent"].startswith(f"00-{'b' * 32}-")
    assert first.headers["traceparent"].endswith("-00")
    assert parent_of(second)[0] == "a" * 32
    assert {span.trace_id for span in received.spans} == {"a" * 32}


async def test_no_trace_is_exported_with_the_ratio_0_except_those_of_callers(newer: Scene, received: Collector) -> None:
    newer.configure({"traces": {"ratio": 0}})
    async with newer.running() as gateway:
        await ended(await newer.agent.call("ask", GOOD))
        path = f"/v1/sessions/{await gateway.session()}/calls?wait=20s"
        sampled = f"00-{'a' * 32}-{'1' * 16}-01"
        await gateway.post(path, {"tool": "ask", "arguments": GOOD}, status=200, traceparent=sampled)
        await received.wait("execute_tool ask")
    assert {span.trace_id for span in received.spans} == {"a" * 32}
    assert newer.hooks.asked[0].headers["traceparent"].endswith("-00")


@pytest.fixture
def of_libraries() -> Iterator[InMemorySpanExporter]:
    """The spans of libraries that find a provider of the whole process; the gateway sets none."""
    kept = InMemorySpanExporter()
    provider = get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        set_tracer_provider(provider)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    yield kept
    kept.shutdown()


async def test_requests_of_mcp_clients_lie_between_their_callers_and_their_calls(
    newer: Scene, received: Collector, of_libraries: InMemorySpanExporter
) -> None:
    newer.configure({"runtimes": {"finn": {"turn_timeout": "300ms"}}})
    transport = f"00-{'c' * 32}-{'3' * 16}-01"
    async with newer.running() as gateway:
        session_id = await gateway.session()
        token = (await gateway.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        plain = Plain(gateway.http, f"/mcp/{session_id}", token, "2025-11-25")
        asking = call("ask", GOOD, number=7, traceparent=f"00-{'a' * 32}-{'1' * 16}-01")
        answer = await plain.send(asking, traceparent=transport)
        assert not answer.json()["result"]["isError"]
        [request] = await received.wait("tools/call ask")
        [tool] = await received.wait("execute_tool ask")
        assert (request.kind, request.failed) == ("server", False)
        assert (request.trace_id, request.parent) == ("a" * 32, "1" * 16)
        assert request.links == [("c" * 32, "3" * 16)]
        assert request.attributes == {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "ask",
            "mcp.method.name": "tools/call",
            "mcp.protocol.version": "2025-11-25",
            "jsonrpc.request.id": "7",
        }
        assert (tool.trace_id, tool.parent) == place(request)
        # Without a context of its caller, a call belongs to the running turn.
        gate = Gate()
        newer.hooks.scripts["free"] = gate.answering(success())
        running = await newer.agent.call("free", {})
        await newer.hooks.wait_for(name="free")
        assert not (await plain.call("ask", GOOD, number=8))["result"]["isError"]
        gate.open()
        await ended(running)
        [turn] = await received.wait("invoke_agent finn")
        second = (await received.wait("tools/call ask", 2))[1]
        assert (second.trace_id, second.parent) == place(turn)
        assert (await received.wait("execute_tool ask", 2))[1].parent == second.span_id
        # Refusals and unknown tools are requests without a call.
        assert (await plain.call("ask", {**GOOD, "rank": "1"}, number=9))["result"]["isError"]
        refused = (await received.wait("tools/call ask", 3))[2]
        assert (refused.failed, refused.attributes["error.type"], refused.parent) == (True, "tool_error", "")
        assert (await plain.call("sing", {}, number=10))["error"]["code"] == -32602
        [unknown] = await received.wait("tools/call sing")
        assert unknown.attributes["error.type"] == "-32602"
    # The test's own backend, on FastAPI, has spans as well.
    scopes = {
        span.instrumentation_scope.name for span in of_libraries.get_finished_spans() if span.instrumentation_scope
    }
    assert [name for name in scopes if "mcp" in name] == []
    kinds = {span.name.partition(" ")[0] for span in received.spans}
    assert kinds == {"tools/call", "execute_tool", "invoke_agent", "POST"}


async def test_without_a_caller_and_a_turn_the_mcp_request_is_the_root(newer: Scene, received: Collector) -> None:
    async with newer.running() as gateway:
        session_id = await gateway.session()
        token = (await gateway.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        plain = Plain(gateway.http, f"/mcp/{session_id}", token)
        keyed = {"dragoman/key": "order 1", "traceparent": "nonsense"}
        for number in (1, 2):
            assert not (await plain.call("ask", GOOD, number=number, **keyed))["result"]["isError"]
        requests = await received.wait("tools/call ask", 2)
        [tool] = await received.wait("execute_tool ask")
    assert requests[0].parent == ""
    assert (tool.trace_id, tool.parent) == place(requests[0])
    assert requests[1].trace_id == tool.trace_id
    assert len({request.span_id for request in requests}) == 2


async def test_a_call_that_is_forwarded_to_another_replica_is_one_trace(newer: Scene, received: Collector) -> None:
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        session_id = await a.session()
        owner, other = await owner_and_other(session_id, [a, b])
        token = (await other.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        plain = Plain(other.http, f"/mcp/{session_id}", token)
        assert not (await plain.call("ask", GOOD, number=1))["result"]["isError"]
        given = {"traceparent": f"00-{'a' * 32}-{'1' * 16}-01", "tracestate": "rojo=1"}
        # The context of the transport is not the caller's.
        transport = {"traceparent": f"00-{'c' * 32}-{'3' * 16}-01", "tracestate": "transport=3"}
        answer = await plain.send(call("ask", GOOD, number=2, **given), **transport)
        assert not answer.json()["result"]["isError"]
        path = f"/v1/sessions/{session_id}/calls?wait=20s"
        of_caller = {"traceparent": f"00-{'b' * 32}-{'2' * 16}-01", "tracestate": "congo=2"}
        await other.post(path, {"tool": "free"}, status=200, **of_caller)
        requests = await received.wait("tools/call ask", 2)
        tools = await received.wait("execute_tool ask", 2)
        [free] = await received.wait("execute_tool free")
        ids = [(await one.get("/readyz"))["instance_id"] for one in (owner, other)]
    assert ids[0] != ids[1]
    assert [request.parent for request in requests] == ["", "1" * 16]
    assert [(tool.trace_id, tool.parent) for tool in tools] == [place(request) for request in requests]
    assert (free.trace_id, free.parent) == ("b" * 32, "2" * 16)
    assert [asked.headers.get("tracestate") for asked in newer.hooks.asked] == [None, "rojo=1", "congo=2"]
    assert [span.state for span in (*requests, *tools, free)] == ["", "rojo=1", "", "rojo=1", "congo=2"]
    instances = [span.resource["service.instance.id"] for span in (requests[0], tools[0])]
    assert instances == [other.url, owner.url]


async def test_a_cancel_is_told_in_the_trace_of_its_attempt(newer: Scene) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("seven"))
    async with newer.running() as gateway:
        session_id = await gateway.session()
        given = {"traceparent": f"00-{'b' * 32}-{'2' * 16}-01", "tracestate": "congo=2"}
        opened = await gateway.post(
            f"/v1/sessions/{session_id}/calls", {"tool": "ask", "arguments": GOOD}, status=202, **given
        )
        [asked] = await newer.hooks.wait_for(name="ask")
        await gateway.post(f"/v1/calls/{opened['call_id']}/cancel", {}, status=202)
        [told] = await newer.hooks.wait_for(name="tool.canceled")
        gate.open()
    assert parent_of(asked)[0] == "b" * 32
    assert (told.headers["traceparent"], told.headers["tracestate"]) == (asked.headers["traceparent"], "congo=2")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_killed_gateway_leaves_no_open_span_and_the_next_one_continues_the_trace(
    newer: Scene, received: Collector, engine: str
) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("seven"))
    newer.configure({"runtimes": {"finn": {"turn_timeout": "300ms"}}})
    async with fleet(newer, engine=newer.settings["engine"] if engine == "sqlite" else None) as gateways:
        first = await gateways.serve("one")
        await newer.agent.wait_connected()
        running = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        await first.get("/readyz")
        first.signal(signal.SIGKILL)
        await first.ended()
        assert received.spans == []
        await gateways.serve("two")
        await newer.hooks.wait_for(2, name="ask")
        gate.open()
        await ended(running)
        [tool] = await received.wait("execute_tool ask")
        [turn] = await received.wait("invoke_agent finn")
    # The attempt of the killed process has no span; its webhook was in the same trace.
    [post] = received.named("POST")
    lost, repeated = newer.hooks.asked
    assert parent_of(lost)[0] == tool.trace_id == turn.trace_id
    assert place(post) == parent_of(repeated)
    assert post.attributes["http.request.resend_count"] == 1
    assert (tool.parent, post.parent) == (turn.span_id, tool.span_id)
    assert tool.start < post.start


@pytest.mark.slow
async def test_a_takeover_continues_the_trace_and_each_span_is_written_once(newer: Scene, received: Collector) -> None:
    gate = Gate()
    newer.hooks.scripts["ask"] = gate.answering(success("seven"))
    newer.configure(
        {"runtimes": {"finn": {"turn_timeout": "300ms"}}, "executors": {"cards": {"timeout": "60s", "deadline": "2m"}}}
    )
    store = cluster(newer)
    async with store.replica() as a, store.replica() as b:
        one, other = await owner_and_other(await a.session(), [a, b])
        running = await newer.agent.call("ask", GOOD)
        await newer.hooks.wait_for(name="ask")
        one.faults.cut_off = True
        await newer.hooks.wait_for(2, name="ask", within=PATIENCE + 3 * LEASE)
        # Both get the response; only the new owner can record it.
        gate.open()
        await ended(running)
        posts = await received.wait("POST", 2)
        await received.wait("invoke_agent finn")
        one.faults.cut_off = False
    # Each has exported all its spans.
    [tool], [turn] = received.named("execute_tool ask"), received.named("invoke_agent finn")
    assert len(received.spans) == len({span.span_id for span in received.spans}) == 4
    assert [place(post) for post in posts] == [parent_of(asked) for asked in newer.hooks.asked]
    assert {(post.trace_id, post.parent) for post in posts} == {place(tool)}
    assert (tool.trace_id, tool.parent) == place(turn)
    instances = [span.resource["service.instance.id"] for span in (*posts, tool, turn)]
    assert instances == [one.url, other.url, other.url, other.url]


@pytest.mark.parametrize("failure", ["refuses", "hangs", "gone"])
async def test_a_broken_collector_delays_no_call_and_its_spans_are_counted(newer: Scene, failure: str) -> None:
    async with collector() as broken:
        newer.configure({"traces": {"endpoint": broken.url}})
        broken.status = 400
        if failure == "hangs":
            broken.hanging = True
        elif failure == "gone":
            newer.configure({"traces": {"endpoint": f"http://127.0.0.1:{free_port()}"}})
        async with newer.running() as gateway:
            before = (await gateway.metrics()).get(_LOST, 0)
            for _ in range(5):
                assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"

            async def counted() -> bool:
                return (await gateway.metrics()).get(_LOST, 0) - before >= 10

            await until(counted)
            assert (await gateway.http.get("/readyz")).status_code == 200


SPAN = Span("POST", "client", TraceContext("a" * 32), "b" * 16, datetime.now(UTC), datetime.now(UTC), {})


def exporter_to(broken: Collector) -> OtlpExporter:
    return OtlpExporter(endpoint=f"{broken.url}/v1/traces", headers={}, version="0", instance="x")


async def test_an_export_does_not_wait_longer_than_its_time_for_a_collector() -> None:
    async with collector() as broken:
        broken.status, broken.retry_after = 503, 6
        assert not await asyncio.to_thread(exporter_to(broken).export, [SPAN])
    assert len(broken.headers) == 1


async def test_a_shutdown_ends_an_export_that_waits_for_its_next_attempt() -> None:
    async with collector() as broken:
        broken.status, broken.retry_after = 503, 4
        exporter = exporter_to(broken)
        exporting = asyncio.create_task(asyncio.to_thread(exporter.export, [SPAN]))

        async def refused() -> bool:
            return bool(broken.headers)

        await until(refused)
        exporter.shutdown()
        assert not await exporting
    assert len(broken.headers) == 1


async def test_the_environment_alone_enables_traces(newer: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=shop")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "cards")
        async with newer.running():
            await ended(await newer.agent.call("ask", GOOD))
            [tool] = await made.wait("execute_tool ask")
        assert made.headers[0]["x-tenant"] == "shop"
    assert tool.resource["service.name"] == "cards"


async def test_headers_of_the_configuration_are_sent(newer: Scene, received: Collector) -> None:
    newer.configure({"traces": {"headers": {"authorization": "Bearer of-the-collector"}}})
    async with newer.running():
        await ended(await newer.agent.call("ask", GOOD))
        await received.wait("execute_tool ask")
    assert received.headers[0]["authorization"] == "Bearer of-the-collector"


def test_without_traces_no_library_of_theirs_is_loaded(newer: Scene) -> None:
    # FastAPI imports the API of OpenTelemetry.
    code = (
        "import sys, pathlib, gateway.serve as s, gateway.http.app;"
        "loaded = s.read_configuration(pathlib.Path(sys.argv[1])).settings;"
        "parts = s.parts_for(loaded, reread=lambda: loaded); assert parts.traces is None;"
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    newer.configure({})
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(newer.config)],
        capture_output=True, text=True, check=False, timeout=60, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


async def test_answers_of_the_api_and_of_mcp_say_how_long_they_took(newer: Scene) -> None:
    async with newer.running() as gateway:
        session_id = await gateway.session()
        token = (await gateway.get(f"/v1/sessions/{session_id}/mcp"))["token"]
        answers = [
            await gateway.http.get("/v1/sessions"),
            await gateway.http.get("/v1/nothing"),
            await Plain(gateway.http, f"/mcp/{session_id}", token).send(call("ask", GOOD)),
        ]
    for answer in answers:
        assert re.fullmatch(r"gateway;dur=\d+\.\d", answer.headers["server-timing"])
