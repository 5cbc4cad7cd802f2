"""Types and checks of options that adapters share: addresses, keys, ids. Pure."""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from gateway.addresses import find_url_fault

NativeId = Annotated[str, Field(min_length=1, max_length=1024)]
"""The id of a native session, or of an agent to make one with."""

RestUrl = Annotated[str | None, Field(description="Base URL of the REST interface; by default `url`.")]
"""Where REST is asked that has, or may have, another address than the socket."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CONNECTION_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"),
        *("keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that describe the connection or the body."""

SocketPath = Annotated[str, Field(pattern="^/", description="Path of the Socket.IO endpoint.")]


def is_sendable(text: str) -> bool:
    """Whether a header or a query can carry a text as it is: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def refusal(text: str, **facts: object) -> PydanticCustomError:
    """Make a validation error whose text quotes no value, so that it is shown for secrets too.

    `text` may refer to facts as `{name}`; the fact `make` is a command that produces a good value.
    """
    return PydanticCustomError("refused", text, facts)  # pyright: ignore[reportArgumentType]


def check_header(name: str, value: str) -> None:
    """Check an extra header of requests; the text of a refusal quotes the name only.

    Raises:
        PydanticCustomError: the header cannot be sent, or belongs to the connection.
    """
    if not _HEADER_NAME.fullmatch(name):
        mend = "{name} is not a header name; write letters, digits and dashes, e.g. X-Tenant"
        raise refusal(mend, name=repr(name[:50]))
    if name.lower() in _CONNECTION_HEADERS:
        raise refusal("the header '{name}' belongs to the connection; remove it", name=name)
    if not value.isascii() or not value.isprintable():
        raise refusal("the value of the header '{name}' must be printable ASCII on one line", name=name)
    if value != value.strip():
        raise refusal("the value of the header '{name}' must not begin or end with a space", name=name)


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text or not is_sendable(text):
        raise refusal("an API key is printable ASCII without spaces, and not empty")
    return key


ApiKey = Annotated[SecretStr, AfterValidator(_check_key)]

_SHORTEST_TOKEN = 16


def _check_token(token: SecretStr) -> SecretStr:
    text = token.get_secret_value()
    if len(text) < _SHORTEST_TOKEN or not is_sendable(text):
        mend = "a token has at least {least} printable ASCII characters without spaces; `{make}` makes a good one"
        raise refusal(mend, least=_SHORTEST_TOKEN, make="openssl rand -hex 32")
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
        if (fault := find_url_fault(url)) is not None:
            raise refusal(f"{fault}; write a base URL such as {example}")
        parts = urlsplit(url)
        if parts.scheme not in schemes:
            raise refusal(f"write a base URL with {' or '.join(f'{one}://' for one in schemes)}, as in {example}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise refusal(f"write the base URL alone; the key belongs in {key}")
        return url.rstrip("/")

    return check


def rest_base(url: str, rest_url: str | None) -> str:
    """Choose where REST is asked; one address usually serves both, with the scheme of the socket."""
    base = rest_url or url
    return "http" + base.removeprefix("ws") if base.startswith("ws") else base
