"""A signature is accepted for five minutes of difference between two clocks, and no longer."""

import base64
import hashlib
import hmac

import pytest

from dragoman.kit.signature import BadSignature, verify

NOW, SECRET, BODY = 1_790_000_000, b"s" * 32, b"{}"


def headers(stamp: int) -> dict[str, str]:
    content = f"call-1.{stamp}.".encode() + BODY
    signature = base64.b64encode(hmac.digest(SECRET, content, hashlib.sha256)).decode()
    return {"webhook-id": "call-1", "webhook-timestamp": str(stamp), "webhook-signature": f"v1,{signature}"}


@pytest.mark.parametrize("difference", [-300, 0, 300])
def test_a_request_of_the_last_and_next_five_minutes_is_accepted(difference: int) -> None:
    verify([SECRET], headers(NOW + difference), BODY, now=NOW)


@pytest.mark.parametrize("difference", [-86_400, -3_000, -301, 301, 3_000, 86_400])
def test_a_valid_signature_with_an_older_or_later_time_is_refused(difference: int) -> None:
    with pytest.raises(BadSignature, match="too far from this machine's clock"):
        verify([SECRET], headers(NOW + difference), BODY, now=NOW)
