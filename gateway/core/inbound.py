"""Decides about native messages: calls, cancels, messages, echoes, and events that are only recorded. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.adapter.port import Frame
from gateway.core.bounds import fits
from gateway.core.calls import (
    OVERLOADED,
    cancellation,
    end_elsewhere,
    exceeds_limits,
    failure,
    fingerprint,
    fit_arguments,
    not_routed,
    settle,
    turned_away,
)
from gateway.core.confirmations import burst_message, end_burst
from gateway.core.effects import Dispatch, OpenWanted, Queue, Resend
from gateway.core.fold import ENDED, is_task
from gateway.core.holding import born_held, ruling_of
from gateway.core.interactions import BY_STATE, ask_again, close_unasked, derive_approval, end_oldest, open_asked
from gateway.core.live import show
from gateway.core.nulls import Fitted
from gateway.core.own_actions import end_abandoned, runtime_acts, runtime_finished
from gateway.core.routing import Ruling
from gateway.core.session import USUAL_RETRY, RuntimeContext, StepBuilder, begin_turn
from gateway.core.state import (
    MOST_WANTED,
    QUESTIONS,
    Start,
    Streamed,
    Unechoed,
    describe_unstarted,
    observe_start,
    start_caught_up,
    where,
)
from gateway.core.trace_context import TraceContext
from gateway.errors import MalformedFrame
from gateway.events import (
    ActionOrdered,
    ApprovalAsked,
    ApprovalGiven,
    Author,
    CallId,
    DeliverySettled,
    Draft,
    Event,
    FrameRejected,
    Loss,
    MessagePosted,
    Opaque,
    Origin,
    QuestionAnswered,
    QuestionAsked,
    SecretAsked,
    SessionMoved,
    Text,
    ThreadReceived,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TurnSteered,
    call_id as name_call,
    text_of,
)
from gateway.events.frozen import frozen, replace
from gateway.events.weight import weight
from gateway.executors.port import Answered
from gateway.store.call import CALLER, Call, Open
from gateway.store.step import RUNTIME, SendChange

_EXCERPT = 500
_OUTSIDE = f"{CALLER}:"
_STARTS = frozenset({"session.moved", "fault.reported"})
"""What shows whether a runtime has started."""
HAS_ANSWER = "the runtime's history has an answer to this call"


def take(builder: StepBuilder, frame: Frame, *, cursor: str | None = None, overloaded: bool = False) -> None:
    """Decide about one native message."""
    builder.cursor = cursor or builder.cursor
    try:
        drafts = builder.runtime.codec.decode(frame)
    except MalformedFrame as exc:
        rejected = FrameRejected(
            channel=frame.channel[:64], reason=exc.reason, path=exc.path, excerpt=repr(frame.payload)[:_EXCERPT]
        )
        (draft,) = _with_frame(builder, frame, (Draft(rejected),))
        builder.apply(rejected, "from_runtime", draft=draft)
        return
    for draft in _with_frame(builder, frame, drafts):
        _draft(builder, draft, overloaded=overloaded)


def _with_frame(builder: StepBuilder, frame: Frame, drafts: tuple[Draft, ...]) -> tuple[Draft, ...]:
    """Add the native frame to the drafts that are recorded, if the runtime's options keep frames."""
    keep = builder.runtime.keep_frame
    if keep is None or all(draft.live for draft in drafts):
        return drafts
    kept = keep(frame, drafts)
    return tuple(replace(draft, native=kept) for draft in drafts)


