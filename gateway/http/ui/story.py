"""Tells the story of one call: what became of it, and each step from the agent's request to the delivery. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from gateway.executors.port import REFUSALS
from gateway.http.ui.text import ago, compact, describe_losses, drops_content, duration, read_time, shorten

Lane = Literal["agent", "gateway", "backend"]
Tone = Literal["ok", "waiting", "failed", "unknown", "plain"]

TONES: Mapping[str, Tone] = {
    "queued": "waiting", "dispatched": "waiting", "accepted": "waiting", "succeeded": "ok", "failed": "failed",
    "expired": "failed", "canceled": "plain", "up": "ok", "connecting": "waiting", "down": "failed",
    "refused": "failed", "asleep": "plain", "running": "waiting", "starting": "waiting", "idle": "plain",
    "awaiting_input": "waiting", "awaiting_approval": "waiting", "awaiting_outcome": "waiting", "error": "failed",
    "stopped": "plain", "finished": "ok", "closed": "plain", "delivered": "ok", "pending": "waiting",
    "inflight": "waiting", "held": "waiting", "unknown": "unknown", "dead": "failed", "moot": "plain",
    "waiting": "waiting", "answered": "ok", "success": "ok", "failure": "failed",
}  # fmt: skip
"""The tone of each state."""
_PAUSE = timedelta(milliseconds=5)
"""The shortest wait that is shown."""
_ACCEPTED = 202
OPEN = frozenset({"held", "queued", "dispatched", "accepted"})
_FAILED_DELIVERY = frozenset({"refused", "unknown", "dead"})


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One step of a call; `end` is later than `at` for a span."""

    at: datetime
    lane: Lane
    title: str
    detail: str = ""
    tone: Tone = "plain"
    end: datetime | None = None
    toward: Lane | None = None
    """The lane that receives it; None if it stays in its lane."""
    sequence: int | None = None
    """The recorded event behind it."""
    body: str = ""
    """The beginning of the executor's response without an outcome."""
    is_wait: bool = False
    is_open: bool = False
    """Whether an attempt brought no answer."""
    follows: bool = False
    """Whether it came after `at`, at a time that is not recorded."""

    @property
    def ends(self) -> datetime:
        """The end, or the moment itself."""
        return self.end or self.at


@dataclass(frozen=True, slots=True)
class Story:
    """The outcome of a call in one sentence, and its steps in order."""

    tone: Tone
    outcome: str
    cause: str
    received: str
    ran: str
    """Whether the tool ran; empty if the cause says so."""
    next: str
    steps: Sequence[StoryStep]
    redriven_as: Sequence[str]
    """The calls that repeat this one."""
    longest: StoryStep | None = field(default=None)


def tell(call: Mapping[str, Any], now: datetime) -> Story:
    """Tell the story of a call from the response of `GET /v1/calls/{call_id}`."""
    steps = sorted(_steps(call, now), key=lambda step: (step.at, step.follows, step.ends))
    spans = [step for step in steps if step.end is not None]
    return Story(
        tone="unknown" if call["unknown"] else TONES.get(call["state"], "plain"),
        outcome=_outcome(call, now),
        cause=(call["error"] or "").removeprefix("outcome unknown: ").removesuffix("."),
        received=_received(call),
        ran=_ran(call),
        next=_next(call, now),
        steps=steps,
        redriven_as=redriven_as(call),
        longest=max(spans, key=lambda step: step.ends - step.at, default=None),
    )


def redriven_as(call: Mapping[str, Any]) -> Sequence[str]:
    """List the calls that repeat a call, from the response of `GET /v1/calls/{call_id}`."""
    return [str(note["redriven_as"]) for note in map(_note_of, call["events"]) if "redriven_as" in note]


# The sentence -------------------------------------------------------------------------------------------------


def _outcome(call: Mapping[str, Any], now: datetime) -> str:
    state, tool = call["state"], call["tool"]
    if call["canceling_until"] and state in OPEN:
        return f"{tool} is being canceled"
    taken = duration(_end_of(call, now) - _begin_of(call))
    match state:
        case "held":
            return f"{tool} waits for a person's approval"
        case "queued" if call["attempt"]:
            return f"{tool} waits for attempt {call['attempt'] + 1}"
        case "queued":
            return f"{tool} waits for its first attempt"
        case "dispatched":
            return f"{tool} is running at executor {call['executor']}, in attempt {call['attempt']}"
        case "accepted":
            return f"{tool} was accepted by executor {call['executor']}, which will report the outcome"
        case "succeeded":
            return f"{tool} succeeded after {taken}"
        case "expired":
            return f"{tool} expired after {taken}"
        case "canceled":
            return f"{tool} was canceled after {taken}"
        case _ if call["unknown"]:
            return f"{tool} has an unknown outcome after {taken}"
        case _:
            return f"{tool} failed after {taken}"


