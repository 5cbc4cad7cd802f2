"""Which values of the settings are secret."""

from gateway.settings.model import WebhookSpec
from gateway.settings.secret_values import secrets_in


def test_headers_whose_name_says_so_are_secret() -> None:
    spec = WebhookSpec.model_validate(
        {
            "type": "webhook",
            "url": "http://cards/x",
            "headers": {
                "Authorization": "Basic canary-12345",
                "X-Api-Key": "canary-6789",
                "X-Token": "v1",
                "X-A": "plain-text",
            },
        }
    )
    assert {"Basic canary-12345", "canary-12345", "canary-6789"} == set(secrets_in(spec))
