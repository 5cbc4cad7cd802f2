"""Models of responses about what people are asked and answer. Pure."""

from datetime import datetime
from typing import Any

from dragoman.models import Event, Loss
from dragoman.models.shape import Shape
from dragoman.models.states import InteractionState


class Interaction(Shape):
    interaction_id: str
    """The interaction's id."""
    kind: str
    """The kind of the requesting event."""
    state: InteractionState | str
    """The state of the interaction."""
    session_id: str
    """The session."""
    sequence: int
    """The sequence of the requesting event."""
    expires_at: datetime | None
    """The deadline for an answer."""
    answered_by: str | None
    """The name of the API key that answered."""
    call_id: str | None = None
    """The held call; null for a question of the runtime."""
    event: Event | None = None
    """The requesting event; null in the response to an answer."""
    asked_at: datetime | None = None
    """The time of the requesting event; null in the response to an answer."""
    rule: str | None = None
    """The place in the configuration of the route that holds the call, such as `routes[2]`."""
    rule_sha: str | None = None
    """The hash of that route, which is part of the binding."""
    binding: str | None = None
    """What an approval allows: the hash of the call with its arguments, or of the request of the runtime."""
    asked_before: int | None = None
    """The number of equal calls of the session that were canceled while they were held, within the ten minutes before
    this held call, among the last hundred that ended without an answer; null for a question of the runtime, and in the
    response to an answer."""
    unheard_since: datetime | None = None
    """As of the held call; null in the response to an answer."""


class AnsweredInteraction(Interaction):
    losses: list[Loss]
    """The parts of the answer that the runtime's protocol cannot express."""


class ApprovalRecord(Shape):
    """What was asked about a held call, and the answer."""

    interaction_id: str
    """The interaction's id."""
    session_id: str
    """The session."""
    call_id: str
    """The held call."""
    tool: str
    """The tool's name."""
    arguments: dict[str, Any]
    """The arguments that were asked about."""
    rule: str | None
    """The place in the configuration of that time of the route that held the call."""
    rule_sha: str | None
    """The hash of that route."""
    binding: str | None
    """What was asked."""
    asked_at: datetime
    """The time of the question."""
    state: InteractionState | str
    """The state of the interaction."""
    decision: str | None
    """`allow` or `deny`; null if there is none."""
    answered_by: str | None
    """Who answered: the name of the API key."""
    answered_at: datetime | None
    """The time of the answer."""
    reason: str | None
    """The reason that the agent was told."""
    changed_to: dict[str, Any] | None
    """The allowed arguments, if the person has changed them."""
    allowed: str | None
    """The binding of the allowed call."""
    unheard_since: datetime | None
    """As of the call."""
