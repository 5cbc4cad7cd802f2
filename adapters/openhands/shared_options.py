"""Options that the protocols of OpenHands have in common. Pure."""

from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gateway.adapter.options import base_url, is_sendable, refusal


def _check_key(key: SecretStr | None) -> SecretStr | None:
    if key is None or not key.get_secret_value():
        return None
    if not is_sendable(key.get_secret_value()):
        raise refusal("a session API key must be printable ASCII without spaces")
    return key


SessionKey = Annotated[SecretStr | None, AfterValidator(_check_key)]
"""A key that fits into a header; None if it is empty."""

check_mcp_url = base_url("http", "https", example="https://dragoman.example.com", key="session_api_key")
"""Validates the gateway's address for a server."""
