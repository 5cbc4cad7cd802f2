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
"""The prefix by which a token is recognised."""
FORM = re.compile(rb"dtt_[A-Za-z0-9_-]{43}")
"""The form of every token: the prefix, then a SHA-256 digest in base64."""
TokenKind = Literal["tool token", "tool ticket", "mcp client"]
"""The kind of caller of a session's tools: the holder of its tool token, its runtime with a ticket, or an MCP client.
Each kind has its own keys, and no API key can have one of these names."""
_PURPOSE = b"tool tokens"
_FIRST = "first"
_KEPT = 8
"""Epochs of a session that are remembered, including the current one."""
KINDS: tuple[TokenKind, ...] = get_args(TokenKind)

_REMEMBERED = 10_000
"""Sessions whose tokens a process remembers if no other instance shares its store."""


class ToolTokens:
    """Makes tool tokens and checks them; the store keeps only their epochs.

    If other instances share the store, each check reads the epoch, so a rotation takes effect everywhere at once.
    """

    def __init__(self, engine: Engine, ids: Ids, *, key: bytes, shared: bool) -> None:
        """Prepare; `shared` says whether other instances may use the same store."""
        self._engine = engine
        self._ids = ids
        self._shared = shared
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._known: dict[SessionId, Mapping[TokenKind, str]] = {}
        self._rotations = 0

    async def token(self, session_id: SessionId, kind: TokenKind = "tool token") -> str:
        """Return the valid token of a session."""
        return (await self._tokens(session_id))[kind]

    async def _tokens(self, session_id: SessionId) -> Mapping[TokenKind, str]:
        known = self._known.get(session_id)
        if known is not None:
            return known
        rotations = self._rotations
        epoch, *_ = await self._epochs(session_id)
        tokens: Mapping[TokenKind, str] = {kind: self._write(session_id, epoch, kind) for kind in KINDS}
        # A rotation during the read may have made the epoch stale.
        if not self._shared and rotations == self._rotations:
            self._known[session_id] = tokens
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return tokens

    def _write(self, session_id: SessionId, epoch: str, kind: TokenKind) -> str:
        digest = hmac.digest(self._key, f"{kind} {epoch} {session_id}".encode("utf-8", "replace"), "sha256")
        return START + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    async def rotate(self, session_id: SessionId) -> str:
        """Revoke all tokens of a session by starting a new epoch; return the new token."""
        epochs = await self._epochs(session_id)
        # A random epoch, not a counter: two concurrent rotations must not produce the same token.
        try:
            await self._engine.set_note(_epoch_of(session_id), " ".join([self._ids.token(), *epochs][:_KEPT]))
        finally:
            # Also after an error: the new epoch may have been written.
            self._rotations += 1
            self._known.pop(session_id, None)
        return await self.token(session_id)

    async def kind_of(self, session_id: SessionId, given: bytes) -> TokenKind | None:
        """Return the kind of a token in constant time; None if it is not valid for the session."""
        tokens = await self._tokens(session_id)
        found: TokenKind | None = None
        for kind, token in tokens.items():
            if hmac.compare_digest(token.encode(), given):
                found = kind
        return found

    async def is_ended(self, session_id: SessionId, given: bytes) -> bool:
        """Check in constant time whether a rotation revoked this token of a session."""
        _, *ended = await self._epochs(session_id)
        tokens = [self._write(session_id, epoch, kind) for epoch in ended for kind in KINDS]
        found = [hmac.compare_digest(token.encode(), given) for token in tokens]
        return any(found)

    async def _epochs(self, session_id: SessionId) -> list[str]:
        """Read the epochs of a session, newest first; only the first one is valid."""
        return (await self._engine.note(_epoch_of(session_id)) or _FIRST).split()


def _epoch_of(session_id: SessionId) -> str:
    # The note outlives its session: a reopened session has the same id, and its old tokens stay revoked.
    return f"tool-epoch:{session_id}"