def _received(call: Mapping[str, Any]) -> str:
    who = "the agent" if call["answer_to"] == "runtime" else "the caller"
    if call["state"] in OPEN:
        return "nobody waits for the outcome now" if call["unheard_since"] else f"{who} is waiting for it"
    if call["answer_to"] == "none":
        return "the outcome was not sent to the agent, because an operator redrove the call without delivery"
    sent = next((one for one in call["deliveries"] if one["target"] == "runtime"), None)
    match sent:
        case None if call["unheard_since"]:
            return "its caller has not heard the outcome"
        case None if call["answer_to"] == "caller":
            return "its caller reads the outcome here"
        case None:
            return f"{who} did not receive the outcome"
        case {"state": "delivered"} if call["unknown"]:
            return f"{who} received a failure, marked as unknown"
        case {"state": "delivered"}:
            return f"{who} received the outcome"
        case {"state": "unknown"}:
            return f"it is unknown whether {who} received the outcome"
        case {"state": "refused" | "dead", "reason": reason}:
            return f"{who} did not receive the outcome ({shorten(str(reason), 120)})"
        case {"state": "moot"}:
            return f"{who} no longer needed the outcome"
        case _:
            return f"{who} has not received the outcome yet"


def _ran(call: Mapping[str, Any]) -> str:
    if call["unknown"]:
        return "" if "tool may have" in (call["error"] or "") else "the tool may have run"
    if call["state"] == "succeeded":
        return "the tool ran"
    if not call["attempt"]:
        return "the tool has not run" if call["state"] in OPEN else "the tool did not run"
    if call["dead"]:
        return "the tool did not run"
    if call["state"] in OPEN:
        return "the tool may be running" if call["state"] != "queued" else "no attempt has run the tool yet"
    if call["state"] == "canceled":
        return "the executor was asked to stop"
    return "the executor reported the failure"


def _next(call: Mapping[str, Any], now: datetime) -> str:
    advice = call.get("advice")
    if advice:
        return str(advice)
    key, deadline = call["idempotency_key"], duration(max(timedelta(0), read_time(call["deadline_at"]) - now))
    if call["canceling_until"] and call["state"] in OPEN:
        return f"An outcome still counts until the grace period ends {ago(read_time(call['canceling_until']), now)}."
    if call["state"] == "queued" and call["due_at"]:
        due = ago(read_time(call["due_at"]), now)
        return f"Attempt {call['attempt'] + 1} is due {due}; the call expires in {deadline}."
    if call["state"] == "held":
        return f"A person must allow or deny it: the call expires in {deadline} if nobody does."
    if call["state"] in OPEN:
        return f"Nothing to do yet: the call expires in {deadline} if no outcome arrives."
    if call["unknown"]:
        return f"Look for webhook-id {key} in the log of executor {call['executor']} to see whether it ran."
    if any(one["state"] in _FAILED_DELIVERY for one in call["deliveries"]):
        return "A delivery of the outcome failed; see Dead letters."
    status = call["attempts"][-1]["status"] if call["attempts"] else None
    if call["state"] == "failed" and status in REFUSALS:
        return f"Compare `url` and `secret` of executor {call['executor']} with the backend's, then redrive the call."
    if call["state"] in {"failed", "expired"}:
        return "Nothing to do: the agent handles the failure. Redrive the call to try it again."
    return "Nothing to do."


# The steps ----------------------------------------------------------------------------------------------------


def _steps(call: Mapping[str, Any], now: datetime) -> list[StoryStep]:
    steps: list[StoryStep] = []
    for envelope in call["events"]:
        steps += _steps_of(envelope, call)
    steps += _attempts(call, now)
    outcome = next((step for step in steps if step.sequence == call["outcome_sequence"] and step.sequence), None)
    settled = {
        envelope["event"]["target"] for envelope in call["events"] if envelope["event"]["kind"] == "delivery.settled"
    }
    for sent in call["deliveries"]:
        if outcome is not None and sent["target"] not in settled:
            steps.append(_delivery(sent, outcome))
    return steps


