"""What may be written about a session: a Step, with its events and every change that goes in with them. Pure."""

from datetime import datetime

from gateway.events import Envelope, InteractionId, SessionId
from gateway.events.frozen import frozen
from gateway.models.states import InteractionState as InteractionState, Lane as Lane, SendState as SendState
from gateway.store.call import CallChange

RUNTIME = "runtime"
"""The outbound target that is the session's own runtime; the others are `HANDOVER` and `destination:NAME`."""

HANDOVER = "handover"
"""The outbound target that is whoever carries the session: frames that another instance heard and may not write."""


@frozen
class Enqueue:
    """An event of the same step is to go somewhere: a new `Send`, `pending`."""

    event_index: int
    target: str
    lane: Lane = "turn"
    due_at: datetime | None = None
    """Not before; it holds back what comes behind it."""
    attempt: int = 0
    """1 for an event to the runtime that is sent once this step is on record."""


@frozen
class SendChange:
    """What became of an outbound row; a `pending` one with `due_at` is tried again then."""

    sequence: int
    target: str
    state: SendState
    attempt: int = 0
    due_at: datetime | None = None
    reason: str | None = None


@frozen
class InteractionChange:
    """A person was asked, or has answered, or no longer needs to."""

    interaction_id: InteractionId
    state: InteractionState
    kind: str = ""
    """Given, with the sequence of the question, where it is asked; other changes leave both out."""
    request_sequence: int | None = None
    expires_at: datetime | None = None
    answered_by: str | None = None


@frozen
class Keep:
    """The answer to an API write with an Idempotency-Key, kept in the very step that carries it out.

    What is kept as the response is `{"session_id", "sequences"}` in JSON, since sequences are only known now; the
    answer is formed again from the events. An answer that is kept already and has not expired stays.
    """

    key: str
    scope: str
    request_sha: str
    expires_at: datetime
    events: tuple[int, ...]
    """Indexes of the events of this step that the answer shows."""


@frozen
class Step:
    """Everything one decision writes about one session: all of it or nothing.

    An `Open` of a call_id that exists is Stale as well: the caller looks the old call up and decides again.
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
    """The session's own state for lists (`running`, `idle`, `closed`, ...)."""
    fence: int | None = None
    """The session must still be owned under this fence; None where that does not matter."""
    last_sequence: int | None = None
    """Nobody may have written to the session since this sequence; None where that does not matter."""


@frozen
class Committed:
    """What is now durable: the envelopes in order."""

    envelopes: tuple[Envelope, ...]
    last_sequence: int
