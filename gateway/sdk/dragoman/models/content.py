"""The parts of events: content blocks, outcomes, updates, losses. Pure."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from dragoman.models.described import Described


class Value(Described):
    """The base of every canonical value: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Text(Value):
    """A block of text."""

    type: Literal["text"] = "text"
    """The type of block."""
    text: str
    """The text."""


class Image(Value):
    """An image by URL, usually a base64 data URL."""

    type: Literal["image"] = "image"
    """The type of block."""
    url: str
    """The URL, usually a base64 data URL."""
    alt: str | None = None
    """A description of the image."""


class Data(Value):
    """A structured block of a message."""

    type: Literal["data"] = "data"
    """The type of block."""
    data: Any
    """Any JSON."""


Content = Annotated[Text | Image | Data, Field(discriminator="type")]


class Author(Value):
    """The author of a message."""

    role: Literal["user", "agent", "system"] = "user"
    """The author's role in the conversation."""
    id: str | None = None
    """The author's id in your backend."""
    name: str | None = None
    """The name that the agent sees."""


class Burst(Value):
    """The place of an agent message in a burst, which requires a confirmation of each message."""

    call: str
    """Native id of the call that sends the burst."""
    index: int
    """Zero-based."""
    count: int | None = None
    """Number of messages, if the protocol reports it."""


class ContextUpdate(Value):
    """New state with an outcome; it reaches the agent before the outcome and never wakes it."""

    name: str
    """The part of the world."""
    context: dict[str, Any]
    """Its complete state."""
    description: str = ""
    """A description of the change, for the agent."""


OutcomeKind = Literal["success", "failure", "canceled", "expired"]


class Outcome(Value):
    """The single final result of a call."""

    outcome: OutcomeKind
    """The outcome."""
    result: Any = None
    """The result as JSON; only on success."""
    error: str | None = None
    """Text for the agent; on every other outcome."""
    unknown: bool = False
    """True if the executor may have done the work but that cannot be verified."""


class Loss(Value):
    """A member that a translation could not express."""

    how: Literal["dropped", "narrowed", "defaulted", "invented"]
    """The kind of loss."""
    path: str
    """RFC 6901 pointer into the native payload of an incoming event, or into an outgoing event."""
    note: str = ""
    """The reason, for people."""


def text_of(content: tuple[Content, ...]) -> str:
    """Join the text blocks of a message with newlines; omit images and data."""
    return "\n".join(block.text for block in content if isinstance(block, Text))
