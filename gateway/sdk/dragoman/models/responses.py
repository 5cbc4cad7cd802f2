"""Models of the API's responses. Pure.

States, lanes and `answer_to` accept any string, so that this release's client can read responses of a newer gateway.
"""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field

from dragoman.models import Direction, Event, Loss, Outcome, SessionState
from dragoman.models.described import Documented
from dragoman.models.people import (
    AnsweredInteraction as AnsweredInteraction,
    ApprovalRecord as ApprovalRecord,
    Interaction as Interaction,
)
from dragoman.models.shape import Shape as Shape
from dragoman.models.states import AnswerTo, CallState, Lane, SendState

Row = TypeVar("Row")
Standing = Literal[SessionState, "closed"]


class Origin(Shape):
    """The source of an event, as its protocol identifies it."""

    adapter: str
    """The adapter of the protocol."""
    protocol: str
    """The protocol."""
    native_id: str | None
    """The runtime's own id of the message."""
    native_sequence: int | None
    """The runtime's own number of the message."""
    native_time: str | None
    """The runtime's timestamp, verbatim."""


class Envelope(Shape):
    """A recorded event."""

    event_id: str
    """A ULID, also the `webhook-id` of its copies."""
    session_id: str
    """The session."""
    sequence: int
    """1, 2, 3 … per session, without gaps."""
    position: str | None = None
    """The sequence and the store's generation, which a restore renews. Pass it as `after` to read on behind this event;
    null where it is not known."""
    recorded_at: AwareDatetime
    """The time of recording."""
    direction: Direction
    """The direction of the event."""
    origin: Origin | None
    """The source; only events from a runtime or a caller have one."""
    caused_by: int | None
    """The sequence of the event that caused this one."""
    linked_to: str | None = None
    """On a runtime's own action and its end: the call_id of the same call, made by a caller."""
    synthetic: bool | None = None
    """Whether the gateway created the event itself. Of events that release 0.2.0 recorded, it is true only if they can
    have no other source; that release does not send this member."""
    losses: list[Loss]
    """What the translation could not express."""
    event: Event
    """The event."""


class Listing(Shape, Generic[Row]):
    data: list[Row]
    """The rows."""
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class Written(Shape):
    data: list[Envelope]
    """The rows."""


class NativeFrame(Shape):
    """A native message."""

    channel: str
    """The channel or event name in the protocol."""
    payload: Any
    """The content, with secrets masked; null if it is omitted."""
    omitted: str | None
    """Why the content is omitted."""


class NativeFrames(Shape):
    """The native messages of an event."""

    frames: list[NativeFrame]
    """The messages, in order."""
    reencoded: bool
    """Whether the adapter encoded them again from the recorded event, because the gateway sent them."""


class ListedEvent(Envelope):
    """An event of a list."""

    native: NativeFrames | None = None
    """Its native messages; only with `native=true`, and null if none was kept."""
    cut: bool | None = None
    """Whether `event` is the beginning of the recorded event; only with `excerpts=true`."""


class EventListing(Shape):
    data: list[ListedEvent]
    """The rows."""
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


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
    """The protocol."""
    native_id: str
    """The runtime's own id."""
    state: Standing | str
    """The last state that the runtime reported; initially `starting` if the protocol reports turns, else `idle`."""
    labels: dict[str, str]
    """Labels for routing and your own use."""
    first_sequence: int
    """The oldest event that retention kept."""
    last_sequence: int
    """The newest event."""
    opened_at: datetime
    """The time of opening."""
    updated_at: datetime
    """The time of the last change."""
    owner: str | None
    """The instance that owns the session, or its last owner."""
    position: str | None = None
    """The position of the newest event. Pass it as `after` to read on behind it."""


class SessionName(Shape):
    session_id: str
    """The session."""
    runtime: str
    """The runtime's name in the configuration."""
    native_id: str
    """The runtime's own id."""
    labels: dict[str, str]
    """The session's labels."""


