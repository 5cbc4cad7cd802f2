"""The history of a call's attempts, for an operator who looks for the reason of a failure."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.responses import Response

from dragoman.client import Client
from tests.engines.sqlite_looker import all_of
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import Said, success
from tests.scenarios.terminal import dragoman
from tests.scenarios.test_accepted import LATER, accepted, accepting, call_back

BUSY = Response(status_code=503, headers={"retry-after": "0"})
BROKEN = Response(status_code=500)


async def history(gateway: Running, native_call_id: str) -> list[dict[str, Any]]:
    call = await gateway.call_of(native_call_id)
    return (await gateway.get(f"/v1/calls/{call['call_id']}"))["attempts"]


def seconds(attempt: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(attempt["ended_at"]) - datetime.fromisoformat(attempt["started_at"])


async def test_each_attempt_of_a_failed_call_is_shown(both: Scene) -> None:
    accepting(both, BUSY, BROKEN, attempts=3, breaker="off")
    async with both.running() as gateway:
        call = await both.agent.call("free", {"n": 1})
        await ended(call)
        row = await gateway.wait_call(call.call_id, "failed")
        first, second, third = await history(gateway, call.call_id)
        assert [one["n"] for one in (first, second, third)] == [1, 2, 3]
        assert [one["status"] for one in (first, second, third)] == [503, 500, 500]
        assert [one["unsure"] for one in (first, second, third)] == [False, True, True]
        assert all(one["sent"] and seconds(one) >= timedelta(0) for one in (first, second, third))
        assert first["reason"] == "executor answered 503 Service Unavailable"
        assert first["started_at"] == row["created_at"]
        # A start and an end are times of commits; the time that a call is due is one of the decision before the commit.
        assert max(first["ended_at"], first["due_at"]) <= second["started_at"]
        assert max(second["ended_at"], second["due_at"]) <= third["started_at"]
        assert (third["reason"], third["ended_at"], third["due_at"]) == (row["error"], row["finished_at"], None)
        letter = await gateway.get(f"/v1/dead-letters/{row['call_id']}")
        assert letter["attempts"] == [first, second, third]
        async with Client(gateway.url, API_KEY) as client:
            shown = (await client.call_history(row["call_id"])).attempts
        assert [(one.n, one.status, one.reason) for one in shown] == [
            (one["n"], one["status"], one["reason"]) for one in (first, second, third)
        ]
        told = await dragoman(gateway, "calls", "show", row["call_id"])
        lines = [line.partition(" ")[2] for line in told.out.splitlines() if ":" in line.partition(" ")[0]]
        lines = [line for line in lines if line.startswith("attempt ")]
        assert [line.partition(";")[0] for line in lines] == ["attempt 1", "attempt 2", "attempt 3"]
        assert "; status 503; executor answered 503 Service Unavailable; next at " in lines[0]
        assert lines[2].endswith("may have run")


async def test_a_call_that_is_answered_at_once_shows_its_one_attempt_and_stores_none(newer: Scene) -> None:
    async with newer.running() as gateway:
        call = await newer.agent.call("ask", GOOD)
        await ended(call)
        row = await gateway.wait_call(call.call_id, "succeeded")
        assert await history(gateway, call.call_id) == [
            {"n": 1, "started_at": row["created_at"], "ended_at": row["finished_at"], "status": None,
             "content_type": None, "body": None, "reason": None,
             "unsure": False, "sent": True, "due_at": None}
        ]  # fmt: skip
        with all_of(newer.folder / "dragoman.db") as copy:
            assert copy.execute("SELECT attempts FROM calls").fetchall() == [(None,)]


async def test_the_success_after_a_retry_has_its_status(newer: Scene) -> None:
    accepting(newer, BUSY, success(7))
    async with newer.running() as gateway:
        call = await newer.agent.call("free", {})
        assert (await ended(call)).result == 7
        await gateway.wait_call(call.call_id, "succeeded")
        assert [(one["status"], one["reason"]) for one in await history(gateway, call.call_id)] == [
            (503, "executor answered 503 Service Unavailable"),
            (200, None),
        ]


@pytest.mark.parametrize(
    ("answer", "status", "unsure"), [(BROKEN, 500, True), (Response(status_code=401), 401, False), (LATER, 202, False)]
)
async def test_the_repeat_of_an_accepted_call_is_one_of_its_attempts(
    newer: Scene, answer: Said, status: int, *, unsure: bool
) -> None:
    accepting(newer, LATER, answer, attempts=2)
    async with newer.running() as gateway:
        call, asked = await accepted(newer, gateway)
        await newer.hooks.wait_for(2, name="free")

        async def both_ended() -> bool:
            return [one["status"] for one in await history(gateway, call.call_id)] == [202, status]

        await until(both_ended)
        assert (await call_back(asked, success("later"))).status_code == 200
        assert (await ended(call)).result == "later"
        await gateway.wait_call(call.call_id, "succeeded")
        first, second = await history(gateway, call.call_id)
        assert (first["n"], first["due_at"] is not None, first["reason"]) == (1, True, None)
        assert (second["n"], second["unsure"], second["ended_at"] >= first["due_at"]) == (2, unsure, True)


async def test_an_attempt_that_was_not_sent_is_shown_as_such(newer: Scene) -> None:
    url = newer.settings["executors"]["cards"]["url"]
    newer.configure({"executors": {"cards": {"url": "http://127.0.0.1:9/tools", "reconnect_within": "60s"}}})
    async with newer.running() as gateway:
        call = await newer.agent.call("free", {})

        async def not_sent() -> bool:
            found = await history(gateway, call.call_id)
            return bool(found) and found[0]["ended_at"] is not None

        await until(not_sent)
        newer.configure({"executors": {"cards": {"url": url}}})
        await gateway.post("/v1/reload", status=200)
        assert (await ended(call)).outcome == "success"
        await gateway.wait_call(call.call_id, "succeeded")
        *unsent, last = await history(gateway, call.call_id)
        assert {(one["n"], one["sent"], one["status"]) for one in unsent} == {(1, False, None)}
        assert all(one["reason"] and one["due_at"] for one in unsent)
        assert (last["n"], last["sent"], last["status"]) == (1, True, 200)
        told = await dragoman(gateway, "calls", "show", (await gateway.call_of(call.call_id))["call_id"])
        assert "; not sent; " in told.out
