"""Links with which the receivers of notices answer for held calls.

The token of a link is made when its notice is sent, and stored nowhere: it contains what it allows, with a MAC. It ends
with its question, after 24 hours at most, with a rotation, and with a restore of the store.
"""

import base64
import hmac
import re
from datetime import UTC, datetime, timedelta

import orjson

from gateway.clock import Clock, Ids
from gateway.errors import Gone, NotFound
from gateway.events import InteractionId
from gateway.events.frozen import frozen
from gateway.store.port import Engine

START = "dlk_"
"""The prefix by which a token is recognised."""
LIFETIME = timedelta(hours=24)
_FORM = re.compile(rf"{START}[A-Za-z0-9_-]{{44,1024}}")
_PURPOSE = b"links"
_EPOCH = "link-epoch"
_FIRST = "first"
_MAC = 32


@frozen
class ApprovalLink:
    """What a link allows."""

    interaction_id: InteractionId
    name: str
    """The destination that got it."""
    may_allow: bool
    """Whether its holder may allow the call; everybody may deny it."""
    expires_at: datetime

    @property
    def holder(self) -> str:
        """The name on record for its answers."""
        return f"link {self.name}"


class Links:
    """Makes links and checks them."""

    def __init__(self, engine: Engine, clock: Clock, ids: Ids, *, key: bytes) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._key = hmac.digest(key, _PURPOSE, "sha256")

    async def epoch(self) -> str:
        """Return the epoch of the links that are valid now."""
        return await self._engine.note(_EPOCH) or _FIRST

    async def rotate(self) -> None:
        """End all links, at every instance, by starting a new epoch."""
        # Random, not a counter: two rotations at once must not produce the same epoch.
        await self._engine.set_note(_EPOCH, self._ids.token())

    def token(self, link: ApprovalLink, epoch: str) -> str:
        """Make the token of a link."""
        about = orjson.dumps(
            [
                link.interaction_id,
                link.name,
                link.may_allow,
                int(link.expires_at.timestamp()),
                epoch,
                self._engine.generation.name,
            ]
        )
        signed = about + hmac.digest(self._key, about, "sha256")
        return START + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()

    async def read(self, token: str) -> ApprovalLink:
        """Check a token.

        Raises:
            NotFound: the gateway has not made it.
            Gone: it has ended.
        """
        if _FORM.fullmatch(token) is None:
            raise NotFound("this is not a link of this gateway")
        given = token.removeprefix(START)
        try:
            signed = base64.urlsafe_b64decode(given + "=" * (-len(given) % 4))
        except ValueError as exc:
            raise NotFound("this is not a link of this gateway") from exc
        about, mac = signed[:-_MAC], signed[-_MAC:]
        if not hmac.compare_digest(hmac.digest(self._key, about, "sha256"), mac):
            raise NotFound("this is not a link of this gateway")
        interaction_id, name, may_allow, expires_at, epoch, generation = orjson.loads(about)
        if generation != self._engine.generation.name:
            raise Gone("the store was restored after this link was made")
        if epoch != await self.epoch():
            raise Gone("this link was withdrawn")
        link = ApprovalLink(InteractionId(interaction_id), name, may_allow, datetime.fromtimestamp(expires_at, UTC))
        if link.expires_at <= self._clock.now():
            raise Gone("this link has expired")
        return link
