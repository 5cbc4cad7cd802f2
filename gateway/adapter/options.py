"""Types and checks of options that adapters share: addresses, keys, ids. Pure."""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

NativeId = Annotated[str, Field(min_length=1, max_length=1024)]
"""The id of a native session, or of an agent to make one with."""

RestUrl = Annotated[str | None, Field(description="Base URL of the REST interface; by default `url`.")]
"""Where REST is asked that has, or may have, another address than the socket."""

SocketPath = Annotated[str, Field(pattern="^/", description="Path of the Socket.IO endpoint.")]


def is_sendable(text: str) -> bool:
    """Whether a header or a query can carry a text as it is: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text or not is_sendable(text):
        raise ValueError("an API key is printable ASCII without spaces, and not empty")
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]

_SHORTEST_TOKEN = 16


def _check_token(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if len(text) < _SHORTEST_TOKEN or not is_sendable(text):
        # A type of its own says that this text quotes nothing and may be shown.
        mend = "a token has at least {least} printable ASCII characters without spaces; `{make}` makes a good one"
        raise PydanticCustomError("client_token", mend, {"least": _SHORTEST_TOKEN, "make": "openssl rand -hex 32"})
    return token


class McpClient(BaseModel):
    """A client that comes to us, and calls the tools of a session of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Who it is; its session's `native_id`, and in logs."
    )
    token: Annotated[SecretStr, AfterValidator(_check_token)] = Field(
        description="What it sends as `Authorization: Bearer TOKEN`; at least 16 characters."
    )
    labels: dict[str, str] = Field(default={}, description="Labels given to its session, over those of the runtime.")


def base_url(*schemes: str, example: str, key: str) -> Callable[[str | None], str | None]:
    """Make the check of a base URL; `key` is the option in which a key stands, which is not the URL."""

    def check(url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(f"write a base URL such as {example}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise ValueError(f"write the base URL alone; the key belongs in {key}")
        return url.rstrip("/")

    return check


def rest_base(url: str, rest_url: str | None) -> str:
    """Choose where REST is asked; one address usually serves both, with the scheme of the socket."""
    base = rest_url or url
    return "http" + base.removeprefix("ws") if base.startswith("ws") else base
