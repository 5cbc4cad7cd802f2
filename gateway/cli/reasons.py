"""Works out what a configuration would do with one call or event, by asking the same core that would decide it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from gateway.adapter.port import Adapter, Codec, RuntimeOptions
from gateway.core.adapt import adapt, expressible_outcome
from gateway.core.calls import fit_call
from gateway.core.effects import ask_data, call_data
from gateway.core.session import Policy, RuntimeContext
from gateway.core.state import Remembered, SessionView
from gateway.errors import CannotExpress
from gateway.events import (
    CLIENT_KINDS,
    CallId,
    Draft,
    Event,
    Loss,
    MessagePosted,
    SecretAsked,
    SessionId,
    ToolFinished,
    ToolRequested,
)
from gateway.settings.model import ExecutorSpec, PythonSpec, Settings, StaticSpec, WebhookSpec
from gateway.settings.place import Place, line_of
from gateway.store.call import Call

Tone = Literal["plain", "good", "doubtful", "bad"]

# Times only shape the placeholders; they are replaced before anybody sees them.
_THEN = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to say: its heading, one line, and a block below it."""

    heading: str
    text: str
    tone: Tone = "plain"
    block: str = ""


@dataclass(slots=True)
class Reasons:
    """All that is to be said, and whether it would go through."""

    parts: list[Part] = field(default_factory=list[Part])
    goes_through: bool = True

    def say(self, heading: str, text: str, tone: Tone = "plain", *, block: str = "") -> None:
        self.parts.append(Part(heading, text, tone, block))
        if tone == "bad":
            self.goes_through = False


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration, and one of its runtimes."""

    settings: Settings
    policy: Policy
    lines: Mapping[Place, int]
    file: str
    runtime: str
    adapter: Adapter
    options: RuntimeOptions
    labels: Mapping[str, str]
    running: bool

    @property
    def codec(self) -> Codec:
        return self.adapter.codec(self.options)

    @property
    def runtime_context(self) -> RuntimeContext:
        return RuntimeContext(
            adapter=self.adapter.name,
            protocol=self.adapter.protocol,
            name=self.runtime,
            capabilities=self.adapter.capabilities,
            codec=self.codec,
            options=self.options,
            policy=self.policy,
        )

    @property
    def view(self) -> SessionView:
        return SessionView(
            session_id=SessionId("<session_id>"),
            runtime=self.runtime,
            native_id=self.options.native_id or "<native_session_id>",
            memory=Remembered(labels=self.labels, running=self.running, state="running" if self.running else "idle"),
        )


def reasons_for_call(case: Case, request: ToolRequested) -> Reasons:
    """Say what would become of a tool call."""
    reasons = Reasons()
    _say_runtime(reasons, case)
    linked = case.adapter.capabilities.linked
    if linked and (request.runs_in == "runtime" or "tool.finished" not in case.adapter.capabilities.accepts):
        reasons.say("call", "the runtime carries its tools out itself; this is put on record, and nobody is asked")
        _say_copies(reasons, case, request.kind, request.tool)
        return reasons
    executor = _say_route(reasons, case, request.kind, request.tool)
    _say_copies(reasons, case, request.kind, request.tool)
    if not linked and (executor is None or request.tool not in case.policy.declared):
        reasons.say("refused", "it is not among the tools that this client is shown; it is told so", "bad")
        return reasons
    if executor is None and case.policy.routes.unrouted == "ignore":
        reasons.say("call", "ignored (`unrouted: ignore`): another client of the runtime is to answer it", "doubtful")
        return reasons
    if request.tool not in case.policy.declared:
        reasons.say("tool", "is not declared under `tools`, so its arguments are not checked", "doubtful")
    fitted = fit_call(case.runtime_context, request, executor)
    refusal = fitted.problem
    if refusal is not None:
        who = "agent" if linked else "client"
        reasons.say("refused", f"nobody is asked; the {who} is told", "bad", block=refusal)
        if not linked:
            return reasons
        failed = ToolFinished(
            native_call_id=request.native_call_id, tool=request.tool, outcome="failure", error=refusal
        )
        told, said = expressible_outcome(failed, case.codec)
        _say_frames(reasons, case, told, said.losses)
        return reasons
    if request.tool in case.policy.declared:
        reasons.say("arguments", "fit the schema of the tool", "good")
    for loss in fitted.losses:
        reasons.say("dropped", f"{loss.path}: {loss.note} (`nulls: drop`)", "doubtful")
    _say_request(reasons, case, executor or "", request.kind, _call_body(case, request, fitted.arguments))
    return reasons


def reasons_for_event(case: Case, event: Event) -> Reasons:
    """Say what would become of an event: posted by a client, or said by the runtime, or what each makes of it."""
    reasons = Reasons()
    _say_runtime(reasons, case)
    if event.kind in CLIENT_KINDS:
        _explain_posted(reasons, case, event)
    if isinstance(event, SecretAsked):
        reasons.say("route", "a secret is never routed: a person answers (`dragoman answer`)")
    elif event.kind not in CLIENT_KINDS or (
        isinstance(event, MessagePosted) and case.adapter.capabilities.confirms_messages is not None
    ):
        _say_asked(reasons, case, event)
    _say_copies(reasons, case, event.kind, getattr(event, "tool", None))
    return reasons


def _say_runtime(reasons: Reasons, case: Case) -> None:
    labels = "".join(f", {name}={value}" for name, value in case.labels.items())
    line = line_of(("runtimes", case.runtime), case.lines)
    text = f"{case.runtime} speaks {case.adapter.protocol}{labels}  ({case.file}:{line})"
    reasons.say("runtime", text)


def _say_route(reasons: Reasons, case: Case, kind: str, tool: str | None) -> str | None:
    found = case.policy.routes.executor_for(runtime=case.runtime, kind=kind, tool=tool, labels=case.labels)
    if found is None:
        reasons.say("route", f"none takes {tool or kind}", "plain" if kind != "tool.requested" else "doubtful")
        return None
    line = line_of(("routes", found.index), case.lines)
    reasons.say("route", f"routes[{found.index}] → {found.executor}  ({case.file}:{line})", "good")
    reasons.say("executor", f"{found.executor}: {_describe(case.settings.executors[found.executor])}")
    return found.executor


def _describe(spec: ExecutorSpec) -> str:
    match spec:
        case WebhookSpec():
            signed = "signed" if spec.secret else "unsigned"
            extra = f", with {', '.join(spec.headers)}" if spec.headers else ""
            return f"webhook {safe_url(str(spec.url))} ({signed}{extra}); {_patience(spec)}"
        case PythonSpec():
            return f"python {spec.call}; {_patience(spec)}"
        case StaticSpec(error=str(error)):
            return f"static, always fails: {error}"
        case StaticSpec():
            return f"static, always answers {json.dumps(spec.result, ensure_ascii=False)}"


def _patience(spec: WebhookSpec | PythonSpec) -> str:
    sure = "idempotent" if spec.idempotent else "not idempotent"
    return f"{_span(spec.timeout)} an attempt, {_span(spec.deadline)} in all, {spec.attempts} attempts, {sure}"


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():g}s"


def safe_url(url: str) -> str:
    """Write a URL without what may be secret in it: a password, and the values of its query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = "&".join(f"{pair.partition('=')[0]}=***" for pair in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, f"***@{host}" if "@" in parts.netloc else host, parts.path, query, ""))