class OpenedSession(Session):
    tools: list[str]
    """Names of the tools that the runtime received on creation; empty if the session was attached."""


class LastContext(Shape):
    session_id: str
    """The session."""
    envelope: Envelope | None
    """The last `context.updated` event; null if the search found none, or if it was erased."""
    searched_from: int
    """The oldest sequence that was searched."""


class Instance(Shape):
    instance_id: str
    """The name of the process."""
    url: str
    """The URL for other instances."""
    alive: bool
    """Whether its lease is valid."""
    sessions: int
    """The number of open sessions that it owns."""


class Minute(Shape):
    at: datetime
    """The start of the minute."""
    calls: int
    """The calls that started."""
    failed: int
    """The calls that failed or expired."""
    unknown: int
    """The calls that ended with an unknown outcome; most of them are also counted as failed."""


class Executor(Shape):
    name: str
    """The executor's name in the configuration."""
    breaker: Literal["closed", "half_open", "open"]
    """The state of its circuit breaker; calls start while it is closed."""
    since: datetime | None
    """The time of the first failure in this series; null while the breaker is closed."""
    refuses: bool
    """Whether the last response shows a wrong setup, such as 401 or a web page; `reason` has the fix."""
    failed_at: datetime | None
    """The time of the last attempt without a response, or with such a one; null if there was none since the start."""
    reason: str | None
    """The error of that attempt."""
    running: int
    """The attempts that run."""
    waiting: int
    """The calls that wait for a slot or the breaker."""


class Condition(Shape):
    kind: Literal["part", "runtime", "autostart", "link", "session", "executor"]
    """`part`: keeps failing after restarts; `runtime`: not connected; `autostart`: fails; `link`: down or refused;
    `session`: waits too long for the lease or the store; `executor`: does not respond or refuses requests."""
    name: str
    """The part, runtime or executor; `RUNTIME/NATIVE_ID` of a link or session."""
    reason: str | None
    """The cause, if known."""
    since: datetime | None
    """The time at which it began, if known."""
    session_id: str | None
    """The session of a link; null for other kinds."""


class Activity(Shape):
    instance_since: datetime
    """The start of the instance that responds."""
    minutes: list[Minute]
    """Its last 60 minutes or fewer, oldest first, including those without calls; the last one is not over yet."""
    p50: float | None
    """The median time in seconds from request to outcome of the calls that ended in the last hour, of the newest 1,000;
    null if none ended."""
    p95: float | None
    """The time in seconds that 95 % of these calls took at most; null if none ended."""
    executors: list[Executor]
    """The configured executors, sorted by name."""
    conditions: list[Condition]
    """What needs an operator: `/readyz` names each, and `dragoman_conditions` counts them."""


class Call(Shape):
    call_id: str
    """The gateway's id of the call."""
    native_call_id: str
    """The runtime's own id of the call."""
    session_id: str
    """The session."""
    runtime: str
    """The runtime's name in the configuration."""
    tool: str
    """The tool's name."""
    state: CallState | str
    """The state of the call."""
    executor: str | None
    """The executor of the call; null if no route leads to one."""
    attempt: int
    """The number of attempts."""
    idempotency_key: str
    """The `webhook-id` of every attempt."""
    trace_id: str | None
    """The id of the W3C trace of its webhooks; null for calls of releases before 0.3."""
    unknown: bool
    """Whether the gateway cannot know if the executor did the work."""
    error: str | None
    """The error text for the agent."""
    created_at: datetime
    """The time of the request."""
    started_at: datetime | None
    """The start of the first attempt; null before it."""
    deadline_at: datetime
    """The time at which the call expires."""
    due_at: datetime | None
    """The time of the next attempt. For an accepted call: the time of the next request if no progress arrives."""
    canceling_until: datetime | None
    """The end of the grace period after a cancel, in which an outcome still counts."""
    finished_at: datetime | None
    """The time of the end."""
    request_sequence: int
    """The sequence of the event that requested the call."""
    outcome_sequence: int | None
    """The sequence of the event that ended the call."""
    redrive_of: str | None
    """The call that this call redrives."""
    deliver: bool
    """Whether the gateway sends the outcome to the runtime."""
    answer_to: AnswerTo | str
    """The recipient of the outcome."""
    dead: bool
    """Whether the call is a dead letter."""
    unheard_since: datetime | None
    """For a held call from outside: when its caller last waited for the outcome, which it has not received. Null if it
    has, if the conversation was told, and for other calls."""


