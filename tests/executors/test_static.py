"""The static executor: the YAML's answer, after the YAML's delay."""

from datetime import date, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from gateway.errors import OperatorError
from gateway.events import Outcome
from gateway.executors.port import Answered, Replied, Uncertain
from gateway.executors.static import StaticExecutor
from gateway.settings.model import StaticSpec
from gateway.testing.conformance.executor import make_request


def make_executor(**options: Any) -> StaticExecutor:
    spec: StaticSpec = TypeAdapter(StaticSpec).validate_python({"type": "static"} | options)
    return StaticExecutor(spec)


async def test_the_result_answers_every_call() -> None:
    async with make_executor(result={"cards": [7]}) as executor:
        for _ in range(2):
            answer = await executor.execute(make_request())
            assert answer == Answered(Outcome(outcome="success", result={"cards": [7]}))


async def test_an_error_fails_every_call_and_every_question() -> None:
    async with make_executor(error="closed today") as executor:
        for kind in ("tool.requested", "question.asked"):
            answer = await executor.execute(make_request(kind))
            assert answer == Answered(Outcome(outcome="failure", error="closed today"))


async def test_a_mapping_is_the_reply_to_what_is_not_a_call() -> None:
    async with make_executor(result={"decision": "allow"}) as executor:
        assert await executor.execute(make_request("approval.asked")) == Replied({"decision": "allow"})
    async with make_executor() as executor:
        assert await executor.execute(make_request("message.posted")) == Replied({})
    async with make_executor(result="yes") as executor:
        answer = await executor.execute(make_request("question.asked"))
        assert isinstance(answer, Answered)
        assert answer.outcome.outcome == "failure"


async def test_the_answer_comes_after_the_delay_unless_time_is_up_before() -> None:
    async with make_executor(result=1, delay="10ms") as executor:
        assert isinstance(await executor.execute(make_request()), Answered)
        answer = await executor.execute(make_request(timeout=timedelta(milliseconds=1)))
        assert answer == Uncertain("no answer within 0.001 s")


@pytest.mark.parametrize("result", [date(2026, 11, 20), float("nan"), {"at": [float("inf")]}, {1, 2}])
def test_a_result_that_is_yaml_but_not_json_is_an_operator_error(result: Any) -> None:
    with pytest.raises(OperatorError, match="cannot be JSON"):
        make_executor(result=result)
