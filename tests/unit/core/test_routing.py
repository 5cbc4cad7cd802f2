"""Calls are decided by routes that look at arguments: denials first, then the first route that fits."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.core.arguments import Fragment
from gateway.core.routing import Approval, Route, Routes, Ruling, Unfitting

SMALL = Fragment({"properties": {"amount": {"type": "number", "minimum": 0, "maximum": 99.99}}, "required": ["amount"]})
POLICY = (
    Route(tool="refund", arguments=SMALL, to="billing", rule="small"),
    Route(tool="refund", to="billing", approve=Approval(by=("lead",), timeout=timedelta(hours=1)), rule="asked"),
    Route(tool="drop_*", deny="Tables are never dropped here.", rule="denied"),
)


def rule(routes: Routes, tool: str = "refund", arguments: dict[str, Any] | None = None, **labels: str) -> Any:
    return routes.rule_for(runtime="finn", tool=tool, labels=labels, arguments=arguments or {})


def test_a_call_that_fits_an_earlier_route_needs_no_approval_and_any_other_does():
    routes = Routes(POLICY)
    asked = Ruling(1, executor="billing", approve=Approval(by=("lead",), timeout=timedelta(hours=1)), rule="asked")
    assert rule(routes, arguments={"amount": 5}) == Ruling(0, executor="billing", rule="small")
    for arguments in ({"amount": 100}, {"amount": "5"}, {"amount": -1}, {}):
        assert rule(routes, arguments=arguments) == asked


def test_a_denial_wins_wherever_it_stands_and_names_its_own_route():
    routes = Routes((Route(tool="*", to="billing", rule="all"), *POLICY))
    assert rule(routes, "drop_users") == Ruling(3, denied="Tables are never dropped here.", rule="denied")
    assert rule(routes, "refund") == Ruling(0, executor="billing", rule="all")


def test_a_denial_looks_at_arguments_runtime_and_labels():
    production = Fragment({"properties": {"env": {"const": "production"}}, "required": ["env"]})
    routes = Routes(
        (
            Route(tool="deploy", to="ci"),
            Route(runtime="finn", tool="deploy", arguments=production, labels={"team": "a*"}, deny="Not there."),
        )
    )
    assert rule(routes, "deploy", {"env": "production"}, team="apps").denied == "Not there."
    assert rule(routes, "deploy", {"env": "production"}, team="web").executor == "ci"
    assert rule(routes, "deploy", {"env": "test"}, team="apps").executor == "ci"
    other = routes.rule_for(runtime="ada", tool="deploy", labels={"team": "apps"}, arguments={"env": "production"})
    assert isinstance(other, Ruling)
    assert other.executor == "ci"


def test_arguments_that_no_route_of_the_tool_takes_are_told_from_a_tool_without_routes():
    routes = Routes((Route(tool="refund", arguments=SMALL, to="billing"), POLICY[2]), "ignore")
    assert rule(routes, arguments={"amount": 100}) == Unfitting((0,))
    assert rule(routes, "fly") is None
    assert rule(Routes(()), "fly") is None


def test_a_denial_of_other_arguments_gives_the_tool_no_route():
    assert rule(Routes((Route(tool="*", arguments=SMALL, deny="no"),), "ignore"), "fly") is None


def test_arguments_that_cannot_be_compared_are_sent_nowhere():
    text = Fragment({"properties": {"to": {"type": "string", "minLength": 3, "pattern": "^a"}}, "required": ["to"]})
    lone = {"to": "\ud800abc"}
    assert rule(Routes((Route(tool="pay", arguments=text, deny="no"), Route(tool="pay", to="x"))), "pay", lone) == (
        Unfitting(())
    )
    assert rule(Routes((Route(tool="pay", arguments=text, to="x"), Route(tool="pay", to="y"))), "pay", lone) == (
        Unfitting(())
    )


def test_denials_and_approvals_match_undeclared_tools_by_a_glob_and_other_routes_do_not():
    declared = frozenset({"refund"})
    denied = Routes((Route(tool="d*", deny="no"),), declared=declared)
    assert rule(denied, "drop_users").denied == "no"
    gated = Routes((Route(tool="*", to="open"), Route(tool="*", to="asked", approve=Approval())), declared=declared)
    assert rule(gated, "drop_users").executor == "asked"
    assert rule(gated, "refund").executor == "open"
    assert rule(Routes((Route(tool="*", arguments=SMALL, to="open"),), declared=declared), "drop_users") is None


def test_routes_of_other_events_decide_no_call():
    routes = Routes((Route(event="approval.asked", to="chat"), Route(event="*", to="all")))
    assert rule(routes).executor == "all"
    assert rule(Routes((Route(event="approval.asked", to="chat"),))) is None


def test_all_rules_that_may_decide_a_call_of_a_tool_are_listed():
    def listed(routes: Routes, tool: str) -> list[int]:
        return [one.index for one in routes.rules_for(runtime="finn", tool=tool, labels={})]

    routes = Routes((*POLICY, Route(tool="*", to="rest")))
    assert listed(routes, "refund") == [0, 1]
    assert listed(routes, "fly") == [3]
    assert listed(routes, "drop_users") == []
    assert listed(Routes((Route(tool="refund", arguments=SMALL, deny="no"), *POLICY)), "refund") == [1, 2]
    assert listed(Routes(POLICY), "fly") == []


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"properties": {"a": {"type": "text"}}}, "at /properties/a/type: 'text' is not a type"),
        ({"$ref": "https://example.com/schema.json"}, r"a \$ref may only point inside the same schema"),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "look-around and back-references are not"),
    ],
)
def test_a_fragment_is_compiled_like_the_schema_of_a_tool(schema: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why):
        Fragment(schema)
