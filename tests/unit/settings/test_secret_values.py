"""Which values of the settings are secret."""

from pathlib import Path

from gateway.settings.load import load
from gateway.settings.model import WebhookSpec
from gateway.settings.secret_values import secrets_in


def test_header_values_are_secret_unless_they_are_short_or_words_of_http() -> None:
    spec = WebhookSpec.model_validate(
        {
            "type": "webhook",
            "url": "http://cards/x",
            "headers": {
                "Authorization": "Basic canary-12345",
                "X-Api-Key": "canary-6789",
                "X-Token": "v1",
                "X-Tenant": "canary-tenant",
                "Accept": "application/json",
            },
        }
    )
    assert {"Basic canary-12345", "canary-12345", "canary-6789", "canary-tenant"} == set(secrets_in(spec))


def test_what_variables_and_files_put_into_headers_is_secret_whatever_their_name(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("canary-from-file\n")
    (tmp_path / "gateway.yaml").write_text("""
executors:
  cards:
    type: webhook
    url: http://127.0.0.1:9/${PAGE}
    headers: {X-Realm: "realm ${REALM}!", X-Word: "file:./word", X-Short: "v${N}", X-Plain: canary-written-here}
destinations:
  chat: {url: "http://127.0.0.1:9", headers: {X-Pass: "${PASS}"}}
""")
    env = {"REALM": "canary-realm", "PASS": "Basic canary-pass", "N": "1", "PAGE": "canary-page"}
    loaded = load(tmp_path / "gateway.yaml", adapters={}, env=env)
    assert set(loaded.secrets) == {
        *("realm canary-realm!", "canary-realm!", "canary-realm"),
        "canary-from-file",
        "canary-written-here",
        *("Basic canary-pass", "canary-pass"),
    }
    assert "canary" not in repr(loaded).replace(repr(loaded.settings), "")
