"""The outcomes of held calls that their callers have not received, and what a conversation is told of them. Pure."""

import orjson

from gateway.core.session import StepBuilder
from gateway.core.state import Unheard
from gateway.events import CallId, ToolFinished
from gateway.events.frozen import replace
from gateway.store.call import MOST_UNHEARD, SETTLED, Call

GET_RESULT = "get_result"
"""The tool that continues to wait for a call."""
_MOST_TOLD = 2_000
"""Characters of an outcome that a conversation is told."""


def note_unheard(builder: StepBuilder, call: Call, finished: ToolFinished, sequence: int) -> None:
    """Note the outcome of a held call, an event of the step, whose caller has not received it yet."""
    if finished.outcome == "canceled":
        return
    ended = replace(
        call,
        state=SETTLED[finished.outcome],
        outcome_sequence=sequence,
        finished_at=builder.now,
        arguments=None,
        written=None,
        size=0,
    )
    builder.unheard[call.call_id] = unheard_of(ended, finished)
    while len(builder.unheard) > MOST_UNHEARD:
        del builder.unheard[next(iter(builder.unheard))]


def unheard_of(call: Call, finished: ToolFinished | None) -> Unheard:
    """Return an ended call with the beginning of its outcome; None if that was removed."""
    if finished is None:
        return Unheard(call, "Its outcome was removed.", is_whole=True)
    if finished.outcome == "success":
        result = finished.result
        text = result if isinstance(result, str) else orjson.dumps(result, option=orjson.OPT_NON_STR_KEYS).decode()
    else:
        text = finished.error or ""
    is_whole = len(text) <= _MOST_TOLD and not finished.updates
    return Unheard(call, text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…", is_whole=is_whole)


def words_of(one: Unheard) -> str:
    """Write what a conversation is told of a held call."""
    call = one.call
    named = f"The call {named_of(call.call_id)} of {call.tool}, which has waited for a person's approval,"
    ended = "has run, with this result:" if call.state == "succeeded" else "has ended without a result:"
    rest = "" if one.is_whole else f"\n\nThis is not all of it. Call {GET_RESULT} with {named_of(call.call_id)}."
    return f"{named} {ended}\n\n{one.text}{rest}"


def named_of(call_id: CallId) -> str:
    """Write the arguments of `GET_RESULT` for a call."""
    return orjson.dumps({"call_id": call_id}).decode()
