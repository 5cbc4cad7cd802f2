"""Types and checks of options that adapters share: addresses, keys, ids. Pure."""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic_core import PydanticCustomError

from gateway.addresses import find_url_fault

NativeId = Annotated[str, Field(min_length=1, max_length=1024)]
"""The id of a native session, or of the agent of a new one."""

RestUrl = Annotated[str | None, Field(description="Base URL of the REST interface; by default `url`.")]
"""The REST address if it differs from the socket's."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CONNECTION_HEADERS = frozenset(
    {
        *("accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host"),
        *("keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that describe the connection or the body."""

SocketPath = Annotated[str, Field(pattern=r'^/[!"$->@-~]*$', description="Path of the Socket.IO endpoint.")]


def is_sendable(text: str) -> bool:
    """Whether a text fits into a header or a query unchanged: printable ASCII without spaces."""
    return text.isascii() and text.isprintable() and " " not in text


def refusal(text: str, **facts: object) -> PydanticCustomError:
    """Make a validation error without the value, so that it can be shown for secrets, too.

    `text` refers to facts as `{name}`; the fact `make` is a command that produces a valid value.
    """
    return PydanticCustomError("refused", text, facts)  # pyright: ignore[reportArgumentType]


def check_header(name: str, value: str) -> None:
    """Check an additional request header; the error names it without its value.

    Raises:
        PydanticCustomError: the header is invalid, or belongs to the connection.
    """
    if not _HEADER_NAME.fullmatch(name):
        text = "{name} is not a header name; write letters, digits and dashes, e.g. X-Tenant"
        raise refusal(text, name=repr(name[:50]))
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
        advice = "a token has at least {least} printable ASCII characters without spaces; `{make}` generates one"
        raise refusal(advice, least=_SHORTEST_TOKEN, make="openssl rand -hex 32")
    return token


class McpClient(BaseModel):
    """An MCP client that connects to the gateway and calls the tools of its own session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="Name of the client: the `native_id` of its session, also in logs.",
    )
    token: Annotated[SecretStr, AfterValidator(_check_token)] = Field(
        description="Token that the client sends as `Authorization: Bearer TOKEN`; at least 16 characters."
    )
    labels: dict[str, str] = Field(
        default={}, description="Labels of the client's session; they override the runtime's labels."
    )
    progress: bool = Field(
        default=False,
        description="Whether the client gets progress, in an event stream, also before protocol version 2026-07-28."
        " Such a client may wait for minutes for the rest of a stream that a crash has cut.",
    )


def base_url(*schemes: str, example: str, key: str) -> Callable[[str | None], str | None]:
    """Return a validator of base URLs; `key` is the option for the key, which the URL must not contain."""

    def check(url: str | None) -> str | None:
        if url is None:
            return None
        if (fault := find_url_fault(url)) is not None:
            raise refusal(f"{fault}; write a base URL such as {example}")
        parts = urlsplit(url)
        if parts.scheme not in schemes:
            raise refusal(f"write a base URL with {' or '.join(f'{one}://' for one in schemes)}, as in {example}")
        if parts.query or parts.fragment or parts.username or parts.password:
            raise refusal(f"write only the base URL; the key belongs in {key}")
        return url.rstrip("/")

    return check


def rest_base(url: str, rest_url: str | None) -> str:
    """Return the base URL of REST: `rest_url`, or `url` with an HTTP scheme."""
    base = rest_url or url
    return "http" + base.removeprefix("ws") if base.startswith("ws") else base