class ListedCall(Call):
    """A call of a list."""

    arguments_excerpt: str | None = None
    """The first 200 characters of its arguments as JSON, and of a request above 16 KiB only its size; only with
    `arguments=true`, and null if the request was erased, removed or is unreadable."""


class Delivery(Shape):
    session_id: str
    """The session."""
    sequence: int
    """The event's number in the session."""
    target: str
    """`runtime`, or `destination:NAME`."""
    lane: Lane | str
    """The lane of the queue."""
    state: SendState | str
    """The state of the delivery."""
    attempt: int
    """The number of attempts."""
    due_at: datetime | None
    """The time of the next attempt."""
    reason: str | None
    """The reason."""


class CallWithOutcome(Call):
    outcome: Outcome | None
    """The outcome; null while the call is open, or if retention removed it."""


class ToolAccess(Shape):
    url: str
    """The URL of the session's tools for MCP clients."""
    token: str
    """The token, sent as `Authorization: Bearer TOKEN`. It only allows calls of this session's tools."""


class Attempt(Shape):
    n: int
    """Its number, from 1; an attempt after one that was not sent has the same number."""
    started_at: datetime
    """The time of its start."""
    ended_at: datetime | None
    """The time of its end; null while it runs, or if a restart cut it off."""
    status: int | None
    """The HTTP status of the response; null without a response, and for a first attempt that brought the outcome."""
    content_type: str | None
    """The content type of the response."""
    body: str | None
    """The first 2 KiB of a response without an outcome, with secrets masked."""
    reason: str | None
    """Why it brought no outcome, or the error of the outcome; at most 300 characters."""
    unsure: bool
    """Whether the tool may have run although no outcome arrived."""
    sent: bool
    """False if the request was certainly not sent."""
    due_at: datetime | None
    """When the next attempt was due; null if none was."""


class CallWithStory(CallWithOutcome):
    events: list[Envelope]
    """Its request, updates, progress, cancel, outcome and ignored outcomes, oldest first."""
    deliveries: list[Delivery]
    """The deliveries of its outcome to the runtime."""
    attempts: list[Attempt]
    """The requests to its executor, oldest first: the first 10 and the last 40."""


class Progressed(Shape):
    call_id: str
    """The gateway's id of the call."""


class DeadCall(Call):
    type: Literal["call"]
    """The type."""
    id: str
    """The call_id."""
    advice: str
    """The known facts, and the recommended action."""


class DeadCallWithStory(DeadCall, CallWithStory):
    pass


class DeadDelivery(Delivery):
    type: Literal["delivery"]
    """The type."""
    id: str
    """`SESSION:SEQUENCE:TARGET`."""
    advice: str
    """The recommended action."""
    envelope: Envelope
    """The event."""


class DeadLetters(Shape):
    data: list[Annotated[DeadCall | DeadDelivery, Field(discriminator="type")]]
    """The rows."""
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


DeadLetter = Annotated[DeadCallWithStory | DeadDelivery, Field(discriminator="type")]


class RedrivenCall(Call):
    type: Literal["call"]
    """The type."""


class RedrivenDelivery(Delivery):
    type: Literal["delivery"]
    """The type."""


Redriven = Annotated[RedrivenCall | RedrivenDelivery, Field(discriminator="type")]


class Failed(Shape):
    id: str
    """The dead letter."""
    reason: str
    """The reason."""


