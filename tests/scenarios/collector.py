"""A real OpenTelemetry collector in small: a loopback HTTP server that decodes OTLP protobuf."""

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan, Status

from tests.pace import PATIENCE

_KINDS = {
    ProtoSpan.SPAN_KIND_INTERNAL: "internal",
    ProtoSpan.SPAN_KIND_CLIENT: "client",
    ProtoSpan.SPAN_KIND_SERVER: "server",
}


@dataclass
class Seen:
    """A span as it was received."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent: str
    """Empty for a root."""
    state: str
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    links: list[tuple[str, str]]
    resource: dict[str, Any]


@dataclass
class Collector:
    """Everything that was received."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list[Seen])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    status: int = 200
    retry_after: int = 0
    """Seconds until a refused batch may be sent again; 0 leaves it to the client."""
    hanging: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        if self.hanging:
            await asyncio.Event().wait()
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status == 200:
            decoded = ExportTraceServiceRequest.FromString(body)
            async with self.changed:
                for group in decoded.resource_spans:
                    resource = {one.key: _value(one.value) for one in group.resource.attributes}
                    self.spans += [_seen(span, resource) for scope in group.scope_spans for span in scope.spans]
                self.changed.notify_all()
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            status=self.status,
            content_type="application/x-protobuf",
            headers={"retry-after": str(self.retry_after)} if self.retry_after else {},
        )

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    async def wait(self, name: str, count: int = 1) -> list[Seen]:
        """Wait for so many spans of a name, in the order of their starts."""
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(lambda: len(self.named(name)) >= count)
        return sorted(self.named(name), key=lambda span: span.start)


def _seen(span: ProtoSpan, resource: dict[str, Any]) -> Seen:
    return Seen(
        name=span.name,
        kind=_KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes={one.key: _value(one.value) for one in span.attributes},
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource=resource,
    )


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")


@asynccontextmanager
async def collector() -> AsyncGenerator[Collector]:
    """Run a collector on a free port."""
    made = Collector()
    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_post("/v1/traces", made.receive)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        made.url = f"http://{host}:{port}"
        yield made
    finally:
        await runner.cleanup()
