"""The shapes of all answers, for the documentation only: answers are written by hand in `views`. Pure.

States and lanes are texts besides those that this release knows, since a newer one may have written others.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gateway.events import Direction, Event, Loss, SessionState
from gateway.store.call import CallState
from gateway.store.step import InteractionState, Lane, SendState

Row = TypeVar("Row")


class Shape(BaseModel):
    """The base of all shapes: complete, so that a view with a member more or less fails its test."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Listing(Shape, Generic[Row]):
    data: list[Row]
    next: str | None
    """Give it as `after` to read the next page; null on the last one."""


class Origin(Shape):
    adapter: str
    protocol: str
    native_id: str | None
    native_sequence: int | None
    native_time: str | None


class Envelope(Shape):
    event_id: str
    session_id: str
    sequence: int
    """1, 2, 3 … per session, without gaps."""
    recorded_at: datetime
    direction: Direction
    origin: Origin | None
    """Where it comes from; null on events that the gateway made itself."""
    caused_by: int | None
    losses: list[Loss]
    """What the translation could not carry."""
    event: Event


class Written(Shape):
    data: list[Envelope]


class EventListing(Shape):
    data: list[Envelope]
    next: int | None
    """The sequence to go on `after`; null on the last page."""


class Redelivered(Shape):
    session_id: str
    sequence: int
    target: str


class Session(Shape):
    session_id: str
    runtime: str
    protocol: str
    native_id: str
    state: SessionState | Literal["closed"]
    """What its runtime has said last; before that `starting` where the protocol tells of turns, else `idle`."""
    labels: dict[str, str]
    first_sequence: int
    """The oldest event that retention has left."""
    last_sequence: int
    opened_at: datetime
    updated_at: datetime
    owner: str | None
    """The instance that carries it, or carried it last."""


class Instance(Shape):
    instance_id: str
    url: str
    """Where the other instances reach it."""
    alive: bool
    sessions: int
    """How many open sessions it owns."""


class Call(Shape):
    call_id: str
    native_call_id: str
    session_id: str
    runtime: str
    tool: str
    state: CallState | str
    executor: str | None
    attempt: int
    idempotency_key: str
    unknown: bool
    """Whether the executor may have done the work although the gateway cannot know."""
    error: str | None
    created_at: datetime
    deadline_at: datetime
    due_at: datetime | None
    canceling_until: datetime | None
    finished_at: datetime | None
    request_sequence: int
    outcome_sequence: int | None
    redrive_of: str | None
    deliver: bool
    dead: bool
    """Whether it waits for an operator among the dead letters."""


class Delivery(Shape):
    session_id: str
    sequence: int
    target: str
    lane: Lane | str
    state: SendState | str
    attempt: int
    due_at: datetime | None
    reason: str | None


class CallWithStory(Call):
    events: list[Envelope]
    """Its request, updates, progress, cancel, outcome and ignored outcomes, oldest first."""
    deliveries: list[Delivery]
    """How its outcome fared on the way to the runtime."""


class Progressed(Shape):
    call_id: str


class DeadCall(Call):
    type: Literal["call"]
    id: str
    """The call_id."""
    advice: str
    """What is known of it, and what an operator should do."""


class DeadCallWithStory(DeadCall, CallWithStory):
    pass


class DeadDelivery(Delivery):
    type: Literal["delivery"]
    id: str
    """`SESSION:SEQUENCE:TARGET`."""
    advice: str
    envelope: Envelope


class DeadLetters(Shape):
    data: list[Annotated[DeadCall | DeadDelivery, Field(discriminator="type")]]
    next: str | None


DeadLetter = Annotated[DeadCallWithStory | DeadDelivery, Field(discriminator="type")]


class RedrivenCall(Call):
    type: Literal["call"]


class RedrivenDelivery(Delivery):
    type: Literal["delivery"]


Redriven = Annotated[RedrivenCall | RedrivenDelivery, Field(discriminator="type")]


class Failed(Shape):
    id: str
    reason: str


class Many(Shape):
    found: int
    """How many the filters match, up to the limit."""
    failed: list[Failed]
    """Those with which it could not be done, the first hundred."""
    more: bool
    """Whether the filters match more than the limit."""
    dry_run: bool
    ids: list[str]
    """The letters that were meant."""


class RedrivenMany(Many):
    redriven: int


class DismissedMany(Many):
    dismissed: int


class Interaction(Shape):
    interaction_id: str
    kind: str
    state: InteractionState | str
    session_id: str
    sequence: int
    expires_at: datetime | None
    answered_by: str | None
    event: Event | None = None
    """The event that asked; in lists only."""


class Enabled(Shape):
    name: str
    enabled: bool


class Changed(Shape):
    changed: list[str]
    """YAML paths of what is different now."""


class Link(Shape):
    session_id: str
    native_id: str
    state: Literal["connecting", "up", "down", "refused", "asleep"]
    since: datetime
    reason: str | None


class Runtime(Shape):
    name: str
    adapter: str
    protocol: str
    links: list[Link]


class RuntimeCapabilities(Shape):
    runtime: str
    adapter: str
    protocol: str
    capabilities: dict[str, Any]
    """`accepts` and `emits` are lists of kinds; durations are written like `20s`."""
    takes: dict[str, str | None]
    """What clients may post, and the kind by which the runtime is told; null where it cannot be (422)."""


class Health(Shape):
    status: Literal["ok"]


class Ready(Shape):
    ready: bool
    checks: dict[str, str]
    """Name of each check to `ok` or what is wrong."""
    instance_id: str | None
    """Under which name this process carries sessions, as `GET /v1/instances` lists it; null where it is alone."""
    sessions: int
    """How many sessions it carries."""
    failing: list[str]
    """The parts of it that fail on although they are begun again; the others work."""


class Version(Shape):
    name: str
    version: str


class ProblemPage(Shape):
    type: str
    status: int
    title: str
    meaning: str
    mend: str


class Problem(BaseModel):
    """An error answer (RFC 9457)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    """A reference to the explanation, such as `/problems/not-found`."""
    title: str
    status: int
    detail: str
    """What is wrong with this request."""
    pointer: str | None = None
    """RFC 6901 pointer into the body, where one place is wrong."""
    first_sequence: int | None = None
    """With `gone`: the oldest event that is left."""
    scope: str | None = None
    """With `forbidden`: the scope that is needed."""
    errors: list[dict[str, Any]] | None = None
    """Every finding, where there can be several."""
