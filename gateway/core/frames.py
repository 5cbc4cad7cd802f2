"""What each native message means: calls, cancels, messages, and everything that is only witnessed. Pure."""

from dataclasses import replace

from gateway.core import calls as life, starting
from gateway.core.calls import OVERLOADED
from gateway.core.council import Council
from gateway.core.decision import Building
from gateway.core.echoes import confirm_echo
from gateway.core.effects import Dispatch, Queue, Resend, Tell
from gateway.core.folding import ENDED, is_task, where
from gateway.core.interactions import ask_again, close_gone, derive_approval, make_room, open_asked
from gateway.core.messages import burst_message
from gateway.core.outcomes import end_elsewhere, has_no_room, open_call, settle
from gateway.core.routing import Matched, Unmatched
from gateway.core.saying import begin_turn, origin_of, witness
from gateway.core.state import OpenCall
from gateway.envelope import (
    ApprovalAsked,
    Author,
    CallId,
    Draft,
    Event,
    FrameRejected,
    Loss,
    MessagePosted,
    MessageStreamed,
    Opaque,
    Origin,
    Outcome,
    QuestionAsked,
    SecretAsked,
    SessionMoved,
    Text,
    ThreadReceived,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    call_id as name_call,
)
from gateway.envelope.weight import weight
from gateway.errors import MalformedFrame
from gateway.ports.adapter import Frame
from gateway.ports.executor import Answered
from gateway.ports.rows import CallRow
from gateway.ports.step import RUNTIME, SendChange

_EXCERPT = 500
_PARTIAL = 65_536


def take(
    council: Council, build: Building, frame: Frame, *, cursor: str | None = None, overloaded: bool = False
) -> None:
    """Take one native message."""
    build.cursor = cursor or build.cursor
    try:
        drafts = council.codec.decode(frame)
    except MalformedFrame as exc:
        rejected = FrameRejected(
            channel=frame.channel[:64], reason=exc.reason, path=exc.path, excerpt=repr(frame.payload)[:_EXCERPT]
        )
        build.record(rejected, "from_runtime", origin=Origin(council.adapter, council.protocol))
        return
    for draft in drafts:
        _draft(council, build, draft, overloaded=overloaded)


def _draft(council: Council, build: Building, draft: Draft, *, overloaded: bool) -> None:
    if council.capabilities.starts_deaf and not _is_gone_by(build, draft):
        build.start = starting.told(build.start, draft, build.now)
    if draft.native_id is not None and build.has_taken(draft.native_id):
        return
    if draft.live:
        _show(build, draft.event)
        return
    if draft.echo and confirm_echo(build, draft, origin_of(council, draft)):
        return
    if draft.echo and isinstance(draft.event, MessagePosted) and is_task(build.memory, draft.event):
        draft = _task(draft, draft.event)
    if build.live and isinstance(draft.event, ApprovalAsked | QuestionAsked | SecretAsked):
        make_room(council, build, draft.event)
    before = build.memory.asked
    if isinstance(draft.event, MessagePosted) and not draft.echo:
        build.partial = ""
    _place(council, build, draft, overloaded=overloaded)
    derive_approval(council, build)
    close_gone(build, before)


def _task(draft: Draft, event: MessagePosted) -> Draft:
    """What looks like a client's message is the agent's word to its delegate."""
    note = "said by the agent to its delegate, in its user's name"
    lost = Loss(how="narrowed", path="/source", note=note)
    said = event.model_copy(update={"author": Author(role="system")})
    return replace(draft, event=said, echo=False, losses=(*draft.losses, lost))


def _place(council: Council, build: Building, draft: Draft, *, overloaded: bool) -> None:
    """Put a draft where its kind belongs."""
    match draft.event:
        case ToolRequested(runs_in="host") if build.live:
            _requested(council, build, draft, draft.event, overloaded=overloaded)
        case ToolRequested(runs_in="runtime"):
            _runtime_acts(council, build, draft, draft.event)
        case ToolFinished() if draft.echo:
            _answered_elsewhere(council, build, draft, draft.event)
        case ToolFinished():
            _runtime_finished(council, build, draft, draft.event)
        case ToolCanceled():
            _canceled(council, build, draft, draft.event)
        case MessagePosted(burst=burst) if burst is not None:
            burst_message(council, build, draft, draft.event)
        case SessionMoved():
            _moved(council, build, draft, draft.event)
        case ApprovalAsked() | QuestionAsked() | SecretAsked():
            witness(council, build, draft, draft.event)
            if build.live:
                open_asked(council, build, build.memory.asked[-1])
        case ThreadReceived():
            witness(council, build, draft, draft.event)
            if build.memory.running and build.memory.state in ENDED and not build.memory.delegating:
                # What was said last was a delegate's end; the agent itself goes on, and says nothing of it.
                build.record(SessionMoved(state="running", reason="inferred: a delegate has ended"), "from_runtime")
        case event:
            witness(council, build, draft, event, direction="to_runtime" if draft.echo else "from_runtime")


