"""The responses of all operations. Pure.

States, lanes and `answer_to` are open texts, so that a client of this release can read responses of a newer gateway.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gateway.events import Event, Loss, Outcome, SessionState
from gateway.events.described import Described
from gateway.models.states import AnswerTo, CallState, InteractionState, Lane, SendState
from gateway.models.webhooks import Envelope

Row = TypeVar("Row")
Standing = Literal[SessionState, "closed"]


class Shape(Described):
    """The base of all shapes: complete, so that an answer with a member more or less fails its test."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid")


class Listing(Shape, Generic[Row]):
    data: list[Row]
    """The rows."""
    next: str | None
    """Give it as `after` to read the next page; null on the last one."""


class Written(Shape):
    data: list[Envelope]
    """The rows."""


class EventListing(Shape):
    data: list[Envelope]
    """The rows."""
    next: int | None
    """The sequence to go on `after`; null on the last page."""


class Redelivered(Shape):
    session_id: str
    """The session."""
    sequence: int
    """The event's number in the session."""
    target: str
    """`runtime`, or `destination:NAME`."""


class Session(Shape):
    session_id: str
    """The session."""
    runtime: str
    """The runtime's name in the configuration."""
    protocol: str
    """What it speaks."""
    native_id: str
    """The runtime's own id."""
    state: Standing | str
    """What its runtime has said last; before that `starting` where the protocol tells of turns, else `idle`."""
    labels: dict[str, str]
    """For routing and your own bookkeeping."""
    first_sequence: int
    """The oldest event that retention has left."""
    last_sequence: int
    """The newest event."""
    opened_at: datetime
    """When it was opened."""
    updated_at: datetime
    """When something happened in it last."""
    owner: str | None
    """The instance that carries it, or carried it last."""


class OpenedSession(Session):
    told: list[str]
    """Names of the tools that its runtime was told on creation; none where it was attached to."""


class Instance(Shape):
    instance_id: str
    """The name of the process."""
    url: str
    """Where the other instances reach it."""
    alive: bool
    """Whether its lease runs."""
    sessions: int
    """How many open sessions it owns."""


class Call(Shape):
    call_id: str
    """Our id of the call."""
    native_call_id: str
    """The runtime's own id of the call."""
    session_id: str
    """The session."""
    runtime: str
    """The runtime's name in the configuration."""
    tool: str
    """The tool's name."""
    state: CallState | str
    """Where it stands."""
    executor: str | None
    """Who was asked; null where nobody is responsible."""
    attempt: int
    """How often it was asked."""
    idempotency_key: str
    """The `webhook-id` of every attempt."""
    unknown: bool
    """Whether the executor may have done the work although the gateway cannot know."""
    error: str | None
    """What the agent was told, or will be."""
    created_at: datetime
    """When it was asked for."""
    deadline_at: datetime
    """When it ends in any case."""
    due_at: datetime | None
    """When it is tried again; of an accepted call, when its request is sent again unless there is a sign of life."""
    canceling_until: datetime | None
    """Until when an answer still counts although it is canceled."""
    finished_at: datetime | None
    """When it ended."""
    request_sequence: int
    """The event that asked for it."""
    outcome_sequence: int | None
    """The event that ended it."""
    redrive_of: str | None
    """The call it was made again from."""
    deliver: bool
    """Whether the runtime is told the outcome."""
    answer_to: AnswerTo | str
    """Who is told the outcome."""
    dead: bool
    """Whether it waits for an operator among the dead letters."""


class Delivery(Shape):
    session_id: str
    """The session."""
    sequence: int
    """The event's number in the session."""
    target: str
    """`runtime`, or `destination:NAME`."""
    lane: Lane | str
    """The queue it waits in."""
    state: SendState | str
    """Where it stands."""
    attempt: int
    """How often it was tried."""
    due_at: datetime | None
    """When it is tried again."""
    reason: str | None
    """Why."""


class CallWithOutcome(Call):
    outcome: Outcome | None
    """How it ended; null while it is open, and where it was removed."""


class ToolAccess(Shape):
    url: str
    """Where an MCP client reaches the session's tools."""
    token: str
    """What it sends as `Authorization: Bearer TOKEN`; it calls the tools of this session, and nothing else."""


class CallWithStory(CallWithOutcome):
    events: list[Envelope]
    """Its request, updates, progress, cancel, outcome and ignored outcomes, oldest first."""
    deliveries: list[Delivery]
    """How its outcome fared on the way to the runtime."""


class Progressed(Shape):
    call_id: str
    """Our id of the call."""


class DeadCall(Call):
    type: Literal["call"]
    """What it is."""
    id: str
    """The call_id."""
    advice: str
    """What is known of it, and what an operator should do."""


class DeadCallWithStory(DeadCall, CallWithStory):
    pass


class DeadDelivery(Delivery):
    type: Literal["delivery"]
    """What it is."""
    id: str
    """`SESSION:SEQUENCE:TARGET`."""
    advice: str
    """What an operator should do."""
    envelope: Envelope
    """The event."""


