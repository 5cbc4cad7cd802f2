"""Decides about a call as a gateway does, from its policy alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.core.calls import not_routed
from gateway.core.holding import no_route_fits
from gateway.core.nulls import Fitted
from gateway.core.routing import Ruling, Unfitting
from gateway.core.session import Policy

Outcome = Literal["run", "ask", "deny", "fail"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a call: it runs, waits for a human, is denied by a route, or fails."""

    outcome: Outcome
    fitted: Fitted
    ruling: Ruling | Unfitting | None
    text: str = ""
    """What the agent is told, if the call is denied or fails."""


def decide(
    policy: Policy, *, runtime: str, tool: str, labels: Mapping[str, str], arguments: Mapping[str, Any]
) -> Verdict:
    """Check the arguments by the schema of the tool, then ask the routes."""
    fitted = policy.fit_arguments(tool, arguments)
    ruling = policy.routes.rule_for(runtime=runtime, tool=tool, labels=labels, arguments=fitted.arguments)
    match ruling:
        case None:
            return Verdict("fail", fitted, ruling, not_routed(policy, tool))
        case _ if fitted.problem is not None:
            return Verdict("fail", fitted, ruling, fitted.problem)
        case Unfitting():
            return Verdict("fail", fitted, ruling, no_route_fits(tool))
        case Ruling(denied=str(text)):
            return Verdict("deny", fitted, ruling, text)
        case Ruling(approve=None):
            return Verdict("run", fitted, ruling)
        case Ruling():
            return Verdict("ask", fitted, ruling)
