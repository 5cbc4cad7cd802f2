"""Tickets: each opens the tools to one native session that we create, and is told to it before its id is known."""

import base64
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson
from pydantic import SecretStr

from gateway.adapter.port import McpEndpoint
from gateway.clock import Clock, Ids
from gateway.errors import Conflict
from gateway.events import SessionId
from gateway.events.frozen import frozen, replace
from gateway.runtime.calls.tool_tokens import START
from gateway.store.port import Engine

_PURPOSE = b"tickets"
_REMEMBERED = 10_000
LATE = timedelta(seconds=60)
"""How long after its creation a session should have listed its tools."""


@frozen
class Ticket:
    """What is on record of a ticket under its id; the secret itself is not."""

    ticket_id: str
    runtime: str
    labels: Mapping[str, str]
    """Those of the session that is being created."""
    epoch: str
    given_at: datetime
    session_id: SessionId | None = None
    """None until the session is on record."""


class Tickets:
    """Issues tickets and checks them.

    The id is kept before the native session is created and stands in the address that its runtime is told, so that any
    instance finds out whose a request is, also where the gateway that has created it died too soon.
    """

    def __init__(self, engine: Engine, clock: Clock, ids: Ids, *, key: bytes) -> None:
        self.public_url: str | None = None
        """Under which address the gateway can be reached."""
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._listed = set[str]()
        """Those of which it is known here that their tools were listed."""

    async def issue(
        self, runtime: str, labels: Mapping[str, str], *, base: str, longest: timedelta
    ) -> tuple[Ticket, McpEndpoint]:
        """Make a ticket for a session that is about to be created, and what its runtime is told.

        `base` is where the runtime reaches this gateway, `longest` how long a call of its tools may take.
        """
        ticket = Ticket(self._ids.token(), runtime, labels, self._ids.token(), self._clock.now())
        await self._engine.set_note(_ticket(ticket.ticket_id), _write(ticket))
        url = f"{base.rstrip('/')}/mcp/t/{ticket.ticket_id}"
        return ticket, McpEndpoint(url, SecretStr(self._secret(ticket)), longest)

    async def withdraw(self, ticket: Ticket) -> None:
        """Forget a ticket whose session was surely not created."""
        await self._engine.set_note(_ticket(ticket.ticket_id), None)

    def notes(self, ticket: Ticket | None, session_id: SessionId) -> Mapping[str, str]:
        """What is to be kept in the transaction that opens the session of a ticket."""
        if ticket is None:
            return {}
        written = _write(replace(ticket, session_id=session_id))
        return {_ticket(ticket.ticket_id): written, _of_session(session_id): ticket.ticket_id}

    async def find(self, ticket_id: str, given: bytes) -> Ticket | None:
        """Find a ticket by its id, where what is given is its secret; compared in constant time."""
        ticket = await self._read(ticket_id)
        if ticket is None or not hmac.compare_digest(self._secret(ticket).encode(), given):
            return None
        return ticket

    async def opens(self, session_id: SessionId, given: bytes) -> bool:
        """Check whether what is given is the ticket of a session, in constant time."""
        ticket = await self._of(session_id)
        return ticket is not None and hmac.compare_digest(self._secret(ticket).encode(), given)

    async def rotate(self, session_id: SessionId) -> None:
        """Let the ticket of a session be over, on every instance at once; there is no way to tell it another one.

        Raises:
            Conflict: it has none.
        """
        ticket = await self._of(session_id)
        if ticket is None:
            raise Conflict(f"session {session_id!r} was given no ticket")
        # Drawn and not counted, so that two who rotate at once never come to the same ticket.
        await self._engine.set_note(_ticket(ticket.ticket_id), _write(replace(ticket, epoch=self._ids.token())))

    async def forget(self, session_id: SessionId) -> None:
        """Remove all that is kept of the ticket of a session that is erased; whoever holds it is let in no more."""
        ticket_id = await self._engine.note(_of_session(session_id))
        if ticket_id is not None:
            # What leads to the others goes last, so that whoever erases again finds what is left.
            for name in (_ticket(ticket_id), _listing(ticket_id), _of_session(session_id)):
                await self._engine.set_note(name, None)
            self._listed.discard(ticket_id)

    async def note_listed(self, ticket: Ticket) -> None:
        """Take note that whoever holds a ticket has listed its tools."""
        if ticket.ticket_id not in self._listed:
            await self._engine.set_note(_listing(ticket.ticket_id), self._clock.now().isoformat())
            self._remember(ticket)

    async def lacks_tools(self, session_id: SessionId) -> bool:
        """Whether a session was given a ticket and has not listed its tools in time."""
        ticket = await self._of(session_id)
        if ticket is None or ticket.ticket_id in self._listed or self._clock.now() < ticket.given_at + LATE:
            return False
        if await self._engine.note(_listing(ticket.ticket_id)) is None:
            return True
        self._remember(ticket)
        return False

    def _remember(self, ticket: Ticket) -> None:
        if len(self._listed) >= _REMEMBERED:
            self._listed.clear()
        self._listed.add(ticket.ticket_id)

    async def _of(self, session_id: SessionId) -> Ticket | None:
        ticket_id = await self._engine.note(_of_session(session_id))
        return None if ticket_id is None else await self._read(ticket_id)

    async def _read(self, ticket_id: str) -> Ticket | None:
        written = await self._engine.note(_ticket(ticket_id))
        if written is None:
            return None
        kept: dict[str, Any] = orjson.loads(written)
        given_at = datetime.fromisoformat(kept["given_at"])
        return Ticket(ticket_id, kept["runtime"], kept["labels"], kept["epoch"], given_at, kept["session_id"])

    def _secret(self, ticket: Ticket) -> str:
        about = f"{ticket.epoch} {ticket.ticket_id} {ticket.runtime}"
        digest = hmac.digest(self._key, about.encode("utf-8", "replace"), "sha256")
        return START + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _write(ticket: Ticket) -> str:
    kept = {
        "runtime": ticket.runtime,
        "labels": dict(ticket.labels),
        "epoch": ticket.epoch,
        "given_at": ticket.given_at.isoformat(),
        "session_id": ticket.session_id,
    }
    return orjson.dumps(kept).decode()


def _ticket(ticket_id: str) -> str:
    return f"ticket:{ticket_id}"


def _listing(ticket_id: str) -> str:
    return f"ticket-listed:{ticket_id}"


def _of_session(session_id: SessionId) -> str:
    return f"ticket-of:{session_id}"
