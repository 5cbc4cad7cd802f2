"""A reload of which each step raises in turn: nothing is left half-done, and the next one finishes what is left."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gateway.runtime.tuning import Tuning
from gateway.store.rows import Page, SessionFilter
from tests.faults.host_faults import Host, configuration, host
from tests.scenarios.environment import until

pytestmark = pytest.mark.slow

CHANGED = {"runtimes.finn", "executors.echo", "destinations.copies"}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Host]:
    async with host(tmp_path, tuning=Tuning(sweep=0.5)) as one:
        yield one


def change(running: Host) -> None:
    """Write another configuration, of which each part has a step of its own in a reload."""
    settings = configuration()
    settings["runtimes"]["finn"]["session"] = "room-other"
    settings["executors"]["echo"]["result"] = 2
    settings["destinations"]["copies"]["backoff"]["maximum"] = "60ms"
    running.config.write_text(yaml.safe_dump(settings))


async def is_changed(running: Host) -> None:
    """All of it is in use, and there is nothing left to do."""
    assert (await running.post("/v1/reload", status=200))["changed"] == []
    sessions = (await running.get("/v1/sessions"))["data"]
    assert "room-other" in {one["native_id"] for one in sessions}
    assert running.finn.open == 3
    await running.others_go_on()


@pytest.mark.parametrize("place", ["executor.make", "destination.make", "executor.enter", "destination.enter"])
async def test_a_reload_whose_backends_cannot_be_opened_changes_nothing(running: Host, place: str) -> None:
    before = running.gateway.settings
    change(running)
    running.traps.set(place)
    await running.post("/v1/reload", status=500)
    assert running.gateway.settings is before
    assert running.finn.open == 2
    await running.is_well()
    assert {*(await running.post("/v1/reload", status=200))["changed"]} >= CHANGED
    await is_changed(running)


@pytest.mark.parametrize("place", ["engine.open_session", "adapter.connector", "adapter.codec"])
async def test_what_a_reload_could_not_finish_the_next_one_does_and_says_so(running: Host, place: str) -> None:
    change(running)
    running.traps.set(place)
    await running.post("/v1/reload", status=500)
    await running.others_go_on()
    assert {*(await running.post("/v1/reload", status=200))["changed"]} >= CHANGED
    await is_changed(running)


@pytest.mark.parametrize("place", ["executor.leave", "destination.leave", "connector.close", "link.close"])
async def test_what_was_in_use_and_cannot_be_closed_keeps_a_reload_from_nothing(running: Host, place: str) -> None:
    change(running)
    running.traps.set(place)
    assert {*(await running.post("/v1/reload", status=200))["changed"]} >= CHANGED
    await running.traps.springs(place)
    await is_changed(running)


@pytest.mark.parametrize("place", ["connector.close", "link.close", "engine.release"])
async def test_a_runtime_that_cannot_be_let_go_is_gone_all_the_same(tmp_path: Path, place: str) -> None:
    async with host(tmp_path, tuning=Tuning(takeover_look=0.05)) as running:
        settings = configuration()
        del settings["runtimes"]["finn"]
        running.config.write_text(yaml.safe_dump(settings))
        running.traps.set(place)
        assert "runtimes.finn" in (await running.post("/v1/reload", status=200))["changed"]
        await running.traps.springs(place)
        assert (await running.post("/v1/reload", status=200))["changed"] == []
        assert [one["name"] for one in (await running.get("/v1/runtimes"))["data"]] == ["sound"]
        assert running.finn.open == 0

        async def is_free() -> bool:
            rows, _ = await running.engine.sessions(Page(), SessionFilter("finn"))
            return {row.owner for row in rows} == {None}

        await until(is_free)
        await running.others_go_on()
