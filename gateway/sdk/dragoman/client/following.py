"""Streams that reconnect: yields each event once and in order, and lost history as a value."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

import httpx
from httpx_sse import ServerSentEvent

from dragoman.client.errors import ClientError, GatewayUnreachable, UnexpectedAnswer
from dragoman.client.reading import read, read_event
from dragoman.client.transport import Transport
from dragoman.models import Gap, Live, Missed, Passed
from dragoman.models.responses import Envelope, Interaction, Session, SessionName
from dragoman.models.stream import sequence_of
from dragoman.sse import SseReader

_STABLE = 10.0
"""Seconds for which a stream must stay open before the pauses start over."""
_LONGEST_RETRY = 10.0

log = logging.getLogger("dragoman.client")


class Outage:
    """The outage of a stream: its duration and the time of the next attempt."""

    def __init__(self, transport: Transport, *, patience: float) -> None:
        """Limit an outage to `patience` seconds, and the first connection to the transport's `retries`."""
        self.began = False
        """Whether the stream was open once."""
        self._patience = patience
        self._transport = transport
        self._tries = 0
        self._stream: SseReader | None = None
        self._opened_at = 0.0
        self._least = 0.0
        """Seconds that the stream's `retry` requests before a reconnect."""
        self._lost_at: float | None = None
        """The time of the break, unless bytes have arrived since."""

    def read(self, answer: httpx.Response) -> AsyncGenerator[ServerSentEvent]:
        """Read an opened stream.

        Raises:
            UnexpectedAnswer: an event is too large.
        """
        self.began, self._opened_at = True, monotonic()
        self._stream = SseReader(answer, largest=self._transport.largest_answer)
        return _read_events(self._stream)

    async def wait(self, exc: ClientError) -> None:
        """Wait before the next attempt.

        Raises:
            ClientError: the given one, if it is final or the outage is too long.
        """
        self._note_stream()
        pause, now = self._transport.pause_before(self._tries, exc), monotonic()
        # Not the time of the latest bytes, because the program that reads the stream may have been busy.
        self._lost_at = now if self._lost_at is None else self._lost_at
        left = self._lost_at + self._patience - now
        if pause is None or (left <= 0 if self.began else self._tries >= self._transport.retries):
            raise exc
        self._tries += 1
        pause = max(pause, min(self._least, _LONGEST_RETRY))
        log.info("%s; retrying in %.1f s", exc, pause)
        await asyncio.sleep(min(pause, left) if self.began else pause)

    def _note_stream(self) -> None:
        """Reset the outage if the broken stream delivered bytes, which show that a gateway is alive."""
        stream, self._stream = self._stream, None
        if stream is None or stream.received_at is None:
            return
        self._lost_at = None
        self._least = stream.retry or 0.0
        if stream.has_data or stream.received_at - self._opened_at > _STABLE:
            self._tries = 0


async def follow_session(
    transport: Transport, path: str, *, after: int | str | None, silence: float, patience: float
) -> AsyncGenerator[Envelope | Live | Gap]:
    """Yield the recorded events after `after`, then new ones, until the session is closed."""
    outage = Outage(transport, patience=patience)
    place, ended = None if after is None else str(after), False
    while True:
        try:
            # The session's row tells whether it exists and where it ends.
            row = read(Session, await transport.ask("GET", path, retries=0))
            ends = {row.position or str(row.last_sequence), str(row.last_sequence)}
            place = row.position or str(row.last_sequence) if place is None else place
            if row.state == "closed" and place in ends:
                return
            if ended:
                # A stopping gateway also ends its streams.
                ended = False
                await outage.wait(GatewayUnreachable("the stream has ended", arrived=True))
            async with (
                transport.stream(f"{path}/events/stream", after=place, silence=silence) as answer,
                aclosing(outage.read(answer)) as events,
            ):
                async for event in events:
                    data = _data(event)
                    match item := _item(event, sequence_of(place), data):
                        case Envelope():
                            if item.sequence > sequence_of(place) + 1:
                                yield Gap(item.sequence)
                            place = item.position or str(item.sequence)
                        case Gap():
                            place = str(data.get("position") or item.first_sequence - 1)
                        case Live():
                            pass
                        case None:
                            continue
                    yield item
            ended = True
        except ClientError as exc:
            await outage.wait(exc)


