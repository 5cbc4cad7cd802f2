"""Positions that outlive their store: after a restore they say so, and nothing of the new history is skipped."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.client import Client, Envelope, Followed, Gap, Missed
from gateway.errors import Gone, InvalidRequest, OperatorError
from gateway.events import SessionId
from gateway.http.positions import mark_of, read_in_all, read_in_list, read_in_session, write_in_all, write_in_list
from gateway.store.postgres.connection import Address
from gateway.store.postgres.operations import bump_fences as bump_fences_in_postgres, dump_command, restore_command
from gateway.store.rows import ANY_EVENT, FROM_THE_START, EventFilter, Generation
from gateway.store.sqlite.backup import back_up, bump_fences, restore
from tests.engines import postgres_server
from tests.http.conftest import plain_client, serving
from tests.http.environment import Environment, environment_of, until
from tests.http.test_all_events import following as following_all, next_of, place
from tests.http.test_stream import following, number_of
from tests.pace import PATIENCE

OWN = Generation("0123456789ab", "ba9876543210", 40)


@dataclass
class Store:
    """A store of a gateway, and the ways to save it and to go back to what was saved."""

    path: Path | None
    schema: str | None
    save: Callable[[], Awaitable[None]]
    go_back: Callable[[], Awaitable[None]]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[tuple[Environment, httpx.AsyncClient, str]]:
        """Run a gateway on it, with a client and its URL."""
        async with (
            environment_of(
                {"api": {"heartbeat": "100ms"}, "instance": {"lease": "3s"}}, path=self.path, schema=self.schema
            ) as environment,
            serving(environment.gateway) as (_, url),
            plain_client(url) as client,
        ):
            yield environment, client, url


async def _shell(command: str) -> None:
    process = await asyncio.create_subprocess_shell(command)
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0


BOTH = ["restore", "copy of a backup", "bump-fences", pytest.param("pg_restore", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    path, backup = tmp_path / "gateway.db", tmp_path / "backup.db"
    if request.param == "pg_restore":
        address = Address(postgres_server.dsn(), postgres_server.new_schema())
        whole = restore_command(address, backup).removesuffix(" && dragoman restore --bump-fences")

        async def go_back() -> None:
            await _shell(whole)

            async def bumped() -> bool | None:
                # The dump has the lease of the gateway that ran meanwhile.
                with suppress(OperatorError):
                    return bool(await bump_fences_in_postgres(address))

            await until(bumped)

        yield Store(None, address.schema, lambda: _shell(dump_command(address, backup)), go_back)
        await postgres_server.drop_schema(address.schema)
        return

    async def save() -> None:
        await asyncio.to_thread(back_up, path, backup)

    async def restore_backup() -> None:
        if request.param == "restore":
            restore(path, backup)
        else:
            shutil.copy(backup, path)
        if request.param == "bump-fences":
            bump_fences(path)

    yield Store(path, None, save, restore_backup)


async def _events(client: httpx.AsyncClient, session: str, count: int) -> list[dict[str, str]]:
    async with following(client, session, "?after=0") as reader:
        return [await reader.event() for _ in range(count)]


async def _ids(client: httpx.AsyncClient, count: int) -> list[str]:
    async with following_all(client, after="0") as reader:
        return [(await next_of(reader))["id"] for _ in range(count)]


async def _write_over(store: Store) -> tuple[str, list[str], list[str], dict[str, str]]:
    """Go back to 5 of 9 events and record others; return the session, its ids, all ids, and the `next` of lists."""
    async with store.running() as (environment, client, _):
        session = await environment.attach()
        await environment.attach("another")
        await environment.post(session, 3)
        await store.save()
        await environment.post(session, 4)
        ids = [one["id"] for one in await _events(client, session, 9)]
        everything = await _ids(client, 11)
        lists: dict[str, str] = {}
        for path in (f"/v1/sessions/{session}/events", "/v1/sessions"):
            lists[path] = (await client.get(path, params={"limit": 1})).json()["next"]
    await store.go_back()
    return session, ids, everything, lists


async def test_after_a_restore_both_streams_begin_with_a_gap_and_show_all_that_is_new(store: Store) -> None:
    session, ids, everything, lists = await _write_over(store)
    async with store.running() as (environment, client, _):
        await environment.post(session, 8, text="new")
        new = [one["id"] for one in await _events(client, session, 13)]
        assert not set(new) & set(ids)
        for after in (ids[8], ids[6], ids[4]):
            async with following(client, session, headers={"last-event-id": after}) as reader:
                gap = await reader.event()
                assert (gap["event"], number_of(gap)) == ("gap", 0 if number_of(gap) == 0 else 5)
                found = [await reader.event() for _ in range(13 - number_of(gap))]
                assert [one["id"] for one in found] == new[number_of(gap) :]
            # Cut off right behind the gap, it goes on in the new history.
            async with following(client, session, headers={"last-event-id": gap["id"]}) as reader:
                assert number_of(await reader.event()) == number_of(gap) + 1
        for after in (everything[-1], everything[4]):
            async with following_all(client, after=after) as reader:
                assert (await reader.event())["event"] == "gap"
                position = await reader.event()
                assert position["event"] == "position"
                seen: list[tuple[str, int]] = []
                while (session, 13) not in seen:
                    event = await next_of(reader)
                    # PostgreSQL cannot order the transactions of a restored dump: another gap covers them.
                    seen += [] if event["event"] == "gap" else [place(event)]
            assert {(session, number) for number in range(6, 14)} <= {*seen}
            async with following_all(client, after=position["id"]) as reader:
                while (event := await next_of(reader))["event"] == "gap":
                    pass
                assert place(event) == seen[0]
        for path, following_page in lists.items():
            problem = await client.get(path, params={"after": following_page})
            assert (problem.status_code, problem.json()["type"]) == (410, "/problems/gone"), path


async def test_after_a_restore_the_client_yields_a_gap_and_goes_on_in_the_new_history(store: Store) -> None:
    session, ids, everything, _ = await _write_over(store)
    async with store.running() as (environment, _, url):
        await environment.post(session, 8, text="new")
        async with Client(url, "all-of-it") as dragoman, asyncio.timeout(PATIENCE):
            whole = [one async for one in dragoman.events(session)]
            for reading in (dragoman.events(session, after=ids[8]), dragoman.follow(session, after=ids[8])):
                async with aclosing(reading):
                    gap = await anext(reading)
                    assert isinstance(gap, Gap)
                    rest = [await anext(reading) for _ in whole[gap.first_sequence - 1 :]]
                assert rest == whole[gap.first_sequence - 1 :]
            last = whole[-1]
            assert isinstance(last, Envelope)
            position, generation = ((await dragoman.session(session)).position or "").split(".")
            assert int(position) >= last.sequence
            assert last.position == f"{last.sequence}.{generation}"
            seen: list[Any] = []
            async with aclosing(dragoman.follow_all(after=everything[-1])) as items:
                while not (seen and isinstance(seen[-1], Followed) and seen[-1].item == last):
                    seen.append(await anext(items))
            assert isinstance(seen[0], Missed)


@pytest.mark.parametrize(
    ("given", "place_in_all", "is_gap"),
    [
        ("0", FROM_THE_START, False),
        ("1f.2.3.0123456789ab.MARK", (31, 2, 3), False),
        ("1f.2.3.ba9876543210.MARK", (31, 2, 3), True),
        ("2f.2.3.ba9876543210.MARK", (40, 0, 0), True),
        ("1f.2.3.aaaaaaaaaaaa.MARK", FROM_THE_START, True),
        ("v2.anything:else", FROM_THE_START, True),
    ],
)
def test_a_position_of_another_store_or_of_a_later_release_is_a_gap(
    given: str, place_in_all: tuple[int, int, int], is_gap: bool
) -> None:
    mark = mark_of(ANY_EVENT)
    given = given.replace("MARK", mark)
    assert read_in_all(given, OWN, mark, parameter="after") == (place_in_all, is_gap)
    if given.count(".") == 4 and not is_gap:
        assert write_in_all(place_in_all, OWN.name, mark).decode() == given


@pytest.mark.parametrize("given", ["1", "1.2.3", "1.2.3.4", "1.2.3.0123456789ab.", "v2", "v2. ", "v2.\n", "-1", ""])
def test_a_made_up_position_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an `id` of this stream"):
        read_in_all(given, OWN, mark_of(ANY_EVENT), parameter="after")


def test_a_position_of_other_filters_is_refused_whatever_its_generation() -> None:
    mark, other = mark_of(ANY_EVENT), mark_of(EventFilter(runtime="finn"))
    for generation in (OWN.name, "a" * 12):
        given = write_in_all((1, 2, 3), generation, mark).decode()
        with pytest.raises(InvalidRequest, match="other filters"):
            read_in_all(given, OWN, other, parameter="after")


def test_a_page_of_another_store_is_gone_and_a_made_up_one_is_refused() -> None:
    assert read_in_list(write_in_list("abc", OWN.name) or "", OWN) == "abc"
    assert write_in_list(None, OWN.name) is None
    for foreign in ("abc.ba9876543210", "v2.abc"):
        with pytest.raises(Gone):
            read_in_list(foreign, OWN)
    for made_up in ("abc", "abc.", ".0123456789ab", "a b.0123456789ab", "abc.0123456789abc"):
        with pytest.raises(InvalidRequest):
            read_in_list(made_up, OWN)


def test_a_position_in_a_session_is_a_sequence_with_or_without_a_generation() -> None:
    assert read_in_session("41", parameter="after") == (41, None)
    assert read_in_session("41.0123456789ab", parameter="after") == (41, "0123456789ab")
    assert not OWN.is_own(read_in_session("v2.x", parameter="after")[1])


def test_the_mark_of_the_same_filters_is_the_same_in_each_process_and_release() -> None:
    """The order of a set differs between processes; a mark that changes refuses every `id` that clients have."""
    kinds = ("tool.requested", "tool.finished", "message.posted", "session.opened", "turn.started", "turn.ended")
    labels = {"b": "2", "a": "1"}
    which = EventFilter(SessionId("s"), "finn", labels, frozenset(kinds))
    assert mark_of(which) == mark_of(replace(which, labels=dict(sorted(labels.items())))) == "efae5c7b"
    assert mark_of(replace(which, kinds=frozenset(kinds[1:]))) != "efae5c7b"


def test_a_sequence_that_no_store_can_hold_is_no_position() -> None:
    assert read_in_session(str(2**63 - 1), parameter="after") == (2**63 - 1, None)
    with pytest.raises(InvalidRequest, match="is not an `id` of this stream"):
        read_in_session(str(2**63), parameter="after")