def _draft(builder: StepBuilder, draft: Draft, *, overloaded: bool) -> None:
    if draft.event.kind in _STARTS and not _is_outdated(builder, draft):
        builder.start = observe_start(builder.start, draft, builder.now)
    if draft.native_id is not None and builder.has_taken(draft.native_id):
        return
    if draft.live:
        show(builder, draft.event)
        end_burst(builder, draft.event)
        return
    if draft.echo:
        if confirm_echo(builder, draft):
            return
        if isinstance(draft.event, MessagePosted) and is_task(builder.memory, draft.event):
            draft = _task(draft, draft.event)
    # Compares the kind, because a failing `isinstance` takes several times as long.
    if draft.event.kind in QUESTIONS:
        end_oldest(builder, draft.event)
    before = builder.memory.asked
    if (draft.event.kind == "message.posted" and not draft.echo) or (
        draft.event.kind == "tool.requested" and draft.event.thought
    ):
        # The streamed text is on record now, as a message or as the thought of an action.
        builder.partial = Streamed()
    _place(builder, draft, overloaded=overloaded)
    if builder.runtime.capabilities.approvals in BY_STATE:
        derive_approval(builder)
    if builder.memory.asked is not before:
        close_unasked(builder, before)


def _task(draft: Draft, event: MessagePosted) -> Draft:
    """Return the draft of a message from the agent to its delegate, which looks like a client's message."""
    note = "said by the agent to its delegate, in its user's name"
    lost = Loss(how="narrowed", path="/source", note=note)
    said = event.model_copy(update={"author": Author(role="system")})
    return replace(draft, event=said, echo=False, losses=(*draft.losses, lost))


def _place(builder: StepBuilder, draft: Draft, *, overloaded: bool) -> None:
    """Decide about a draft by its kind."""
    match draft.event:
        case ToolRequested(runs_in="host", native_call_id=native) if builder.live or not fits(
            builder.memory.wanted, native, MOST_WANTED
        ):
            _requested(builder, draft.event, draft=draft, overloaded=overloaded or not builder.live)
        case ToolRequested(runs_in="host", problem=None):
            fitted = builder.runtime.policy.fit_arguments(draft.event.tool, draft.event.arguments)
            builder.apply(draft.event, "from_runtime", draft=_with_losses(draft, fitted))
        case ToolRequested(runs_in="runtime"):
            runtime_acts(builder, draft, draft.event)
        case ToolFinished() if draft.echo:
            _answered_elsewhere(builder, draft, draft.event)
        case ToolFinished():
            runtime_finished(builder, draft, draft.event)
        case ToolCanceled():
            _canceled(builder, draft, draft.event)
        case MessagePosted(burst=burst) if burst is not None:
            burst_message(builder, draft, draft.event)
        case SessionMoved():
            _moved(builder, draft, draft.event)
        case ApprovalAsked() | QuestionAsked() | SecretAsked():
            builder.apply(draft.event, "from_runtime", draft=draft)
            if builder.live:
                open_asked(builder, builder.memory.asked[-1])
        case ThreadReceived():
            builder.apply(draft.event, "from_runtime", draft=draft)
            if builder.memory.running and builder.memory.state in ENDED and not builder.memory.delegating:
                # The last state was a delegate's end. The agent itself continues and does not report it.
                builder.apply(SessionMoved(state="running", reason="inferred: a delegate has ended"), "from_runtime")
        case event:
            builder.apply(event, "to_runtime" if draft.echo else "from_runtime", draft=draft)


def _with_losses(draft: Draft, fitted: Fitted) -> Draft:
    return replace(draft, losses=(*draft.losses, *fitted.losses)) if fitted.losses else draft


def _is_outdated(builder: StepBuilder, draft: Draft) -> bool:
    """Return whether the runtime has reported a newer state."""
    said, newest = where(draft), builder.memory.stated
    return said is not None and newest is not None and said.is_before(newest)


