"""What each native message means: calls, cancels, messages, echoes, and everything that is only recorded. Pure."""

from gateway.adapter.port import Frame
from gateway.core.calls import (
    OVERLOADED,
    end_elsewhere,
    failure,
    fingerprint,
    has_no_room,
    settle,
    turned_away,
)
from gateway.core.confirmations import burst_message
from gateway.core.effects import Dispatch, Queue, Resend, Tell
from gateway.core.fold import ENDED, is_task, where
from gateway.core.interactions import ask_again, close_gone, derive_approval, make_room, open_asked
from gateway.core.routing import Matched, Unmatched
from gateway.core.session import USUAL_RETRY, RuntimeContext, StepBuilder, apply_draft, begin_turn, origin_of
from gateway.core.state import Start, Unechoed, said_unstarted, start_caught_up, start_told
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
    MessageStreamed,
    Opaque,
    Origin,
    Outcome,
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
from gateway.events.frozen import replace
from gateway.events.weight import weight
from gateway.executors.port import Answered
from gateway.store.call import Call, Open
from gateway.store.step import RUNTIME, SendChange

_EXCERPT = 500
_PARTIAL = 65_536
HAS_ANSWER = "the runtime's history has an answer to this call"


def take(
    runtime: RuntimeContext, builder: StepBuilder, frame: Frame, *, cursor: str | None = None, overloaded: bool = False
) -> None:
    """Take one native message."""
    builder.cursor = cursor or builder.cursor
    try:
        drafts = runtime.codec.decode(frame)
    except MalformedFrame as exc:
        rejected = FrameRejected(
            channel=frame.channel[:64], reason=exc.reason, path=exc.path, excerpt=repr(frame.payload)[:_EXCERPT]
        )
        builder.apply(rejected, "from_runtime", origin=Origin(runtime.adapter, runtime.protocol))
        return
    for draft in drafts:
        _draft(runtime, builder, draft, overloaded=overloaded)


def _draft(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, *, overloaded: bool) -> None:
    if runtime.capabilities.starts_deaf and not _is_gone_by(builder, draft):
        builder.start = start_told(builder.start, draft, builder.now)
    if draft.native_id is not None and builder.has_taken(draft.native_id):
        return
    if draft.live:
        _show(builder, draft.event)
        return
    if draft.echo and confirm_echo(builder, draft, origin_of(runtime, draft)):
        return
    if draft.echo and isinstance(draft.event, MessagePosted) and is_task(builder.memory, draft.event):
        draft = _task(draft, draft.event)
    if builder.live and isinstance(draft.event, ApprovalAsked | QuestionAsked | SecretAsked):
        make_room(runtime, builder, draft.event)
    before = builder.memory.asked
    if isinstance(draft.event, MessagePosted) and not draft.echo:
        builder.partial = ""
    _place(runtime, builder, draft, overloaded=overloaded)
    derive_approval(runtime, builder)
    if builder.memory.asked is not before:
        close_gone(builder, before)


def _task(draft: Draft, event: MessagePosted) -> Draft:
    """What looks like a client's message is the agent's word to its delegate."""
    note = "said by the agent to its delegate, in its user's name"
    lost = Loss(how="narrowed", path="/source", note=note)
    said = event.model_copy(update={"author": Author(role="system")})
    return replace(draft, event=said, echo=False, losses=(*draft.losses, lost))


def _place(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, *, overloaded: bool) -> None:
    """Put a draft where its kind belongs."""
    match draft.event:
        case ToolRequested(runs_in="host") if builder.live:
            _requested(runtime, builder, draft, draft.event, overloaded=overloaded)
        case ToolRequested(runs_in="runtime"):
            _runtime_acts(runtime, builder, draft, draft.event)
        case ToolFinished() if draft.echo:
            _answered_elsewhere(runtime, builder, draft, draft.event)
        case ToolFinished():
            _runtime_finished(runtime, builder, draft, draft.event)
        case ToolCanceled():
            _canceled(runtime, builder, draft, draft.event)
        case MessagePosted(burst=burst) if burst is not None:
            burst_message(runtime, builder, draft, draft.event)
        case SessionMoved():
            _moved(runtime, builder, draft, draft.event)
        case ApprovalAsked() | QuestionAsked() | SecretAsked():
            apply_draft(runtime, builder, draft, draft.event)
            if builder.live:
                open_asked(runtime, builder, builder.memory.asked[-1])
        case ThreadReceived():
            apply_draft(runtime, builder, draft, draft.event)
            if builder.memory.running and builder.memory.state in ENDED and not builder.memory.delegating:
                # What was said last was a delegate's end; the agent itself goes on, and says nothing of it.
                builder.apply(SessionMoved(state="running", reason="inferred: a delegate has ended"), "from_runtime")
        case event:
            apply_draft(runtime, builder, draft, event, direction="to_runtime" if draft.echo else "from_runtime")


def _show(builder: StepBuilder, event: Event) -> None:
    builder.touched_at = builder.now
    if isinstance(event, MessageStreamed):
        builder.partial = (builder.partial + event.text)[-_PARTIAL:]
    builder.effects.append(Tell(event, after=builder.last_sequence))


