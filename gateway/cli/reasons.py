"""Works out the effect of one call or event under a configuration, with the core functions of the gateway itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from gateway.adapter.port import Adapter, Codec, RuntimeOptions
from gateway.cli.rulings import Verdict, decide
from gateway.core.adapt import adapt, expressible_outcome
from gateway.core.confirmations import find_confirmer
from gateway.core.effects import ask_data, call_data
from gateway.core.routing import CALL, Approval, Ruling
from gateway.core.session import Policy
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
from gateway.settings.lint_routes import LIVE
from gateway.settings.model import ExecutorSpec, PythonSpec, Settings, StaticSpec, WebhookSpec
from gateway.settings.place import Place, line_of
from gateway.store.call import Call

Tone = Literal["plain", "good", "doubtful", "bad"]

_CONFIRMERS = {
    "recorded": "the gateway confirms the message when it is recorded, before anybody delivered it",
    "client": "a client confirms the message with `message.confirmed`",
    "copied": "the delivery of the copy to {name} confirms the message",
}
# Placeholders replace every time before it is printed.
_THEN = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Part:
    """One finding: its heading, one line, and a block below it."""

    heading: str
    text: str
    tone: Tone = "plain"
    block: str = ""


@dataclass(slots=True)
class Reasons:
    """All findings, and whether the input would be processed."""

    parts: list[Part] = field(default_factory=list[Part])
    goes_through: bool = True

    def add(self, heading: str, text: str, tone: Tone = "plain", *, block: str = "") -> None:
        self.parts.append(Part(heading, text, tone, block))
        if tone == "bad":
            self.goes_through = False


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration and one of its runtimes."""

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
    def view(self) -> SessionView:
        return SessionView(
            session_id=SessionId("<session_id>"),
            runtime=self.runtime,
            native_id=self.options.native_id or "<native_session_id>",
            memory=Remembered(labels=self.labels, running=self.running, state="running" if self.running else "idle"),
        )


def reasons_for_call(case: Case, request: ToolRequested) -> Reasons:
    """Explain a tool call."""
    reasons = Reasons()
    _add_runtime(reasons, case)
    declared = request.tool in case.policy.declared
    linked = case.options.mcp_clients is None
    if linked and (request.runs_in == "runtime" or "tool.finished" not in case.adapter.capabilities.accepts):
        if not declared or not case.options.takes_mcp or request.tool in case.options.own_tools:
            reasons.add("call", "the runtime executes its tools itself; the call is recorded, and no executor runs")
            _add_copies(reasons, case, request.kind, request.tool)
            return reasons
        reasons.add("call", "the agent calls the tool over MCP, as a client of the gateway")
        linked = False
    verdict = decide(
        case.policy, runtime=case.runtime, tool=request.tool, labels=case.labels, arguments=request.arguments
    )
    ruling = verdict.ruling
    _add_denials(reasons, case, request.tool, verdict)
    if isinstance(ruling, Ruling) and ruling.executor is not None:
        _add_executor(reasons, case, ruling.index, ruling.executor)
    elif ruling is None:
        reasons.add("route", f"none matches {request.tool}", "doubtful")
    _add_copies(reasons, case, request.kind, request.tool)
    if not linked and (ruling is None or not declared):
        reasons.add("refused", "this client is not shown the tool; it gets an error", "bad")
        return reasons
    if ruling is None and case.policy.routes.unrouted == "ignore":
        reasons.add("call", "ignored (`unrouted: ignore`): left to another client of the runtime", "doubtful")
        return reasons
    if not declared:
        reasons.add("tool", "not declared under `tools`, so its arguments are not checked", "doubtful")
    if not isinstance(ruling, Ruling) or ruling.executor is None or verdict.fitted.problem is not None:
        _add_refusal(reasons, case, request, verdict, linked=linked)
        return reasons
    if declared:
        reasons.add("arguments", "match the schema of the tool", "good")
    for loss in verdict.fitted.losses:
        reasons.add("dropped", f"{loss.path}: {loss.note} (`nulls: drop`)", "doubtful")
    if ruling.approve is not None:
        _add_approval(reasons, case, ruling.approve)
    _add_request(reasons, case, ruling.executor, request.kind, _call_body(case, request, verdict.fitted.arguments))
    return reasons


