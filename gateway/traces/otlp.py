"""Exports spans with the OpenTelemetry SDK as OTLP over HTTP."""

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from gateway.core.trace_context import NO_SPAN, TraceContext
from gateway.store.records import micros
from gateway.traces import names
from gateway.traces.spans import Kind, Span

_TIMEOUT = 5.0
"""Seconds for one batch, including its retries."""
_KINDS: Mapping[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}


class _Ids(IdGenerator):
    """Gives the next span the ids that it already has."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Ended(SpanProcessor):
    """Collects ended spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class OtlpExporter:
    """Builds SDK spans and exports them; used by one thread."""

    def __init__(
        self,
        *,
        endpoint: str | None,
        headers: Mapping[str, str],
        version: str,
        instance: str,
    ) -> None:
        """Prepare without connecting; without an `endpoint`, the `OTEL_EXPORTER_OTLP_*` variables apply."""
        # The queue logs and counts failures itself, once a minute.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        session = requests.Session()
        # As in every other client of the gateway, the proxies of the environment do not apply.
        session.trust_env = False
        self._exporter = OTLPSpanExporter(endpoint, headers=dict(headers) or None, timeout=_TIMEOUT, session=session)
        self._ids, self._ended = _Ids(), _Ended()
        about: dict[str, str] = {SERVICE_VERSION: version, SERVICE_INSTANCE_ID: instance}
        if OTEL_SERVICE_NAME not in os.environ:
            about[SERVICE_NAME] = "dragoman"
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(about), id_generator=self._ids, shutdown_on_exit=False
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("dragoman", version)

    def export(self, spans: Sequence[Span]) -> bool:
        """Send a batch; return whether the collector has taken it."""
        for span in spans:
            self._build(span)
        built, self._ended.spans = self._ended.spans, []
        return not built or self._exporter.export(built) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """End an export that is being retried."""
        self._exporter.shutdown()

    def _build(self, span: Span) -> None:
        self._ids.trace_id, self._ids.span_id = int(span.place.trace_id, 16), int(span.span_id, 16)
        attributes = dict(span.attributes)
        if span.error is not None:
            attributes[names.ERROR] = span.error
        built = self._tracer.start_span(
            span.name,
            Context() if span.place.parent == NO_SPAN else _under(span.place),
            _KINDS[span.kind],
            attributes,
            [] if span.link is None else [Link(_context_of(span.link))],
            _nanoseconds(span.started_at),
        )
        if span.error is not None:
            built.set_status(Status(StatusCode.ERROR))
        built.end(_nanoseconds(span.ended_at))


def _under(place: TraceContext) -> Context:
    return set_span_in_context(NonRecordingSpan(_context_of(place)), Context())


def _context_of(place: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if place.sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([place.state])
    return SpanContext(int(place.trace_id, 16), int(place.parent, 16), True, flags, state)


def _nanoseconds(moment: datetime) -> int:
    return micros(moment.astimezone(UTC)) * 1_000
