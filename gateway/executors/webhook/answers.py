"""Turns the end of an HTTP exchange into an `Answer` or a `Copied` (gateway/executors/README.md#answers). Pure."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, cast

from dragoman.hidden import NOTHING, Hidden
from gateway.events import Outcome
from gateway.events.frozen import replace
from gateway.events.response import Response
from gateway.executors.port import (
    REFUSALS,
    Accepted,
    Answer,
    Answered,
    Copied,
    NeverSent,
    NotProcessed,
    Replied,
    Uncertain,
    outcome_from,
)
from gateway.executors.webhook.reader import AddressForbidden, ConnectionBroken, Exchange, HttpAnswer, NotSent, Unread
from gateway.strict_json import Unreadable, find_repeated, read_and_write, without_mark
from gateway.visible import show_hidden

MAX_RETRY_AFTER = timedelta(hours=1)
MAX_TEXT = 500
MAX_BODY = 2 * 1024
"""Bytes of a response without an outcome that are recorded."""

Received = Answered | Replied | Accepted | NotProcessed | Uncertain
"""The answers that a response can be."""

_UNREADABLE = {
    "members": "with {}",
    "syntax": "that is not JSON",
    "depth": "{}",
    "integer": "with a whole number beyond 64 bits",
    "memory": "that {}",
}
"""What an unreadable body is, to complete "a body"."""
_SECONDS = re.compile(r"[0-9]+")
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}/[a-z0-9.+-]{1,40}")


def read_answer(
    exchange: Exchange, kind: str, *, raw: bool = False, now: Callable[[], datetime], hidden: Hidden = NOTHING
) -> Answer:
    """Return the answer of one attempt.

    A 202 to anything but `tool.requested` is a final failure, because only calls have a callback. The texts in
    `hidden` are masked if the executor sends them back.
    """
    match exchange:
        case HttpAnswer(status=200 | 202 | 204):
            answer = _read_success(exchange, kind, raw=raw, hidden=hidden)
        case HttpAnswer():
            answer = _read_refusal(exchange, now=now, hidden=hidden)
        case NotSent(reason, withheld):
            return NeverSent(reason, withheld)
        case AddressForbidden(reason):
            return refusal(f"executor cannot be reached: {reason}")
        case ConnectionBroken(reason):
            return Uncertain(reason)
    if isinstance(answer, Replied):
        return answer
    brought = isinstance(answer, Accepted) or (isinstance(answer, Answered) and not answer.without_outcome)
    return replace(answer, response=Response(exchange.status) if brought else _record(exchange, hidden=hidden))


def _record(received: HttpAnswer, *, hidden: Hidden) -> Response:
    """Return what is recorded of a response without an outcome."""
    content_type = received.content_type if _MEDIA_TYPE.fullmatch(received.content_type) else ""
    if isinstance(received.body, Unread):
        return Response(received.status, content_type)
    # Masked before the cut, so that no part of a secret remains.
    text = hidden.mask(received.body[: 8 * MAX_BODY].decode(errors="replace"))
    return Response(received.status, content_type, text.encode()[:MAX_BODY].decode(errors="ignore"))


def read_copied(exchange: Exchange, *, now: Callable[[], datetime], hidden: Hidden = NOTHING) -> Copied:
    """Return the result of sending one event copy; of the body only the detail of a refusal counts."""
    match exchange:
        case NotSent(reason):
            return Copied("unsent", reason)
        case ConnectionBroken(reason):
            return Copied("again", reason)
        case AddressForbidden(reason):
            return Copied("refused", f"destination cannot be reached: {reason}")
        case HttpAnswer(status=status):
            pass
    if 200 <= status < 300:
        return Copied("delivered")
    reason = _explain(exchange, _read_problem(exchange), "destination", hidden=hidden)
    if status == HTTPStatus.GONE:
        return Copied("gone", reason)
    if 300 <= status < 400 or (400 <= status < 500 and status not in (408, 409, 425, 429)):
        return Copied("refused", reason)
    return Copied("again", reason, retry_after=read_retry_after(exchange.retry_after, now=now()))


def read_retry_after(header: str | None, *, now: datetime) -> timedelta | None:
    """Read seconds or an HTTP date as a wait of at most `MAX_RETRY_AFTER`; None if it is invalid."""
    if header is None:
        return None
    given = header.strip()
    if _SECONDS.fullmatch(given):
        return min(timedelta(seconds=int(given)), MAX_RETRY_AFTER) if len(given) < 10 else MAX_RETRY_AFTER
    try:
        moment = parsedate_to_datetime(given)
        # HTTP dates are UTC, with or without a zone (RFC 9110, 5.6.7).
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait, timedelta(0)), MAX_RETRY_AFTER)


def failure(text: str) -> Answered:
    """Return a final failure with a text for the agent."""
    return Answered(Outcome(outcome="failure", error=text))


def refusal(text: str) -> Answered:
    """Return a final failure because of a response without an outcome, with a text for the agent."""
    return Answered(Outcome(outcome="failure", error=text), refused=True, without_outcome=True)


def unreadable(text: str) -> Uncertain:
    """Return the answer of an executor that may have done the work and sent no readable outcome."""
    return Uncertain(text, by_choice=True, refused=True)


def read_json(body: bytes) -> tuple[Any, bytes | None]:
    """Parse the JSON of a peer strictly; return the value and its compact JSON, as `read_and_write` does.

    Raises:
        ValueError: with a text that completes "a body ..." and never quotes the body.
    """
    try:
        return read_and_write(body)
    except Unreadable as exc:
        raise ValueError(_UNREADABLE[exc.fault].format(exc)) from exc


def name_status(status: int) -> str:
    """Return a status with its standard name; the peer's reason phrase is not trusted."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _read_success(received: HttpAnswer, kind: str, *, raw: bool, hidden: Hidden) -> Received:
    is_call = kind == "tool.requested"
    # Numbers, since a look-up in `HTTPStatus` takes longer than this whole function.
    if received.status == 202:
        return Accepted() if is_call else refusal(f"executor answered 202 Accepted, but {kind} needs its reply at once")
    body = b"" if received.status == 204 else received.body
    if isinstance(body, Unread):
        if body is Unread.LOST:
            return Uncertain("the connection was lost or the time ran out in the middle of the response")
        return unreadable(f"executor answered 200 OK with {body.value}")
    if not without_mark(body).strip():
        return Answered(Outcome(outcome="success")) if is_call else Replied({})
    try:
        value, written = read_json(body)
        if not is_call:
            if find_repeated(body) is not None:
                raise ValueError("that repeats a member")
            return _read_reply(value, hidden=hidden)
        may_quote = hidden.may_be_in(body)
        if raw:
            return Answered(Outcome(outcome="success", result=value), may_quote=may_quote, written=written)
        try:
            answered = outcome_from(value, may_quote=may_quote, written=written)
        except ValueError as exc:
            raise ValueError(f"that is not an outcome: {exc}") from exc
    except ValueError as exc:
        return unreadable(clean(f"executor answered 200 OK with {_describe(received, body)} {exc}", hidden=hidden))
    if answered.ignored or answered.outcome.outcome != "success" or answered.outcome.error:
        return _mask_answer(answered, hidden=hidden)
    return answered


