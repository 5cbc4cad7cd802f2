"""One list of conditions that need an operator feeds readiness, activity, the metric and doctor."""

import asyncio

from gateway.cli.doctor import check_links
from tests.scenarios.environment import API_KEY, GOOD, Running, Scene, ended, until


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