def _say_copies(reasons: Reasons, case: Case, kind: str, tool: str | None) -> None:
    for name in case.policy.routes.copies_for(runtime=case.runtime, kind=kind, tool=tool, labels=case.labels):
        reasons.say("copy", f"{name}: {safe_url(str(case.settings.destinations[name].url))}")


def _call_body(case: Case, request: ToolRequested, arguments: Mapping[str, Any]) -> dict[str, Any]:
    call = Call(
        call_id=CallId("<call_id>"),
        session_id=case.view.session_id,
        runtime=case.runtime,
        native_call_id=request.native_call_id,
        n=0,
        tool=request.tool,
        arguments=arguments,
        args_sha="",
        state="dispatched",
        attempt=1,
        created_at=_THEN,
        deadline_at=_THEN,
        request_sequence=1,
    )
    base = str(case.settings.public_url).rstrip("/") if case.settings.public_url else None
    links = [f"{base}/v1/calls/<call_id>/{page}?token=<token>" if base else None for page in ("outcome", "progress")]
    return call_data(case.view, call, protocol=case.adapter.protocol, callback=links[0], progress=links[1])


def _say_request(reasons: Reasons, case: Case, executor: str, kind: str, members: dict[str, Any]) -> None:
    spec = case.settings.executors[executor]
    within = spec.deadline if not isinstance(spec, StaticSpec) else timedelta(0)
    if kind == "message.posted":
        within = case.options.confirm_timeout
    elif kind != "tool.requested":
        within = case.policy.interaction_timeout
    filled = {**members, "deadline": f"<now + {_span(within)}>"}
    match spec:
        case WebhookSpec():
            body: Any = {"type": kind, "timestamp": "<now>", "data": filled}
            reasons.say("request", f"POST {safe_url(str(spec.url))}", block=_headers(spec, kind) + _pretty(body))
        case PythonSpec():
            reasons.say("request", f"await {spec.call.replace(':', '.')}(call), where call is", block=_pretty(filled))
        case StaticSpec():
            reasons.say("request", "none: the answer stands in the file")


