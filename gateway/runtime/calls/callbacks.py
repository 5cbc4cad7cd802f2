"""Callback addresses of executors, each with a token that is valid for one call."""

import hmac
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.clock import Ids
from gateway.errors import EngineUnavailable
from gateway.events import CallId
from gateway.store.port import Engine
from gateway.store.rows import StoredAnswer

_NOTE = "callback-key"
_SCOPE = "gateway"
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
_LETTERS = 40


@dataclass(frozen=True, slots=True)
class Addresses:
    """The callback addresses of one call."""

    outcome: str
    progress: str


class Callbacks:
    """Makes callback addresses and checks their tokens."""

    def __init__(self, key: bytes) -> None:
        self.public_url: str | None = None
        """The base of all addresses."""
        # Copying a prepared key is cheaper than preparing it for each token.
        self._prepared = hmac.new(key, digestmod="sha256")

    def addresses(self, call_id: CallId) -> Addresses | None:
        """Make the addresses of one call; None without a base."""
        if self.public_url is None:
            return None
        call, token = f"{self.public_url.rstrip('/')}/v1/calls/{call_id}", self._token(call_id)
        return Addresses(f"{call}/outcome?token={token}", f"{call}/progress?token={token}")

    def allowed(self, call_id: CallId, token: str) -> bool:
        """Whether a token belongs to a call, in constant time."""
        return hmac.compare_digest(self._token(call_id).encode(), token.encode("utf-8", "replace"))

    def _token(self, call_id: CallId) -> str:
        mac = self._prepared.copy()
        mac.update(call_id.encode("utf-8", "replace"))
        return mac.hexdigest()[:_LETTERS]


async def keep_key(engine: Engine, ids: Ids) -> bytes:
    """Read the key of this store, or create one; instances that start at once agree on one key.

    Raises:
        EngineUnavailable: the store does not keep the key.
    """
    known = await engine.note(_NOTE)
    if known is not None:
        return known.encode()
    # The store keeps the first answer of a key; a note would be overwritten by the last instance.
    made = StoredAnswer("", ids.token().encode(), _NEVER)
    await engine.remember(key=_NOTE, scope=_SCOPE, answer=made)
    stored = await engine.recall(key=_NOTE, scope=_SCOPE)
    if stored is None:
        raise EngineUnavailable("the store did not keep the key of callback addresses")
    return stored.response
