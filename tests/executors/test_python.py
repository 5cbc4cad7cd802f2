"""The python executor: what a function returns, raises or does to itself, and how its path is found."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.errors import OperatorError
from gateway.events import ContextUpdate, Outcome
from gateway.executors.port import WITHHELD, Answer, Answered, Replied, Uncertain
from gateway.executors.python import PythonExecutor
from gateway.settings.functions import find_function
from gateway.settings.model import PythonSpec
from gateway.testing.conformance.executor import make_request
from tests.pace import PATIENCE

ROOT = Path(__file__).parents[2]
TOOLS = Path(__file__).parent / "python_tools.py"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS.parent), str(ROOT / "config" / "examples"), *sys.path])


def make_executor(name: str, *, module: str = "python_tools") -> PythonExecutor:
    return PythonExecutor(PythonSpec(type="python", call=f"{module}:{name}"))


async def answer_of(name: str, kind: str = "tool.requested", **members: Any) -> Answer:
    async with make_executor(name) as executor:
        return await executor.execute(make_request(kind, **members))


def failed(answer: Answer) -> str:
    assert isinstance(answer, Answered)
    assert answer.outcome.outcome == "failure"
    assert answer.outcome.error is not None
    return answer.outcome.error


async def test_the_function_gets_what_a_webhook_gets_and_its_json_is_the_result() -> None:
    request = make_request()
    assert await answer_of("echo") == Answered(Outcome(outcome="success", result=request.data))


async def test_a_function_whose_first_parameter_is_called_report_gets_the_call_as_ever() -> None:
    request = make_request()
    assert await answer_of("sends") == Answered(Outcome(outcome="success", result=request.data))


async def test_nothing_returned_is_a_success_without_a_result() -> None:
    assert await answer_of("nothing") == Answered(Outcome(outcome="success", result=None))


async def test_a_dict_with_an_outcome_is_the_outcome_form() -> None:
    update = ContextUpdate(name="table", context={"cards": 3}, description="Three left.")
    expected = Answered(Outcome(outcome="success", result={"got": 1}), updates=(update,), wakes_agent=False)
    assert await answer_of("whole_form") == expected


def unreadable(answer: Answer) -> str:
    assert isinstance(answer, Uncertain)
    assert answer.refused
    return answer.reason


async def test_an_outcome_form_that_is_wrong_is_uncertain_because_the_tool_ran() -> None:
    assert "/outcome" in unreadable(await answer_of("wrong_form"))


async def test_a_failure_without_a_reason_gets_one() -> None:
    assert failed(await answer_of("silent_failure")) == "the tool answered failure without saying why"


async def test_an_exception_is_a_failure_with_its_message_and_the_traceback_stays_in_the_log() -> None:
    with capture_logs() as lines:
        answer = await answer_of("refuses")
    assert failed(answer) == "No cards are left on the table."
    [line] = [line for line in lines if line["event"] == "python executor failed"]
    assert line["call"] == "python_tools:refuses"
    assert "Traceback" in line["exception"]
    assert "LookupError" in line["exception"]


async def test_a_message_is_bounded_and_one_printable_line() -> None:
    text = failed(await answer_of("rambles"))
    assert len(text) <= 500
    assert text.isprintable()


async def test_an_exception_without_a_message_is_told_by_its_name() -> None:
    assert failed(await answer_of("stumbles")) == "the tool failed (KeyboardError)"


async def test_a_function_that_wants_to_end_the_process_only_fails_its_call() -> None:
    assert failed(await answer_of("leaves")) == "the tool failed (SystemExit)"


async def test_a_function_that_gives_up_its_own_task_fails_its_call() -> None:
    assert failed(await answer_of("gives_up")) == "the tool was canceled before it finished"


@pytest.mark.parametrize("name", ["dates", "not_a_number", "huge_number", "endless", "surrogate", "flood"])
async def test_what_is_not_bounded_json_is_uncertain_because_the_tool_ran(name: str) -> None:
    text = unreadable(await answer_of(name))
    assert text.startswith("the tool answered ")
    assert len(text) <= 500


async def test_a_dict_is_the_reply_to_what_is_not_a_call() -> None:
    assert await answer_of("allows", "approval.asked") == Replied({"decision": "allow"})
    assert await answer_of("nothing", "message.posted") == Replied({})
    assert "invalid reply to question.asked" in unreadable(await answer_of("number", "question.asked"))


async def test_a_function_cannot_change_what_the_gateway_knows() -> None:
    request = make_request()
    before = dict(request.data["arguments"])
    async with make_executor("vandal") as executor:
        await executor.execute(request)
    assert request.data["arguments"] == before


async def test_a_function_is_canceled_when_its_time_is_up() -> None:
    module = sys.modules.get("python_tools") or __import__("python_tools")
    module.canceled.clear()
    async with make_executor("sleeps") as executor:
        answer = await executor.execute(make_request(timeout=timedelta(milliseconds=10)))
        assert answer == Uncertain("no answer within 0.01 s")
        async with asyncio.timeout(PATIENCE):
            await module.canceled.wait()


async def test_a_function_is_not_called_for_a_session_that_was_lost_meanwhile() -> None:
    async with make_executor("echo") as executor:
        assert await executor.execute(replace(make_request(), may_start=lambda: False)) == WITHHELD


async def test_a_function_that_ignores_its_cancel_does_not_hold_the_attempt() -> None:
    async with make_executor("stubborn") as executor:
        async with asyncio.timeout(PATIENCE):
            answer = await executor.execute(make_request(timeout=timedelta(milliseconds=10)))
        assert isinstance(answer, Uncertain)


async def test_the_example_does_what_it_shows() -> None:
    async with make_executor("count_cards", module="card_tools") as executor:
        four = await executor.execute(make_request(arguments={"hand": ["7", "7", "7", "7"], "rank": "7"}))
        one = await executor.execute(make_request(arguments={"hand": ["7", "8"], "rank": "7"}))
        none = await executor.execute(make_request(arguments={"hand": [], "rank": "7"}))
    assert isinstance(four, Answered)
    assert [update.name for update in four.updates] == ["book"]
    assert one == Answered(Outcome(outcome="success", result={"count": 1}))
    assert failed(none) == "The hand is empty; draw a card first."
    async with make_executor("allow_reading", module="card_tools") as executor:
        asked: Mapping[str, Any] = {"kind": "approval.asked", "id": "1", "tool": "read"}
        assert await executor.execute(make_request("approval.asked", event=asked)) == Replied({"decision": "allow"})
        assert await executor.execute(make_request("approval.asked", event={})) == Replied({})


BROKEN = {
    "raises": "raise RuntimeError('the database is away')",
    "exits": "import sys\nsys.exit(3)",
    "misspelt": "def f(:\n",
    "lacks": "import a_library_that_nobody_has",
}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no_such_module_here:f", "there is no module 'no_such_module_here'; install the package"),
        ("python_tools.inner:f", "there is no module 'python_tools.inner'"),
        ("python_tools:nobody", "has no 'nobody'; check the name after the colon"),
        ("python_tools:blocking", "not an async function; write `async def blocking(call)"),
        ("python_tools:two_arguments", "cannot be called with one argument"),
        ("python_tools", "not the path of an async function; write package.module:function"),
        ("raises:f", "importing 'raises' failed with RuntimeError: the database is away"),
        ("exits:f", "importing 'exits' failed with SystemExit: 3"),
        ("misspelt:f", "importing 'misspelt' failed with SyntaxError"),
        ("lacks:f", "it needs 'a_library_that_nobody_has'; install that"),
    ],
)
def test_a_path_that_leads_nowhere_is_told_with_its_mend(
    path: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(OperatorError) as raised:
        find_function(path)
    assert told in str(raised.value)


def test_an_object_that_is_called_asynchronously_is_a_function_too() -> None:
    assert callable(find_function("python_tools:callable_object"))