def _moved(builder: StepBuilder, draft: Draft, event: SessionMoved) -> None:
    """Record a state of the runtime; if its turn has ended, end all calls of the turn."""
    if _is_outdated(builder, draft):
        note = "outdated state: the runtime has already reported a newer one"
        gone_by = Opaque(channel=event.kind, payload=event.model_dump(mode="json", exclude_none=True))
        lost = Loss(how="narrowed", path="", note=note)
        builder.apply(gone_by, "from_runtime", draft=replace(draft, losses=(*draft.losses, lost)))
        return
    is_signalled = builder.runtime.capabilities.turns == "signalled"
    ends = is_signalled and event.state in ENDED
    # A paused agent begins its next response anew.
    if (ends or (is_signalled and event.state == "paused")) and (said := builder.partial.text):
        cut = MessagePosted(author=Author(role="agent"), content=(Text(text=said),), complete=False)
        builder.apply(cut, "from_runtime", caused_by=builder.last_sequence or None)
        builder.partial = Streamed()
    if event.state == "awaiting_approval" and builder.runtime.capabilities.approvals == "by_group":
        waiting = tuple(action.native_call_id for action in builder.memory.open_actions())
        event = event.model_copy(update={"waiting_for": event.waiting_for or waiting})
    abandoned = builder.memory.open_actions() if draft.abandons_actions else ()
    builder.apply(event, "from_runtime", draft=draft)
    end_abandoned(builder, abandoned)
    if not ends or not builder.live or (builder.memory.delegates and builder.memory.delegating):
        return
    for call in [call for call in builder.calls.values() if call.is_the_runtimes]:
        text = "The turn has ended."
        canceled = cancellation(text)
        settle(builder, call, canceled, tell_reason=text, ended_as="moot")


def _answered_elsewhere(builder: StepBuilder, draft: Draft, event: ToolFinished) -> None:
    """Record the outcome that another client gave to a host call, and end our call without a delivery."""
    call = _open_call(builder, event.native_call_id)
    known = {"call_id": call.call_id, "tool": call.tool} if call is not None else {}
    builder.apply(event.model_copy(update=known), "to_runtime", draft=draft)
    if call is not None:
        end_elsewhere(builder, call, event)


def caught_up(builder: StepBuilder, *, is_starting: bool | None = None) -> None:
    """Start to act after the replayed history: run open calls and ask open questions."""
    builder.live = True
    builder.start = start_caught_up(builder.start, is_starting=is_starting)
    if builder.memory.wanted:
        builder.effects.append(OpenWanted(after=0))
    ask_again(builder)
    if builder.runtime.capabilities.approvals in BY_STATE:
        derive_approval(builder)


def open_wanted(builder: StepBuilder, requests: Sequence[tuple[int, ToolRequested]]) -> None:
    """Open the calls of some recorded requests, by sequence, that have neither a call nor an outcome.

    The next ones follow, unless another link replays history meanwhile.
    """
    if not builder.live or not requests:
        return
    for sequence, event in requests:
        wanted = builder.memory.wanted.get(event.native_call_id)
        if wanted is not None and wanted.sequence == sequence and _open_call(builder, event.native_call_id) is None:
            _requested(builder, event, sequence=sequence)
    builder.effects.append(OpenWanted(after=requests[-1][0]))


def connecting(builder: StepBuilder) -> None:
    """Prepare for a new link; if it replays history, nothing is acted on before it has caught up."""
    builder.live = not builder.runtime.capabilities.resumes
    builder.partial, builder.start = Streamed(), Start() if builder.live else Start("unknown")