def _headers(spec: WebhookSpec, kind: str) -> str:
    key = "<call_id>" if kind == "tool.requested" else "<event_id>"
    shown = {"webhook-id": key, "idempotency-key": key, "webhook-timestamp": "<now>", "dragoman-attempt": "1"}
    shown["traceparent"] = "00-<trace of the key>-<span of the attempt>-01"
    if spec.secret:
        shown["webhook-signature"] = " ".join("v1,<signature>" for _ in spec.secret)
    shown |= {name.lower(): "***" for name in spec.headers}
    return "".join(f"{name}: {value}\n" for name, value in shown.items()) + "\n"


def _explain_posted(reasons: Reasons, case: Case, event: Event) -> None:
    """Say what the runtime would be sent for an event that a client posts."""
    try:
        adapted = adapt(event, case.view.memory, case.adapter.capabilities, history=case.options.history_key)
        if adapted.holds:
            reasons.say("told", f"nothing yet: {event.kind} is put on record, and the next message says it", "doubtful")
            _say_losses(reasons, adapted.losses)
            return
        way = "" if adapted.event.kind == event.kind else f" as {adapted.event.kind}, for want of a word of its own"
        reasons.say("told", f"{event.kind}{way}", "good" if not way else "doubtful")
        _say_frames(reasons, case, adapted.event, adapted.losses)
    except CannotExpress as exc:
        reasons.say("refused", f"422: {exc.reason}{f' (at {exc.path})' if exc.path else ''}", "bad")


def _say_frames(reasons: Reasons, case: Case, event: Event, losses: tuple[Loss, ...]) -> None:
    encoded = case.codec.encode(Draft(event))
    for frame in encoded.frames:
        reasons.say("sent", f"{frame.channel} to the runtime", block=_pretty(frame.payload))
    _say_losses(reasons, tuple(dict.fromkeys((*losses, *encoded.losses))))


def _say_losses(reasons: Reasons, losses: tuple[Loss, ...]) -> None:
    for loss in losses:
        at = f" at {loss.path}" if loss.path else ""
        reasons.say("lost", f"{loss.how}{at}: {loss.note}", "doubtful")
    if not losses:
        reasons.say("lost", "nothing")


def _say_asked(reasons: Reasons, case: Case, event: Event) -> None:
    """Say who answers an event that the runtime says."""
    if isinstance(event, MessagePosted):
        reasons.say("asked", "a message of the agent's own waits to be confirmed:")
    executor = _say_route(reasons, case, event.kind, getattr(event, "tool", None))
    if executor is None:
        waits = (
            "it is confirmed once it is on record"
            if isinstance(event, MessagePosted)
            else (f"a person answers within {_span(case.policy.interaction_timeout)} (`dragoman answer`)")
        )
        reasons.say("answer", waits)
        return
    view = case.view
    members = ask_data(view, event, protocol=case.adapter.protocol, labels=view.memory.labels, deadline_at=_THEN)
    if not isinstance(event, MessagePosted):
        members = {**members, "interaction_id": "<interaction_id>"}
    _say_request(reasons, case, executor, event.kind, {**members, "attempt": 1})


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
