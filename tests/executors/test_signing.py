"""Signatures, held to the standardwebhooks package: what it accepts as a secret we accept, and it verifies ours."""

import base64
from datetime import UTC, datetime

import pytest
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.errors import OperatorError
from gateway.executors.webhook.request import Signer

NEW = "whsec_" + base64.b64encode(b"new secret, 32 bytes of it here!").decode()
OLD = "whsec_" + base64.b64encode(b"old secret, 32 bytes of it here!").decode()
BODY = b'{"type":"tool.requested","data":{"name":"\xc3\x96ge"}}'


def signed(*secrets: str, key: str = "call-1") -> dict[str, str]:
    timestamp = int(datetime.now(UTC).timestamp())
    signature = Signer([SecretStr(secret) for secret in secrets]).sign(key, BODY, timestamp=timestamp)
    assert signature is not None
    return {"webhook-id": key, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


@pytest.mark.parametrize(
    "secret",
    [
        NEW,
        NEW.removeprefix("whsec_"),
        NEW.rstrip("="),
        "whsec_aGVsbG8",
        "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0",
    ],
)
def test_the_package_verifies_what_is_signed_with_the_same_string(secret: str) -> None:
    Webhook(secret).verify(BODY, signed(secret))


def test_an_id_with_a_dot_is_verified_too() -> None:
    Webhook(NEW).verify(BODY, signed(NEW, key="call-1.cancel"))


def test_both_secrets_verify_while_one_is_rotated() -> None:
    headers = signed(NEW, OLD)
    Webhook(NEW).verify(BODY, headers)
    Webhook(OLD).verify(BODY, headers)
    assert len(headers["webhook-signature"].split(" ")) == 2


def test_another_secret_or_a_changed_body_is_not_verified() -> None:
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(BODY, signed(NEW))
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(BODY + b" ", signed(NEW))


def test_without_secrets_nothing_is_signed() -> None:
    assert Signer([]).sign("call-1", BODY, timestamp=1) is None


@pytest.mark.parametrize(
    "secret", ["whsec_", "whsec_====", "whsec_canar", "????", "gehëim-canary", "a text of my own", "c2Vj-mV0_canary"]
)
def test_an_unusable_secret_is_an_operator_error_that_does_not_quote_it(secret: str) -> None:
    with pytest.raises(OperatorError) as caught:
        Signer([SecretStr(NEW), SecretStr(secret)])
    assert "secret 2 of 2" in str(caught.value)
    assert secret.removeprefix("whsec_") not in str(caught.value) or secret == "whsec_"
    assert caught.value.__cause__ is None
