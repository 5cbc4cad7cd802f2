"""Dead letters that an operator leaves as they are: gone from the list and the gauge, and still on record."""

import pytest

from gateway.runtime.tuning import Tuning
from tests.scenarios.environment import Scene, ended, until
from tests.scenarios.terminal import dragoman
from tests.scenarios.test_dead_letters import breaking, letters, listed


@pytest.fixture
def tuning() -> Tuning:
    """The gauges are looked at often."""
    return Tuning(gauges=0.05)


async def test_a_dismissed_letter_is_off_the_list_and_the_gauge_and_on_record(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:

        async def gauge(count: int) -> None:
            async def look() -> bool:
                return (await gateway.metrics())["dragoman_dead_letters"] == count

            await until(look)

        call = await newer.agent.call("free", {})
        await ended(call)
        found = await listed(gateway, 2)
        await gauge(2)
        dead, copy = found
        assert (await gateway.post(f"/v1/dead-letters/{dead['id']}/dismiss", status=200))["dead"] is False
        gone = await gateway.post(f"/v1/dead-letters/{copy['id']}/dismiss", status=200)
        assert gone["state"] == "moot"
        assert gone["reason"].startswith("dismissed by backend at 20")
        assert "it was dead: " in gone["reason"]
        await gauge(0)
        assert await letters(gateway) == []
        for letter in (dead, copy):
            for verb in ("dismiss", "redrive"):
                await gateway.post(f"/v1/dead-letters/{letter['id']}/{verb}", status=404)
        history = await gateway.get(f"/v1/calls/{dead['id']}")
        assert (history["state"], history["unknown"], history["error"]) == ("failed", True, dead["error"])
        assert [one["reason"] for one in history["deliveries"] if one["target"] == "destination:log"] == [
            gone["reason"]
        ]
        [note] = [one for one in history["events"] if one["event"]["kind"] == "call.progressed"]
        assert note["event"]["data"] == {"dismissed_by": "backend"}


async def test_the_letters_of_a_closed_session_can_be_dismissed(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        dead = (await listed(gateway, 2))[0]
        session = await gateway.session()
        assert (await gateway.http.delete(f"/v1/sessions/{session}")).status_code < 300
        await gateway.post(f"/v1/dead-letters/{dead['id']}/redrive", status=409)
        await gateway.post(f"/v1/dead-letters/{dead['id']}/dismiss", status=200)
        await gateway.post(f"/v1/dead-letters/{dead['id']}/dismiss", status=404)
        history = await gateway.get(f"/v1/calls/{dead['id']}")
        assert history["events"][-1]["event"]["data"] == {"dismissed_by": "backend"}


async def test_the_terminal_dismisses_one_and_many(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        for n in range(2):
            await ended(await newer.agent.call("free", {"n": n}))
        found = await listed(gateway, 4)
        one = await dragoman(gateway, "dead-letters", "dismiss", found[0]["id"])
        assert (one.code, one.out) == (0, f"dismissed: {found[0]['id']}\n")
        again = await dragoman(gateway, "dead-letters", "dismiss", found[0]["id"])
        assert (again.code, "no dead letter" in again.err) == (1, True)
        unsure = await dragoman(gateway, "dead-letters", "dismiss", "--all")
        assert (unsure.code, "--yes" in unsure.err) == (1, True)
        looked = await dragoman(gateway, "dead-letters", "dismiss", "--target", "destination:log", "--dry-run")
        assert looked.out.splitlines() == [each["id"] for each in found[2:]]
        assert len(await letters(gateway)) == 3
        many = await dragoman(gateway, "dead-letters", "dismiss", "--all", "--yes")
        assert (many.code, "3 of 3 dismissed" in many.err) == (0, True)
        assert await letters(gateway) == []
        for words in (["dismiss"], ["dismiss", "x", "--all"]):
            assert (await dragoman(gateway, "dead-letters", *words)).code == 2


async def test_the_letters_of_a_runtime_that_is_configured_no_more_can_be_dismissed(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        dead = (await listed(gateway, 2))[0]
    newer.configure({"runtimes": {"finn": None}})
    async with newer.running(linked=False) as gateway:
        await gateway.post(f"/v1/dead-letters/{dead['id']}/redrive", status=409)
        assert (await gateway.post(f"/v1/dead-letters/{dead['id']}/dismiss", status=200))["dead"] is False
        assert [one["id"] for one in await letters(gateway, kind="call")] == []