def _show(build: Building, event: Event) -> None:
    build.touched_at = build.now
    if isinstance(event, MessageStreamed):
        build.partial = (build.partial + event.text)[-_PARTIAL:]
    build.effects.append(Tell(event, after=build.last_sequence))


def _is_gone_by(build: Building, draft: Draft) -> bool:
    """Whether the runtime has said a newer state than this."""
    said, newest = where(draft), build.memory.stated
    return said is not None and newest is not None and said.is_before(newest)


def _moved(council: Council, build: Building, draft: Draft, event: SessionMoved) -> None:
    """The runtime says how its turn goes; where the turn has ended, nothing of it may hang."""
    if _is_gone_by(build, draft):
        note = "a state gone by: the runtime has said a newer one already"
        gone_by = Opaque(channel=event.kind, payload=event.model_dump(mode="json", exclude_none=True))
        witness(
            council, build, replace(draft, losses=(*draft.losses, Loss(how="narrowed", path="", note=note))), gone_by
        )
        return
    ends = council.capabilities.turns == "signalled" and event.state in ENDED
    if ends and build.partial:
        cut = MessagePosted(author=Author(role="agent"), content=(Text(text=build.partial),), complete=False)
        build.record(cut, "from_runtime", caused_by=build.last_sequence or None)
        build.partial = ""
    witness(council, build, draft, event)
    if not ends or not build.live or (build.memory.delegates and build.memory.delegating):
        return
    for call in [call for call in build.calls.values() if call.redrive_of is None]:
        text = "The turn has ended."
        canceled = Answered(Outcome(outcome="canceled", error=text))
        settle(council, build, call, canceled, tell_reason=text, moot=True)


def _runtime_acts(council: Council, build: Building, draft: Draft, event: ToolRequested) -> None:
    """The runtime does something itself; the same again under a new id replaces what was asked before."""
    known = build.memory.action("", draft.correlation) if draft.correlation else None
    if known is not None and known.tool == event.tool and event.supersedes is None:
        event = event.model_copy(update={"supersedes": known.native_call_id})
    witness(council, build, draft, event)


def _runtime_finished(council: Council, build: Building, draft: Draft, event: ToolFinished) -> None:
    """The runtime has done something: name its tool and what it answers."""
    action = build.memory.action(event.native_call_id, draft.correlation)
    order = build.memory.orders.get(event.native_call_id)
    if action is not None:
        completed = {"native_call_id": event.native_call_id or action.native_call_id, "tool": event.tool or action.tool}
        event = event.model_copy(update=completed)
    witness(council, build, draft, event, caused_by=action.sequence if action is not None else order)


def _answered_elsewhere(council: Council, build: Building, draft: Draft, event: ToolFinished) -> None:
    """Another client has answered a host call: ours is over, and there is nothing left to tell."""
    call = _open_call(build, event.native_call_id)
    known = {"call_id": call.call_id, "tool": call.tool} if call is not None else {}
    witness(council, build, draft, event.model_copy(update=known), direction="to_runtime")
    if call is not None:
        end_elsewhere(build, call, event)


def caught_up(council: Council, build: Building, *, is_starting: bool | None = None) -> None:
    """History has ended: what is still open is acted on now."""
    build.live = True
    build.start = starting.caught_up(build.start, is_starting=is_starting)
    for wanted in list(build.memory.wanted.values()):
        if _open_call(build, wanted.event.native_call_id) is None:
            event = wanted.event
            named, route = _name(council, build, event), _route(council, build, event)
            _start(council, build, event, named, route, sequence=wanted.sequence, recorded_here=False)
    ask_again(council, build)
    derive_approval(council, build)


def connecting(council: Council, build: Building) -> None:
    """A new link is being made; where it replays history, nothing is acted on until it has caught up."""
    build.live = not council.capabilities.resumes
    build.partial, build.start = "", starting.Start()


def _requested(council: Council, build: Building, draft: Draft, event: ToolRequested, *, overloaded: bool) -> None:
    named = _name(council, build, event)
    known = build.calls.get(named[0]) or build.known.get(event.native_call_id)
    if known is not None and not _is_new(build, event, known):
        return
    route = _route(council, build, event)
    if not isinstance(route, Matched) and council.policy.routes.unrouted == "ignore" and event.problem is None:
        witness(council, build, draft, event)
        return
    begin_turn(council, build)
    sequence, _ = witness(council, build, draft, event.model_copy(update={"call_id": named[0]}))
    _start(council, build, event, named, route, sequence=sequence, recorded_here=True, overloaded=overloaded)


