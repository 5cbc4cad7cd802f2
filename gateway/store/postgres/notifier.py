"""Wakes other gateways by NOTIFY, on a connection of its own and never inside a transaction that writes.

What is notified meanwhile goes out together. A LISTEN connection can go deaf without a word, so it must hear a
ping of its own every few seconds; where it does not, or is lost, a new one is opened, and everybody is told
that something may have been missed. Behind a pooler nothing can be heard: others still hear us, and readers
here find what is new by looking from time to time.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, cast

import orjson
import structlog

from gateway.errors import DragomanError
from gateway.guard import Tasks, guard, guard_call
from gateway.store.postgres.connection import Address, Connection, connect

log = structlog.get_logger(__name__)

PAYLOAD = 7_900
"""Bytes that a payload may have; the server takes less than 8000."""
TOPICS = 1_000
"""Topics that may wait to be sent; more of them are sent as `anything`."""

LIVE = "live:"
"""How topics begin that nobody can look for, and that are left out where there is no room."""

_NOTIFY = "SELECT pg_notify($1, $2)"

Heard = Callable[[str | None], None]


class PostgresNotifier:
    """Notifies and listens, from the start until `stop`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tuning = address.tuning
        self._channel = f"dragoman:{address.schema}"
        self._me = secrets.token_hex(8)
        self._listeners: dict[object, Heard] = {}
        self._topics: set[str] = set()
        self._news = asyncio.Event()
        self._pinged = asyncio.Event()
        self._said = False
        self._tasks = Tasks()
        guard("postgres notifier", self._run, self._tasks)

    async def stop(self) -> None:
        """End; what was sent last may be lost, as any notification may."""
        await self._tasks.close()

    def notify(self, topic: str) -> None:
        if len(self._topics) <= TOPICS:
            self._topics.add(topic)
            self._news.set()

    def listen(self, heard: Heard) -> Callable[[], None]:
        key = object()
        self._listeners[key] = guard_call("postgres notifier", heard)
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        self._listeners.pop(key, None)

    def _tell(self, topic: str | None) -> None:
        for heard in [*self._listeners.values()]:
            heard(topic)

    async def _run(self) -> None:
        pause = self._tuning.pause_first
        told = False
        while True:
            try:
                link = await connect(self._address)
            except DragomanError as exc:
                if not told:
                    told = True
                    log.warning("notification connection failed", reason=str(exc))
            else:
                told = False
                try:
                    await self._serve(link)
                except DragomanError as exc:
                    log.warning("notification connection lost", reason=str(exc))
                    pause = self._tuning.pause_first
                finally:
                    link.drop()
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._tuning.pause_longest)

    async def _serve(self, link: Connection) -> None:
        """Send what waits, and listen, until the connection fails."""
        listens = self._address.direct
        if listens:
            await link.listen(self._channel, self._hear)
            self._tell(None)
        elif not self._said:
            self._said = True
            log.warning(
                "notifications of other gateways cannot be heard through a pooler, so news from them come up to five"
                " seconds later; give engine.direct_dsn a way to the server itself"
            )
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + self._tuning.ping_every
        while True:
            # Also while there is always something to send: what is sent says nothing about what is heard.
            if loop.time() >= ping_at:
                await self._ping(link, listens=listens)
                ping_at = loop.time() + self._tuning.ping_every
            try:
                async with asyncio.timeout_at(ping_at):
                    await self._news.wait()
            except TimeoutError:
                continue
            else:
                self._news.clear()
                topics, self._topics = self._topics, set()
                await link.ask(_NOTIFY, self._channel, self._payload(topics), seconds=self._tuning.ping)

    async def _ping(self, link: Connection, *, listens: bool) -> None:
        self._pinged.clear()
        payload = orjson.dumps([self._me, []]).decode()
        await link.ask(_NOTIFY, self._channel, payload, seconds=self._tuning.ping)
        if listens:
            try:
                async with asyncio.timeout(self._tuning.ping):
                    await self._pinged.wait()
            except TimeoutError:
                raise link.deaf(f"no notification was heard for {self._tuning.ping:g} s") from None

    def _payload(self, topics: set[str]) -> str:
        payload = orjson.dumps([self._me, sorted(topics)])
        if len(payload) > PAYLOAD:
            # What is only live must not make everybody look for everything.
            payload = orjson.dumps([self._me, sorted(topic for topic in topics if not topic.startswith(LIVE))])
        if len(topics) > TOPICS or len(payload) > PAYLOAD:
            payload = orjson.dumps([self._me, None])
        return payload.decode()

    def _hear(self, payload: str) -> None:
        try:
            told: Any = orjson.loads(payload)
            who, topics = told
        except (orjson.JSONDecodeError, TypeError, ValueError):
            # Somebody else uses our channel: what it means is not known, so that everything may be new.
            who, topics = None, None
        if who == self._me:
            self._pinged.set()
        elif isinstance(topics, list) and all(isinstance(topic, str) for topic in cast("list[object]", topics)):
            for topic in cast("list[str]", topics):
                self._tell(topic)
        else:
            self._tell(None)
