"""A Step: the events and the changes that one decision writes about a session. Pure."""

from datetime import datetime

from dragoman.models.states import InteractionState as InteractionState, Lane as Lane, SendState as SendState
from gateway.events import CallId, Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.store.call import CallChange

RUNTIME = "runtime"
"""The outbound target for the session's own runtime; the others are `HANDOVER`, `destination:NAME`, `notice:NAME`."""

HANDOVER = "handover"
"""The outbound target for the owner of the session: frames that another instance received and may not write."""


@frozen
class Enqueue:
    """A new pending `Send` of an event of the same step."""

    event_index: int
    target: str
    lane: Lane = "turn"
    due_at: datetime | None = None
    """The earliest time to send it; until then it holds back the later rows."""
    attempt: int = 0
    """1 for an event to the runtime that is sent once this step is on record."""


@frozen
class SendChange:
    """A change of an outbound row; a `pending` row is tried again at `due_at`."""

    sequence: int
    target: str
    state: SendState
    attempt: int = 0
    due_at: datetime | None = None
    reason: str | None = None


@frozen
class InteractionChange:
    """A new question to a person, or a change of its state."""

    interaction_id: InteractionId
    state: InteractionState
    kind: str = ""
    """Set for a new question, together with `request_sequence`; other changes omit both."""
    request_sequence: int | None = None
    expires_at: datetime | None = None
    answered_by: str | None = None
    call_id: CallId | None = None
    """The held call that a new question is about."""


@frozen
class Keep:
    """The response to an API write with an Idempotency-Key, kept by the step that performs the write.

    The stored response is `{"session_id", "sequences"}` in JSON, because the commit assigns the sequences; the full
    response is rebuilt from the events. An unexpired response that is kept already stays.
    """

    key: str
    scope: str
    request_sha: str
    expires_at: datetime
    events: tuple[int, ...]
    """Indexes of the events of this step that the response contains."""


@frozen
class Step:
    """Everything that one decision writes about one session, committed completely or not at all.

    An `Open` of an existing call_id is Stale too: the caller looks up that call and decides again.
    """

    session_id: SessionId
    events: tuple[Envelope, ...] = ()
    calls: tuple[CallChange, ...] = ()
    sends: tuple[Enqueue, ...] = ()
    send_changes: tuple[SendChange, ...] = ()
    interactions: tuple[InteractionChange, ...] = ()
    keeps: tuple[Keep, ...] = ()
    cursor: str | None = None
    snapshot: bytes | None = None
    state: str | None = None
    """The session's state in lists (`running`, `idle`, `closed`, ...)."""
    fence: int | None = None
    """The expected fence of the session; None skips the check."""
    last_sequence: int | None = None
    """The expected last sequence of the session; None skips the check."""


@frozen
class Committed:
    """The committed envelopes in order, and the last sequence."""

    envelopes: tuple[Envelope, ...]
    last_sequence: int
    size: int
    """The stored bytes of the envelopes."""