@dataclass(frozen=True, slots=True)
class Followed:
    """An event of a stream over sessions."""

    item: Envelope | Live
    session: SessionName
    id: str | None
    """Resume after this event with it; live events have none."""


async def follow_all(
    transport: Transport, query: Mapping[str, Any], *, after: str | None, silence: float, patience: float
) -> AsyncGenerator[Followed | Passed | Missed]:
    """Yield the matching events of all sessions after `after`, then new ones."""
    outage = Outage(transport, patience=patience)
    place = after
    while True:
        try:
            async with (
                transport.stream("/v1/events/stream", after=place, silence=silence, query=query) as answer,
                aclosing(outage.read(answer)) as events,
            ):
                async for event in events:
                    item = _of_all(event)
                    if isinstance(item, Followed | Passed):
                        place = item.id or place
                    if item is not None:
                        yield item
            raise GatewayUnreachable("the stream has ended", arrived=True)
        except ClientError as exc:
            await outage.wait(exc)


def _of_all(event: ServerSentEvent) -> Followed | Passed | Missed | None:
    """Parse one event of a stream over sessions; None if it is unknown to this client."""
    match event.event:
        case "gap":
            return Missed()
        case "position":
            return Passed(event.id)
        case _:
            data = _data(event)
    if not isinstance(data.get("session"), dict):
        return None
    session = read(SessionName, data.pop("session"))
    item = _item(event, -1, data)
    return (
        None
        if item is None or isinstance(item, Gap)
        else Followed(item, session, event.id if isinstance(item, Envelope) else None)
    )


async def follow_interactions(
    transport: Transport, *, silence: float, patience: float
) -> AsyncGenerator[Interaction | Missed]:
    """Yield all waiting interactions, then each new or changed one in its new state."""
    outage = Outage(transport, patience=patience)
    while True:
        again = outage.began
        try:
            async with (
                transport.stream("/v1/interactions/stream", after=None, silence=silence) as answer,
                aclosing(outage.read(answer)) as events,
            ):
                if again:
                    yield Missed()
                async for event in events:
                    if event.event == "gap":
                        yield Missed()
                    elif event.event == "interaction":
                        yield read(Interaction, _data(event))
            raise GatewayUnreachable("the stream has ended", arrived=True)
        except ClientError as exc:
            await outage.wait(exc)


async def _read_events(stream: SseReader) -> AsyncGenerator[ServerSentEvent]:
    try:
        async with aclosing(stream.events()) as events:
            async for event in events:
                yield event
    except ValueError as exc:
        raise UnexpectedAnswer(str(exc), status=200) from None


def _item(event: ServerSentEvent, place: int, data: dict[str, Any]) -> Envelope | Live | Gap | None:
    """Parse one event of a session's stream; None if it is repeated or unknown to this client."""
    if data.get("live") is True:
        sequence = data.get("after_sequence")
        return Live(read_event(data.get("event")), sequence if isinstance(sequence, int) else place)
    if event.event == "gap":
        first = data.get("first_sequence")
        if not isinstance(first, int):
            raise UnexpectedAnswer("a gap of the stream has no `first_sequence`", status=200)
        # With a position, the store was restored: other events may follow the same place.
        return Gap(first) if first > place + 1 or "position" in data else None
    if "sequence" not in data:
        return None
    envelope = read(Envelope, data)
    return envelope if envelope.sequence > place else None


def _data(event: ServerSentEvent) -> dict[str, Any]:
    try:
        value: Any = json.loads(event.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UnexpectedAnswer("an event of the stream is not a JSON object", status=200)
    return cast("dict[str, Any]", value)
