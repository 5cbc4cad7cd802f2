"""Runs transactions on PostgreSQL so that each happens exactly once, whatever becomes of its connection.

Each transaction leaves a token of its own in `commits`. Where the connection is lost before COMMIT was
sent, nothing was written, and the work is done again on a new one. Where it is lost in COMMIT, the token is
asked for: entering it once more waits for a transaction that is still under way, finds one that was
committed, and shuts out one that was not. So nobody ever hears of a doubtful result. The transaction's own
number would not do: a replica that takes over may give it to another one.

Whatever is not the connection's fault (disk full, only reads, a right that is missing) is raised at once as
EngineUnavailable, and nothing of it was written.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import structlog

from gateway.errors import DragomanError, EngineUnavailable
from gateway.store.postgres.connection import Address, Connection, connect
from gateway.store.postgres.faults import Again, ConnectionLost, RowHeld
from gateway.store.postgres.store import BEGIN, MARK

log = structlog.get_logger(__name__)

T = TypeVar("T")

_SETTLE = """
INSERT INTO @commits AS c (token, fate, asked, at) VALUES ($1, 'void', 1, clock_timestamp())
ON CONFLICT (token) DO UPDATE SET asked = c.asked + 1
RETURNING fate
"""


class Line:
    """A place for one connection, which is opened when it is needed and again when it was lost."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._link: Connection | None = None

    async def link(self) -> Connection:
        """Give the connection.

        Raises:
            Lost, EngineUnavailable: there is none to be had now.
        """
        if self._link is None or self._link.lost:
            self._link = await connect(self.address)
        return self._link

    async def undo(self) -> None:
        """End a transaction that is not wanted; the next one begins clean."""
        link = self._link
        if link is None or link.lost:
            return
        try:
            await link.run("ROLLBACK")
        except EngineUnavailable:
            link.drop()

    def drop(self) -> None:
        """Throw the connection away."""
        if self._link is not None:
            self._link.drop()
            self._link = None

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class Tokens:
    """The names of transactions, and those that nobody will ask about any more."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(12)
        self._numbers = count(1)
        self._spent: list[str] = []

    def mint(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def spend(self, tokens: Sequence[str]) -> None:
        """Let the next transaction remove them."""
        self._spent += tokens

    def take_spent(self) -> list[str]:
        spent, self._spent = self._spent[:256], self._spent[256:]
        return spent


@dataclass(slots=True)
class Transaction:
    """A transaction under way."""

    link: Connection
    token: str
    spent: Sequence[str]
    marked: bool = False
    """Whether the work has left the token itself."""
    idle: bool = False
    """Whether there is nothing to commit."""


Work = Callable[[Transaction], Awaitable[T]]


class ExactlyOnce:
    """Runs transactions; one for the whole engine."""

    def __init__(self) -> None:
        self._tokens = Tokens()

    async def run(self, line: Line, work: Work[T], *, until: float, begin: str = BEGIN) -> T:
        """Do some work in a transaction, on a new connection where one is lost, at least once and until a time.

        Raises:
            EngineUnavailable: nothing was written.
            DragomanError: what the work raises; nothing was written.
        """
        loop, tuning = asyncio.get_running_loop(), line.address.tuning
        pause = tuning.pause_first
        while True:
            token, spent = self._tokens.mint(), self._tokens.take_spent()
            try:
                turn = Transaction(await line.link(), token, spent)
                value = await self._work(turn, work, begin)
            except (ConnectionLost, Again) as exc:
                self._tokens.spend(spent)
                await line.undo()
                # Where rows are held, the server has waited for them already.
                if isinstance(exc, RowHeld) or loop.time() + pause > until:
                    raise EngineUnavailable(str(exc)) from exc
            except BaseException:
                self._tokens.spend(spent)
                await line.undo()
                raise
            else:
                if turn.idle:
                    self._tokens.spend(spent)
                    await line.undo()
                    return value
                committed = await self._commit(line, turn)
                self._tokens.spend([token] if committed else [token, *spent])
                if committed:
                    return value
            await asyncio.sleep(pause)
            pause = min(pause * 2, tuning.pause_longest)

    async def say(self, line: Line, link: Connection, text: str, values: Sequence[object]) -> Sequence[Any]:
        """Run one statement that is a transaction of its own, and leaves the token that is given to it, once.

        Its last two values are the token and the spent ones. Answers its rows; none where its answer was lost, and it
        was found out that it has happened.

        Raises:
            EngineUnavailable, InvalidRequest: nothing was written.
        """
        token, spent = self._tokens.mint(), self._tokens.take_spent()
        try:
            rows = await link.ask(text, *values, token, spent)
        except ConnectionLost:
            line.drop()
            if not await self._settle(line, token):
                self._tokens.spend([token, *spent])
                raise
            rows = ()
        except BaseException:
            self._tokens.spend(spent)
            raise
        self._tokens.spend([token])
        return rows

    async def _work(self, turn: Transaction, work: Work[T], begin: str) -> T:
        await turn.link.run(begin)
        value = await work(turn)
        if not turn.marked and not turn.idle:
            await turn.link.ask(MARK, turn.token, turn.spent)
        return value

    async def _commit(self, line: Line, turn: Transaction) -> bool:
        try:
            # A transaction that the server has given up answers COMMIT with ROLLBACK.
            return await turn.link.run("COMMIT") == "COMMIT"
        except DragomanError:
            # Also one that waits for its replica: entering the token waits for it as well.
            line.drop()
            return await self._settle(line, turn.token)

    async def _settle(self, line: Line, token: str) -> bool:
        """Find out whether a transaction was committed, and see to it that it stays so; for as long as it takes."""
        tuning = line.address.tuning
        pause, told = tuning.pause_first, False
        while True:
            reason = "the question itself was rolled back"
            try:
                link = await line.link()
                await link.run(BEGIN)
                ((fate,),) = await link.ask(_SETTLE, token)
                # It has always written something, so its own COMMIT waits for whatever the other one waited for.
                if await link.run("COMMIT") == "COMMIT":
                    if told:
                        log.info("commit outcome known", fate=fate)
                    return fate == "committed"
            except DragomanError as exc:
                reason = str(exc)
                line.drop()
            if pause == tuning.pause_longest and not told:
                told = True
                log.warning("commit outcome query failed", reason=reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, tuning.pause_longest)
