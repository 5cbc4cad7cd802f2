"""The council: what each thing that happens to a session means, as one step and the effects after it. Pure.

Every method adds to a `Building`; nothing here waits, sends or reads a clock. The rules that need
memory (repeats, cancels, turns, confirmations, full contexts) are all here and in `core.adapt`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from gateway.core import calls as life
from gateway.core.adapt import adapt, expressible_outcome, full_context, hydration
from gateway.core.decision import Building
from gateway.core.effects import Ask, Dispatch, Queue, Release, Resend, Tell, Transmit
from gateway.core.requests import ask_data, canceled_data
from gateway.core.routing import Matched, Routes
from gateway.core.state import Confirmation, OpenCall, SessionView, fold, turn_end_due
from gateway.envelope import (
    CallId,
    CallProgressed,
    ContextUpdated,
    DeliverySettled,
    Direction,
    Draft,
    Event,
    FrameRejected,
    LinkChanged,
    Loss,
    MessageConfirmed,
    MessagePosted,
    Origin,
    Outcome,
    OutcomeIgnored,
    SessionClosed,
    SessionMoved,
    ToolCanceled,
    ToolFinished,
    ToolRequested,
    TurnInterrupted,
    call_id as name_call,
)
from gateway.errors import CannotExpress, Conflict, Inexpressible, MalformedFrame
from gateway.ports.adapter import Capabilities, Codec, Frame, RuntimeOptions
from gateway.ports.engine import (
    RUNTIME,
    Accept,
    CallRow,
    Claim,
    Lane,
    MarkCanceling,
    Open,
    Requeue,
    Send,
    SendChange,
    SendState,
    Settle,
)
from gateway.ports.executor import Answer, Answered, Replied

OVERLOADED = "The gateway is overloaded; try again later."
_EXCERPT = 500


@dataclass(frozen=True, slots=True)
class Policy:
    """What the configuration says about calls; replaced as a whole on reload."""

    routes: Routes = field(default_factory=Routes)
    executors: Mapping[str, life.RetryPolicy] = field(default_factory=dict[str, life.RetryPolicy])
    check_arguments: Callable[[str, Mapping[str, Any]], str | None] = lambda _tool, _arguments: None
    """Says in one text for the agent what is wrong with a call's arguments, or None."""
    declared: frozenset[str] = frozenset()
    cancel_grace: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Council:
    """Decides for all sessions of one runtime."""

    adapter: str
    protocol: str
    runtime: str
    capabilities: Capabilities
    codec: Codec
    options: RuntimeOptions
    policy: Policy

    # What the runtime says -------------------------------------------------------------------------------

    def frame(self, build: Building, frame: Frame, *, cursor: str | None = None, overloaded: bool = False) -> None:
        """Take one native message."""
        build.cursor = cursor or build.cursor
        try:
            drafts = self.codec.decode(frame)
        except MalformedFrame as exc:
            rejected = FrameRejected(
                channel=frame.channel[:64], reason=exc.reason, path=exc.path, excerpt=repr(frame.payload)[:_EXCERPT]
            )
            build.record(rejected, "from_runtime", origin=Origin(self.adapter, self.protocol))
            return
        for draft in drafts:
            self._draft(build, draft, overloaded=overloaded)

    def _draft(self, build: Building, draft: Draft, *, overloaded: bool) -> None:
        match draft.event:
            case event if draft.live:
                build.effects.append(Tell(event))
            case ToolRequested(runs_in="host"):
                self._requested(build, draft, draft.event, overloaded=overloaded)
            case ToolCanceled():
                self._canceled(build, draft, draft.event)
            case MessagePosted(burst=burst) if burst is not None and self.capabilities.confirms_messages is not None:
                self._burst_message(build, draft, draft.event)
            case event:
                self._witness(build, draft, event)

    def _witness(
        self, build: Building, draft: Draft, event: Event, *, direction: Direction = "from_runtime"
    ) -> tuple[int, str]:
        """Put a draft on record; returns its sequence and event id."""
        origin = Origin(self.adapter, self.protocol, draft.native_id, draft.native_sequence, draft.native_time)
        new = build.record(event, direction, origin=origin, losses=draft.losses, dedupe_key=draft.native_id)
        return build.last_sequence, new.event_id

    def _requested(self, build: Building, draft: Draft, event: ToolRequested, *, overloaded: bool) -> None:
        sha = life.fingerprint(event.tool, event.arguments)
        waiting = _open_call(build, event.native_call_id)
        if waiting is not None:
            if waiting.args_sha != sha:
                reason = f"call {event.native_call_id[:100]!r} is still open and was sent again with other arguments"
                build.record(FrameRejected(channel="tool.requested", reason=reason), "from_runtime")
            return
        n = 0
        settled = build.known.get(event.native_call_id)
        if settled is not None:
            if settled.args_sha == sha:
                self._again(build, settled)
                return
            n = settled.n + 1
        route = self.policy.routes.executor_for(
            runtime=self.runtime, kind=event.kind, tool=event.tool, labels=build.memory.labels
        )
        if not isinstance(route, Matched) and self.policy.routes.unrouted == "ignore" and event.problem is None:
            self._witness(build, draft, event)
            return
        self._begin_turn(build)
        call_id = name_call(
            runtime=self.runtime, native_session_id=build.base.native_id, native_call_id=event.native_call_id, n=n
        )
        sequence, _ = self._witness(build, draft, event.model_copy(update={"call_id": call_id}))
        executor = route.executor if isinstance(route, Matched) else None
        refusal = OVERLOADED if overloaded else self._refusal(event, executor)
        leaves_now = refusal is None and executor is not None and build.take_slot(executor)
        policy = self.policy.executors.get(executor or "", life.RetryPolicy())
        call = OpenCall(
            call_id=call_id,
            native_call_id=event.native_call_id,
            n=n,
            tool=event.tool,
            arguments=event.arguments,
            args_sha=sha,
            state="dispatched" if leaves_now else "queued",
            attempt=1 if leaves_now else 0,
            created_at=build.now,
            deadline_at=build.now + policy.deadline,
            request_sequence=sequence,
            executor=executor,
        )
        self._open(build, call)
        if refusal is not None:
            self._settle(build, call, life.failure(refusal))
        elif leaves_now:
            build.effects.append(Dispatch(call))
        elif executor is not None:
            build.effects.append(Queue(call_id, executor))

    def _refusal(self, event: ToolRequested, executor: str | None) -> str | None:
        """Say why a call cannot go to an executor at all, in words for the agent."""
        if event.problem is not None:
            return event.problem
        if executor is None:
            if event.tool in self.policy.declared:
                return f"The tool {event.tool!r} is not available here."
            return f"Unknown tool: {event.tool}"
        return self.policy.check_arguments(event.tool, event.arguments)

    def _open(self, build: Building, call: OpenCall) -> None:
        build.change_call(
            Open(
                call_id=call.call_id,
                native_call_id=call.native_call_id,
                n=call.n,
                tool=call.tool,
                args_sha=call.args_sha,
                state=call.state,
                attempt=call.attempt,
                deadline_at=call.deadline_at,
                request_index=len(build.events) - 1 if call.redrive_of is None else None,
                request_sequence=None if call.redrive_of is None else call.request_sequence,
                executor=call.executor,
                key=call.key,
                redrive_of=call.redrive_of,
                deliver=call.deliver,
            ),
            opened=call,
        )

    def _again(self, build: Building, settled: CallRow) -> None:
        """A settled call was asked again, word for word: its outcome is offered again."""
        if settled.outcome_sequence is not None and settled.deliver:
            build.change_send(SendChange(sequence=settled.outcome_sequence, target=RUNTIME, state="pending"))
            build.effects.append(Resend(settled.outcome_sequence))

    def _canceled(self, build: Building, draft: Draft, event: ToolCanceled) -> None:
        call = _open_call(build, event.native_call_id)
        known = {"call_id": call.call_id if call else None, "tool": call.tool if call else event.tool}
        self._witness(build, draft, event.model_copy(update=known))
        if call is None:
            return
        reason = event.reason or "Canceled by the agent."
        canceled = Answered(Outcome(outcome="canceled", error=reason))
        self._settle(build, call, canceled, tell_reason=reason, moot=not self.capabilities.answers_cancel)

    def _burst_message(self, build: Building, draft: Draft, event: MessagePosted) -> None:
        assert event.burst is not None
        known = build.memory.confirmation(event.burst.call, event.burst.index)
        if known is not None:
            return
        self._begin_turn(build)
        _, event_id = self._witness(build, draft, event)
        route = self.policy.routes.executor_for(runtime=self.runtime, kind=event.kind, labels=build.memory.labels)
        waiting = build.memory.confirmation(event.burst.call, event.burst.index)
        assert waiting is not None
        if isinstance(route, Matched):
            self._ask(build, waiting, event, executor=route.executor, key=event_id)
        else:
            self._confirm(build, waiting, Replied({}))

    def _ask(self, build: Building, waiting: Confirmation, event: Event, *, executor: str, key: str) -> None:
        deadline_at = waiting.posted_at + self.options.confirm_timeout
        data = ask_data(build.base, event, protocol=self.protocol, labels=build.memory.labels, deadline_at=deadline_at)
        build.effects.append(
            Ask(
                sequence=waiting.sequence,
                key=key,
                kind=event.kind,
                executor=executor,
                data=data,
                deadline_at=deadline_at,
            )
        )

    # What executors and operators say --------------------------------------------------------------------

    def answered(self, build: Building, call_id: CallId, attempt: int, answer: Answer, *, dice: float) -> None:
        """Take the answer of one attempt."""
        call = build.calls.get(call_id)
        if call is None or call.state == "accepted":
            return
        if call.attempt != attempt or call.state != "dispatched":
            if isinstance(answer, Answered) and answer.outcome.outcome == "success":
                self._settle(build, call, answer)
            return
        policy = self.policy.executors.get(call.executor or "", life.RetryPolicy())
        verdict = life.judge(
            answer, policy=policy, attempt=attempt, deadline_at=call.deadline_at, now=build.now, dice=dice
        )
        match verdict:
            case life.End(result):
                self._settle(build, call, result)
            case life.Wait(deadline_at):
                build.change_call(Accept(call_id, deadline_at))
            case life.Retry() if call.canceling_until is not None:
                self._settle(build, call, Answered(Outcome(outcome="canceled", error="Canceled by an operator.")))
            case life.Retry(due_at, reason):
                build.change_call(Requeue(call_id, due_at, reason))
                build.effects.append(Queue(call_id, call.executor or "", due_at))

    def outcome(self, build: Building, call_id: CallId, answered: Answered) -> bool:
        """Take an outcome that came by callback or API; False where the call is no longer open."""
        call = build.calls.get(call_id)
        if call is None:
            return False
        self._settle(build, call, answered)
        return True

    def late_outcome(self, build: Building, row: CallRow, answered: Answered) -> None:
        """Put an outcome on record that came after the call had ended."""
        outcome = answered.outcome
        ignored = OutcomeIgnored(
            native_call_id=row.native_call_id,
            call_id=row.call_id,
            outcome=outcome.outcome,
            result=outcome.result,
            error=outcome.error,
            reason=f"the call had already {row.state}",
        )
        build.record(ignored, "to_runtime", caused_by=row.request_sequence)

    def progressed(self, build: Building, call_id: CallId, data: dict[str, Any]) -> bool:
        """Take word of an executor on how far a call is; False where it is no longer open."""
        call = build.calls.get(call_id)
        if call is None:
            return False
        event = CallProgressed(native_call_id=call.native_call_id, call_id=call_id, data=data)
        build.record(event, "to_runtime", caused_by=call.request_sequence)
        return True

    def claim(self, build: Building, call_id: CallId) -> bool:
        """A slot is free for a queued call; False where it no longer wants it."""
        call = build.calls.get(call_id)
        if call is None or call.state != "queued":
            return False
        build.change_call(Claim(call_id, call.attempt + 1))
        build.effects.append(Dispatch(build.calls[call_id]))
        return True

    def cancel(self, build: Building, call_id: CallId, *, reason: str | None) -> bool:
        """An operator gives a call up: the executor is told and may still answer for a while."""
        call = build.calls.get(call_id)
        if call is None:
            return False
        text = reason or "Canceled by an operator."
        if call.state == "queued":
            self._settle(build, call, Answered(Outcome(outcome="canceled", error=text)), tell_reason=text)
        elif call.canceling_until is None:
            build.change_call(MarkCanceling(call_id, build.now + self.policy.cancel_grace))
            tell = canceled_data(build.base, call, reason=text)
            build.effects.append(Release(call_id, call.executor, tell=tell, key=call.idempotency_key, stop=False))
        return True

    def redrive(self, build: Building, row: CallRow, request: ToolRequested, *, new_key: bool, deliver: bool) -> CallId:
        """Try an ended call again, as a call of its own with the same idempotency key."""
        route = self.policy.routes.executor_for(
            runtime=self.runtime, kind=request.kind, tool=row.tool, labels=build.memory.labels
        )
        if not isinstance(route, Matched):
            raise Conflict(f"no route takes the tool {row.tool!r} any more, so there is no executor to try again")
        call_id = name_call(
            runtime=self.runtime,
            native_session_id=build.base.native_id,
            native_call_id=f"redrive:{row.call_id}",
            n=build.last_sequence,
        )
        policy = self.policy.executors.get(route.executor, life.RetryPolicy())
        note = CallProgressed(
            native_call_id=row.native_call_id, call_id=row.call_id, data={"redriven_as": call_id, "new_key": new_key}
        )
        build.record(note, "to_runtime", caused_by=row.request_sequence)
        call = OpenCall(
            call_id=call_id,
            native_call_id=row.native_call_id,
            n=row.n,
            tool=row.tool,
            arguments=request.arguments,
            args_sha=row.args_sha,
            state="queued",
            attempt=0,
            created_at=build.now,
            deadline_at=build.now + policy.deadline,
            request_sequence=row.request_sequence,
            executor=route.executor,
            key=None if new_key else (row.key or row.call_id),
            redrive_of=row.call_id,
            deliver=deliver,
        )
        self._open(build, call)
        build.effects.append(Queue(call_id, route.executor))
        return call_id

    def replied(self, build: Building, sequence: int, answer: Answer) -> None:
        """Take the reply about a routed message."""
        waiting = next((c for c in build.memory.confirmations if c.sequence == sequence), None)
        if waiting is not None:
            self._confirm(build, waiting, answer)

    def _settle(
        self, build: Building, call: OpenCall, answered: Answered, *, tell_reason: str | None = None, moot: bool = False
    ) -> None:
        """End a call: updates first, then its one outcome, then what must be told."""
        outcome = answered.outcome
        if outcome.outcome != "success" and not outcome.error:
            outcome = outcome.model_copy(update={"error": "The tool failed and gave no reason."})
        sends = call.deliver and not moot
        losses: list[Loss] = []
        for place, update in enumerate(answered.updates):
            event = ContextUpdated(
                name=update.name, context=update.context, description=update.description, call_id=call.call_id
            )
            try:
                self._say(build, event, caused_by=call.request_sequence, lane="turn", sends=sends)
            except CannotExpress as exc:
                losses.append(Loss(how="dropped", path=f"/updates/{place}{exc.path}", note=exc.reason))
        wakes = outcome.outcome != "canceled" if answered.wakes_agent is None else answered.wakes_agent
        finished = ToolFinished(
            native_call_id=call.native_call_id,
            tool=call.tool,
            outcome=outcome.outcome,
            result=outcome.result if outcome.outcome == "success" else None,
            error=outcome.error,
            wakes_agent=wakes,
            unknown=outcome.unknown,
            call_id=call.call_id,
        )
        adapted = expressible_outcome(finished, self.codec)
        told = adapted.event
        assert isinstance(told, ToolFinished)
        build.record(told, "to_runtime", caused_by=call.request_sequence, losses=(*losses, *adapted.losses))
        index = len(build.events) - 1
        build.expect_open(call.call_id)
        build.change_call(
            Settle(
                call_id=call.call_id,
                state=life.settled_state(outcome.outcome),
                outcome_sha=life.outcome_fingerprint(outcome),
                outcome_index=index,
                unknown=outcome.unknown,
                error=outcome.error,
            )
        )
        if sends:
            build.add_send(Send(index, RUNTIME, "turn"))
            frames = self.codec.encode(Draft(told)).frames
            build.effects.append(Transmit(build.last_sequence, "turn", told.kind, frames, waking=told.wakes_agent))
        told_off = canceled_data(build.base, call, reason=tell_reason) if tell_reason and call.attempt > 0 else None
        build.effects.append(Release(call.call_id, call.executor, tell=told_off, key=call.idempotency_key))

    def _confirm(self, build: Building, waiting: Confirmation, answer: Answer) -> None:
        delivered, error, context = read_confirmation(answer)
        event = MessageConfirmed(native_call_id=waiting.call, index=waiting.index, delivered=delivered, error=error)
        limit = self.capabilities.confirms_messages
        if limit is not None and build.now - waiting.posted_at >= limit:
            # The runtime has gone on and believes the message delivered; only the true state can still be told.
            note = f"not sent: the runtime waits {limit.total_seconds():g} s at most"
            build.record(
                event, "to_runtime", caused_by=waiting.sequence, losses=(Loss(how="dropped", path="", note=note),)
            )
            truth = full_context(build.memory)
            if truth is not None:
                words = "What was said so far; a message was confirmed too late."
                correction = ContextUpdated(name="message-correction", context=truth, description=words)
                self._say(build, correction, caused_by=waiting.sequence, lane="turn")
            return
        if delivered:
            after = fold(build.memory, _Provisional(event, build.now), build.last_sequence + 1)
            event = event.model_copy(update={"context": context if context is not None else full_context(after)})
        try:
            self._say(build, event, caused_by=waiting.sequence, lane="turn")
        except CannotExpress as exc:
            bare = event.model_copy(update={"context": None, "error": event.error and event.error[:_EXCERPT]})
            loss = Loss(how="dropped", path="/context", note=exc.reason)
            self._say(build, bare, caused_by=waiting.sequence, lane="turn", losses=(loss,))

    # What clients say ------------------------------------------------------------------------------------

    def post(self, build: Building, event: Event) -> int:
        """Take an event of an API client; returns the sequence it is on record under.

        Raises:
            Inexpressible: this runtime cannot be told so.
            Conflict: the session is closed.
        """
        if build.memory.closed:
            raise Conflict("the session is closed")
        try:
            match event:
                case MessageConfirmed():
                    return self._confirmed_by_client(build, event)
                case TurnInterrupted():
                    sequence = self._pass_on(build, event, lane="urgent")
                    native = event.kind in self.capabilities.accepts
                    for call in [c for c in build.calls.values() if c.redrive_of is None]:
                        reason = event.reason or "The turn was interrupted."
                        canceled = Answered(Outcome(outcome="canceled", error=reason))
                        self._settle(build, call, canceled, tell_reason=reason, moot=native)
                    return sequence
                case MessagePosted() | ContextUpdated(wakes_agent=True):
                    return self._pass_on(build, event, lane="new_work")
                case _:
                    return self._pass_on(build, event, lane="turn")
        except CannotExpress as exc:
            raise Inexpressible(exc.reason) from exc

    def _pass_on(self, build: Building, event: Event, *, lane: Lane) -> int:
        adapted = adapt(event, build.memory, self.capabilities)
        if getattr(adapted.event, "wakes_agent", False):
            self._begin_turn(build)
        if adapted.event.kind == event.kind:
            return self._say(build, adapted.event, caused_by=None, lane=lane, losses=adapted.losses)
        build.record(event, "to_runtime")
        sequence = build.last_sequence
        self._say(build, adapted.event, caused_by=sequence, lane=lane, losses=adapted.losses)
        return sequence

    def _confirmed_by_client(self, build: Building, event: MessageConfirmed) -> int:
        waiting = build.memory.confirmation(event.native_call_id, event.index)
        if waiting is None:
            raise Conflict(f"no message {event.index} of call {event.native_call_id!r} waits for a confirmation")
        reply: dict[str, Any] = {"delivered": event.delivered, "error": event.error, "context": event.context}
        self._confirm(build, waiting, Replied({key: value for key, value in reply.items() if value is not None}))
        return build.last_sequence

    def _say(
        self,
        build: Building,
        event: Event,
        *,
        caused_by: int | None,
        lane: Lane,
        losses: tuple[Loss, ...] = (),
        sends: bool = True,
    ) -> int:
        """Record an event of an accepted kind and send it; contexts are completed on the way."""
        if isinstance(event, ContextUpdated):
            adapted = adapt(event, build.memory, self.capabilities)
            event, losses = adapted.event, tuple(dict.fromkeys((*losses, *adapted.losses)))
        encoded = self.codec.encode(Draft(event))
        build.record(event, "to_runtime", caused_by=caused_by, losses=(*losses, *encoded.losses))
        if sends:
            waking = bool(getattr(event, "wakes_agent", False))
            build.add_send(Send(len(build.events) - 1, RUNTIME, lane))
            build.effects.append(Transmit(build.last_sequence, lane, event.kind, encoded.frames, waking=waking))
        return build.last_sequence

    # What the surroundings say ---------------------------------------------------------------------------

    def link(self, build: Building, changed: LinkChanged) -> None:
        """Our connection changed; a fresh one is told the last context, before anything that waited."""
        build.record(changed, "from_runtime")
        wanted = self.capabilities.hydrates if self.options.hydrate is None else self.options.hydrate
        if changed.state != "up" or not wanted:
            return
        update = hydration(build.memory)
        if update is not None:
            self._say(build, update, caused_by=build.last_sequence, lane="urgent")

    def delivery(self, build: Building, sequence: int, target: str, state: SendState, *, reason: str | None) -> None:
        """An outbound row has met its fate; what is not plain success is put on record."""
        build.change_send(SendChange(sequence=sequence, target=target, state=state, reason=reason))
        match state:
            case "refused" | "unknown" | "dead":
                settled = DeliverySettled(sequence=sequence, target=target, state=state, reason=reason)
                build.record(settled, "to_runtime", caused_by=sequence)
            case _:
                pass

    def close(self, build: Building, *, reason: str | None) -> None:
        """The session ends for us: nothing of it may hang."""
        for call in list(build.calls.values()):
            text = "The session was closed."
            self._settle(build, call, Answered(Outcome(outcome="canceled", error=text)), tell_reason=text, moot=True)
        build.record(SessionClosed(reason=reason), "to_runtime")

    def tick(self, build: Building) -> None:
        """Time has passed: end what is over."""
        now = build.now
        for call in list(build.calls.values()):
            if call.canceling_until is not None and call.canceling_until <= now:
                self._settle(build, call, Answered(Outcome(outcome="canceled", error="Canceled by an operator.")))
            elif call.deadline_at <= now:
                waited = (now - call.created_at).total_seconds()
                error = f"The tool {call.tool!r} gave no answer within {waited:.0f} s."
                unknown = call.state != "queued" and call.attempt > 0
                expired = Answered(Outcome(outcome="expired", error=error, unknown=unknown))
                self._settle(build, call, expired, tell_reason="The deadline has passed.")
        for waiting in build.memory.confirmations:
            if waiting.posted_at + self.options.confirm_timeout <= now:
                self._confirm(build, waiting, life.failure("not confirmed in time"))
        due = turn_end_due(build.view, quiet=self.options.turn_quiet, timeout=self.options.turn_timeout)
        if due is not None and due <= now and self.capabilities.turns == "inferred":
            build.record(SessionMoved(state="idle", reason="inferred: nothing more happened"), "from_runtime")

    def next_due(self, view: SessionView) -> datetime | None:
        """Say when `tick` has something to do."""
        times = [call.deadline_at for call in view.calls.values()]
        times += [call.canceling_until for call in view.calls.values() if call.canceling_until is not None]
        times += [waiting.posted_at + self.options.confirm_timeout for waiting in view.memory.confirmations]
        if self.capabilities.turns == "inferred":
            due = turn_end_due(view, quiet=self.options.turn_quiet, timeout=self.options.turn_timeout)
            times += [due] if due is not None else []
        return min(times, default=None)

    def recover(self, build: Building) -> None:
        """After a restart: what was under way when the last process ended is taken up again or ended."""
        for call in list(build.calls.values()):
            policy = self.policy.executors.get(call.executor or "")
            if policy is None:
                self._settle(build, call, life.failure(f"The tool {call.tool!r} is no longer available here."))
            elif call.state == "queued":
                build.effects.append(Queue(call.call_id, call.executor or "", call.due_at))
            elif call.state == "dispatched":
                self._recover_dispatched(build, call, policy)
        for waiting in build.memory.confirmations:
            text = "the gateway restarted before the delivery was known"
            self._confirm(build, waiting, life.failure(text, unknown=True))

    def _recover_dispatched(self, build: Building, call: OpenCall, policy: life.RetryPolicy) -> None:
        if policy.idempotent and call.attempt < policy.attempts:
            reason = "the gateway restarted while the executor worked"
            build.change_call(Requeue(call.call_id, build.now, reason))
            build.effects.append(Queue(call.call_id, call.executor or "", build.now))
        else:
            text = "outcome unknown: the gateway restarted while the tool may have been running; it was not tried again"
            self._settle(build, call, life.failure(text, unknown=True))

    def _begin_turn(self, build: Building) -> None:
        if self.capabilities.turns == "inferred" and not build.memory.running:
            build.record(SessionMoved(state="running", reason="inferred"), "from_runtime")


@dataclass(frozen=True, slots=True)
class _Provisional:
    """An event as fold sees it, before it is put on record."""

    event: Event
    recorded_at: datetime
    direction: Direction = "to_runtime"
    losses: tuple[Loss, ...] = ()


def _open_call(build: Building, native_call_id: str) -> OpenCall | None:
    return next(
        (c for c in build.calls.values() if c.native_call_id == native_call_id and c.redrive_of is None),
        None,
    )


def read_confirmation(answer: Answer) -> tuple[bool, str | None, dict[str, Any] | None]:
    """Read `{"delivered", "error", "context"}`; anything that is no clear yes is a no, with a text."""
    match answer:
        case Replied(reply):
            delivered, error, context = reply.get("delivered", True), reply.get("error"), reply.get("context")
            if not isinstance(delivered, bool):
                return False, f"the backend answered delivered={delivered!r:.50}; true or false is allowed", None
            text = error if isinstance(error, str) else None
            if not delivered:
                return False, text or "the backend did not deliver the message", None
            return True, None, cast("dict[str, Any]", context) if isinstance(context, dict) else None
        case Answered(outcome):
            return False, outcome.error or "the backend did not confirm the message", None
        case _:
            return False, "the backend did not confirm the message", None
