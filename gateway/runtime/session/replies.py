"""Resolves the replies of signals, or fails them."""

from asyncio import Future
from collections.abc import Iterable
from typing import Any

from gateway.runtime.session.signals import Signal


def reply_of(signal: Signal) -> "Future[Any] | None":
    return getattr(signal, "reply", None)


def resolve(reply: "Future[Any]", answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)


def without_requests(batch: Iterable[Signal], problem: BaseException) -> list[Signal]:
    """Fail the client requests of a batch; return all other signals."""
    others: list[Signal] = []
    for signal in batch:
        if reply_of(signal) is None:
            others.append(signal)
        else:
            fail(signal, problem)
    return others


def fail(signal: Signal, problem: BaseException) -> None:
    reply = reply_of(signal)
    if reply is not None and not reply.done():
        reply.set_exception(problem)