def _steps_of(envelope: Mapping[str, Any], call: Mapping[str, Any]) -> list[StoryStep]:
    at, event, sequence = read_time(envelope["recorded_at"]), envelope["event"], envelope["sequence"]
    dropped = [loss for loss in envelope["losses"] if drops_content(loss)]
    lost = f"; content dropped: {describe_losses(dropped)}" if dropped else "; adapted" * bool(envelope["losses"])
    match event["kind"]:
        case "tool.requested":
            who: Lane = "agent"
            detail = compact(event.get("arguments") or {}, 120) + lost
            problem = event.get("problem")
            steps = [StoryStep(at, who, f"{event['tool']} requested", detail, toward="gateway", sequence=sequence)]
            if problem:
                steps.append(StoryStep(at, "gateway", "Refused before dispatch", str(problem), "failed"))
            elif call["executor"] is not None:
                checked = "arguments checked" if call["attempt"] else ""
                steps.append(StoryStep(at, "gateway", f"Routed to {call['executor']}", checked))
            return steps
        case "approval.asked":
            detail = compact(event.get("arguments") or {}, 120)
            title = f"A person is asked, by {event.get('rule')}"
            return [StoryStep(at, "gateway", title, detail, "waiting", sequence=sequence)]
        case "approval.given":
            did = "allowed" if event["decision"] == "allow" else "denied"
            detail = compact(event["arguments"], 120) if event.get("edited") else event.get("reason") or ""
            title = f"{event.get('by')} {did} it{', with other arguments' if event.get('edited') else ''}"
            return [StoryStep(at, "gateway", title, detail, "ok" if did == "allowed" else "failed", sequence=sequence)]
        case "tool.canceled":
            return [
                StoryStep(
                    at, "agent", "Cancel requested", event.get("reason") or "", toward="gateway", sequence=sequence
                )
            ]
        case "call.progressed" if "refused_answer" in (note := _note_of(envelope)):
            title = f"The answer of {note['by']} does not count"
            return [StoryStep(at, "gateway", title, str(note["refused_answer"]), "waiting", sequence=sequence)]
        case "call.progressed" if note := _note_of(envelope):
            other, by = note.get("redriven_as"), note.get("dismissed_by")
            title = f"Redriven as call {other}" if other else f"Dismissed by {by}"
            return [StoryStep(at, "gateway", title, sequence=sequence)]
        case "call.progressed":
            detail = compact(event["data"], 120)
            return [
                StoryStep(at, "backend", "Progress reported", detail, "waiting", toward="gateway", sequence=sequence)
            ]
        case "outcome.ignored":
            return [
                StoryStep(
                    at, "backend", "Late outcome ignored", compact(event, 120), toward="gateway", sequence=sequence
                )
            ]
        case "tool.finished":
            outcome = event["outcome"]
            detail = compact(event.get("result"), 120) if outcome == "success" else str(event.get("error") or "")
            told = f"{outcome}, marked as unknown" if event.get("unknown") else outcome
            tone: Tone = "unknown" if event.get("unknown") else TONES.get(outcome, "plain")
            return [StoryStep(at, "gateway", f"Outcome recorded: {told}", detail + lost, tone, sequence=sequence)]
        case "delivery.settled":
            state = event["state"]
            title = f"{_target(event['target'])} {state}"
            return [
                StoryStep(
                    at,
                    "gateway",
                    title,
                    event.get("reason") or "",
                    TONES.get(state, "plain"),
                    toward=_lane_of(event["target"]),
                    sequence=sequence,
                )
            ]
        case kind:
            return [StoryStep(at, "gateway", kind, compact(event, 120) + lost, sequence=sequence)]