def _requested(
    builder: StepBuilder,
    event: ToolRequested,
    *,
    draft: Draft | None = None,
    sequence: int = 0,
    overloaded: bool = False,
) -> None:
    """Decide about a host call: from a draft, or from the `sequence` of its recorded request."""
    runtime = builder.runtime
    if event.native_call_id.startswith(_OUTSIDE):
        # Such an id could refer to a call of an API client.
        reason = f"ids of calls that begin with {_OUTSIDE!r} are the gateway's own"
        builder.apply(FrameRejected(channel=event.kind, reason=reason), "from_runtime")
        return
    settled = builder.known.get(event.native_call_id)
    n = 0 if settled is None else settled.n + 1
    call_id = name_call(
        runtime=runtime.name, native_session_id=builder.base.native_id, native_call_id=event.native_call_id, n=n
    )
    known = builder.calls.get(call_id) or settled
    if known is not None and not _is_new(builder, event, known):
        return
    fitted = fit_arguments(runtime, event)
    ruling = ruling_of(builder, event.tool, fitted.arguments)
    if ruling is None and event.problem is None and runtime.policy.routes.unrouted == "ignore":
        # Another client answers it.
        if draft is not None:
            builder.apply(event, "from_runtime", draft=draft)
        return
    written: bytes | None = None
    if draft is not None:
        draft = _with_losses(draft, fitted)
        begin_turn(builder)
        event, written = event.model_copy(update={"call_id": call_id}), draft.written
        sequence = builder.apply(event, "from_runtime", draft=draft).sequence
    size = weight(event.arguments, written)
    refused = failure(OVERLOADED) if overloaded else _refusal(runtime, event, fitted, ruling)
    if refused is None and exceeds_limits(builder, size):
        refused = failure(OVERLOADED)
    new = NewCall(
        call_id=call_id,
        native_call_id=event.native_call_id,
        n=n,
        tool=event.tool,
        args_sha=fingerprint(event.tool, event.arguments),
        request_sequence=sequence,
        ruling=ruling if isinstance(ruling, Ruling) else None,
        arguments=fitted.arguments,
        size=size,
        written=None if fitted.losses else written,
    )
    open_call(builder, new, refused=refused)


def _refusal(
    runtime: RuntimeContext, event: ToolRequested, fitted: Fitted, ruling: Ruling | Answered | None
) -> Answered | None:
    """Return the failure of a call that no executor can get: for its frame, its arguments, or its routes."""
    if ruling is None:
        return failure(event.problem or not_routed(runtime.policy, event.tool))
    if fitted.problem is not None:
        return failure(fitted.problem)
    return ruling if isinstance(ruling, Answered) else None


def _is_new(builder: StepBuilder, event: ToolRequested, known: Call) -> bool:
    """Return whether a reused native id requests something else; handle a repeat here.

    If the first call of a reused id has ended, it is found only after its `Open` was stale, and looked up then.
    """
    same = known.args_sha == fingerprint(event.tool, event.arguments)
    if known.is_open:
        if not same:
            reason = f"call {event.native_call_id[:100]!r} is still open and was sent again with other arguments"
            builder.apply(FrameRejected(channel="tool.requested", reason=reason), "from_runtime")
        return False
    if same:
        _again(builder, known)
    return not same


@frozen
class NewCall:
    """A call whose request is recorded and that is not open yet."""

    call_id: CallId
    native_call_id: str
    n: int
    tool: str
    args_sha: str
    request_sequence: int
    ruling: Ruling | None
    """The route that takes it; None if none does."""
    arguments: Mapping[str, Any]
    """The arguments for the executor; optional nulls of the request may be missing."""
    size: int
    written: bytes | None = None
    caller: Origin | None = None
    """The API client that gets the outcome; None if the runtime gets it."""
    trace: TraceContext | None = None
    """The trace context of the API client."""
    span: str | None = None
    """The span of the API client's request, which belongs to the trace of the call."""


def open_call(builder: StepBuilder, new: NewCall, *, refused: Answered | None = None) -> None:
    """Open a call and dispatch it if it may leave now; a `refused` one ends with that outcome at once.

    If its route needs an approval, it waits for a person, and holds no slot.
    """
    ruling = new.ruling
    executor = None if ruling is None else ruling.executor
    is_asked = refused is None and ruling is not None and ruling.approve is not None
    leaves_now = refused is None and executor is not None and not is_asked and builder.take_slot(executor)
    policy = builder.runtime.policy.executors.get(executor or "", USUAL_RETRY)
    trace = new.trace or builder.trace_of(new.call_id)
    call = Call(
        call_id=new.call_id,
        session_id=builder.base.session_id,
        runtime=builder.runtime.name,
        native_call_id=new.native_call_id,
        n=new.n,
        tool=new.tool,
        args_sha=new.args_sha,
        state="dispatched" if leaves_now else "queued",
        attempt=1 if leaves_now else 0,
        created_at=builder.now,
        deadline_at=builder.now + policy.deadline,
        request_sequence=new.request_sequence,
        executor=executor,
        deliver=new.caller is None,
        arguments=new.arguments,
        size=new.size,
        origin=new.caller,
        written=new.written,
        trace=(trace if new.span is None else trace.below(new.span)).record(),
    )
    if is_asked and ruling is not None:
        builder.change_call(Open(born_held(builder, call, ruling)))
        return
    builder.change_call(Open(call))
    if leaves_now:
        builder.effects.append(Dispatch(call))
    elif refused is not None:
        settle(builder, call, refused)
    elif executor is not None:
        missing = builder.refusal(executor)
        if missing is None:
            builder.effects.append(Queue(new.call_id, executor))
        else:
            settle(builder, call, turned_away(missing), ended_as="dead")


