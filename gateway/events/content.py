"""What events are made of: content blocks, outcomes, updates, losses. Pure."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.events.described import Described


class Value(Described):
    """The base of every canonical value: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Text(Value):
    """A piece of text."""

    type: Literal["text"] = "text"
    """What it is."""
    text: str
    """The text."""


class Image(Value):
    """An image by URL, usually a base64 data URL."""

    type: Literal["image"] = "image"
    """What it is."""
    url: str
    """Where it is, usually a base64 data URL."""
    alt: str | None = None
    """What it shows, in words."""


class Data(Value):
    """A structured piece of a message."""

    type: Literal["data"] = "data"
    """What it is."""
    data: Any
    """Any JSON."""


Content = Annotated[Text | Image | Data, Field(discriminator="type")]


class Author(Value):
    """Who wrote a message; `role` is `user`, `agent` or `system`."""

    role: Literal["user", "agent", "system"] = "user"
    """Who it is to the agent."""
    id: str | None = None
    """The author's id, in the words of your backend."""
    name: str | None = None
    """The name that the agent sees."""


class Burst(Value):
    """The place of one agent message in a burst that must be confirmed one by one."""

    call: str
    """Native id of the send call the whole burst belongs to."""
    index: int
    """Zero-based."""
    count: int | None = None
    """How many there are, where the protocol says so."""


class ContextUpdate(Value):
    """Fresh state that goes with an outcome; it reaches the agent first and never wakes it."""

    name: str
    """Which part of the world it is."""
    context: dict[str, Any]
    """Its complete state."""
    description: str = ""
    """What has happened, for the agent."""


OutcomeKind = Literal["success", "failure", "canceled", "expired"]


class Outcome(Value):
    """The one final answer to a call."""

    outcome: OutcomeKind
    """How it ended."""
    result: Any = None
    """Any JSON; on success."""
    error: str | None = None
    """Text for the agent; on anything but success."""
    unknown: bool = False
    """True when the executor may have done the work although we cannot know."""


class Loss(Value):
    """One thing that a translation could not carry."""

    how: Literal["dropped", "narrowed", "defaulted", "invented"]
    """What happened to it."""
    path: str
    """RFC 6901 pointer into what was translated: the native payload on the way in, the event on the way out."""
    note: str = ""
    """Why, for people."""


def text_of(content: tuple[Content, ...]) -> str:
    """Join the text blocks of a message with newlines, leaving images and data out."""
    return "\n".join(block.text for block in content if isinstance(block, Text))
