"""A forwarded request is accepted once, at its target, within 30 seconds, and only as it was signed."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.runtime.cluster.hops import LIFE, Hop, HopCaller, HopRefused, Hops, check_body
from gateway.runtime.system_clock import SystemIds

KEY, DIGEST = b"the token key of a store", b"the digest of an API key"
SENDER = HopCaller("backend", frozenset({"drive", "read"}), DIGEST)
METHOD, TARGET, BODY = "POST", "/v1/sessions/s1/events?x=1", b'{"kind": "turn.interrupted"}'


class SetClock:
    """A clock that shows the time that a test sets."""

    time = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def timestamp(self) -> float:
        return self.time.timestamp()

    def monotonic(self) -> float:
        return self.time.timestamp()

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def hops(clock: SetClock, *, key: bytes = KEY, most: int = 10) -> Hops:
    return Hops(key, clock, SystemIds(clock), most=most)


def signed(clock: SetClock, *, key: bytes = KEY) -> str:
    return hops(clock, key=key).sign(METHOD, TARGET, BODY, SENDER, "here")


def accept(owner: Hops, header: str, *, method: str = METHOD, target: str = TARGET, digest: bytes = DIGEST) -> Hop:
    """Accept a header as an instance does."""
    hop = owner.read(header, "here")
    if not owner.is_signed(hop, method, target, digest):
        raise HopRefused("its signature is invalid")
    check_body(hop, BODY)
    owner.spend(hop)
    return hop


def test_a_signed_request_names_its_caller(clock: SetClock) -> None:
    hop = accept(hops(clock), signed(clock))
    assert (hop.name, hop.scopes) == (SENDER.name, SENDER.scopes)


@pytest.mark.parametrize("change", [{"method": "PUT"}, {"target": "/v1/sessions/s2/events?x=1"}, {"digest": b""}])
def test_a_request_with_another_method_target_or_key_is_refused(clock: SetClock, change: dict[str, str]) -> None:
    with pytest.raises(HopRefused, match="signature is invalid"):
        accept(hops(clock), signed(clock), **change)  # pyright: ignore[reportArgumentType]


def test_another_body_instance_store_or_version_is_refused(clock: SetClock) -> None:
    owner, header = hops(clock), signed(clock)
    with pytest.raises(HopRefused, match="body was changed"):
        check_body(owner.read(header, "here"), BODY + b" ")
    with pytest.raises(HopRefused, match="another instance"):
        owner.read(header, "there")
    with pytest.raises(HopRefused, match="signature is invalid"):
        accept(owner, signed(clock, key=b"the token key of another store"))
    with pytest.raises(HopRefused, match="another release"):
        owner.read(f"2{header[1:]}", "here")


@pytest.mark.parametrize(
    "header", ["", "1", "1.", "1.e30=.00", "1.W10=.00", "1.ä.00", "somebody", "1.WzEsMiwzLDQsNSw2XQ==.00"]
)
def test_a_header_that_cannot_be_read_is_refused(clock: SetClock, header: str) -> None:
    with pytest.raises(HopRefused):
        hops(clock).read(header, "here")


def test_a_signature_is_valid_for_thirty_seconds(clock: SetClock) -> None:
    owner, first, second = hops(clock), signed(clock), signed(clock)
    clock.move(LIFE)
    accept(owner, first)
    clock.move(0.01)
    with pytest.raises(HopRefused, match="older than 30 s"):
        accept(owner, second)


def test_a_clock_that_is_too_far_ahead_is_refused(clock: SetClock) -> None:
    clock.move(LIFE + 1)
    header = signed(clock)
    clock.move(-LIFE - 1)
    with pytest.raises(HopRefused, match="clocks"):
        accept(hops(clock), header)


def test_a_signature_is_accepted_once_for_as_long_as_it_is_valid(clock: SetClock) -> None:
    owner = hops(clock)
    clock.move(LIFE)
    ahead = signed(clock)
    clock.move(-LIFE)
    accept(owner, ahead)
    for _ in range(6):
        with pytest.raises(HopRefused, match="sent twice"):
            accept(owner, ahead)
        clock.move(LIFE / 3)
    accept(owner, signed(clock))
    with pytest.raises(HopRefused):
        accept(owner, ahead)


def test_a_full_memory_refuses_until_signatures_expire(clock: SetClock) -> None:
    owner = hops(clock, most=3)
    for _ in range(3):
        accept(owner, signed(clock))
    with pytest.raises(HopRefused, match="more than 3"):
        accept(owner, signed(clock))
    clock.move(2 * LIFE + 1)
    accept(owner, signed(clock))
