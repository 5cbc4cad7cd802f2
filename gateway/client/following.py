"""Follows streams over lost connections: each event once and in order, and what is gone as a value."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any, cast

from gateway.client.blocks import Block, BlockReader
from gateway.client.errors import ClientError, GatewayUnreachable, UnexpectedAnswer
from gateway.client.reading import read, read_event
from gateway.client.transport import Transport
from gateway.events import Gap, Live, Missed
from gateway.executors.webhook.models import Envelope
from gateway.http.answers import Interaction, Session

_STABLE = 10.0
"""Seconds for which a stream must have stood so that the pauses begin anew."""
_LONGEST_RETRY = 10.0

log = logging.getLogger("dragoman.client")


class Outage:
    """How long a stream is away, and when it is tried again."""

    def __init__(self, what: str, transport: Transport, *, patience: float) -> None:
        """Make one; `patience` holds once the stream has stood, the transport's `retries` before."""
        self.began = False
        """Whether the stream has stood once."""
        self._what = what
        self._patience = patience
        self._transport = transport
        self._tries = 0
        self._stood_at = 0.0
        self._lost_at: float | None = None
        """When it broke, unless something was heard since."""

    def stands(self) -> None:
        """Note that the stream is open; a gateway sends a first line at once, and only that shows that it lives."""
        self.began, self._stood_at = True, _now()

    def heard(self, *, told: bool) -> None:
        """Note that bytes came, and whether there was an event in them."""
        self._lost_at = None
        if told or _now() - self._stood_at > _STABLE:
            self._tries = 0

    async def wait(self, exc: ClientError, *, least: float | None) -> None:
        """Wait before the next try; `least` is what the stream has said.

        Raises:
            ClientError: the one given, where it does not pass, or the stream is away for too long.
        """
        pause, now = self._transport.pause_before(self._tries, exc), _now()
        # Not since it was heard: whoever reads it may have been busy.
        self._lost_at = now if self._lost_at is None else self._lost_at
        left = self._lost_at + self._patience - now
        if pause is None or (left <= 0 if self.began else self._tries >= self._transport.retries):
            raise exc
        self._tries += 1
        pause = max(pause, min(least or 0, _LONGEST_RETRY))
        log.info("the stream of %s is opened again in %.1f s: %s", self._what, pause, exc)
        await asyncio.sleep(min(pause, left) if self.began else pause)


async def follow_session(
    transport: Transport, session: str, path: str, *, after: int | None, silence: float, patience: float
) -> AsyncGenerator[Envelope | Live | Gap]:
    """Yield what is on record behind `after`, then what happens, until the session is closed."""
    outage = Outage(f"session {session}", transport, patience=patience)
    place, reader, ended = after, BlockReader(transport.largest_answer), False
    while True:
        try:
            # It says where the session ends, and whether it is there at all.
            row = read(Session, await transport.ask("GET", path, retries=0))
            place = row.last_sequence if place is None else place
            if row.last_sequence < place:
                # Its store was restored, and what it knows now may be other events.
                place = row.last_sequence
                yield Gap(place + 1)
            if row.state == "closed" and row.last_sequence == place:
                return
            if ended:
                # A gateway that stops ends its streams, too.
                ended = False
                await outage.wait(GatewayUnreachable("the stream has ended", arrived=True), least=reader.retry)
            reader = BlockReader(transport.largest_answer)
            async with transport.stream(f"{path}/events/stream", after=place, silence=silence) as answer:
                outage.stands()
                async for piece in answer.aiter_raw():
                    blocks = _blocks(reader, piece)
                    outage.heard(told=bool(blocks))
                    for block in blocks:
                        match item := _item(block, place):
                            case Envelope():
                                if item.sequence > place + 1:
                                    yield Gap(item.sequence)
                                place = item.sequence
                            case Gap():
                                place = item.first_sequence - 1
                            case Live():
                                pass
                            case None:
                                continue
                        yield item
            ended = True
        except ClientError as exc:
            await outage.wait(exc, least=reader.retry)


async def follow_interactions(
    transport: Transport, *, silence: float, patience: float
) -> AsyncGenerator[Interaction | Missed]:
    """Yield what waits for people, then each that changes, as it stands then."""
    outage = Outage("interactions", transport, patience=patience)
    reader = BlockReader(transport.largest_answer)
    while True:
        again = outage.began
        try:
            reader = BlockReader(transport.largest_answer)
            async with transport.stream("/v1/interactions/stream", after=None, silence=silence) as answer:
                outage.stands()
                if again:
                    yield Missed()
                async for piece in answer.aiter_raw():
                    blocks = _blocks(reader, piece)
                    outage.heard(told=bool(blocks))
                    for block in blocks:
                        if block.event == "gap":
                            yield Missed()
                        elif block.event == "interaction":
                            yield read(Interaction, _data(block))
            raise GatewayUnreachable("the stream has ended", arrived=True)
        except ClientError as exc:
            await outage.wait(exc, least=reader.retry)


def _item(block: Block, place: int) -> Envelope | Live | Gap | None:
    """Read one event of a session's stream; None for what was told already, and for what only newer clients know."""
    data = _data(block)
    if data.get("live") is True:
        sequence = data.get("after_sequence")
        return Live(read_event(data.get("event")), sequence if isinstance(sequence, int) else place)
    if block.event == "gap":
        first = data.get("first_sequence")
        if not isinstance(first, int):
            raise UnexpectedAnswer("a gap of the stream has no `first_sequence`", status=200)
        return Gap(first) if first > place + 1 else None
    if block.id is None:
        return None
    envelope = read(Envelope, data)
    return envelope if envelope.sequence > place else None


def _blocks(reader: BlockReader, piece: bytes) -> list[Block]:
    try:
        return reader.feed(piece)
    except ValueError as exc:
        raise UnexpectedAnswer(str(exc), status=200) from None


def _data(block: Block) -> dict[str, Any]:
    try:
        value: Any = json.loads(block.data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UnexpectedAnswer("an event of the stream is no JSON object", status=200)
    return cast("dict[str, Any]", value)


def _now() -> float:
    return asyncio.get_running_loop().time()