def _add_denials(reasons: Reasons, case: Case, tool: str, verdict: Verdict) -> None:
    """Add the denials of the tool that do not match the arguments, and the one that does."""
    decisive = verdict.ruling.index if isinstance(verdict.ruling, Ruling) and verdict.ruling.denied else None
    for index, route in enumerate(case.policy.routes.routes):
        place = f"routes[{index}]  ({case.file}:{line_of(('routes', index), case.lines)})"
        if route.deny is None or not route.matches(runtime=case.runtime, kind=CALL, tool=tool, labels=case.labels):
            continue
        if index == decisive:
            reasons.add("route", f"{place} denies the call", "bad")
            return
        reasons.add("denial", f"{place} does not match the arguments")


def _add_refusal(reasons: Reasons, case: Case, request: ToolRequested, verdict: Verdict, *, linked: bool) -> None:
    reasons.add("refused", f"no executor runs; the {'agent' if linked else 'client'} gets", "bad", block=verdict.text)
    if linked:
        failed = ToolFinished(
            native_call_id=request.native_call_id, tool=request.tool, outcome="failure", error=verdict.text
        )
        event, encoded = expressible_outcome(failed, case.codec)
        _add_frames(reasons, case, event, encoded.losses)


def _add_approval(reasons: Reasons, case: Case, approve: Approval) -> None:
    """Add how long the call waits, and the keys that may allow it."""
    within = _span(approve.timeout or case.policy.approvals.timeout)
    reasons.add("approval", f"the call waits until a human allows it, at most {within}", "doubtful")
    keys = case.settings.api.keys
    allowed = [key.name for key in keys if "approve" in key.scopes and (not approve.by or key.name in approve.by)]
    if case.settings.approvals.links:
        names = [f"link {notified.to}" for notified in case.settings.approvals.notify]
        allowed += [name for name in names if not approve.by or name in approve.by]
    if not keys:
        reasons.add(
            "keys", "none are configured, so everybody who reaches the loopback address may allow it", "doubtful"
        )
    else:
        text = f"{', '.join(allowed)} may allow it" if allowed else "none may allow it; give one the scope `approve`"
        reasons.add("keys", text, "plain" if allowed else "bad")


def reasons_for_event(case: Case, event: Event) -> Reasons:
    """Explain an event: as a client's post, as the runtime's event, or both."""
    reasons = Reasons()
    _add_runtime(reasons, case)
    if event.kind in CLIENT_KINDS:
        _explain_posted(reasons, case, event)
    if event.kind in LIVE:
        reasons.add("live", "not recorded; only routes with `live: true` copy it, once and without retries")
    elif isinstance(event, SecretAsked):
        reasons.add("route", "requests for secrets are never routed: a human answers (`dragoman answer`)")
    elif event.kind not in CLIENT_KINDS or (isinstance(event, MessagePosted) and case.options.confirmation is not None):
        _add_answer(reasons, case, event)
    _add_copies(reasons, case, event.kind, getattr(event, "tool", None))
    return reasons


def _add_runtime(reasons: Reasons, case: Case) -> None:
    labels = "".join(f", {name}={value}" for name, value in case.labels.items())
    line = line_of(("runtimes", case.runtime), case.lines)
    text = f"{case.runtime} speaks {case.adapter.protocol}{labels}  ({case.file}:{line})"
    reasons.add("runtime", text)


def _add_route(reasons: Reasons, case: Case, kind: str, tool: str | None) -> str | None:
    found = case.policy.routes.executor_for(runtime=case.runtime, kind=kind, tool=tool, labels=case.labels)
    if found is None:
        reasons.add("route", f"none matches {tool or kind}")
        return None
    _add_executor(reasons, case, found.index, found.executor)
    return found.executor


def _add_executor(reasons: Reasons, case: Case, index: int, executor: str) -> None:
    line = line_of(("routes", index), case.lines)
    reasons.add("route", f"routes[{index}] → {executor}  ({case.file}:{line})", "good")
    reasons.add("executor", f"{executor}: {_describe(case.settings.executors[executor])}")


def _describe(spec: ExecutorSpec) -> str:
    match spec:
        case WebhookSpec():
            signed = "signed" if spec.secret else "unsigned"
            extra = f", with {', '.join(spec.headers)}" if spec.headers else ""
            return f"webhook {safe_url(str(spec.url))} ({signed}{extra}); {_describe_attempts(spec)}"
        case PythonSpec():
            return f"python {spec.call}; {_describe_attempts(spec)}"
        case StaticSpec(error=str(error)):
            return f"static, always fails: {error}"
        case StaticSpec():
            return f"static, always answers {json.dumps(spec.result, ensure_ascii=False)}"


def _describe_attempts(spec: WebhookSpec | PythonSpec) -> str:
    kind = "idempotent" if spec.idempotent else "not idempotent"
    return f"{_span(spec.timeout)} per attempt, {_span(spec.deadline)} in total, {spec.attempts} attempts, {kind}"


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():g}s"


