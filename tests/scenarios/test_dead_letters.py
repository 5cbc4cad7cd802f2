"""What did not get through: listed with what to do, shown whole, and tried again, in the API and from the terminal."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from fastapi.responses import Response

from dragoman.models import responses
from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import success
from tests.scenarios.terminal import dragoman, screen

REDRIVE = "/v1/dead-letters/redrive"


async def letters(gateway: Running, **query: Any) -> list[dict[str, Any]]:
    return responses.DeadLetters.model_validate(await gateway.get("/v1/dead-letters", **query)).model_dump()["data"]


async def listed(gateway: Running, count: int, **query: Any) -> list[dict[str, Any]]:
    async def look() -> tuple[list[dict[str, Any]]] | None:
        found = await letters(gateway, **query)
        # An empty list by itself would be nothing found.
        return (found,) if len(found) == count else None

    return (await until(look))[0]


def breaking(scene: Scene, executor: Mapping[str, Any] | None = None) -> None:
    """Let calls and copies fail."""
    log = {"url": f"{scene.hooks.url}/copies/log", "secret": scene.settings["executors"]["cards"]["secret"],
           "attempts": 1}  # fmt: skip
    scene.configure({"executors": {"cards": {"attempts": 2, "breaker": "off", **(executor or {})}}})
    scene.configure({"destinations": {"log": log},
                     "routes": [{"match": {"event": "tool.finished"}, "copy_to": "log"},
                                {"match": {"tool": "*"}, "to": "cards"}]})  # fmt: skip
    scene.hooks.scripts["free"] = scene.hooks.scripts["/copies/log"] = Response(status_code=500)


async def test_calls_and_copies_are_listed_by_filters_and_shown_with_what_to_do(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        calls = [await newer.agent.call("free", {"n": n}) for n in range(3)]
        for call in calls:
            await ended(call)
        await listed(gateway, 6)
        dead = await letters(gateway, kind="call")
        assert {one["native_call_id"] for one in dead} == {call.call_id for call in calls}
        assert all(one["unknown"] and one["attempt"] == 2 and one["id"] == one["call_id"] for one in dead)
        assert all(one["id"] in one["advice"] and "It is unknown" in one["advice"] for one in dead)
        copies = await letters(gateway, target="destination:log")
        assert await letters(gateway, kind="delivery") == copies
        assert await letters(gateway, target="runtime") == []
        assert await letters(gateway, executor="cards") == dead
        assert {one["type"] for one in copies} == {"delivery"}
        assert len(await letters(gateway, runtime="finn", kind="call", since=dead[-1]["created_at"])) == 3
        for query in ({"runtime": "nobody"}, {"executor": "other"}, {"since": "2199-01-01T00:00:00Z"}):
            assert await letters(gateway, **query) == []
        history = await gateway.get(f"/v1/dead-letters/{dead[0]['id']}")
        responses.DeadCallWithStory.model_validate(history)
        assert history["events"][0]["event"]["kind"] == "tool.requested"
        shown = await gateway.get(f"/v1/dead-letters/{copies[0]['id']}")
        assert shown["envelope"]["event"]["kind"] == "tool.finished"
        assert shown == (await gateway.get("/v1/dead-letters", target="destination:log"))["data"][0]
        paged: list[str] = []
        after: dict[str, Any] = {}
        while True:
            page = await gateway.get("/v1/dead-letters", limit=2, **after)
            paged += [one["id"] for one in page["data"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert paged == [one["id"] for one in dead + copies]


async def test_dead_letters_are_found_by_tool_and_cause_in_the_terminal_too(newer: Scene) -> None:
    breaking(newer)
    newer.hooks.scripts["ask"] = Response(status_code=502)
    async with newer.running() as gateway:
        for call in [await newer.agent.call("free", {}), await newer.agent.call("ask", GOOD)]:
            await ended(call)
        dead = await listed(gateway, 2, kind="call")
        ask, free = sorted(dead, key=lambda one: one["tool"])
        cause = ask["error"].partition(" (")[0]
        for words, rows in (
            (("--tool", "free"), [free]),
            (("--cause", cause), [ask]),
            (("--tool", "free", "--cause", cause), []),
        ):
            found = await dragoman(gateway, "dead-letters", "list", "--kind", "call", "--json", *words)
            assert [json.loads(line)["id"] for line in found.out.splitlines()] == [one["id"] for one in rows], found
        dismissed = await dragoman(gateway, "dead-letters", "dismiss", "--tool", "free", "--yes")
        assert (dismissed.code, dismissed.err) == (0, "1 of 1 dismissed\n")
        assert [one["id"] for one in await letters(gateway, kind="call")] == [ask["id"]]


async def test_many_are_redriven_with_their_keys_and_the_agent_hears_nothing_of_it(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        calls = [await newer.agent.call("free", {"n": n}) for n in range(4)]
        for call in calls:
            await ended(call)
        await listed(gateway, 8)
        keys = {one.key for one in newer.hooks.of("free")}
        newer.hooks.scripts["free"] = success("at last")
        newer.hooks.scripts["/copies/log"] = Response()
        looked = await gateway.post(REDRIVE, {"kind": "call", "dry_run": True}, status=200)
        assert (looked["found"], looked["redriven"], len(await letters(gateway))) == (4, 0, 8)
        some = await gateway.post(REDRIVE, {"kind": "call", "limit": 1}, status=200)
        assert (some["found"], some["redriven"], some["more"]) == (1, 1, True)
        done = await gateway.post(REDRIVE, {"executor": "cards"}, status=200)
        assert (done["found"], done["redriven"], done["failed"], done["more"]) == (3, 3, [], False)
        again = await newer.hooks.wait_for(12, name="free")
        assert {one.key for one in again} == keys
        [*_, copy] = await letters(gateway)
        one = await gateway.post(f"/v1/dead-letters/{copy['id']}/redrive", status=202)
        assert responses.RedrivenDelivery.model_validate(one).state == "pending"
        copied = responses.RedrivenMany.model_validate(
            await gateway.post(REDRIVE, {"target": "destination:log"}, status=200)
        )
        assert copied.redriven == 3
        await listed(gateway, 0)
        assert (await gateway.post(REDRIVE, {}, status=200))["found"] == 0
        rows = (await gateway.get("/v1/calls", limit=100))["data"]
        assert sum(row["redrive_of"] is not None for row in rows) == 4

        async def all_done() -> bool:
            found = (await gateway.get("/v1/calls", state="succeeded"))["data"]
            return len(found) == 4

        await until(all_done)
    assert all(len(call.results) == 1 for call in calls)


async def test_what_surely_was_not_done_is_told_from_what_may_have_been(newer: Scene) -> None:
    newer.configure({"executors": {"cards": {"attempts": 1, "breaker": "off"}}})
    newer.hooks.scripts["free"] = Response(status_code=500)
    newer.hooks.scripts["ask"] = Response(status_code=503, headers={"Retry-After": "0"})
    async with newer.running() as gateway:
        for tool, arguments in (("free", {}), ("ask", GOOD)):
            await ended(await newer.agent.call(tool, arguments))
        await listed(gateway, 2)
        for unknown, tool in ((True, "free"), (False, "ask")):
            [found] = (await gateway.get("/v1/dead-letters", unknown=unknown))["data"]
            assert found["tool"] == tool
        refused = await gateway.post(REDRIVE, {"unknown": True, "kind": "delivery"}, status=400)
        assert refused["pointer"] == "/unknown"
        newer.hooks.scripts["ask"] = success("now")
        assert (await gateway.post(REDRIVE, {"unknown": False}, status=200))["redriven"] == 1
        [left] = await listed(gateway, 1)
        assert left["tool"] == "free"


async def test_a_redrive_may_have_a_new_key_and_tell_the_agent_and_fails_into_the_list_again(newer: Scene) -> None:
    breaking(newer, {"idempotent": False})
    async with newer.running() as gateway:
        call = await newer.agent.call("free", {})
        await ended(call)
        [first] = await listed(gateway, 1, kind="call")
        path = f"/v1/dead-letters/{first['id']}/redrive"
        fresh = await gateway.post(path, {"new_key": True}, status=202)
        responses.RedrivenCall.model_validate(fresh)
        await gateway.post(path, status=404)
        assert fresh["idempotency_key"] == fresh["call_id"] != first["idempotency_key"]

        async def second() -> dict[str, Any] | None:
            return next((one for one in await letters(gateway, kind="call") if one["id"] == fresh["call_id"]), None)

        assert (await until(second))["redrive_of"] == first["id"]
        newer.hooks.scripts["free"] = success("told")
        done = await gateway.post(f"/v1/dead-letters/{fresh['call_id']}/redrive", {"deliver": True}, status=202)
        assert done["redrive_of"] == fresh["call_id"]
        _, told = await call.wait_results(2)
        assert told["result"] == "told"
    # The agent had its failure: this is what was asked for, and no rule of the protocol.
    assert len(newer.agent.violations) == 1
    newer.agent.violations.clear()


async def test_the_terminal_lists_shows_and_redrives(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        none = await dragoman(gateway, "dead-letters", "list")
        assert (none.code, none.out) == (0, "")
        assert "no dead letters" in none.err
        for n in range(2):
            await ended(await newer.agent.call("free", {"n": n}))
        found = await listed(gateway, 4)
        listing = await dragoman(gateway, "dead-letters", "list", "--since", "1h")
        rows = [line.split("\t") for line in listing.out.splitlines()]
        assert [row[0] for row in rows] == [one["id"] for one in found]
        assert rows[0][1:3] == ["free → cards", "unknown"]
        assert rows[2][1:3] == ["tool.finished → destination:log", "dead"]
        as_json = await dragoman(gateway, "dead-letters", "list", "--kind", "call", "--json", "--limit", "1")
        assert [json.loads(line)["id"] for line in as_json.out.splitlines()] == [found[0]["id"]]
        shown = await dragoman(gateway, "dead-letters", "show", found[0]["id"])
        assert "It is unknown whether executor 'cards'" in shown.out
        assert "tool.requested" in shown.out
        looked = await dragoman(gateway, "dead-letters", "redrive", "--all", "--dry-run")
        assert looked.out.splitlines() == [one["id"] for one in found]
        unsure = await dragoman(gateway, "dead-letters", "redrive", "--all")
        assert (unsure.code, unsure.out) == (1, "")
        assert "--yes" in unsure.err
        assert len(await letters(gateway)) == 4
        newer.hooks.scripts["free"] = success("at last")
        newer.hooks.scripts["/copies/log"] = Response()
        one = await dragoman(gateway, "dead-letters", "redrive", found[0]["id"])
        assert (one.code, one.out.startswith("redriven as call ")) == (0, True)
        gone = await dragoman(gateway, "dead-letters", "redrive", found[0]["id"])
        assert (gone.code, "no dead letter" in gone.err) == (1, True)
        many = await dragoman(gateway, "dead-letters", "redrive", "--all", "--yes", "--json")
        told = json.loads(many.out)
        assert (many.code, told["redriven"], told["found"], told["failed"]) == (0, 3, 3, [])
        # As the API tells it of an order about many.
        order = await gateway.post("/v1/dead-letters/redrive", {}, status=200)
        assert (set(told), told["dry_run"], set(told["ids"]) < {one["id"] for one in found}) == (
            set(order),
            False,
            True,
        )
        await listed(gateway, 0)


async def test_a_gateway_that_goes_away_ends_the_redriving_of_many(newer: Scene) -> None:
    breaking(newer)
    async with AsyncExitStack() as stack:
        async with newer.running() as gateway:
            for n in range(2):
                await ended(await newer.agent.call("free", {"n": n}))
            found = await listed(gateway, 4)
            shown = await stack.enter_async_context(screen(gateway, "dead-letters", "redrive", "--all"))
            await shown.shows("4 dead letters will be redriven. Continue? [y/N]: ")
        shown.type("y\n")
        assert await shown.ended() == 1
    # Once is enough to know it of all of them.
    assert shown.text.count("no gateway responds at") == 1
    assert "0 of 4 redriven" in shown.text
    assert not any(one["id"] in shown.text for one in found)


async def test_wrong_words_are_usage_errors(newer: Scene) -> None:
    async with newer.running() as gateway:
        for words in (["redrive"], ["redrive", "x", "--all"], ["redrive", "--executor", "a", "--since", "soon"],
                      ["show", "no\nid"], ["list", "--limit", "0"]):  # fmt: skip
            done = await dragoman(gateway, "dead-letters", *words)
            assert done.code == 2, (words, done)
        refused = await dragoman(gateway, "dead-letters", "list", "--executor", "a", "--kind", "delivery")
        assert (refused.code, "executor" in refused.err) == (1, True)
        assert (await ended(await newer.agent.call("ask", GOOD))).outcome == "success"


async def test_what_was_erased_before_it_left_is_no_dead_letter_when_the_session_is_opened_again(both: Scene) -> None:
    both.huma.refuse("finn", "BUSY")
    async with both.running(linked=False) as gateway:
        session_id = await gateway.session()
        message = {"kind": "message.posted", "content": "Your turn, Finn!"}
        posted = await gateway.post(f"/v1/sessions/{session_id}/events", message, status=202)
        answer = await gateway.http.delete(f"/v1/sessions/{session_id}", params={"erase": "true"})
        assert answer.status_code == 204
        both.huma.refuse("finn", None)
        await gateway.post("/v1/sessions", {"runtime": "finn", "native_id": "finn"}, status=200)
        await gateway.wait_link("up")
        assert (await ended(await both.agent.call("ask", GOOD))).outcome == "success"
        assert await letters(gateway) == []
        # A 0.2.0 agent is told a message inside the context behind it.
        sequence = posted["data"][0]["sequence"] + (both.dialect == "0.2")
        path = f"/v1/sessions/{session_id}/events/{sequence}/redeliver"
        refused = await gateway.post(path, {"target": "runtime"}, status=410)
        assert "was erased" in refused["detail"]
        assert "erased" not in str([payload for _, payload in both.agent.received])


async def test_a_dead_letter_whose_session_was_erased_is_not_tried_again(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("ask", GOOD))
        [letter] = await listed(gateway, 1)
        path = f"/v1/sessions/{letter['session_id']}"
        assert (await gateway.http.delete(path, params={"erase": "true"})).status_code == 204
        copied = len(newer.hooks.of("/copies/log"))
        refused = await gateway.post(f"/v1/dead-letters/{letter['id']}/redrive", status=410)
        assert (refused["type"], "was erased" in refused["detail"]) == ("/problems/gone", True)
        done = await gateway.post(REDRIVE, {}, status=200)
        assert (done["redriven"], len(done["failed"])) == (0, 1)
        assert len(newer.hooks.of("/copies/log")) == copied
        await gateway.post(f"/v1/dead-letters/{letter['id']}/dismiss", status=200)
        await listed(gateway, 0)
