"""Tickets: each gives access to the tools of one native session that we create, or of all sessions of one runtime."""

import base64
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

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
_FIRST = "first"


@frozen
class Ticket:
    """The stored part of a ticket; the secret is derived from it and not stored."""

    ticket_id: str
    runtime: str
    labels: Mapping[str, str]
    """The labels of the session that is being created."""
    epoch: str
    given_at: datetime
    session_id: SessionId | None = None
    """None until the session is stored."""


class Tickets:
    """Issues tickets and checks them.

    The id is stored before the native session is created, and is part of the address that its runtime receives. Any
    instance can therefore tell which session a request belongs to, even after the creating gateway crashed.
    """

    def __init__(self, engine: Engine, clock: Clock, ids: Ids, *, key: bytes) -> None:
        self.public_url: str | None = None
        """The address of the gateway, as runtimes reach it."""
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._key = hmac.digest(key, _PURPOSE, "sha256")

    async def issue(
        self, runtime: str, labels: Mapping[str, str], *, base: str, longest: timedelta
    ) -> tuple[Ticket, McpEndpoint]:
        """Make a ticket for a session that is about to be created, and the endpoint for its runtime.

        `base` is the gateway's URL as the runtime reaches it, `longest` the longest duration of a tool call.
        """
        ticket = Ticket(self._ids.token(), runtime, labels, self._ids.token(), self._clock.now())
        await self._engine.set_note(_ticket(ticket.ticket_id), _write(ticket))
        url = f"{base.rstrip('/')}/mcp/t/{ticket.ticket_id}"
        return ticket, McpEndpoint(url, SecretStr(self._secret(ticket)), longest)

    async def withdraw(self, ticket: Ticket) -> None:
        """Delete a ticket whose session was certainly not created."""
        await self._engine.set_note(_ticket(ticket.ticket_id), None)

    def notes(self, ticket: Ticket | None, session_id: SessionId) -> Mapping[str, str]:
        """Return the notes to store in the transaction that opens the session of a ticket."""
        if ticket is None:
            return {}
        written = _write(replace(ticket, session_id=session_id))
        return {_ticket(ticket.ticket_id): written, _of_session(session_id): ticket.ticket_id}

    async def find(self, ticket_id: str, given: bytes) -> Ticket | None:
        """Find a ticket by its id and check the given secret in constant time; None if it does not match."""
        ticket = await self._read(ticket_id)
        if ticket is None or not hmac.compare_digest(self._secret(ticket).encode(), given):
            return None
        return ticket

    async def opens(self, session_id: SessionId, given: bytes) -> bool:
        """Check in constant time whether the given secret is the ticket of a session."""
        ticket = await self.of(session_id)
        return ticket is not None and hmac.compare_digest(self._secret(ticket).encode(), given)

    async def rotate(self, session_id: SessionId) -> None:
        """Revoke the ticket of a session on every instance at once; the runtime cannot receive a new one.

        Raises:
            Conflict: the session has no ticket.
        """
        ticket = await self.of(session_id)
        if ticket is None:
            raise Conflict(f"session {session_id!r} has no ticket")
        # A random epoch, not a counter: two concurrent rotations must not produce the same ticket.
        await self._engine.set_note(_ticket(ticket.ticket_id), _write(replace(ticket, epoch=self._ids.token())))

    async def forget(self, session_id: SessionId) -> None:
        """Remove all notes of the ticket of an erased session, which revokes the ticket."""
        ticket_id = await self._engine.note(_of_session(session_id))
        if ticket_id is not None:
            # The note that names the ticket goes last, so that a repeated erasure finds the others.
            for name in (_ticket(ticket_id), listing_note(ticket_id), _of_session(session_id)):
                await self._engine.set_note(name, None)

    # The ticket of a whole runtime -----------------------------------------------------------------------

    async def shared(self, runtime: str, *, base: str, longest: timedelta) -> McpEndpoint:
        """Make the endpoint for all sessions of a runtime; every instance makes the same one until it is rotated."""
        url = f"{base.rstrip('/')}/mcp/s/{quote(runtime, safe='')}"
        return McpEndpoint(url, SecretStr(await self._shared_secret(runtime)), longest, shared=True)

    async def opens_shared(self, runtime: str, given: bytes) -> bool:
        """Check in constant time whether a token is that of a runtime."""
        return hmac.compare_digest((await self._shared_secret(runtime)).encode(), given)

    async def rotate_shared(self, runtime: str) -> None:
        """Revoke a runtime's token on every instance by starting a new epoch."""
        await self._engine.set_note(_epoch_of(runtime), self._ids.token())

    async def _shared_secret(self, runtime: str) -> str:
        epoch = await self._engine.note(_epoch_of(runtime)) or _FIRST
        return self._sign(f"{epoch} runtime {runtime}")

    async def of(self, session_id: SessionId) -> Ticket | None:
        """Find the ticket of a session."""
        ticket_id = await self._engine.note(_of_session(session_id))
        return None if ticket_id is None else await self._read(ticket_id)

    async def _read(self, ticket_id: str) -> Ticket | None:
        written = await self._engine.note(_ticket(ticket_id))
        if written is None:
            return None
        stored: dict[str, Any] = orjson.loads(written)
        given_at = datetime.fromisoformat(stored["given_at"])
        return Ticket(ticket_id, stored["runtime"], stored["labels"], stored["epoch"], given_at, stored["session_id"])

    def _secret(self, ticket: Ticket) -> str:
        return self._sign(f"{ticket.epoch} {ticket.ticket_id} {ticket.runtime}")

    def _sign(self, about: str) -> str:
        digest = hmac.digest(self._key, about.encode("utf-8", "replace"), "sha256")
        return START + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _write(ticket: Ticket) -> str:
    stored = {
        "runtime": ticket.runtime,
        "labels": dict(ticket.labels),
        "epoch": ticket.epoch,
        "given_at": ticket.given_at.isoformat(),
        "session_id": ticket.session_id,
    }
    return orjson.dumps(stored).decode()


def _ticket(ticket_id: str) -> str:
    return f"ticket:{ticket_id}"


def listing_note(ticket_id: str) -> str:
    """Return the name of the note with the time at which a ticket's holder listed the tools."""
    return f"ticket-listed:{ticket_id}"


def _epoch_of(runtime: str) -> str:
    return f"tool-epoch-of-runtime:{runtime}"


def _of_session(session_id: SessionId) -> str:
    return f"ticket-of:{session_id}"