def safe_url(url: str) -> str:
    """Return a URL without its possible secrets: the password and the values of the query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = "&".join(f"{pair.partition('=')[0]}=***" for pair in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, f"***@{host}" if "@" in parts.netloc else host, parts.path, query, ""))


def _add_copies(reasons: Reasons, case: Case, kind: str, tool: str | None) -> None:
    routes, live = case.policy.routes, kind in LIVE
    for name in routes.copies_for(runtime=case.runtime, kind=kind, tool=tool, labels=case.labels, live=live):
        reasons.add("copy", f"{name}: {safe_url(str(case.settings.destinations[name].url))}")


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


def _add_request(reasons: Reasons, case: Case, executor: str, kind: str, members: dict[str, Any]) -> None:
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
            reasons.add("request", f"POST {safe_url(str(spec.url))}", block=_headers(spec, kind) + _pretty(body))
        case PythonSpec():
            reasons.add("request", f"await {spec.call.replace(':', '.')}(call) with call =", block=_pretty(filled))
        case StaticSpec():
            reasons.add("request", "none: the answer is in the configuration")


def _headers(spec: WebhookSpec, kind: str) -> str:
    key = "<call_id>" if kind == "tool.requested" else "<event_id>"
    shown = {"webhook-id": key, "idempotency-key": key, "webhook-timestamp": "<now>", "dragoman-attempt": "1"}
    shown["traceparent"] = "00-<trace of the call>-<span of the attempt>-01"
    if spec.secret:
        shown["webhook-signature"] = " ".join("v1,<signature>" for _ in spec.secret)
    shown |= {name.lower(): "***" for name in spec.headers}
    return "".join(f"{name}: {value}\n" for name, value in shown.items()) + "\n"


def _explain_posted(reasons: Reasons, case: Case, event: Event) -> None:
    """Add the frames that the runtime would receive for an event that a client posts."""
    try:
        adapted = adapt(event, case.view.memory, case.adapter.capabilities, history=case.options.history_key)
        if adapted.holds:
            reasons.add("sent", f"nothing yet: {event.kind} is recorded and sent with the next message", "doubtful")
            _add_losses(reasons, adapted.losses)
            return
        is_same = adapted.event.kind == event.kind
        converted = "" if is_same else f" as {adapted.event.kind}: the runtime has no equivalent"
        reasons.add("sent", f"{event.kind}{converted}", "good" if is_same else "doubtful")
        _add_frames(reasons, case, adapted.event, adapted.losses)
    except CannotExpress as exc:
        reasons.add("refused", f"422: {exc.reason}{f' (at {exc.path})' if exc.path else ''}", "bad")


def _add_frames(reasons: Reasons, case: Case, event: Event, losses: tuple[Loss, ...]) -> None:
    encoded = case.codec.encode(Draft(event))
    for frame in encoded.frames:
        reasons.add("frame", f"{frame.channel} to the runtime", block=_pretty(frame.payload))
    _add_losses(reasons, tuple(dict.fromkeys((*losses, *encoded.losses))))


def _add_losses(reasons: Reasons, losses: tuple[Loss, ...]) -> None:
    for loss in losses:
        at = f" at {loss.path}" if loss.path else ""
        reasons.add("lost", f"{loss.how}{at}: {loss.note}", "doubtful")
    if not losses:
        reasons.add("lost", "nothing")


def _add_answer(reasons: Reasons, case: Case, event: Event) -> None:
    """Add the executor or human that answers an event of the runtime."""
    if isinstance(event, MessagePosted):
        reasons.add("received", "if the agent sends it, the runtime expects a confirmation:")
        by, name = find_confirmer(
            case.options.confirmation, case.policy.routes, runtime=case.runtime, labels=case.labels
        )
        if by != "executor":
            reasons.add("answer", _CONFIRMERS[by].format(name=name), "doubtful" if by == "recorded" else "good")
            return
    executor = _add_route(reasons, case, event.kind, getattr(event, "tool", None))
    if executor is None:
        reasons.add("answer", f"a human answers within {_span(case.policy.interaction_timeout)} (`dragoman answer`)")
        return
    view = case.view
    members = ask_data(view, event, protocol=case.adapter.protocol, labels=view.memory.labels, deadline_at=_THEN)
    if not isinstance(event, MessagePosted):
        members = {**members, "interaction_id": "<interaction_id>"}
    _add_request(reasons, case, executor, event.kind, {**members, "attempt": 1})


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
