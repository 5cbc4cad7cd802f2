"""Streams that break in every way, over real gateways: each event once, in order, and as it is on record."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import Response

from dragoman.client import Client, Envelope, Gap, GatewayUnreachable, Interaction, Live, Missed, RequestRefused
from gateway.events import MessagePosted, TypingChanged, dump_event, text_of
from tests.faults.proxy import Proxy
from tests.http.conftest import serving
from tests.http.environment import Environment, environment_of
from tests.pace import PATIENCE
from tests.ports import free_port
from tests.scenarios.environment import API_KEY, Scene, scene
from tests.scenarios.hooks import success
from tests.scenarios.releases import release_before
from tests.scenarios.replica_processes import Fleet, fleet
from tests.scenarios.test_proxy import behind

KEY = "all-of-it"
QUIET = 0.5
"""Seconds of silence after which a stream is opened anew, in place of fifteen."""


class Follower:
    """Follows a session from its beginning, beside the test."""

    def __init__(self, dragoman: Client, session: str, **more: Any) -> None:
        self.told: list[Any] = []
        self._news = asyncio.Event()
        self._following = dragoman.follow(session, **{"after": 0, **more})
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        async with aclosing(self._following) as items:
            async for item in items:
                self.told.append(item)
                self._news.set()

    async def __aenter__(self) -> "Follower":
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def envelopes(self) -> list[Envelope]:
        return [one for one in self.told if isinstance(one, Envelope)]

    async def sees(self, look: Callable[[Sequence[Envelope]], bool], *, within: float = PATIENCE) -> None:
        async with asyncio.timeout(within):
            while not look(self.envelopes):
                assert not self._task.done(), self._task
                self._news.clear()
                await self._news.wait()

    async def sees_text(self, text: str) -> None:
        await self.sees(lambda told: any(text in texts([one]) for one in told))

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._task


def texts(told: Sequence[Envelope]) -> list[str]:
    return [text_of(one.event.content) for one in told if isinstance(one.event, MessagePosted)]


def ends_at(told: Sequence[Envelope], sequence: int) -> bool:
    return bool(told) and told[-1].sequence == sequence


async def is_all_of_it(follower: Follower, dragoman: Client, session: str) -> None:
    """Hold what a follower was told to what is on record, as the lists show it."""
    recorded = [one async for one in dragoman.events(session)]
    await follower.sees(lambda told: len(told) >= len(recorded))
    assert follower.envelopes == recorded
    assert [one.sequence for one in follower.envelopes] == list(range(1, len(recorded) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "in order"])
async def test_a_gateway_that_goes_and_comes_back_costs_no_event_and_repeats_none(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with processes(tmp_path) as (_, gateways):
        port = free_port()
        one = await gateways.serve("one", port=port)
        session = await one.session()
        said = [f"message {n}" for n in range(60)]
        async with (
            Client(one.url, API_KEY, retries=12) as dragoman,
            Follower(dragoman, session, silence=15) as follower,
        ):
            for n, text in enumerate(said):
                if n == 30:
                    await follower.sees_text(said[n - 5])
                    one.signal(number)
                    posting = asyncio.create_task(dragoman.post(session, text))
                    await one.ended()
                    one = await gateways.serve(f"again-{n}", port=port)
                    await posting
                else:
                    await dragoman.post(session, text)
            await follower.sees_text(said[-1])
            assert [text for text in texts(follower.envelopes) if text in said] == said
            await is_all_of_it(follower, dragoman, session)
            raw = await one.events(session)
        assert [(row["sequence"], row["event_id"], row["event"]) for row in raw][: len(follower.envelopes)] == [
            (told.sequence, told.event_id, dump_event(told.event)) for told in follower.envelopes
        ]


@pytest.mark.slow
async def test_a_call_is_waited_for_while_its_gateway_is_killed_and_started_again(tmp_path: Path) -> None:
    async with processes(tmp_path) as (environment, gateways):
        hooks, port = environment.hooks, free_port()
        hooks.scripts["free"] = Response(status_code=202)
        one = await gateways.serve("one", port=port)
        async with Client(one.url, API_KEY) as dragoman:
            waiting = asyncio.create_task(dragoman.call(await one.session(), "free", {}, key="order-4711"))
            await one.wait_call("caller:backend:order-4711", "accepted")
            one.signal(signal.SIGKILL)
            await one.ended()
            one = await gateways.serve("again", port=port)
            [call] = [call async for call in dragoman.calls()]
            await dragoman.settle_call(call, "success", result="in the end")
            async with asyncio.timeout(PATIENCE):
                done = await waiting
        assert (done.call_id, done.outcome and done.outcome.result) == (call.call_id, "in the end")
        assert len(hooks.of("free")) == 1


@pytest.mark.slow
async def test_through_nginx_a_replica_that_is_killed_costs_no_event_and_ends_no_call(tmp_path: Path) -> None:
    port = free_port()
    async with scene(tmp_path, "0.2") as environment, behind(environment, port, lease="2s") as replicas:
        environment.hooks.scripts["free"] = Response(status_code=202)
        session, said = replicas.session_id, [f"message {n}" for n in range(40)]
        async with (
            Client(f"http://127.0.0.1:{port}", API_KEY, retries=12) as dragoman,
            Follower(dragoman, session) as follower,
        ):
            waiting = asyncio.create_task(dragoman.call(session, "free", {}, key="order-4711"))
            await replicas.two.wait_call("caller:backend:order-4711", "accepted")
            for text in said[:20]:
                await dragoman.post(session, text)
            await follower.sees_text(said[15])
            replicas.one.signal(signal.SIGKILL)
            for text in said[20:]:
                await dragoman.post(session, text)
            [call] = [call async for call in dragoman.calls()]
            await dragoman.settle_call(call, "success", result="in the end")
            done = await waiting
            assert (done.call_id, done.outcome and done.outcome.result) == (call.call_id, "in the end")
            await follower.sees_text(said[-1])
            assert [text for text in texts(follower.envelopes) if text in said] == said
            await is_all_of_it(follower, dragoman, session)


@asynccontextmanager
async def processes(folder: Path) -> AsyncGenerator[tuple[Scene, Fleet]]:
    """Simulated agent and backend, and gateways of their own processes between them, on one file."""
    async with scene(folder, "0.2") as made:
        engine = {"type": "sqlite", "path": str(folder / "dragoman.db")}
        async with fleet(made, engine=engine) as gateways:
            yield made, gateways


@asynccontextmanager
async def behind_a_wire(**options: Any) -> AsyncGenerator[tuple[Environment, Proxy, Client]]:
    async with (
        environment_of({"api": {"heartbeat": "100ms"}}) as environment,
        serving(environment.gateway) as (_, url),
        Proxy(("127.0.0.1", urlsplit(url).port or 0)) as wire,
        Client(wire.url, KEY, **options) as dragoman,
    ):
        yield environment, wire, dragoman


async def test_a_wire_that_is_cut_goes_silent_and_refuses_costs_no_event_and_repeats_none() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        async with Follower(dragoman, session, silence=QUIET) as follower:
            for n, harm in enumerate((wire.cut, wire.half_open, wire.refuse)):
                await environment.post(session, 30, text=f"before {n}")
                last = (await environment.journal(session))[-1].sequence
                await follower.sees(lambda told, last=last: ends_at(told, last))
                opened = wire.opened
                harm()
                await environment.post(session, 30, text=f"meanwhile {n}")
                if harm == wire.half_open:
                    # The stream is given up though nothing has closed it, and others are tried.
                    async with asyncio.timeout(PATIENCE):
                        while wire.opened == opened:  # noqa: ASYNC110 - a proxy tells nobody
                            await asyncio.sleep(0.02)
                wire.heal()
            lost = wire.break_after(b'"text":"the end"', side="server")
            await environment.post(session, 3, text="the end")
            async with asyncio.timeout(PATIENCE):
                await lost.done.wait()
            last = (await environment.journal(session))[-1].sequence
            await follower.sees(lambda told: ends_at(told, last))
            await is_all_of_it(follower, dragoman, session)
            assert not any(isinstance(one, Gap) for one in follower.told)


async def test_a_quiet_stream_that_lives_is_kept_and_shows_what_is_only_live() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        async with Follower(dragoman, session, silence=QUIET) as follower:
            await follower.sees(lambda told: ends_at(told, 2))
            opened = wire.opened
            # Three times as long as it would bear silence: heartbeats alone come.
            await asyncio.sleep(3 * QUIET)
            environment.runtime.say(TypingChanged(typing=True))
            await environment.post(session, 1)
            await follower.sees(lambda told: ends_at(told, 3))
            assert wire.opened == opened
        assert [one for one in follower.told if not isinstance(one, Envelope)] == [Live(TypingChanged(typing=True), 2)]


async def test_without_a_place_a_stream_begins_now_and_misses_nothing_from_then_on() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        await environment.post(session, 5)
        async with Follower(dragoman, session, after=None, silence=QUIET) as follower:
            async with asyncio.timeout(PATIENCE):
                while not wire.opened:  # noqa: ASYNC110 - a proxy tells nobody
                    await asyncio.sleep(0.01)
            [looked] = [await dragoman.session(session)]
            # It has no event yet, and comes back for those behind where it began.
            wire.refuse()
            await environment.post(session, 5)
            wire.heal()
            await follower.sees(lambda told: len(told) >= 5)
            assert [one.sequence for one in follower.envelopes][:5] == list(
                range(looked.last_sequence + 1, looked.last_sequence + 6)
            )


async def test_what_retention_has_removed_meanwhile_is_a_gap_in_the_stream() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        await environment.post(session, 40)
        async with Follower(dragoman, session, silence=QUIET) as follower:
            await follower.sees(lambda told: ends_at(told, 42))
            wire.refuse()
            await environment.post(session, 100)
            first = await environment.forget(session, keep=30)
            wire.heal()
            await follower.sees(lambda told: ends_at(told, 142))
        assert [one for one in follower.told if isinstance(one, Gap)] == [Gap(first)]
        assert [one.sequence for one in follower.envelopes] == [*range(1, 43), *range(first, 143)]
        assert follower.told.index(Gap(first)) == 42


async def test_a_stream_ends_where_its_session_does() -> None:
    async with behind_a_wire() as (environment, _, dragoman):
        session = await environment.attach()
        async with Follower(dragoman, session) as follower:
            await dragoman.post(session, "the last word")
            await follower.sees_text("the last word")
            await dragoman.close_session(session)
            await follower.ended()
            assert follower.envelopes[-1].event.kind == "session.closed"
            await is_all_of_it(follower, dragoman, session)
        again = [one async for one in dragoman.follow(session, after=0)]
        assert again == follower.told
        assert [one async for one in dragoman.follow(session)] == []


async def test_a_gateway_that_stays_away_or_knows_the_key_no_more_ends_a_stream() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        session = await environment.attach()
        following = dragoman.follow(session, after=0, patience=1)
        assert [getattr(await anext(following), "sequence", None) for _ in range(2)] == [1, 2]
        wire.refuse()
        with pytest.raises(GatewayUnreachable):
            async with asyncio.timeout(PATIENCE):
                await anext(following)
        wire.heal()
        following = dragoman.follow(session, after=0)
        await anext(following)
        await environment.reload({"api": {"keys": [{"name": "other", "key": "another-key"}]}})
        wire.cut()
        with pytest.raises(RequestRefused) as caught:
            async with asyncio.timeout(PATIENCE):
                [_ async for _ in following]
        assert caught.value.type == "unauthorized"


async def test_who_follows_people_is_told_what_still_waits_when_it_comes_back() -> None:
    async with behind_a_wire() as (environment, wire, dragoman):
        await environment.attach()
        asked = await environment.ask_person()
        following = dragoman.follow_interactions(silence=QUIET)
        first = await anext(following)
        wire.half_open()
        opened = wire.opened
        coming = asyncio.ensure_future(anext(following))
        async with asyncio.timeout(PATIENCE):
            while wire.opened == opened:  # noqa: ASYNC110 - a proxy tells nobody
                await asyncio.sleep(0.02)
            wire.heal()
            missed = await coming
            again = await anext(following)
        assert (isinstance(first, Interaction), missed, again) == (True, Missed(), first)
        assert isinstance(again, Interaction)
        assert again.interaction_id == asked
        await following.aclose()


async def test_a_hundred_and_thirty_streams_leave_room_for_requests() -> None:
    async with behind_a_wire() as (environment, _, dragoman):
        sessions = [await environment.attach(f"room-{n}") for n in range(13)]
        streams = [dragoman.follow(one, after=0) for one in sessions for _ in range(10)]
        async with asyncio.timeout(PATIENCE):
            assert {type(one) for one in await asyncio.gather(*map(anext, streams))} == {Envelope}
            await dragoman.post(sessions[0], "hello")
        for one in streams:
            await one.aclose()


@pytest.mark.slow
async def test_the_release_before_is_asked_for_what_it_has(tmp_path: Path) -> None:
    before = release_before()
    async with processes(tmp_path) as (environment, gateways):
        one = await gateways.serve("before", release=before)
        await environment.agent.wait_connected()
        session = await one.session()
        async with Client(one.url, API_KEY) as dragoman, Follower(dragoman, session) as follower:
            environment.hooks.scripts["free"] = success("done")
            ended = await environment.agent.call("free", {})
            await ended.result(PATIENCE)
            [row] = [row async for row in dragoman.sessions(runtime="finn")]
            assert row.session_id == session
            await dragoman.post(session, "Your turn, Finn!", key="k")
            await dragoman.post(session, "Your turn, Finn!", key="k")
            await follower.sees_text("Your turn, Finn!")
            [call] = [call async for call in dragoman.calls(tool="free", state=["succeeded"])]
            history = await dragoman.call_history(call)
            assert (call.answer_to, history.outcome and history.outcome.result) == ("runtime", "done")
            assert [one.runtime for one in await dragoman.capabilities()] == ["finn"]
            assert [one async for one in dragoman.interactions()] == []
            with pytest.raises(RequestRefused) as caught:
                await dragoman.call(session, "free", {})
            assert (caught.value.status, caught.value.type) == (404, "unknown-path")
            await dragoman.close_session(session)
            await follower.ended()
            await is_all_of_it(follower, dragoman, session)