def _mask_answer(answered: Answered, *, hidden: Hidden) -> Answered:
    """Mask secrets that were sent to the executor, and add a text to a failure without one."""
    if answered.ignored:
        answered = replace(answered, ignored=tuple(clean(name, hidden=hidden) for name in answered.ignored))
    outcome = answered.outcome
    if outcome.outcome == "success" and not outcome.error:
        return answered
    error = hidden.mask(outcome.error or "") or f"executor answered {outcome.outcome} without saying why"
    return replace(answered, outcome=outcome.model_copy(update={"error": error}))


def _read_reply(value: Any, *, hidden: Hidden) -> Replied:
    if not isinstance(value, dict):
        raise ValueError("that is not a JSON object")
    reply = cast("dict[str, Any]", value)
    if isinstance(error := reply.get("error"), str):
        reply["error"] = hidden.mask(error)
    return Replied(reply)


def _read_refusal(received: HttpAnswer, *, now: Callable[[], datetime], hidden: Hidden) -> Received:
    status, problem = received.status, _read_problem(received)
    text = _explain(received, problem, "executor", hidden=hidden)
    wait = read_retry_after(received.retry_after, now=now())
    if status in (425, 429) or (status == HTTPStatus.SERVICE_UNAVAILABLE and wait is not None):
        return NotProcessed(text, retry_after=wait, by_choice=status < 500)
    if status in (408, 409):
        return Uncertain(text, by_choice=True)
    if 200 <= status < 300:
        return unreadable(f"{text}; expected 200, 202 or 204")
    if 300 <= status < 400:
        return refusal(f"{text}; redirects are not followed")
    if 400 <= status < 500:
        return replace(refusal(text), refused=status in REFUSALS or problem is None)
    # 5xx and unknown statuses: the call may have run.
    return Uncertain(text)


def _explain(received: HttpAnswer, problem: object, who: str, *, hidden: Hidden) -> str:
    """Return the status and the detail of a response without an outcome."""
    text = f"{who} answered {name_status(received.status)}"
    match problem:
        case {"detail": str(detail)} | {"title": str(detail)}:
            return clean(f"{text}: {detail}", hidden=hidden)
        case _:
            return text


def _read_problem(received: HttpAnswer) -> object:
    """Read a problem+json body (RFC 9457), or similar plain JSON; None if the body is something else."""
    if isinstance(received.body, Unread) or not received.content_type.endswith(("/json", "+json")):
        return None
    try:
        return read_json(received.body)[0]
    except ValueError:
        return None


def _describe(received: HttpAnswer, body: bytes) -> str:
    if "html" in received.content_type or without_mark(body).lstrip()[:1] == b"<":
        return "an HTML page"
    known = _MEDIA_TYPE.fullmatch(received.content_type)
    return f"a body ({received.content_type})" if known else "a body"


def clean(text: str, *, hidden: Hidden = NOTHING) -> str:
    """Clean an external text for display: mask secrets, join lines, limit the length."""
    line = show_hidden(" ".join(hidden.mask(text)[: 4 * MAX_TEXT].split()))
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