def _is_gone_by(builder: StepBuilder, draft: Draft) -> bool:
    """Whether the runtime has said a newer state than this."""
    said, newest = where(draft), builder.memory.stated
    return said is not None and newest is not None and said.is_before(newest)


def _moved(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: SessionMoved) -> None:
    """The runtime says how its turn goes; where the turn has ended, nothing of it may hang."""
    if _is_gone_by(builder, draft):
        note = "a state gone by: the runtime has said a newer one already"
        gone_by = Opaque(channel=event.kind, payload=event.model_dump(mode="json", exclude_none=True))
        apply_draft(
            runtime, builder, replace(draft, losses=(*draft.losses, Loss(how="narrowed", path="", note=note))), gone_by
        )
        return
    ends = runtime.capabilities.turns == "signalled" and event.state in ENDED
    if ends and builder.partial:
        cut = MessagePosted(author=Author(role="agent"), content=(Text(text=builder.partial),), complete=False)
        builder.apply(cut, "from_runtime", caused_by=builder.last_sequence or None)
        builder.partial = ""
    apply_draft(runtime, builder, draft, event)
    if not ends or not builder.live or (builder.memory.delegates and builder.memory.delegating):
        return
    for call in [call for call in builder.calls.values() if call.redrive_of is None]:
        text = "The turn has ended."
        canceled = Answered(Outcome(outcome="canceled", error=text))
        settle(runtime, builder, call, canceled, tell_reason=text, moot=True)


def _runtime_acts(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: ToolRequested) -> None:
    """The runtime does something itself; the same again under a new id replaces what was asked before."""
    known = builder.memory.action("", draft.correlation) if draft.correlation else None
    if known is not None and known.tool == event.tool and event.supersedes is None:
        event = event.model_copy(update={"supersedes": known.native_call_id})
    apply_draft(runtime, builder, draft, event)


def _runtime_finished(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: ToolFinished) -> None:
    """The runtime has done something: name its tool and what it answers."""
    action = builder.memory.action(event.native_call_id, draft.correlation)
    order = builder.memory.orders.get(event.native_call_id)
    if action is not None:
        completed = {"native_call_id": event.native_call_id or action.native_call_id, "tool": event.tool or action.tool}
        event = event.model_copy(update=completed)
    apply_draft(runtime, builder, draft, event, caused_by=action.sequence if action is not None else order)


def _answered_elsewhere(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: ToolFinished) -> None:
    """Another client has answered a host call: ours is over, and there is nothing left to tell."""
    call = _open_call(builder, event.native_call_id)
    known = {"call_id": call.call_id, "tool": call.tool} if call is not None else {}
    apply_draft(runtime, builder, draft, event.model_copy(update=known), direction="to_runtime")
    if call is not None:
        end_elsewhere(builder, call, event)


def caught_up(runtime: RuntimeContext, builder: StepBuilder, *, is_starting: bool | None = None) -> None:
    """History has ended: what is still open is acted on now."""
    builder.live = True
    builder.start = start_caught_up(builder.start, is_starting=is_starting)
    for wanted in list(builder.memory.wanted.values()):
        if _open_call(builder, wanted.event.native_call_id) is None:
            event = wanted.event
            named, route = _name(runtime, builder, event), _route(runtime, builder, event)
            _start(runtime, builder, event, named, route, sequence=wanted.sequence)
    ask_again(runtime, builder)
    derive_approval(runtime, builder)


def connecting(runtime: RuntimeContext, builder: StepBuilder) -> None:
    """A new link is being made; where it replays history, nothing is acted on until it has caught up."""
    builder.live = not runtime.capabilities.resumes
    builder.partial, builder.start = "", Start()


def _requested(
    runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: ToolRequested, *, overloaded: bool
) -> None:
    named = _name(runtime, builder, event)
    known = builder.calls.get(named[0]) or builder.known.get(event.native_call_id)
    if known is not None and not _is_new(builder, event, known):
        return
    route = _route(runtime, builder, event)
    if not isinstance(route, Matched) and runtime.policy.routes.unrouted == "ignore" and event.problem is None:
        apply_draft(runtime, builder, draft, event)
        return
    begin_turn(runtime, builder)
    new = apply_draft(runtime, builder, draft, event.model_copy(update={"call_id": named[0]}))
    _start(runtime, builder, event, named, route, sequence=new.sequence, overloaded=overloaded)


