"""Notifies other gateways with NOTIFY on a separate connection, never inside a transaction that writes.

Topics that arrive during a send are sent together. A LISTEN connection can fail silently, so every few seconds it
must receive its own ping. After a failure, a new connection is opened and every listener is called with None, because
notifications may be missing. Behind a pooler LISTEN does not work: other gateways still receive our notifications, and
readers here poll.
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
"""The limit of a payload in bytes; the server's limit is below 8000."""
TOPICS = 1_000
"""The limit of the queue; more topics are sent as "anything may be new"."""

LIVE = "live:"
"""The prefix of topics without stored data; they are dropped if the payload is too long."""

_NOTIFY = "SELECT pg_notify($1, $2)"

Listener = Callable[[str | None], None]


class PostgresNotifier:
    """Notifies and listens, from `start` until `stop`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tuning = address.tuning
        self._channel = f"dragoman:{address.schema}"
        self._me = secrets.token_hex(8)
        self._listeners: dict[object, Listener] = {}
        self._topics: set[str] = set()
        self._news = asyncio.Event()
        self._pinged = asyncio.Event()
        self._has_warned = False
        self._tasks = Tasks()

    def start(self) -> None:
        """Connect; a listener that is added before the next turn of the loop receives the first None."""
        guard("postgres notifier", self._run, self._tasks)

    async def stop(self) -> None:
        """Stop; like any notification, the last one may be lost."""
        await self._tasks.close()

    def notify(self, topic: str) -> None:
        if len(self._topics) <= TOPICS:
            self._topics.add(topic)
            self._news.set()

    def listen(self, listener: Listener) -> Callable[[], None]:
        key = object()
        self._listeners[key] = guard_call("postgres notifier", listener)
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        self._listeners.pop(key, None)

    def _publish(self, topic: str | None) -> None:
        for listener in [*self._listeners.values()]:
            listener(topic)

    async def _run(self) -> None:
        pause = self._tuning.pause_first
        has_warned = False
        while True:
            try:
                link = await connect(self._address)
            except DragomanError as exc:
                if not has_warned:
                    has_warned = True
                    log.warning("notification connection failed", reason=str(exc))
            else:
                if has_warned:
                    log.warning("notification connection available again")
                has_warned = False
                try:
                    await self._serve(link)
                except DragomanError as exc:
                    has_warned = True
                    log.warning("notification connection lost", reason=str(exc))
                    pause = self._tuning.pause_first
                finally:
                    link.drop()
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._tuning.pause_longest)

    async def _serve(self, link: Connection) -> None:
        """Send the queued topics and listen until the connection fails."""
        listens = self._address.direct
        if listens:
            await link.listen(self._channel, self._receive)
            self._publish(None)
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "LISTEN does not work through a pooler, so changes by other gateways arrive up to five seconds late;"
                " set engine.direct_dsn to the server itself"
            )
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + self._tuning.ping_every
        while True:
            # Pings even during constant sending, because a successful send does not prove that notifications arrive.
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
                raise link.fail(f"no notification arrived within {self._tuning.ping:g} s") from None

    def _payload(self, topics: set[str]) -> str:
        payload = orjson.dumps([self._me, sorted(topics)])
        if len(payload) > PAYLOAD:
            # Without live topics the rest may fit; otherwise every listener must query everything.
            payload = orjson.dumps([self._me, sorted(topic for topic in topics if not topic.startswith(LIVE))])
        if len(topics) > TOPICS or len(payload) > PAYLOAD:
            payload = orjson.dumps([self._me, None])
        return payload.decode()

    def _receive(self, payload: str) -> None:
        try:
            message: Any = orjson.loads(payload)
            sender, topics = message
        except (orjson.JSONDecodeError, TypeError, ValueError):
            # Another program uses our channel. Its payload is unreadable, so anything may be new.
            sender, topics = None, None
        if sender == self._me:
            self._pinged.set()
        elif isinstance(topics, list) and all(isinstance(topic, str) for topic in cast("list[object]", topics)):
            for topic in cast("list[str]", topics):
                self._publish(topic)
        else:
            self._publish(None)
