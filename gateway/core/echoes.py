"""Our own words coming back: an echo confirms the oldest thing it can be; the rest is another client. Pure."""

from gateway.core.memory import Unechoed
from gateway.core.starting import said_unstarted
from gateway.core.step_builder import StepBuilder
from gateway.events import (
    ActionOrdered,
    ApprovalGiven,
    DeliverySettled,
    Draft,
    Event,
    MessagePosted,
    Origin,
    QuestionAnswered,
    ToolFinished,
    TurnSteered,
    text_of,
)
from gateway.store.step import RUNTIME, SendChange

HAS_ANSWER = "the runtime's history has an answer to this call"


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
    builder.record(
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
