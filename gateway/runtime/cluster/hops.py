"""Signs the requests that instances forward, and verifies them: a forwarded request has no credential of its caller.

The key is derived from a secret in the store, which all instances share.
"""

import base64
import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import cast

import orjson

from gateway.clock import Clock, Ids

HEADER = "dragoman-forwarded"
VERSION = "1"
"""The version of the protocol between instances; an instance refuses any other."""
LIFE = 30.0
"""Seconds for which a signature is valid, and the largest difference of two clocks."""
_MOST_NONCES = 100_000
_PURPOSE = b"forwarded requests"


class HopRefused(Exception):
    """A forwarded request is not accepted; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class HopCaller:
    """The caller of a forwarded request, whom the first instance has authenticated."""

    name: str
    scopes: frozenset[str]
    digest: bytes | None = field(default=None, repr=False)
    """The digest of the caller's API key. It is signed and not sent, so a changed key makes the signature invalid."""


@dataclass(frozen=True, slots=True)
class Hop:
    """What a header says about a forwarded request."""

    claims: str
    mac: str
    name: str
    scopes: frozenset[str]
    nonce: str
    body: str
    """The SHA-256 of the body."""


class Hops:
    """Signs and verifies the forwarded requests of one instance."""

    def __init__(self, key: bytes, clock: Clock, ids: Ids, *, most: int = _MOST_NONCES) -> None:
        """Prepare; `most` limits the remembered nonces."""
        self._key = hmac.digest(key, _PURPOSE, "sha256")
        self._clock = clock
        self._ids = ids
        self._most = most
        self._nonces = OrderedDict[str, float]()
        """The end of each nonce, oldest first."""

    def sign(self, method: str, target: str, body: bytes, caller: HopCaller, instance: str) -> str:
        """Write the header of a request to an instance; `target` is the path with the query."""
        moment, nonce = float(self._clock.timestamp()), self._ids.token()
        said = [caller.name, sorted(caller.scopes), instance, moment, nonce, _digest(body)]
        claims = base64.urlsafe_b64encode(orjson.dumps(said)).decode()
        return f"{VERSION}.{claims}.{self._mac(method, target, claims, caller.digest)}"

    def read(self, header: str, instance: str) -> Hop:
        """Read a header that is meant for this instance, and check its version and time.

        Raises:
            HopRefused: it is of another release, for another instance, or too old.
        """
        version, _, rest = header.partition(".")
        if version != VERSION:
            raise HopRefused("it is of another release, or not signed")
        claims, _, mac = rest.partition(".")
        try:
            match orjson.loads(base64.urlsafe_b64decode(claims)):
                case [str(name), [*scopes], str(meant), float(moment), str(nonce), str(body)]:
                    hop = Hop(claims, mac, name, frozenset(cast("list[str]", scopes)), nonce, body)
                case _:
                    raise HopRefused("its signature is incomplete")
        except (ValueError, TypeError) as exc:
            raise HopRefused("its signature cannot be read") from exc
        if meant != instance:
            raise HopRefused("it is for another instance")
        if not abs(self._clock.timestamp() - moment) <= LIFE:
            raise HopRefused(f"it is older than {LIFE:g} s, or the clocks of two instances differ by more")
        return hop

    def is_signed(self, hop: Hop, method: str, target: str, digest: bytes | None) -> bool:
        """Check the signature in constant time; `digest` is that of the caller's API key here."""
        return hmac.compare_digest(self._mac(method, target, hop.claims, digest).encode(), hop.mac.encode())

    def spend(self, hop: Hop) -> None:
        """Accept a signed header once.

        Raises:
            HopRefused: it was accepted before, or too many others were.
        """
        now = self._clock.timestamp()
        while self._nonces and next(iter(self._nonces.values())) < now:
            self._nonces.popitem(last=False)
        if hop.nonce in self._nonces:
            raise HopRefused("it was sent twice")
        if len(self._nonces) >= self._most:
            raise HopRefused(f"more than {self._most} requests were forwarded within {2 * LIFE:g} s")
        # A clock that is ahead by the largest difference signs what is valid for twice as long here.
        self._nonces[hop.nonce] = now + 2 * LIFE

    def _mac(self, method: str, target: str, claims: str, digest: bytes | None) -> str:
        signed = orjson.dumps([VERSION, method, target, claims, (digest or b"").hex()])
        return hmac.digest(self._key, signed, "sha256").hex()


def check_body(hop: Hop, body: bytes) -> None:
    """Check that a body is the signed one.

    Raises:
        HopRefused: it is not.
    """
    if not hmac.compare_digest(_digest(body), hop.body):
        raise HopRefused("its body was changed")


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
