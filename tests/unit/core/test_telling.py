"""When a conversation is told of an outcome that its agent has not fetched."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.core import callers, lifecycle
from gateway.core.own_actions import TICKET
from gateway.store.call import Listened
from tests.unit.core.harness import ASK, GOOD, START, Harness
from tests.unit.core.test_approvals import GATED, deny


def unheard(accepts: frozenset[str]) -> Harness:
    """Deny a held call of the agent's ticket, at a runtime that takes events of these kinds."""
    harness = Harness(routes=(GATED,))
    able = replace(harness.runtime.capabilities, accepts=accepts)
    harness.runtime = replace(harness.runtime, capabilities=able)
    request = callers.CallRequest(ASK.name, GOOD, TICKET, "k", "mcp/2026-07-28", fresh=True)
    harness.decide(lambda builder: callers.ask(builder, request))
    deny(harness)
    return harness


@pytest.mark.parametrize("accepts", [frozenset({"context.updated"}), frozenset[str]()])
def test_an_outcome_is_told_two_minutes_after_its_end_where_the_runtime_takes_it(accepts: frozenset[str]) -> None:
    harness = unheard(accepts)
    due = START + timedelta(minutes=2)
    assert lifecycle.next_due(harness.runtime, harness.view) == due
    harness.now = due - timedelta(seconds=1)
    harness.decide(lifecycle.tick)
    assert harness.kinds == []
    harness.now = due
    harness.decide(lifecycle.tick)
    assert ("context.updated" in harness.kinds) == bool(accepts)
    assert [type(change) for change in harness.step.calls] == ([Listened] if accepts else [])
    assert harness.view.unheard == {}