def _is_new(build: Building, event: ToolRequested, known: OpenCall | CallRow) -> bool:
    """Whether a native id that was used before asks for something else now; a repeat is dealt with here.

    A reused id whose first call has ended is only found once its `Open` was stale, and is looked up then.
    """
    same = known.args_sha == life.fingerprint(event.tool, event.arguments)
    if life.is_open(known.state):
        if not same:
            reason = f"call {event.native_call_id[:100]!r} is still open and was sent again with other arguments"
            build.record(FrameRejected(channel="tool.requested", reason=reason), "from_runtime")
        return False
    if same and isinstance(known, CallRow):
        _again(build, known)
    return not same


def _name(council: Council, build: Building, event: ToolRequested) -> tuple[CallId, int]:
    settled = build.known.get(event.native_call_id)
    n = 0 if settled is None else settled.n + 1
    native_session = build.base.native_id
    named = name_call(
        runtime=council.runtime, native_session_id=native_session, native_call_id=event.native_call_id, n=n
    )
    return named, n


def _route(council: Council, build: Building, event: ToolRequested) -> Matched | Unmatched:
    return council.policy.routes.executor_for(
        runtime=council.runtime, kind=event.kind, tool=event.tool, labels=build.memory.labels
    )


def _start(
    council: Council,
    build: Building,
    event: ToolRequested,
    named: tuple[CallId, int],
    route: Matched | Unmatched,
    *,
    sequence: int,
    recorded_here: bool,
    overloaded: bool = False,
) -> None:
    """Open a call that is on record, and let it leave if it may."""
    executor = route.executor if isinstance(route, Matched) else None
    if executor is None and council.policy.routes.unrouted == "ignore" and event.problem is None:
        return
    size = weight(event.arguments)
    overloaded = overloaded or has_no_room(council, build, size)
    refusal = OVERLOADED if overloaded else refusal_of(council, event, executor)
    leaves_now = refusal is None and executor is not None and build.take_slot(executor)
    missing = None if refusal is not None or leaves_now or executor is None else build.refusal(executor)
    policy = council.policy.executors.get(executor or "", life.RetryPolicy())
    call_id, n = named
    call = OpenCall(
        call_id=call_id,
        native_call_id=event.native_call_id,
        n=n,
        tool=event.tool,
        arguments=event.arguments,
        args_sha=life.fingerprint(event.tool, event.arguments),
        state="dispatched" if leaves_now else "queued",
        attempt=1 if leaves_now else 0,
        created_at=build.now,
        deadline_at=build.now + policy.deadline,
        request_sequence=sequence,
        executor=executor,
        size=size,
    )
    open_call(build, call, recorded_here=recorded_here)
    if refusal is not None:
        settle(council, build, call, life.failure(refusal))
    elif missing is not None:
        settle(council, build, call, life.turned_away(missing), dead=True)
    elif leaves_now:
        build.effects.append(Dispatch(call))
    elif executor is not None:
        build.effects.append(Queue(call_id, executor))


def refusal_of(council: Council, event: ToolRequested, executor: str | None) -> str | None:
    """Say why a call cannot go to an executor at all, in words for the agent."""
    if event.problem is not None:
        return event.problem
    if executor is None:
        if event.tool in council.policy.declared:
            return f"The tool {event.tool!r} is not available here."
        return f"Unknown tool: {event.tool}"
    return council.policy.check_arguments(event.tool, event.arguments)


def _again(build: Building, settled: CallRow) -> None:
    """A settled call was asked again, word for word: its outcome is offered again."""
    if settled.outcome_sequence is not None and settled.deliver:
        build.change_send(SendChange(sequence=settled.outcome_sequence, target=RUNTIME, state="pending"))
        build.effects.append(Resend(settled.outcome_sequence))


def _canceled(council: Council, build: Building, draft: Draft, event: ToolCanceled) -> None:
    call = _open_call(build, event.native_call_id)
    known = {"call_id": call.call_id if call else None, "tool": call.tool if call else event.tool}
    witness(council, build, draft, event.model_copy(update=known))
    if call is None:
        return
    reason = event.reason or "Canceled by the agent."
    canceled = Answered(Outcome(outcome="canceled", error=reason))
    settle(council, build, call, canceled, tell_reason=reason, moot=not council.capabilities.answers_cancel)


def _open_call(build: Building, native_call_id: str) -> OpenCall | None:
    return next(
        (c for c in build.calls.values() if c.native_call_id == native_call_id and c.redrive_of is None),
        None,
    )