class Many(Shape):
    found: int
    """The number of matches, up to the limit."""
    failed: list[Failed]
    """The dead letters that failed, at most 100."""
    more: bool
    """Whether there are more matches than the limit."""
    dry_run: bool
    """Whether this was a dry run, without changes."""
    ids: list[str]
    """The ids of the selected dead letters."""


class RedrivenMany(Many):
    redriven: int
    """The number of redriven dead letters."""


class DismissedMany(Many):
    dismissed: int
    """The number of dismissed dead letters."""


class LinksRotated(Shape):
    rotated: bool
    """Always true."""


class Enabled(Shape):
    name: str
    """The destination."""
    enabled: bool
    """Always true."""


class Changed(Shape):
    changed: list[str]
    """YAML paths that differ."""
    restarted: list[str]
    """Runtimes that reconnect because their configuration changed."""


class Link(Shape):
    session_id: str
    """The session."""
    native_id: str
    """The runtime's own id."""
    state: Literal["connecting", "up", "down", "refused", "asleep"]
    """The state of the link."""
    since: datetime
    """The time of the last change of state."""
    reason: str | None
    """The reason."""
    lacks_tools: bool | None
    """Whether the agent received the configured tools but did not list them within a minute of its last start.

    Null while it has not started: an agent of OpenHands V1 starts at its first message.
    """
    lacks_tools_reason: str | None
    """The reason and the fix; null if no tools are missing."""
    waits_for: list[str]
    """The approvals of held calls before whose end no message is sent to the agent; empty if no message waits."""


class FailingAutostart(Shape):
    reason: str
    """The error of the last attempt."""
    since: datetime
    """The time of the first failure in this series."""
    attempts: int
    """The number of failed attempts in this series."""
    next_at: datetime
    """The time of the next attempt."""


class Runtime(Shape):
    name: str
    """The runtime's name in the configuration."""
    adapter: str
    """The adapter of the protocol."""
    protocol: str
    """The protocol."""
    links: list[Link]
    """The connections of the sessions that this instance owns."""
    reason: str | None
    """The error of a failing adapter, which the gateway restarts; null otherwise."""
    autostart: FailingAutostart | None
    """The failure of `autostart`, which the gateway retries; null unless the last attempt failed."""


class RuntimeCapabilities(Shape):
    runtime: str
    """The runtime's name in the configuration."""
    adapter: str
    """The adapter of the protocol."""
    protocol: str
    """The protocol."""
    capabilities: dict[str, Any]
    """`accepts` and `emits` are lists of kinds; durations are written like `20s`."""
    takes: dict[str, str | None]
    """The kinds that clients may post, each with the kind that the runtime receives; null if the post gets a 422."""


class Health(Shape):
    status: Literal["ok"]
    """Always `ok`."""


class Ready(Shape):
    ready: bool
    """Whether the gateway can serve traffic."""
    checks: dict[str, str]
    """Each check with `ok` or its error."""
    instance_id: str | None
    """The name of this process in `GET /v1/instances`; null without a cluster."""
    sessions: int
    """The number of sessions that this instance owns."""
    failing: list[str]
    """Components that keep failing after restarts, and `autostart of NAME`; all others work."""


class Version(Shape):
    name: str
    """The name of the program."""
    version: str
    """The version of the release."""


class ProblemPage(Shape):
    type: str
    """The `type` of an error response."""
    status: int
    """The HTTP status."""
    title: str
    """A one-line summary."""
    meaning: str
    """The meaning of the problem."""
    mend: str
    """The fix."""


class Problem(Documented):
    """An error response (RFC 9457)."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    type: str
    """A reference to the explanation, such as `/problems/not-found`."""
    title: str
    """A one-line summary."""
    status: int
    """The HTTP status."""
    detail: str
    """The error in this request."""
    pointer: str | None = None
    """RFC 6901 pointer to the place in the body."""
    first_sequence: int | None = None
    """With `gone`: the oldest event that is left, or the next sequence if the history ends before the position."""
    scope: str | None = None
    """With `forbidden`: the required scope."""
    errors: list[dict[str, Any]] | None = None
    """All errors, if there can be several."""
