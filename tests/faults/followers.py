"""Thousands of followers of one session on raw sockets, who come back by themselves as a browser does.

Each keeps the id of the last event it has seen, says it as `Last-Event-ID` when it comes back, and holds what it is
shown to that: the next one, once, and in the same words as everybody else's.
"""

import asyncio
import random
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Thread
from typing import Self, cast

import pytest
import uvloop

HOST = "127.0.0.1"
_CONNECTING = 5.0
_OTHER_FILES = 500
_MOST_FAULTS = 20


class _Follower(asyncio.Protocol):
    """One follower, on one connection after the other."""

    def __init__(self, followers: "Followers") -> None:
        self.last = followers.after
        self.standing = False
        self._followers = followers
        self._pause = 1.0
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._raw = self._text = b""

    async def follow(self) -> None:
        """Follow for ever."""
        loop = asyncio.get_running_loop()
        while True:
            self._gone.clear()
            self._raw = self._text = b""
            try:
                async with asyncio.timeout(_CONNECTING):
                    await loop.create_connection(lambda: self, HOST, self._followers.port)
            except (OSError, TimeoutError):
                self._followers.turned_away += 1
            else:
                await self._gone.wait()
            # Not all in one moment, which no crowd of people does either.
            await asyncio.sleep(self._pause * self._followers.jitter.uniform(0.5, 1.5))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._followers.request(self.last))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.standing = False
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if not self.standing and not self._read_head():
            return
        self._read_chunks()
        # What was cut off in the middle is shown again as a whole.
        *frames, self._text = self._text.split(b"\n\n")
        for frame in frames:
            self._take(frame)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _read_head(self) -> bool:
        head, end, rest = self._raw.partition(b"\r\n\r\n")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 200 "):
            self._followers.turned_away += 1
            self.hang_up()
            return False
        self.standing, self._raw = True, rest
        return True

    def _read_chunks(self) -> None:
        while True:
            size, end, rest = self._raw.partition(b"\r\n")
            if not end or len(rest) < (length := int(size, 16)) + 2:
                return
            self._text += rest[:length]
            self._raw = rest[length + 2 :]
            if not length:
                # The end of a stream that the gateway itself has ended.
                self.hang_up()

    def _take(self, frame: bytes) -> None:
        # Heartbeats stand before the next event as comments, and `retry` in the first block of each connection.
        lines = [line for line in frame.split(b"\n") if not line.startswith(b":")]
        fields = {name: value for name, colon, value in (line.partition(b": ") for line in lines) if colon}
        if b"retry" in fields:
            self._pause = int(fields[b"retry"]) / 1000
        frame = b"\n".join(line for line in lines if not line.startswith(b"retry: "))
        if b"id" in fields:
            sequence = int(fields[b"id"].partition(b".")[0])
            self._followers.see(self.last, sequence, frame)
            self.last = max(self.last, sequence)
        elif fields.get(b"event") == b"gap":
            self._followers.accuse(f"behind {self.last}: {frame!r}")


class Followers:
    """So many followers of one session, all of whom have seen it up to `after`.

    They have a loop and a thread of their own, so that the runtime and the executors beside them do not wait.
    """

    def __init__(self, port: int, session_id: str, *, after: int, many: int) -> None:
        self.port = port
        self.after = after
        self.many = many
        self.jitter = random.Random(many)
        self.turned_away = 0
        """How often somebody could not connect, or was answered something else than a stream."""
        self.shown = 0
        """How many events were shown, over all followers."""
        self.faults: list[str] = []
        """What nobody may be shown: repeats, gaps, different words."""
        self._path = f"/v1/sessions/{session_id}/events/stream"
        self._words: dict[int, bytes] = {}
        self._awaited: tuple[int, Callable[[], None]] | None = None
        self._followers = [_Follower(self) for _ in range(many)]
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._thread = Thread(target=self._run, name="crowd")
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._runner.get_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._runner.get_loop().call_soon_threadsafe(self._over.set)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._follow())

    async def _follow(self) -> None:
        tasks = [asyncio.create_task(follower.follow()) for follower in self._followers]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for follower in self._followers:
            follower.hang_up()
        # Their sockets are closed in the next turn of the loop.
        await asyncio.sleep(0)

    @property
    def standing(self) -> int:
        """How many have a stream now."""
        return sum(follower.standing for follower in self._followers)

    @property
    def places(self) -> tuple[int, int]:
        """The last event that the slowest has seen, and the fastest."""
        seen = [follower.last for follower in self._followers]
        return min(seen), max(seen)

    def when_first_sees(self, sequence: int, act: Callable[[], None]) -> None:
        """Do something, in the crowd's thread, as soon as anybody is shown this event; most are not yet."""
        self._awaited = sequence, act

    def request(self, last: int) -> bytes:
        """Write the request of a follower who has seen so much."""
        head = f"GET {self._path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: text/event-stream\r\nLast-Event-ID: {last}"
        return f"{head}\r\n\r\n".encode()

    def see(self, last: int, sequence: int, frame: bytes) -> None:
        """Take note of what a follower was shown behind the last event it has seen."""
        self.shown += 1
        if sequence != last + 1:
            self.accuse(f"behind {last}: {sequence}")
        if self._words.setdefault(sequence, frame) != frame:
            self.accuse(f"{sequence}: {frame!r} and {self._words[sequence]!r}")
        if self._awaited is not None and sequence >= self._awaited[0]:
            (_, act), self._awaited = self._awaited, None
            act()

    def accuse(self, fault: str) -> None:
        """Note what nobody may be shown."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(fault)


@contextmanager
def enough_files(followers: int) -> Generator[None]:
    """Let this process have the sockets of so many followers, and some other files, open."""
    many = followers + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < many:
        pytest.skip(f"a process may have {hard} files open here, and {many} are needed: ulimit -Hn {many}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, many), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
