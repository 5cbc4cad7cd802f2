"""Tells a conversation of the outcomes of held calls that its agent has not fetched. Pure.

The store has on record whether an outcome was received, and takes each message together with that record. So an outcome
is told once, also after a crash, and not at all if the agent fetches it first, at any instance.
"""

from datetime import datetime

from gateway.core.callers import is_own
from gateway.core.outbound import pass_on
from gateway.core.own_actions import TICKET
from gateway.core.session import Approvals, StepBuilder
from gateway.core.state import Unheard
from gateway.core.unheard import words_of
from gateway.errors import CannotExpress
from gateway.events import Author, MessagePosted, Text
from gateway.store.call import Listened


def tell_due(approvals: Approvals, one: Unheard) -> datetime:
    """Return the time at which a conversation is told of an unreceived outcome."""
    return (one.call.finished_at or one.call.created_at) + approvals.tell_after


def tell(builder: StepBuilder) -> None:
    """Tell the conversation of the outcomes that are due, in the order of their ends; only those of its agent."""
    approvals = builder.runtime.policy.approvals
    due = [one for one in builder.unheard.values() if tell_due(approvals, one) <= builder.now]
    for one in sorted(due, key=lambda one: tell_due(approvals, one)):
        del builder.unheard[one.call.call_id]
        if approvals.tell and is_own(one.call, TICKET):
            _tell(builder, one)


def _tell(builder: StepBuilder, one: Unheard) -> None:
    message = MessagePosted(author=Author(role="system"), content=(Text(text=words_of(one)),))
    mark = builder.mark()
    try:
        pass_on(builder, message, lane="new_work", caused_by=one.call.outcome_sequence, synthetic=True)
    except CannotExpress:
        # The runtime takes no messages, so the call stays listed as not heard.
        builder.back_to(mark)
        return
    builder.change_call(Listened(one.call.call_id), ended=one.call)
