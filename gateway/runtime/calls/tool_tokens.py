"""Tool tokens: each lets its holder call the tools of one session, and nothing else."""

import base64
import hmac
import re
from collections.abc import Mapping
from typing import Literal, get_args

from gateway.clock import Ids
from gateway.events import SessionId
from gateway.store.port import Engine

START = "dtt_"
"""How every token begins, so that it can be told by its form."""
FORM = re.compile(rb"dtt_[A-Za-z0-9_-]{43}")
"""The form of every token: the prefix, then a SHA-256 digest in base64."""
TokenKind = Literal["tool token", "tool ticket", "mcp client"]
"""Who asks for the tools of a session: whoever was shown its tool token; its runtime, by the ticket that it was told; a
client that comes to us. Their keys are apart, and no API key can be named so."""
_PURPOSE = b"tool tokens"
_FIRST = "first"
_KEPT = 8
"""Epochs of a session that are remembered, the one in force included."""
KINDS: tuple[TokenKind, ...] = get_args(TokenKind)

_REMEMBERED = 10_000
"""Of how many sessions a process that has its store for itself remembers the token."""


class ToolTokens:
    """Makes tool tokens and checks them; nothing of them is stored but which epoch counts.

    What a ticket or a client's own token has let in is passed on to other instances by a token that nobody is shown.
    Where other instances may rotate a token, each check reads the epoch, so that it is over on every instance at once.
    """

    def __init__(self, engine: Engine, ids: Ids, *, key: bytes, shared: bool) -> None:
        """Prepare; `shared` says whether other instances may be on the same store."""
        self._engine = engine
        self._ids = ids
        self._shared = shared
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._known: dict[SessionId, Mapping[TokenKind, str]] = {}
        self._rotations = 0

    async def token(self, session_id: SessionId, kind: TokenKind = "tool token") -> str:
        """Write the token that counts for a session."""
        return (await self._tokens(session_id))[kind]

    async def _tokens(self, session_id: SessionId) -> Mapping[TokenKind, str]:
        known = self._known.get(session_id)
        if known is not None:
            return known
        rotations = self._rotations
        epoch, *_ = await self._epochs(session_id)
        tokens: Mapping[TokenKind, str] = {kind: self._write(session_id, epoch, kind) for kind in KINDS}
        # What was rotated meanwhile was perhaps read before.
        if not self._shared and rotations == self._rotations:
            self._known[session_id] = tokens
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return tokens

    def _write(self, session_id: SessionId, epoch: str, kind: TokenKind) -> str:
        digest = hmac.digest(self._key, f"{kind} {epoch} {session_id}".encode("utf-8", "replace"), "sha256")
        return START + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    async def rotate(self, session_id: SessionId) -> str:
        """Begin a new epoch of a session: every token made before is over; returns the new one."""
        epochs = await self._epochs(session_id)
        # Drawn and not counted, so that two who rotate at once never come to the same token.
        try:
            await self._engine.set_note(_epoch_of(session_id), " ".join([self._ids.token(), *epochs][:_KEPT]))
        finally:
            # Also where it is not known whether that was written.
            self._rotations += 1
            self._known.pop(session_id, None)
        return await self.token(session_id)

    async def kind_of(self, session_id: SessionId, given: bytes) -> TokenKind | None:
        """Say who asks by a token that counts for a session, in constant time; None where it does not count."""
        tokens = await self._tokens(session_id)
        found: TokenKind | None = None
        for kind, token in tokens.items():
            if hmac.compare_digest(token.encode(), given):
                found = kind
        return found

    async def is_ended(self, session_id: SessionId, given: bytes) -> bool:
        """Check whether a token counted for a session before it was rotated, in constant time."""
        _, *ended = await self._epochs(session_id)
        tokens = [self._write(session_id, epoch, kind) for epoch in ended for kind in KINDS]
        found = [hmac.compare_digest(token.encode(), given) for token in tokens]
        return any(found)

    async def _epochs(self, session_id: SessionId) -> list[str]:
        """Read the epochs of a session, newest first; only the first one counts."""
        return (await self._engine.note(_epoch_of(session_id)) or _FIRST).split()


def _epoch_of(session_id: SessionId) -> str:
    # It outlives its session: opened again, a session has the same id, and its old tokens stay over.
    return f"tool-epoch:{session_id}"
