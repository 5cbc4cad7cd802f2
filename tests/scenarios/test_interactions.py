"""Questions to people through a whole gateway: streamed as they come and go, and answered once."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.adapter.port import Frame, Receipt
from gateway.events import ApprovalAsked, QuestionAsked, SecretAsked
from tests.pace import PATIENCE
from tests.scenarios.environment import Running, until
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway

Plain = tuple[Running, PlainRuntime]


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Plain]:
    async with plain_gateway(tmp_path) as made:
        yield made


class Questions:
    """A follower of the stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, str]:
        """Wait for the next change: the native id of the question, and its state."""
        async with asyncio.timeout(PATIENCE):
            async for line in self._lines:
                if line.startswith("data: "):
                    shown: dict[str, Any] = json.loads(line.removeprefix("data: "))
                    return shown["event"]["id"], shown["state"]
        raise EOFError


@asynccontextmanager
async def following(running: Running) -> AsyncGenerator[Questions]:
    async with running.http.stream("GET", "/v1/interactions/stream") as answer:
        assert answer.status_code == 200
        yield Questions(answer.aiter_lines())


async def waiting(running: Running, count: int) -> list[dict[str, Any]]:
    """Wait until this many questions wait, and list them."""
    async with following(running) as questions:
        for _ in range(count):
            await questions.next()
    return (await running.get("/v1/interactions", state="waiting"))["data"]


async def test_every_change_is_streamed_in_order(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(QuestionAsked(id="old", text="Which?"))
    (old,) = await waiting(running, 1)
    async with following(running) as questions:
        assert await questions.next() == ("old", "waiting")
        runtime.say(ApprovalAsked(id="new", tool="rm"))
        assert await questions.next() == ("new", "waiting")
        await running.post(f"/v1/interactions/{old['interaction_id']}/answer", {"answer": "that"}, status=200)
        assert await questions.next() == ("old", "answered")
    assert (await runtime.hears("question.answered"))["answer"] == "that"


async def test_a_question_that_nobody_answers_expires_in_the_stream(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path, settings={"limits": {"drain": "1s", "interaction_timeout": "1s"}}) as plain:
        running, runtime = plain
        async with following(running) as questions:
            runtime.say(ApprovalAsked(id="a", tool="rm"))
            assert await questions.next() == ("a", "waiting")
            assert await questions.next() == ("a", "expired")
        assert (await runtime.hears("approval.given"))["decision"] == "deny"


async def test_questions_that_wait_are_streamed_again_after_a_restart(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as (running, runtime):
        runtime.say(SecretAsked(id="s", purpose="sudo"))
        await waiting(running, 1)
    async with plain_gateway(tmp_path) as (running, _), following(running) as questions:
        assert await questions.next() == ("s", "waiting")


async def test_many_followers_see_the_same(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(QuestionAsked(id="old", text="Which?"))
    await waiting(running, 1)
    async with following(running) as one, following(running) as other:
        # Whoever sees this one has joined.
        assert await one.next() == await other.next() == ("old", "waiting")
        for number in range(20):
            runtime.say(QuestionAsked(id=f"q-{number}", text="Which?"))
        expected = [(f"q-{number}", "waiting") for number in range(20)]
        assert [await one.next() for _ in range(20)] == expected
        assert [await other.next() for _ in range(20)] == expected


async def test_an_answer_names_the_key_that_gave_it_however_it_came(plain: Plain) -> None:
    running, runtime = plain
    for number in range(2):
        runtime.say(QuestionAsked(id=f"q{number}", text="Which?"))
    first, second = await waiting(running, 2)
    await running.post(f"/v1/interactions/{first['interaction_id']}/answer", {"answer": "this"}, status=200)
    answer = {"kind": "question.answered", "id": second["event"]["id"], "answer": "that"}
    await running.post(f"/v1/sessions/{second['session_id']}/events", answer, status=202)
    shown = (await running.get("/v1/interactions", state="answered"))["data"]
    assert [one["answered_by"] for one in shown] == ["backend", "backend"]


class Settled(PlainRuntime):
    """A runtime that has got each answer from somebody else by the time it comes."""

    def send_all(self, frames: Sequence[Frame]) -> Awaitable[Receipt]:
        super().send_all(frames)
        return Receipt("moot", "somebody else was first")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (ApprovalAsked(id="q", tool="rm"), {"decision": "allow"}),
        (QuestionAsked(id="q", text="Which?"), {"answer": "that"}),
        (SecretAsked(id="q", purpose="sudo"), {"value": "abc"}),
    ],
)
async def test_a_question_whose_answer_came_too_late_is_moot(
    tmp_path: Path, asked: ApprovalAsked | QuestionAsked | SecretAsked, answer: dict[str, Any]
) -> None:
    async with plain_gateway(tmp_path, runtime=Settled()) as (running, runtime):
        runtime.say(asked)
        (question,) = await waiting(running, 1)
        async with following(running) as questions:
            assert await questions.next() == ("q", "waiting")
            await running.post(f"/v1/interactions/{question['interaction_id']}/answer", answer, status=200)
            states = [(await questions.next())[1]]
            if states == ["answered"]:
                states.append((await questions.next())[1])
            assert states[-1] == "moot"
        (shown,) = (await running.get("/v1/interactions", state="moot"))["data"]
        assert shown["answered_by"] == "backend"
        assert (await running.get("/v1/interactions", state="answered"))["data"] == []
        again = await running.post(f"/v1/interactions/{question['interaction_id']}/answer", answer, status=409)
        assert "moot" in again["detail"]


async def test_a_question_that_nobody_answered_stays_expired_where_its_denial_came_too_late(tmp_path: Path) -> None:
    limits = {"limits": {"drain": "1s", "interaction_timeout": "1s"}}
    async with plain_gateway(tmp_path, settings=limits, runtime=Settled()) as (running, runtime):
        runtime.say(ApprovalAsked(id="q", tool="rm"))
        (question,) = await waiting(running, 1)
        path = f"/v1/sessions/{question['session_id']}/events"
        async with following(running) as questions:
            assert await questions.next() == ("q", "waiting")
            assert await questions.next() == ("q", "expired")

        async def settled() -> bool | None:
            kinds = [one["event"]["kind"] for one in (await running.get(path))["data"]]
            return "delivery.settled" in kinds or None

        await until(settled)
        assert [one["state"] for one in (await running.get("/v1/interactions"))["data"]] == ["expired"]
