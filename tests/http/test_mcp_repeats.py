"""Repeats of MCP calls without a key: which ones join an open call, and which ones run again."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.events import CallId, Outcome
from gateway.executors.port import Answered
from gateway.store.call import Open
from gateway.store.step import Committed, Step
from tests.engines.postgres_server import temporary_schema
from tests.http.conftest import plain_client, serving
from tests.http.environment import Environment, environment_of, until
from tests.http.mcp_clients import NEWEST, Plain
from tests.http.test_calls_from_outside import TOOLS
from tests.pace import PATIENCE
from tests.scenarios.environment import merge
from tests.submits import submit_by

SEVENS = {"rank": "7"}
SUCCESS = {"outcome": "success", "result": 7}


class Scene:
    """A gateway, a client that stays and one that hangs up."""

    def __init__(self, environment: Environment, http: httpx.AsyncClient, url: str, path: str, token: str) -> None:
        self.environment, self.http, self._url, self._path, self._token = environment, http, url, path, token
        self.plain = Plain(http, path, token)

    @property
    def asked(self) -> list[str]:
        return [str(one.data["call_id"]) for one in self.environment.backend.asked]

    async def stands(self, count: int, state: str) -> str:
        async def look() -> str | None:
            if len(self.asked) < count:
                return None
            call = await self.environment.gateway.calls.one(CallId(self.asked[-1]))
            return call.call_id if call.state == state else None

        return await until(look)

    async def hang_up(
        self,
        *,
        until_set: asyncio.Event | None = None,
        beside: int = 0,
        meta: dict[str, Any] | None = None,
        streamed: bool = False,
    ) -> str:
        """Ask, and be gone before there is an answer; `beside` others that wait."""
        callers, count = self.environment.gateway.callers, len(self.asked) + (not beside)

        async def asked() -> bool | None:
            return callers.held > beside or None

        async def left() -> bool | None:
            return callers.held == beside or None

        async with httpx.AsyncClient(base_url=self._url, verify=False) as leaving:  # noqa: S501
            plain = Plain(leaving, self._path, self._token, NEWEST if streamed else None)
            held = asyncio.create_task(plain.call("ask_for_cards", SEVENS, **(meta or {})))
            if until_set is not None:
                await until_set.wait()
            else:
                await until(asked)
                await self.stands(count, "accepted")
            held.cancel()
            await asyncio.wait({held})
        await until(left)
        return self.asked[-1] if self.asked else ""

    def hold_openings(self, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
        """Let nobody hear that a call has been opened: tells when one is on record, and goes on when it is let."""
        commit, recorded, go_on = self.environment.engine.commit, asyncio.Event(), asyncio.Event()

        async def held(step: Step) -> Committed:
            committed = await commit(step)
            if any(isinstance(change, Open) for change in step.calls):
                recorded.set()
                await go_on.wait()
            return committed

        monkeypatch.setattr(self.environment.engine, "submit", partial(submit_by, held))
        return recorded, go_on

    async def settle(self, call_id: str) -> None:
        assert (await self.http.post(f"/v1/calls/{call_id}/outcome", json=SUCCESS)).status_code == 200


@asynccontextmanager
async def scene_of(over: dict[str, Any] | None = None, *, schema: str | None = None) -> AsyncGenerator[Scene]:
    configuration = merge({**TOOLS, "mcp": {"hold": "2s"}}, over or {})
    async with (
        environment_of(configuration, schema=schema) as environment,
        serving(environment.gateway) as (_, url),
        plain_client(url) as http,
    ):
        session_id = await environment.attach()
        token = (await http.get(f"/v1/sessions/{session_id}/mcp")).json()["token"]
        yield Scene(environment, http, url, f"/mcp/{session_id}", token)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with scene_of() as made:
        yield made


def texts(answer: dict[str, Any]) -> list[str]:
    return [block["text"] for block in answer["result"]["content"]]


async def test_a_repeat_goes_on_with_an_open_call_to_which_nobody_listens(scene: Scene) -> None:
    call_id = await scene.hang_up()
    repeat = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    other = asyncio.create_task(scene.plain.call("ask_for_cards", {"rank": "8"}))
    await scene.stands(2, "accepted")
    await scene.settle(call_id)
    assert texts(await repeat) == ["7"]
    await scene.settle(scene.asked[1])
    assert texts(await other) == ["7"]
    assert len(scene.asked) == 2


async def test_a_finished_outcome_is_never_replayed(scene: Scene) -> None:
    await scene.settle(await scene.hang_up())
    repeat = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    await scene.settle(await scene.stands(2, "accepted"))
    answer = await repeat
    assert texts(answer) == ["7"]
    assert "dragoman/replayed" not in str(answer)


async def test_a_canceled_call_is_not_joined(scene: Scene) -> None:
    call_id = await scene.hang_up()
    assert (await scene.http.post(f"/v1/calls/{call_id}/cancel")).status_code < 300
    repeat = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    await scene.settle(await scene.stands(2, "accepted"))
    assert texts(await repeat) == ["7"]


async def test_an_equal_call_after_an_outcome_runs_again(scene: Scene) -> None:
    first = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    await scene.settle(await scene.stands(1, "accepted"))
    assert texts(await first) == ["7"]
    again = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    await scene.settle(await scene.stands(2, "accepted"))
    assert texts(await again) == ["7"]


async def test_a_call_that_repeats_none_queries_no_list(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.environment.backend.answers["ask_for_cards"] = Answered(Outcome(outcome="success", result=7))
    queried: list[str] = []

    def count(name: str) -> None:
        query = getattr(scene.environment.engine, name)

        async def counted(*asked: Any, **more: Any) -> Any:
            queried.append(name)
            return await query(*asked, **more)

        monkeypatch.setattr(scene.environment.engine, name, counted)

    count("calls")
    count("open_calls")
    for _ in range(3):
        assert texts(await scene.plain.call("ask_for_cards", SEVENS)) == ["7"]
    assert queried == []


@pytest.mark.parametrize("shared", [False, True])
async def test_a_call_where_its_session_is_carried_looks_for_nothing_but_the_epoch_of_its_token(
    monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    async with scene_of(schema=temporary_schema() if shared else None) as scene:
        deduplicator, left = scene.environment.gateway.deduplicator, asyncio.Event()
        stop_listening = deduplicator.stop_listening

        async def leave(*asked: Any, **more: Any) -> None:
            await stop_listening(*asked, **more)
            left.set()

        monkeypatch.setattr(deduplicator, "stop_listening", leave)
        asking = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
        await scene.settle(await scene.stands(1, "accepted"))
        assert texts(await asking) == ["7"]
        # Its end is put on record behind the response.
        async with asyncio.timeout(PATIENCE):
            await left.wait()
        looked: list[str] = []

        def count(name: str) -> None:
            look = getattr(scene.environment.engine, name)

            async def looking(*asked: Any, **more: Any) -> Any:
                looked.append(name)
                return await look(*asked, **more)

            monkeypatch.setattr(scene.environment.engine, name, looking)

        for name in ("note", "session", "call", "read", "recall"):
            count(name)
        asking = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))

        async def asked() -> bool | None:
            return len(scene.asked) == 2 or None

        await until(asked)
        # Where another instance may have rotated it, each request looks.
        assert looked == (["note"] if shared else [])
        await scene.settle(await scene.stands(2, "accepted"))
        assert texts(await asking) == ["7"]
        assert "read" not in looked


async def test_who_waits_beside_others_reads_no_journal(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, read, looked = scene.environment.engine, scene.environment.engine.read, 0
    recorded, go_on = scene.hold_openings(monkeypatch)

    async def reading(*asked: Any, **more: Any) -> Any:
        nonlocal looked
        looked += 1
        return await read(*asked, **more)

    monkeypatch.setattr(engine, "read", reading)
    first = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=0))
    await recorded.wait()
    # They come while that is being written, so that one step is theirs.
    asking = [first, *(asyncio.create_task(scene.plain.call("ask_for_cards", {"rank": rank})) for rank in "78")]

    async def held() -> bool | None:
        return scene.environment.gateway.callers.held == len(asking) or None

    await until(held)
    go_on.set()
    await scene.stands(len(asking), "accepted")
    for call_id in scene.asked:
        await scene.settle(call_id)
    assert [texts(await one) for one in asking] == [["7"]] * len(asking)
    assert looked == 0


async def test_two_equal_calls_side_by_side_are_two(scene: Scene) -> None:
    both = [asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=n)) for n in (1, 2)]
    await scene.stands(2, "accepted")
    for call_id in scene.asked:
        await scene.settle(call_id)
    assert [texts(await one) for one in both] == [["7"], ["7"]]


async def test_one_that_is_just_being_opened_is_not_taken_for_one_to_which_nobody_listens(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, go_on = scene.hold_openings(monkeypatch)
    deduplicator, looked = scene.environment.gateway.deduplicator, asyncio.Event()
    join = deduplicator.join_open_call

    async def look(*asked: Any) -> Any:
        joined = await join(*asked)
        if recorded.is_set():
            looked.set()
        return joined

    monkeypatch.setattr(deduplicator, "join_open_call", look)
    first = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=1))
    await recorded.wait()
    second = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=2))
    await looked.wait()
    go_on.set()
    await scene.stands(2, "accepted")
    for call_id in scene.asked:
        await scene.settle(call_id)
    assert [texts(await one) for one in (first, second)] == [["7"], ["7"]]


async def test_of_two_repeats_side_by_side_one_goes_on_with_the_call_and_the_other_is_another() -> None:
    async with scene_of(schema=temporary_schema()) as scene:
        await scene.hang_up()
        both = [asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=n)) for n in (1, 2)]
        await scene.stands(2, "accepted")
        for call_id in scene.asked:
            await scene.settle(call_id)
        assert [texts(await one) for one in both] == [["7"], ["7"]]
        assert len(scene.asked) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_caller_that_is_gone_before_its_call_is_opened_cancels_it_where_it_is_said_to(
    monkeypatch: pytest.MonkeyPatch, *, streamed: bool
) -> None:
    async with scene_of({"mcp": {"on_disconnect": "cancel"}}) as scene:
        recorded, go_on = scene.hold_openings(monkeypatch)
        await scene.hang_up(until_set=recorded, meta={"progressToken": 1} if streamed else {}, streamed=streamed)
        assert not scene.environment.backend.canceled
        go_on.set()

        async def canceled() -> bool | None:
            return bool(scene.environment.backend.canceled) or None

        await until(canceled)
        rows = (await scene.http.get("/v1/calls")).json()["data"]
        told = [one.data["call_id"] for one in scene.environment.backend.canceled]
        assert [row["call_id"] for row in rows] == told


async def test_a_caller_that_is_gone_cancels_nothing_that_another_one_waits_for() -> None:
    async with scene_of({"mcp": {"on_disconnect": "cancel"}}) as scene:
        key = {"dragoman/key": "k"}
        staying = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS, number=1, **key))
        call_id = await scene.stands(1, "accepted")
        await scene.hang_up(beside=1, meta=key)
        await scene.settle(call_id)
        assert texts(await staying) == ["7"]
        assert not scene.environment.backend.canceled


async def test_calls_with_keys_and_over_the_api_are_never_taken_for_repeats(scene: Scene) -> None:
    await scene.hang_up(meta={"dragoman/key": "k"})
    path = f"/v1/sessions/{(await scene.http.get('/v1/sessions')).json()['data'][0]['session_id']}/calls"
    await scene.http.post(path, json={"tool": "ask_for_cards", "arguments": SEVENS})
    repeat = asyncio.create_task(scene.plain.call("ask_for_cards", SEVENS))
    await scene.settle(await scene.stands(3, "accepted"))
    assert texts(await repeat) == ["7"]
