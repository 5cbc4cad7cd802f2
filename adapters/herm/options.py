"""The YAML options of a Herm runtime; every undocumented detail of Herm is an option."""

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.adapter.duration import Duration
from gateway.adapter.options import ApiKey, NativeId, base_url, check_header, is_sendable
from gateway.adapter.port import RuntimeOptions


class HermOptions(RuntimeOptions):
    """A Herm runtime: an existing session (`session_id`) or an agent for new sessions (`agent_id`)."""

    api_key: ApiKey = Field(description="Herm API key; sent in a header, see `auth_header`.")
    session_id: NativeId | None = Field(default=None, description="Attach to this session.")
    agent_id: NativeId | None = Field(default=None, description="Open sessions of this agent.")
    user_id: str | None = Field(default=None, min_length=1, description="Memory scope of new sessions.")
    title: str | None = Field(default=None, description="Title of new sessions.")
    metadata: dict[str, Any] = Field(default={}, description="Metadata of new sessions.")

    auth_header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$", description="Header for the key.")
    auth_scheme: str = Field(
        default="Bearer", pattern=r"^[A-Za-z0-9-]*$", description="Word before the key; empty for none."
    )
    headers: dict[str, SecretStr] = Field(default={}, description="Further headers of every request.")
    events_path: str = Field(default="/v1/sessions/{session_id}/events", description="Path to post and list events.")
    stream_path: str = Field(default="/v1/sessions/{session_id}/events/stream", description="Path of the event stream.")
    create_path: str = Field(default="/v1/agents/{agent_id}/sessions", description="Path to open a session.")
    body: Literal["events", "single", "list"] = Field(
        default="events", description="Form of a post: {events: [event]}, the event alone, or [event]."
    )
    list_limit: int = Field(default=100, ge=1, le=1000, description="Events requested per page of a list.")
    list_pages: int = Field(default=1000, ge=1, description="Maximum number of pages; a longer history fails the link.")
    limit_parameter: str | None = Field(default="limit", description="Query parameter of the page size.")
    cursor_parameter: str = Field(default="cursor", min_length=1, description="Query parameter of the next page.")
    after_parameter: str | None = Field(
        default=None,
        description="Query parameter for the last known sequence, if the server has one; "
        "without it every reconnect lists the whole history.",
    )
    list_timeout: Duration = Field(default=timedelta(seconds=30), description="Time limit for one page.")
    resume_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header of the stream request for the last known sequence, if the server replays from there.",
    )
    idle_timeout: Duration = Field(
        default=timedelta(seconds=45), description="Silence on the stream, keepalives included, that ends the link."
    )
    send_timeout: Duration = Field(default=timedelta(seconds=20), description="Time limit for one post.")
    busy_statuses: tuple[int, ...] = Field(
        default=(409, 423), description="Response statuses to a message that mean a running turn."
    )
    busy_codes: tuple[str, ...] = Field(
        default=(),
        description="Further error codes that mean a running turn with status 400 or 422, besides busy, in_progress.",
    )

    _is_a_base_url = field_validator("url")(base_url("http", "https", example="https://api.example.com", key="api_key"))

    @property
    def native_id(self) -> str | None:
        """The session to attach to."""
        return self.session_id

    @property
    def creates(self) -> bool:
        """Whether to open sessions."""
        return self.agent_id is not None

    @field_validator("events_path", "stream_path", "create_path")
    @classmethod
    def _names_its_place(cls, path: str) -> str:
        if (
            not path.startswith("/")
            or not is_sendable(path)
            or path.count("{") != 1
            or not ("{session_id}" in path or "{agent_id}" in path)
        ):
            raise ValueError("write a path such as /v1/sessions/{session_id}/events")
        return path

    @field_validator("headers")
    @classmethod
    def _are_sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            check_header(name, value.get_secret_value())
        return headers

    @field_validator("idle_timeout", "send_timeout", "list_timeout")
    @classmethod
    def _is_a_deadline(cls, span: timedelta) -> timedelta:
        if not span:
            raise ValueError("a deadline must be longer than zero; write e.g. 45s")
        return span

    @model_validator(mode="after")
    def _names_one_source(self) -> "HermOptions":
        if (self.session_id is None) == (self.agent_id is None):
            raise ValueError("set exactly one of session_id (an existing session) and agent_id (for new sessions)")
        return self