def _again(builder: StepBuilder, settled: Call) -> None:
    """Send the outcome of a settled call again, because its request was repeated unchanged."""
    if settled.outcome_sequence is not None and settled.deliver:
        builder.send_changes.append(SendChange(sequence=settled.outcome_sequence, target=RUNTIME, state="pending"))
        builder.effects.append(Resend(settled.outcome_sequence))


def _canceled(builder: StepBuilder, draft: Draft, event: ToolCanceled) -> None:
    call = _open_call(builder, event.native_call_id)
    known = {"call_id": call.call_id if call else None, "tool": call.tool if call else event.tool}
    builder.apply(event.model_copy(update=known), "from_runtime", draft=draft)
    if call is None:
        end_burst(builder, event)
        return
    reason = event.reason or "Canceled by the agent."
    canceled = cancellation(reason)
    told = builder.runtime.capabilities.answers_cancel
    settle(builder, call, canceled, tell_reason=reason, ended_as="answered" if told else "moot")


def _open_call(builder: StepBuilder, native_call_id: str) -> Call | None:
    return next(
        (c for c in builder.calls.values() if c.native_call_id == native_call_id and c.is_the_runtimes),
        None,
    )


def confirm_echo(builder: StepBuilder, draft: Draft) -> bool:
    """Return whether an echo is of an event that the gateway sent, and confirm that event."""
    if isinstance(draft.event, ToolFinished):
        native = draft.event.native_call_id
        if native in builder.memory.wanted or _open_call(builder, native) is not None:
            return False
        # The call has an answer: this is our own, or a repeat of another client's.
        call = builder.memory.hosted.get(native)
        if call is not None and call.answer is not None:
            # If the response to our own request never arrives, this echo proves its delivery.
            reason = None if builder.live else HAS_ANSWER
            builder.send_changes.append(SendChange(call.answer, RUNTIME, "delivered", reason=reason))
        return True
    known = next((said for said in builder.memory.unechoed if _same(said, draft.event)), None)
    if known is None:
        return False
    native = str(draft.native_sequence) if draft.native_sequence is not None else draft.native_id
    reason = describe_unstarted(builder.start, known.event)
    builder.apply(
        DeliverySettled(sequence=known.sequence, target=RUNTIME, state="delivered", reason=reason, native_id=native),
        "to_runtime",
        draft=replace(draft, losses=()),
        caused_by=known.sequence,
    )
    builder.send_changes.append(SendChange(sequence=known.sequence, target=RUNTIME, state="delivered", reason=reason))
    return True


def _same(said: Unechoed, heard: Event) -> bool:
    match said.event, heard:
        case MessagePosted(), MessagePosted():
            return text_of(said.event.content) == text_of(heard.content)
        case ActionOrdered(), ActionOrdered():
            same = said.event.action == heard.action
            return same and all(heard.arguments.get(name) == value for name, value in said.event.arguments.items())
        case ApprovalGiven(), ApprovalGiven():
            return said.event.decision == heard.decision and heard.id in {"", said.event.id}
        case QuestionAnswered(), QuestionAnswered():
            return (said.event.id, said.event.answer) == (heard.id, heard.answer)
        case TurnSteered(), TurnSteered():
            return said.event.text == heard.text
        case one, other:
            return one.kind == other.kind == "turn.interrupted"
