"""Runs transactions on PostgreSQL exactly once, even if their connection is lost.

Each transaction writes its own token to `commits`. If the connection is lost before COMMIT is sent, nothing was written
and the work runs again on a new connection. If it is lost during COMMIT, the token is inserted again. That insert waits
for a running transaction, finds a committed one, and prevents any other from committing later. So the result of a
transaction is never in doubt. PostgreSQL's transaction id cannot serve as the token, because a promoted replica may
assign the same id to another transaction.

Other failures (full disk, read-only server, missing permission) are raised at once as EngineUnavailable; nothing was
written.
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
    """One connection, opened on first use and reopened after a loss."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._link: Connection | None = None

    async def link(self) -> Connection:
        """Return the connection; open one if there is none.

        Raises:
            ConnectionLost, EngineUnavailable: no connection can be opened now.
        """
        if self._link is None or self._link.lost:
            self._link = await connect(self.address)
        return self._link

    async def undo(self) -> None:
        """Roll back the open transaction, so that the next one starts clean."""
        link = self._link
        if link is None or link.lost:
            return
        try:
            await link.run("ROLLBACK")
        except EngineUnavailable:
            link.drop()

    def drop(self) -> None:
        """Discard the connection."""
        if self._link is not None:
            self._link.drop()
            self._link = None

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()


class Tokens:
    """Makes the tokens of transactions, and collects spent tokens for removal."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(12)
        self._numbers = count(1)
        self._spent: list[str] = []

    def mint(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def spend(self, tokens: Sequence[str]) -> None:
        """Let the next transaction remove these tokens."""
        self._spent += tokens

    def take_spent(self) -> list[str]:
        spent, self._spent = self._spent[:256], self._spent[256:]
        return spent


@dataclass(slots=True)
class Transaction:
    """A running transaction."""

    link: Connection
    token: str
    spent: Sequence[str]
    marked: bool = False
    """Whether the work has written the token itself."""
    idle: bool = False
    """Whether there is nothing to commit."""


Work = Callable[[Transaction], Awaitable[T]]


class ExactlyOnce:
    """Runs transactions; an engine has one instance."""

    def __init__(self) -> None:
        self._tokens = Tokens()

    async def run(self, line: Line, work: Work[T], *, until: float, begin: str = BEGIN) -> T:
        """Run work in a transaction, at least once; retry it on a new connection until the time `until`.

        Raises:
            EngineUnavailable: nothing was written.
            DragomanError: raised by the work; nothing was written.
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
                # The server has already waited for held rows.
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

    async def run_statement(self, line: Line, link: Connection, text: str, values: Sequence[object]) -> Sequence[Any]:
        """Run one autocommit statement that writes its own token, exactly once; return its rows.

        The token and the spent tokens become its last two values. The result is empty if the statement has committed
        and its response was lost.

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
            # The server responds to COMMIT with ROLLBACK if the transaction has failed.
            return await turn.link.run("COMMIT") == "COMMIT"
        except DragomanError:
            # Also if the COMMIT waits for a replica: inserting the token waits for the same replica.
            line.drop()
            return await self._settle(line, turn.token)

    async def _settle(self, line: Line, token: str) -> bool:
        """Return whether a transaction was committed, and make that final; retry until the server answers."""
        tuning = line.address.tuning
        pause, has_warned = tuning.pause_first, False
        while True:
            reason = "the query was rolled back"
            try:
                link = await line.link()
                await link.run(BEGIN)
                ((fate,),) = await link.ask(_SETTLE, token)
                # This transaction always writes, so its COMMIT waits for the same replica as the other one.
                if await link.run("COMMIT") == "COMMIT":
                    if has_warned:
                        log.info("commit outcome resolved", fate=fate)
                    return fate == "committed"
            except DragomanError as exc:
                reason = str(exc)
                line.drop()
            if pause == tuning.pause_longest and not has_warned:
                has_warned = True
                log.warning("commit outcome query failed", reason=reason)
            await asyncio.sleep(pause)
            pause = min(pause * 2, tuning.pause_longest)
