"""Every request that leaves a gateway is as its model describes it."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dragoman.kit.calls import RequestedCall
from dragoman.models.webhooks import ToolRequestedData
from gateway.events import (
    ApprovalAsked,
    Burst,
    MessagePosted,
    QuestionAsked,
    Text,
    ToolCanceled,
    ToolRequested,
    TypingChanged,
)
from gateway.testing.conformance.executor import make_request
from tests.executors.peers import serve
from tests.executors.test_webhook import answer_success, make_executor
from tests.pace import PATIENCE
from tests.scenarios.hooks import SECRET, Asked, Hooks, Said
from tests.scenarios.plain_runtime import plain_gateway
from tests.webhook_models import MODELS, check_headers, check_webhook, name_webhook

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


async def test_what_is_sent_of_every_type_is_as_it_is_described(tmp_path: Path) -> None:
    async with Hooks() as hooks:
        never = asyncio.Event()

        async def hang(_asked: Asked) -> Said:
            await never.wait()
            return {}

        hooks.scripts |= {
            "slow": hang,
            "approval.asked": {"decision": "allow", "scope": "once", "reason": "as planned"},
            "question.asked": {"answer": "the blue one"},
            "message.posted": {"delivered": True},
        }
        backend = {"type": "webhook", "url": f"{hooks.url}/tools", "secret": SECRET}
        configured = {
            "executors": {"backend": backend},
            "destinations": {"log": {"url": f"{hooks.url}/copies/log", "secret": SECRET}},
            "routes": [
                {"match": {"event": "*"}, "copy_to": "log", "live": True},
                {"match": {"tool": "held"}, "to": "backend", "approve": True},
                {"match": {"tool": "*"}, "to": "backend"},
                {"match": {"event": "message.posted"}, "to": "backend"},
                {"match": {"event": "approval.asked"}, "to": "backend"},
                {"match": {"event": "question.asked"}, "to": "backend"},
            ],
            "approvals": {"notify": "log", "remind": "2s", "timeout": "4s"},
        }
        async with plain_gateway(tmp_path, settings=configured) as (_, runtime):
            runtime.say(ToolRequested(native_call_id="quick", tool="quick", arguments={"rank": "7"}))
            runtime.say(ToolRequested(native_call_id="slow", tool="slow"))
            runtime.say(ToolRequested(native_call_id="held", tool="held"))
            runtime.say(
                MessagePosted(content=(Text(text="Hello"),), burst=Burst(call="burst", index=0, count=1)), "m-1"
            )
            runtime.say(ApprovalAsked(id="a-1", tool="delete_table", arguments={"table": 12}))
            runtime.say(TypingChanged(typing=True))
            runtime.say(QuestionAsked(id="q-1", text="Which?", choices=("red", "blue")))
            await hooks.wait_for(name="slow")
            runtime.say(ToolCanceled(native_call_id="slow", tool="slow", reason="withdrawn"))
            await hooks.wait_for(name="tool.canceled")
            await runtime.hears("approval.given")
            await runtime.hears("question.answered")

            def all_came() -> bool | None:
                return {name_webhook(one.body) for one in hooks.asked} == set(MODELS) or None

            await hooks.change.until(
                all_came, PATIENCE, what=lambda: str({name_webhook(one.body) for one in hooks.asked})
            )
        assert {check_webhook(one.body) for one in hooks.asked} == set(MODELS)
        for one in hooks.asked:
            check_headers(name_webhook(one.body), one.headers)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arguments=st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_a_call_with_any_arguments_is_as_it_is_described(arguments: dict[str, Any]) -> None:
    async def send() -> bytes:
        async with serve(answer_success) as peer, make_executor(peer.url) as executor:
            request = make_request(arguments=arguments, callback_url=None, progress_url="http://127.0.0.1/progress")
            await executor.execute(request)
        return peer.seen[0].body

    body = asyncio.run(send())
    assert check_webhook(body) == "tool.requested"


@pytest.mark.parametrize(
    "spoil",
    [
        b'"attempt":"1"',
        b'"attempt":1,"more":2',
    ],
)
def test_what_is_not_as_it_is_described_is_seen(spoil: bytes) -> None:
    async def send() -> bytes:
        async with serve(answer_success) as peer, make_executor(peer.url) as executor:
            await executor.execute(make_request(callback_url=None, progress_url=None))
        return peer.seen[0].body

    body = asyncio.run(send())
    with pytest.raises(ValueError, match="not as it is described"):
        check_webhook(body.replace(b'"attempt":1', spoil))


def test_the_requests_of_the_executor_suite_are_of_the_documented_form() -> None:
    ToolRequestedData.model_validate_json(orjson.dumps(make_request().data))
    # Only a call whose arguments a person has changed says so.
    assert make_request().data.keys() | {"edited"} == ToolRequestedData.model_fields.keys()


def test_the_kit_reads_every_member_of_a_call_and_wants_none_that_may_be_missing() -> None:
    sent, read = ToolRequestedData.model_fields, RequestedCall.model_fields
    assert read.keys() == sent.keys()
    assert {name for name in read if read[name].is_required()} <= {name for name in sent if sent[name].is_required()}
