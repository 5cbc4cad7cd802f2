"""What whoever waits for a signal is told: an answer, or why there is none."""

from asyncio import Future
from typing import Any

from gateway.runtime.session.signals import Signal


def reply_of(signal: Signal) -> "Future[Any] | None":
    return getattr(signal, "reply", None)


def resolve(reply: "Future[Any]", answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)


def fail(signal: Signal, problem: BaseException) -> None:
    reply = reply_of(signal)
    if reply is not None and not reply.done():
        reply.set_exception(problem)
