"""A reload of which each step raises in turn: nothing is left half-done, and the next one finishes what is left."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from gateway.runtime.tuning import Tuning
from gateway.store.rows import Page, SessionFilter
from tests.faults.host_faults import Host, configuration, host
from tests.pace import PATIENCE
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
    assert (await running.post("/v1/reload?force=true", status=200))["changed"] == []
    sessions = (await running.get("/v1/sessions"))["data"]
    assert "room-other" in {one["native_id"] for one in sessions}
    assert running.finn.open == 3
    await running.others_go_on()


@pytest.mark.parametrize("place", ["executor.make", "destination.make", "executor.enter", "destination.enter"])
async def test_a_reload_whose_backends_cannot_be_opened_changes_nothing(running: Host, place: str) -> None:
    before = running.gateway.settings
    change(running)
    running.traps.set(place)
    await running.post("/v1/reload?force=true", status=500)
    assert running.gateway.settings is before
    assert running.finn.open == 2
    await running.is_well()
    assert {*(await running.post("/v1/reload?force=true", status=200))["changed"]} >= CHANGED
    await is_changed(running)


@pytest.mark.parametrize("place", ["engine.open_session", "adapter.connector", "adapter.codec"])
async def test_what_a_reload_could_not_finish_the_next_one_does_and_says_so(running: Host, place: str) -> None:
    change(running)
    running.traps.set(place)
    await running.post("/v1/reload?force=true", status=500)
    await running.others_go_on()
    assert {*(await running.post("/v1/reload?force=true", status=200))["changed"]} >= CHANGED
    await is_changed(running)


@pytest.mark.parametrize("place", ["executor.leave", "destination.leave", "connector.close", "link.close"])
async def test_what_was_in_use_and_cannot_be_closed_keeps_a_reload_from_nothing(running: Host, place: str) -> None:
    change(running)
    running.traps.set(place)
    assert {*(await running.post("/v1/reload?force=true", status=200))["changed"]} >= CHANGED
    await running.traps.springs(place)
    await is_changed(running)


@pytest.mark.parametrize("place", ["connector.close", "link.close", "engine.release"])
async def test_a_runtime_that_cannot_be_let_go_is_gone_all_the_same(tmp_path: Path, place: str) -> None:
    async with host(tmp_path, tuning=Tuning(takeover_look=0.05)) as running:
        settings = configuration()
        del settings["runtimes"]["finn"]
        running.config.write_text(yaml.safe_dump(settings))
        running.traps.set(place)
        assert "runtimes.finn" in (await running.post("/v1/reload?force=true", status=200))["changed"]
        await running.traps.springs(place)
        assert (await running.post("/v1/reload?force=true", status=200))["changed"] == []
        assert [one["name"] for one in (await running.get("/v1/runtimes"))["data"]] == ["sound"]
        assert running.finn.open == 0
        await until(lambda: _is_free(running, "finn"))
        await running.others_go_on()


# What cannot be done at once is done by itself


async def test_an_adapter_that_fails_keeps_no_runtime_behind_it_from_its_change(running: Host) -> None:
    settings = configuration()
    settings["runtimes"]["finn"]["session"] = "room-other"
    del settings["runtimes"]["sound"]
    running.config.write_text(yaml.safe_dump(settings))
    running.traps.set("adapter.connector", 3)
    await running.post("/v1/reload?force=true", status=500)
    assert [one["name"] for one in (await running.get("/v1/runtimes"))["data"]] == ["finn"]
    assert running.sound.open == 0
    # Nobody reloads again.
    await until(lambda: _has_session(running, "room-other"), within=PATIENCE)
    await running.works(running.finn, "finn")


async def test_what_the_store_interrupts_is_in_force_and_is_finished_by_itself(
    running: Host, capfd: pytest.CaptureFixture[str]
) -> None:
    change(running)
    running.traps.set("engine.open_session, away", 2)
    await running.post("/v1/reload?force=true", status=503)
    assert running.gateway.settings.executors["echo"].model_dump()["result"] == 2
    assert "configuration partially applied; retrying the rest" in capfd.readouterr().err
    await until(lambda: _has_session(running, "room-other"), within=PATIENCE)
    await running.is_well()


async def test_a_reload_goes_on_though_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async with host(tmp_path, tuning=Tuning(sweep=0.5, answer=0.3)) as running:
        for number in range(3):
            await running.post("/v1/sessions", {"runtime": "finn", "native_id": f"another-{number}"}, status=201)
        await until(lambda: _has_session(running, "another-2"))
        settings = configuration()
        del settings["runtimes"]["finn"]
        running.config.write_text(yaml.safe_dump(settings))
        running.traps.set("link.close, hangs")
        await running.post("/v1/reload?force=true", status=503)
        await until(lambda: _is_free(running, "finn"), within=PATIENCE)
        assert running.finn.open == 0
        assert [one["name"] for one in (await running.get("/v1/runtimes"))["data"]] == ["sound"]
        await running.others_go_on()


async def test_a_connector_that_hangs_when_it_is_closed_ends_no_reload(tmp_path: Path) -> None:
    runtimes = configuration()["runtimes"]
    runtimes["finn"]["connect_timeout"] = "300ms"
    async with host(tmp_path, runtimes=runtimes, tuning=Tuning(sweep=0.5)) as running:
        change(running)
        running.traps.set("connector.close, hangs")
        assert {*(await running.post("/v1/reload?force=true", status=200))["changed"]} >= CHANGED
        assert running.faults()["connector"]
        await is_changed(running)


async def test_a_reload_that_changed_nothing_leaves_nothing_to_finish(running: Host) -> None:
    before = running.config.read_text()
    change(running)
    running.traps.set("executor.make")
    await running.post("/v1/reload?force=true", status=500)
    running.config.write_text(before)
    assert (await running.post("/v1/reload?force=true", status=200))["changed"] == []


async def test_a_file_that_cannot_be_read_in_time_holds_up_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async with host(tmp_path, tuning=Tuning(sweep=0.5, reread=0.5)) as running:
        before = running.config.read_text()
        running.config.unlink()
        # As a disk that hangs: it is waited for until somebody writes to it.
        os.mkfifo(running.config)
        reloading = asyncio.create_task(running.http.post("/v1/reload?force=true"))
        await running.is_well()
        answer = await reloading
        assert (answer.status_code, "longer than 0.5 s" in answer.text) == (422, True)
        await asyncio.to_thread(running.config.write_text, before)
        running.config.unlink()
        running.config.write_text(before)
        assert (await running.post("/v1/reload?force=true", status=200))["changed"] == []


async def _has_session(running: Host, native_id: str) -> bool:
    links = [one for shown in running.gateway.status.runtimes() for one in shown.links]
    return {one.state for one in links if one.native_id == native_id} == {"up"}


async def _is_free(running: Host, runtime: str) -> bool:
    rows, _ = await running.engine.sessions(Page(), SessionFilter(runtime))
    return {row.owner for row in rows} == {None}
