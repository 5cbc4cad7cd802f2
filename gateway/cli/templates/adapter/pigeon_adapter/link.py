"""One connection to one session: events over a stream, messages by POST."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from urllib.parse import quote

from gateway.adapter.port import Frame, Receipt, Receiver
from gateway.errors import LinkLost, LinkRefused
from gateway.guard import Tasks, guard
from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.links.rest import RestAnswer, RestClient
from gateway.links.sse import SseStream, open_events

from .codec import EVENTS
from .options import PigeonOptions


@asynccontextmanager
async def open_link(
    client: RestClient, receiver: Receiver, *, native_id: str, options: PigeonOptions, after: str | None
) -> AsyncGenerator["PigeonLink"]:
    """Open the stream after the event `after`, and read it in a task.

    Raises:
        LinkLost, LinkRefused: on entering.
    """
    path = f"/sessions/{quote(native_id, safe='')}"
    headers = {} if after is None else {"Last-Event-ID": after}
    async with open_events(
        client,
        f"{path}/events",
        headers=headers,
        within=options.connect_timeout,
        idle=options.idle_timeout,
        largest=FRAMES.get().largest,
    ) as stream:
        link = PigeonLink(client, receiver, path=f"{path}/messages", options=options, after=after)
        async with Tasks() as tasks:
            # `guard` logs and counts an unexpected exception; `read` ends the link in every case.
            guard("pigeon link", partial(link.read, stream), tasks, again=False)
            try:
                yield link
            finally:
                link.end("closed by the gateway")
                await tasks.close()


class PigeonLink:
    """Implements `gateway.adapter.port.Link`."""

    def __init__(
        self, client: RestClient, receiver: Receiver, *, path: str, options: PigeonOptions, after: str | None
    ) -> None:
        self._client = client
        self._receiver = receiver
        self._path = path
        self._options = options
        self._newest = int(after) if after is not None and after.isdecimal() else 0
        """The number of the newest event; any event up to this number is a repeat."""
        self._sending = asyncio.Lock()
        self._ended = asyncio.Event()
        self._reason = ""

    async def read(self, stream: SseStream) -> None:
        """Read the stream to its end, then end the link."""
        reason = "reading the stream failed"
        try:
            async with aclosing(stream.texts()) as texts:
                async for text in texts:
                    self._take(text)
            reason = "the runtime ended the stream"
        except (LinkLost, LinkRefused) as exc:
            reason = str(exc)
        finally:
            self.end(reason)

    def _take(self, text: str) -> None:
        """Pass one event to the receiver with its cursor; drop a repeat."""
        payload, written = json.read_frame(text)
        cursor: str | None = None
        match payload:
            case {"type": "caught_up"}:
                self._receiver.caught_up()
                return
            case {"number": int(number)}:
                if number <= self._newest:
                    return
                self._newest, cursor = number, str(number)
            case _:
                pass
        self._receiver.frame(Frame(EVENTS, payload, len(text), written), cursor)

    async def send_all(self, frames: Sequence[Frame]) -> Receipt:
        """Post the frames one after another; stop at the first one that the runtime does not accept."""
        receipt = Receipt("delivered")
        # Concurrent callers wait here, so frames are sent in the order of the calls.
        async with self._sending:
            for frame in frames:
                receipt = await self._post(frame)
                if receipt.state != "delivered":
                    break
        return receipt

    async def _post(self, frame: Frame) -> Receipt:
        """Post one message; return its receipt."""
        await self.prove()
        try:
            answer = await self._client.post(self._path, frame.payload, within=self._options.send_timeout)
            return _receipt_for(answer)
        except LinkLost as exc:
            self.end(str(exc))
            raise
        except LinkRefused as exc:
            self.end(str(exc))
            raise LinkLost(str(exc), unsent=True) from exc

    async def prove(self) -> None:
        """Return at once if the link is up: each POST is confirmed by its response."""
        if self._ended.is_set():
            raise LinkLost(f"the link is closed: {self._reason}", unsent=True)

    async def wait_closed(self) -> str:
        """Wait for the end of the link; return the reason."""
        await self._ended.wait()
        return self._reason

    def end(self, reason: str) -> None:
        """End the link; the first reason is kept."""
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()


def _receipt_for(answer: RestAnswer) -> Receipt:
    """Convert the response of a POST to a receipt.

    Raises:
        LinkLost: the message was not accepted yet (`unsent`), or its outcome is unknown.
    """
    reason = ": ".join(part for part in (answer.where, answer.code, answer.message) if part)
    match answer.status:
        case status if 200 <= status < 300:
            return Receipt("delivered")
        case 409:
            return Receipt("busy", reason)
        case 410:
            return Receipt("moot", reason)
        case 401 | 403 | 429:
            raise LinkLost(reason, unsent=True)
        case 400 | 404 | 413 | 422:
            return Receipt("refused", reason)
        case _:
            raise LinkLost(reason)