def _is_new(builder: StepBuilder, event: ToolRequested, known: Call) -> bool:
    """Whether a native id that was used before asks for something else now; a repeat is dealt with here.

    A reused id whose first call has ended is only found once its `Open` was stale, and is looked up then.
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


def _name(runtime: RuntimeContext, builder: StepBuilder, event: ToolRequested) -> tuple[CallId, int]:
    settled = builder.known.get(event.native_call_id)
    n = 0 if settled is None else settled.n + 1
    native_session = builder.base.native_id
    named = name_call(runtime=runtime.name, native_session_id=native_session, native_call_id=event.native_call_id, n=n)
    return named, n


def _route(runtime: RuntimeContext, builder: StepBuilder, event: ToolRequested) -> Matched | Unmatched:
    return runtime.policy.routes.executor_for(
        runtime=runtime.name, kind=event.kind, tool=event.tool, labels=builder.memory.labels
    )


def _start(
    runtime: RuntimeContext,
    builder: StepBuilder,
    event: ToolRequested,
    named: tuple[CallId, int],
    route: Matched | Unmatched,
    *,
    sequence: int,
    overloaded: bool = False,
) -> None:
    """Open a call that is on record, and let it leave if it may."""
    executor = route.executor if isinstance(route, Matched) else None
    if executor is None and runtime.policy.routes.unrouted == "ignore" and event.problem is None:
        return
    size = weight(event.arguments)
    overloaded = overloaded or has_no_room(runtime, builder, size)
    refusal = OVERLOADED if overloaded else refusal_of(runtime, event, executor)
    leaves_now = refusal is None and executor is not None and builder.take_slot(executor)
    missing = None if refusal is not None or leaves_now or executor is None else builder.refusal(executor)
    policy = runtime.policy.executors.get(executor or "", USUAL_RETRY)
    call_id, n = named
    call = Call(
        call_id=call_id,
        session_id=builder.base.session_id,
        runtime=runtime.name,
        native_call_id=event.native_call_id,
        n=n,
        tool=event.tool,
        arguments=event.arguments,
        args_sha=fingerprint(event.tool, event.arguments),
        state="dispatched" if leaves_now else "queued",
        attempt=1 if leaves_now else 0,
        created_at=builder.now,
        deadline_at=builder.now + policy.deadline,
        request_sequence=sequence,
        executor=executor,
        size=size,
    )
    index = sequence - builder.base.last_sequence - 1
    builder.change_call(Open(call, index if index >= 0 else None))
    if refusal is not None:
        settle(runtime, builder, call, failure(refusal))
    elif missing is not None:
        settle(runtime, builder, call, turned_away(missing), dead=True)
    elif leaves_now:
        builder.effects.append(Dispatch(call))
    elif executor is not None:
        builder.effects.append(Queue(call_id, executor))


def refusal_of(runtime: RuntimeContext, event: ToolRequested, executor: str | None) -> str | None:
    """Say why a call cannot go to an executor at all, in words for the agent."""
    if event.problem is not None:
        return event.problem
    if executor is None:
        if event.tool in runtime.policy.declared:
            return f"The tool {event.tool!r} is not available here."
        return f"Unknown tool: {event.tool}"
    return runtime.policy.check_arguments(event.tool, event.arguments)


def _again(builder: StepBuilder, settled: Call) -> None:
    """A settled call was asked again, word for word: its outcome is offered again."""
    if settled.outcome_sequence is not None and settled.deliver:
        builder.change_send(SendChange(sequence=settled.outcome_sequence, target=RUNTIME, state="pending"))
        builder.effects.append(Resend(settled.outcome_sequence))


def _canceled(runtime: RuntimeContext, builder: StepBuilder, draft: Draft, event: ToolCanceled) -> None:
    call = _open_call(builder, event.native_call_id)
    known = {"call_id": call.call_id if call else None, "tool": call.tool if call else event.tool}
    apply_draft(runtime, builder, draft, event.model_copy(update=known))
    if call is None:
        return
    reason = event.reason or "Canceled by the agent."
    canceled = Answered(Outcome(outcome="canceled", error=reason))
    settle(runtime, builder, call, canceled, tell_reason=reason, moot=not runtime.capabilities.answers_cancel)


def _open_call(builder: StepBuilder, native_call_id: str) -> Call | None:
    return next(
        (c for c in builder.calls.values() if c.native_call_id == native_call_id and c.redrive_of is None),
        None,
    )


def confirm_echo(builder: StepBuilder, draft: Draft, origin: Origin) -> bool:
    """Take a frame as our own words, if it can be; False where somebody else spoke."""
    if isinstance(draft.event, ToolFinished):
        # Answered calls are no longer wanted: this is our own answer, or a repeat of somebody's.
        if draft.event.native_call_id in builder.memory.wanted:
            return False
        call = builder.memory.hosted.get(draft.event.native_call_id)
        if call is not None and call.answer is not None:
            # Should the answer to our own request never come, this has told its fate.
            reason = None if builder.live else HAS_ANSWER
            builder.change_send(SendChange(call.answer, RUNTIME, "delivered", reason=reason))
        return True
    known = next((said for said in builder.memory.unechoed if _same(said, draft.event)), None)
    if known is None:
        return False
    native = str(draft.native_sequence) if draft.native_sequence is not None else draft.native_id
    reason = said_unstarted(builder.start, known.event)
    builder.apply(
        DeliverySettled(sequence=known.sequence, target=RUNTIME, state="delivered", reason=reason, native_id=native),
        "to_runtime",
        origin=origin,
        caused_by=known.sequence,
        dedupe_key=draft.native_id,
    )
    builder.change_send(SendChange(sequence=known.sequence, target=RUNTIME, state="delivered", reason=reason))
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
