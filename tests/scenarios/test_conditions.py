"""One list of conditions that need an operator feeds readiness, activity, the metric and doctor."""

import asyncio
from pathlib import Path

from gateway.cli.doctor_gateway import check_links
from gateway.errors import EngineUnavailable
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Committed, Step
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, until
from tests.submits import SubmitsByCommit


class Unwell(SubmitsByCommit, SqliteEngine):
    """A store that can refuse steps, or keep them to itself."""

    def __init__(self, folder: Path) -> None:
        SqliteEngine.__init__(self, folder / "dragoman.db", SystemClock())
        self.refuses = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def commit(self, step: Step) -> Committed:
        if self.refuses:
            raise EngineUnavailable("the disk is full")
        await self.answers.wait()
        return await SqliteEngine.commit(self, step)


async def told(gateway: Running) -> tuple[set[str], set[str], dict[str, float], list[str]]:
    """Return the conditions as each of the four readers gets them."""
    shown = {f"{one['kind']} {one['name']}" for one in (await gateway.get("/v1/activity"))["conditions"]}
    named = set((await gateway.http.get("/readyz", headers={"authorization": ""})).json()["failing"])
    counts = {
        name.partition('"')[2].rstrip('"}'): count
        for name, count in (await gateway.metrics()).items()
        if name.startswith("dragoman_conditions{")
    }
    env = {"DRAGOMAN_URL": gateway.url, "DRAGOMAN_KEY": API_KEY}
    checks = await asyncio.to_thread(lambda: list(check_links(env)))
    return shown, named, counts, [one.text for one in checks if one.state == "warning"]


async def test_a_lost_link_and_a_broken_executor_are_conditions_until_they_are_back(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"url": "http://127.0.0.1:1/", "reconnect_within": "100ms"}}})
    async with newer.running() as gateway:
        assert (await told(gateway))[:2] == (set(), set())
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "failure"
        await newer.huma.stop()
        await gateway.wait_link("down")

        async def counted() -> bool:
            return (await told(gateway))[2].get("link") == 1.0

        await until(counted)
        shown, named, counts, warnings = await told(gateway)
        assert shown == {"link finn/finn", "executor cards"}
        assert named == {"link of finn/finn", "executor of cards"}
        assert (counts["link"], counts["executor"], counts["part"]) == (1, 1, 0)
        assert [one.partition(":")[0] for one in warnings] == ["0 of 1 up at http", "link finn/finn", "executor cards"]
        assert (await gateway.http.get("/readyz")).status_code == 200
        [link] = [one for one in (await gateway.get("/v1/activity"))["conditions"] if one["kind"] == "link"]
        assert link["session_id"] == await gateway.session()
        assert link["reason"].startswith("is down: ")


async def test_a_session_that_waits_for_the_store_for_long_is_a_condition_until_it_goes_on(newer: Scene) -> None:
    newer.engine = engine = Unwell(newer.folder)
    newer.tuning = Tuning(session_waits=0.2, store_waits=0.2, gauges=0.1)

    async with newer.running() as gateway:

        async def reason() -> str | None:
            found = (await gateway.get("/v1/activity"))["conditions"]
            return next((one["reason"] for one in found if one["kind"] == "session"), None)

        async def is_gone() -> bool:
            return await reason() is None

        engine.refuses = True
        refused = await newer.agent.call("ask", GOOD)
        assert (await until(reason)).endswith(": the store is unavailable")
        assert (await told(gateway))[1] == {"session finn/finn"}
        engine.refuses = False
        assert (await ended(refused)).outcome == "success"
        await until(is_gone)
        engine.answers.clear()
        kept = await newer.agent.call("ask", GOOD)
        assert (await until(reason)).startswith("the store has not reported on its step for ")
        engine.answers.set()
        assert (await ended(kept)).outcome == "success"
        await until(is_gone)
        assert (await gateway.metrics())['dragoman_faults_total{part="store"}'] == 1