def _note_of(envelope: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the gateway's own note about a call; empty for other events, such as the progress of a backend."""
    event = envelope["event"]
    return event["data"] if event["kind"] == "call.progressed" and envelope["synthetic"] else {}


def _free_from(call: Mapping[str, Any]) -> datetime:
    """Return since when a call could leave: its request, or the last answer of a person."""
    given = [one["recorded_at"] for one in call["events"] if one["event"]["kind"] == "approval.given"]
    return read_time(given[-1] if given else call["created_at"])


def _attempts(call: Mapping[str, Any], now: datetime) -> list[StoryStep]:
    steps: list[StoryStep] = []
    free, outcome = _free_from(call), _time_of(call, call["outcome_sequence"])
    starts = [*(read_time(one["started_at"]) for one in call["attempts"]), _end_of(call, now)]
    for one, (started, following) in zip(call["attempts"], pairwise(starts), strict=True):
        if started - free > _PAUSE:
            title = f"Waited for attempt {one['n']}" if steps else "Waited for a free slot"
            steps.append(StoryStep(free, "gateway", title, end=started, tone="waiting", is_wait=True))
        free = max(started, following if one["ended_at"] is None else read_time(one["ended_at"]))
        if outcome is not None and one is call["attempts"][-1]:
            # The record of the end follows that of the outcome.
            free = max(started, min(free, outcome))
        steps.append(_attempt(one, call, started, free))
    if steps and _is_accepted(call["attempts"][-1], call) and (ends := outcome or _end_of(call, now)) - free > _PAUSE:
        is_open = call["state"] in OPEN
        title = f"{'Waiting' if is_open else 'Waited'} for the outcome"
        steps.append(StoryStep(free, "backend", title, "", "waiting", end=ends, is_wait=True, is_open=is_open))
    if call["state"] == "queued" and free < now:
        steps.append(StoryStep(free, "gateway", "Waiting for the next attempt", end=now, tone="waiting", is_wait=True))
    return steps


def _is_accepted(one: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Return whether the answer to an attempt promised an outcome."""
    answered = one["ended_at"] is not None and one["reason"] is None and not one["unsure"]
    return answered and (one["status"] == _ACCEPTED or call["state"] == "accepted")


def _time_of(call: Mapping[str, Any], sequence: int | None) -> datetime | None:
    known = (one for one in call["events"] if one["sequence"] == sequence)
    return next((read_time(one["recorded_at"]) for one in known), None)


def _attempt(one: Mapping[str, Any], call: Mapping[str, Any], started: datetime, ended: datetime) -> StoryStep:
    is_last = one is call["attempts"][-1]
    brought = is_last and call["state"] not in OPEN and not call["dead"] and not one["unsure"]
    status = f"HTTP {one['status']} {one.get('content_type') or ''}".rstrip() if one["status"] else ""
    # The step of the outcome shows its error.
    facts = [status, "" if one["reason"] == call["error"] else one["reason"] or ""]
    tone: Tone = "failed"
    if one["ended_at"] is None and is_last and call["state"] in OPEN:
        tone = "waiting"
        facts.append("no answer yet" if call["state"] == "dispatched" else "accepted, no outcome yet")
    elif one["ended_at"] is None:
        tone = "unknown"
        facts.append("cut off, because the gateway stopped")
    elif not one["sent"]:
        facts.append("not sent")
    elif _is_accepted(one, call) and not brought:
        tone = "waiting"
        facts.append("accepted")
    elif one["unsure"]:
        tone = "unknown"
        facts.append("the tool may have run")
    elif brought:
        tone = TONES.get(call["state"], "plain")
    detail = "; ".join(fact for fact in facts if fact)
    unanswered = one["ended_at"] is None or (one["unsure"] and not one["status"])
    title = f"Attempt {one['n']}, no answer" if unanswered else f"Attempt {one['n']}"
    return StoryStep(started, "backend", title, detail, tone, end=ended, is_open=unanswered, body=one.get("body") or "")


def _delivery(sent: Mapping[str, Any], outcome: StoryStep) -> StoryStep:
    state, tries = sent["state"], sent["attempt"]
    detail = sent["reason"] or (f"{tries} attempts" if tries > 1 else "")
    title = f"{_target(sent['target'])}: {state}"
    return StoryStep(
        outcome.at, "gateway", title, detail, TONES.get(state, "plain"), toward=_lane_of(sent["target"]), follows=True
    )


def _target(target: str) -> str:
    kind, _, name = target.partition(":")
    return "Outcome to the agent" if target == "runtime" else f"{'Notice' if kind == 'notice' else 'Copy'} to {name}"


def _lane_of(target: str) -> Lane:
    return "agent" if target == "runtime" else "backend"


# The times of the events come first, because the steps show them: the row of a call is written after its events.
def _begin_of(call: Mapping[str, Any]) -> datetime:
    asked = None if call["redrive_of"] else _time_of(call, call["request_sequence"])
    return asked or read_time(call["created_at"])


def _end_of(call: Mapping[str, Any], now: datetime) -> datetime:
    if call["finished_at"] is None:
        return now
    return _time_of(call, call["outcome_sequence"]) or read_time(call["finished_at"])
