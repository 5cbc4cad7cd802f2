"""A session offers the tools of which some call may reach an executor."""

from datetime import timedelta
from typing import Any

from gateway.runtime.calls.offered import OfferedTool, offered
from gateway.runtime.policy import policy_of
from gateway.settings.model import Settings

SMALL = {"properties": {"amount": {"type": "number", "maximum": 5}}, "required": ["amount"]}


def tools(*routes: dict[str, Any], **labels: str) -> dict[str, OfferedTool]:
    settings = Settings.model_validate(
        {
            "tools": {"refund": {}, "drop_table": {}},
            "executors": {
                "quick": {"type": "python", "call": "asyncio:sleep", "idempotent": True, "deadline": "5s"},
                "slow": {"type": "webhook", "url": "http://slow/x", "accepted_deadline": "1h"},
            },
            "routes": routes,
        }
    )
    return {tool.name: tool for tool in offered(settings, policy_of(settings), runtime="finn", labels=labels)}


def route(tool: str, **more: Any) -> dict[str, Any]:
    return {"match": {"tool": tool, **more.pop("match", {})}, **more}


def test_a_tool_that_routes_only_deny_or_always_deny_is_not_offered():
    assert set(tools(route("refund", to="quick"), route("drop_*", deny="No."))) == {"refund"}
    assert set(tools(route("*", to="quick"), route("drop_*", deny="No."))) == {"refund"}


def test_a_tool_of_which_some_calls_are_denied_is_offered():
    some = route("refund", match={"arguments": SMALL}, deny="No.")
    assert set(tools(some, route("refund", to="quick"))) == {"refund"}
    gold = route("refund", match={"label": {"tier": "gold"}}, deny="No.")
    assert set(tools(gold, route("refund", to="quick"), tier="basic")) == {"refund"}
    assert not tools(gold, route("refund", to="quick"), tier="gold")


def test_what_is_said_about_a_tool_holds_for_every_executor_that_may_get_it():
    by_amount = tools(route("refund", match={"arguments": SMALL}, to="quick"), route("refund", to="slow", approve=True))
    assert by_amount["refund"].longest == timedelta(hours=1)
    assert not by_amount["refund"].idempotent
    assert by_amount["refund"].gated
    first = tools(route("refund", to="quick"), route("refund", to="slow"))
    assert (first["refund"].longest, first["refund"].idempotent, first["refund"].gated) == (
        timedelta(seconds=5), True, False
    )  # fmt: skip