class DeadLetters(Shape):
    data: list[Annotated[DeadCall | DeadDelivery, Field(discriminator="type")]]
    """The rows."""
    next: str | None
    """Give it as `after` to read the next page; null on the last one."""


DeadLetter = Annotated[DeadCallWithStory | DeadDelivery, Field(discriminator="type")]


class RedrivenCall(Call):
    type: Literal["call"]
    """What it is."""


class RedrivenDelivery(Delivery):
    type: Literal["delivery"]
    """What it is."""


Redriven = Annotated[RedrivenCall | RedrivenDelivery, Field(discriminator="type")]


class Failed(Shape):
    id: str
    """The dead letter."""
    reason: str
    """Why."""


class Many(Shape):
    found: int
    """How many the filters match, up to the limit."""
    failed: list[Failed]
    """Those with which it could not be done, the first hundred."""
    more: bool
    """Whether the filters match more than the limit."""
    dry_run: bool
    """Whether nothing was done."""
    ids: list[str]
    """The letters that were meant."""


class RedrivenMany(Many):
    redriven: int
    """How many were tried again."""


class DismissedMany(Many):
    dismissed: int
    """How many were dismissed."""


class Interaction(Shape):
    interaction_id: str
    """Its id."""
    kind: str
    """What was asked for: the kind of the event that asked."""
    state: InteractionState | str
    """Where it stands."""
    session_id: str
    """The session."""
    sequence: int
    """The event that asked."""
    expires_at: datetime | None
    """Until when it can be answered."""
    answered_by: str | None
    """Who has answered: the name of a key."""
    event: Event | None = None
    """The event that asked; in lists only."""


class AnsweredInteraction(Interaction):
    losses: list[Loss]
    """The losses of the answer on its way to the runtime."""


class Enabled(Shape):
    name: str
    """The destination."""
    enabled: bool
    """Always true."""


class Changed(Shape):
    changed: list[str]
    """YAML paths that differ."""
    restarted: list[str]
    """Runtimes that connect again because their block changed."""


class Link(Shape):
    session_id: str
    """The session."""
    native_id: str
    """The runtime's own id."""
    state: Literal["connecting", "up", "down", "refused", "asleep"]
    """How it stands."""
    since: datetime
    """Since when."""
    reason: str | None
    """Why."""
    lacks_tools: bool
    """Whether its agent, which was told the tools of the configuration, has not listed them within a minute of its last
    start."""
    lacks_tools_reason: str | None
    """Why, and what to do; null while it lacks none."""


class FailingAutostart(Shape):
    reason: str
    """Why the last attempt failed."""
    since: datetime
    """When the first attempt in a row failed."""
    attempts: int
    """How many attempts have failed."""
    next_at: datetime
    """When the next attempt begins."""


class Runtime(Shape):
    name: str
    """Its name in the configuration."""
    adapter: str
    """The adapter that speaks it."""
    protocol: str
    """What it speaks."""
    links: list[Link]
    """One for each session that this instance carries."""
    reason: str | None
    """Why it has none, where it is not connected itself: its adapter fails, and is tried again."""
    autostart: FailingAutostart | None
    """The failure of its `autostart`, which is retried; null unless the last attempt failed."""


class RuntimeCapabilities(Shape):
    runtime: str
    """The runtime's name in the configuration."""
    adapter: str
    """The adapter that speaks it."""
    protocol: str
    """What it speaks."""
    capabilities: dict[str, Any]
    """`accepts` and `emits` are lists of kinds; durations are written like `20s`."""
    takes: dict[str, str | None]
    """What clients may post, and the kind by which the runtime is told; null where it cannot be (422)."""


class Health(Shape):
    status: Literal["ok"]
    """It is."""


class Ready(Shape):
    ready: bool
    """Whether it should get traffic."""
    checks: dict[str, str]
    """Name of each check to `ok` or what is wrong."""
    instance_id: str | None
    """Under which name this process carries sessions, as `GET /v1/instances` lists it; null where it is alone."""
    sessions: int
    """How many sessions it carries."""
    failing: list[str]
    """The parts of it that fail on although they are begun again, and `autostart of NAME`; the others work."""


class Version(Shape):
    name: str
    """The program."""
    version: str
    """The release."""


class ProblemPage(Shape):
    type: str
    """The `type` of an error answer."""
    status: int
    """The HTTP status it comes with."""
    title: str
    """What it is, in one line."""
    meaning: str
    """What has happened."""
    mend: str
    """What helps."""


class Problem(BaseModel):
    """An error answer (RFC 9457)."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, defer_build=True)

    type: str
    """A reference to the explanation, such as `/problems/not-found`."""
    title: str
    """What it is, in one line."""
    status: int
    """The HTTP status."""
    detail: str
    """What is wrong with this request."""
    pointer: str | None = None
    """RFC 6901 pointer into the body, where one place is wrong."""
    first_sequence: int | None = None
    """With `gone`: the oldest event that is left, or the next one where the history ends before it."""
    scope: str | None = None
    """With `forbidden`: the scope that is needed."""
    errors: list[dict[str, Any]] | None = None
    """Every finding, where there can be several."""
