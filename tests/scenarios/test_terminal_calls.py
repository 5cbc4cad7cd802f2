"""One call in the terminal: found, shown, canceled, and redriven after its backend has refused it."""

import json
from datetime import datetime

from fastapi import Response
from fastapi.responses import JSONResponse

from tests.scenarios.environment import GOOD, Running, Scene, ended, until
from tests.scenarios.hooks import success
from tests.scenarios.terminal import dragoman, screen

REASON = "the signature does not fit the secret of this backend; compare CARDS_SECRET on both sides"


async def states(gateway: Running) -> list[str]:
    return [row["state"] for row in (await gateway.get("/v1/calls"))["data"]]


def refusing(scene: Scene) -> None:
    """Let the backend answer 401 to one tool, and fail another one by itself."""
    scene.hooks.scripts["free"] = JSONResponse({"detail": REASON}, status_code=401)
    scene.hooks.scripts["ask"] = JSONResponse({"outcome": "failure", "error": "No card is left."})


async def test_calls_that_the_backend_refused_are_found_and_redriven_together(newer: Scene) -> None:
    refusing(newer)
    async with newer.running() as gateway:
        calls = [await newer.agent.call("free", {"n": n}) for n in range(2)]
        reported = await newer.agent.call("ask", GOOD)
        for call in (*calls, reported):
            await ended(call)
        rows = (await gateway.get("/v1/calls"))["data"]
        refused = [row["call_id"] for row in rows if row["tool"] == "free"]
        assert (await gateway.get("/v1/dead-letters"))["data"] == []

        listed = await dragoman(gateway, "calls", "--failed")
        assert [line.split("\t")[0] for line in listed.out.splitlines()] == [row["call_id"] for row in rows]
        looked = await dragoman(gateway, "calls", "--failed", "--redrive", "--dry-run")
        assert (looked.code, looked.out.splitlines()) == (0, refused)
        assert "2 would be redriven" in looked.err
        # The backend itself has reported this failure, so the tool may have run.
        assert "1 skipped" in looked.err
        unsure = await dragoman(gateway, "calls", "--failed", "--redrive")
        assert (unsure.code, "pass --yes to confirm" in unsure.err) == (1, True)
        assert len(await states(gateway)) == 3

        newer.hooks.scripts["free"] = success("at last")
        keys = {request.key for request in newer.hooks.of("free")}
        done = await dragoman(gateway, "calls", "--failed", "--redrive", "--yes", "--json")
        assert done.code == 0, done.err
        told = json.loads(done.out)
        assert (told["redriven"], told["found"], told["failed"], told["ids"]) == (2, 2, [], refused)

        async def succeeded() -> bool:
            return (await states(gateway)).count("succeeded") == 2

        await until(succeeded)
        assert {request.key for request in newer.hooks.of("free")} == keys
        assert len(newer.hooks.of("ask")) == 1
        unknown = await dragoman(gateway, "calls", "--failed", "--unknown", "--redrive", "--yes")
        assert (unknown.code, unknown.err) == (0, "0 of 0 redriven\n")
        again = await dragoman(gateway, "calls", "--failed", "--redrive", "--yes")
        assert (again.code, "3 skipped: " in again.err) == (0, True), again.err
        assert again.err.endswith("0 of 0 redriven\n")
        assert (len(await states(gateway)), len(newer.hooks.of("free"))) == (5, 4)


async def test_calls_that_may_have_run_are_redriven_together_once(newer: Scene) -> None:
    newer.hooks.scripts["free"] = Response(status_code=500)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        newer.hooks.scripts["free"] = success("at last")
        told = [await dragoman(gateway, "calls", "--failed", "--unknown", "--redrive", "--yes") for _ in range(2)]
        assert [(one.code, one.err.splitlines()[-1]) for one in told] == [
            (0, "1 of 1 redriven"),
            (0, "0 of 0 redriven"),
        ]
        assert len(await states(gateway)) == 2


async def test_at_80_columns_the_whole_reason_is_shown_below_its_call(newer: Scene) -> None:
    refusing(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        (row,) = (await gateway.get("/v1/calls"))["data"]
        async with screen(gateway, "calls", "--failed") as shown:
            assert await shown.ended() == 0
        lines = [line.rstrip() for line in shown.text.splitlines()]
        assert lines[0].split() == ["ID", "TOOL", "STATE", "ASKED", "RUNTIME", "EXECUTOR", "TRIES", "TOOK"]
        assert lines[1].split()[:3] == [row["call_id"][:8], "free", "failed"]
        assert " ".join(line.strip() for line in lines[2:-1]) == row["error"]
        assert lines[-1].startswith("· 1 ended calls took: median ")
        assert row["error"].endswith(REASON)
        assert max(map(len, lines)) <= 80


async def test_one_call_is_shown_and_redriven_by_the_first_letters_of_its_id(newer: Scene) -> None:
    refusing(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {"n": 1}))
        (row,) = (await gateway.get("/v1/calls"))["data"]
        short = row["call_id"][:8]
        shown = await dragoman(gateway, "calls", "show", short)
        assert shown.code == 0, shown.err
        for part in (row["call_id"], "free", "failed", row["error"], row["session_id"], "tool.requested"):
            assert part in shown.out
        as_json = await dragoman(gateway, "calls", "show", row["call_id"], "--json")
        assert json.loads(as_json.out) == await gateway.get(f"/v1/calls/{row['call_id']}")
        newer.hooks.scripts["free"] = success("at last")
        again = await dragoman(gateway, "calls", "redrive", short, "--json")
        assert again.code == 0, again.err
        fresh = json.loads(again.out)
        assert (fresh["redrive_of"], fresh["idempotency_key"]) == (row["call_id"], row["call_id"])

        async def answered() -> bool:
            return (await gateway.get(f"/v1/calls/{fresh['call_id']}"))["state"] == "succeeded"

        await until(answered)
        result = await dragoman(gateway, "calls", "show", fresh["call_id"])
        assert '"at last"' in result.out
        assert row["call_id"] in result.out


async def test_an_open_call_is_canceled(newer: Scene) -> None:
    newer.configure({"limits": {"cancel_grace": "100ms"}})
    newer.hooks.scripts["free"] = JSONResponse(None, status_code=202)
    async with newer.running() as gateway:
        call = await newer.agent.call("free", {})

        async def accepted() -> bool:
            return await states(gateway) == ["accepted"]

        await until(accepted)
        (row,) = (await gateway.get("/v1/calls"))["data"]
        done = await dragoman(gateway, "calls", "cancel", row["call_id"][:6], "--reason", "The game is over.")
        assert (done.code, done.out.partition(":")[2]) == (0, f" call {row['call_id']}\n"), done.err
        assert (await ended(call)).outcome != "success"
        again = await dragoman(gateway, "calls", "cancel", row["call_id"])
        assert again.code == 1


async def test_what_is_no_call_is_told_with_the_command_that_lists_calls(newer: Scene) -> None:
    async with newer.running() as gateway:
        for given, code, text in (
            ("zzzz", 1, "no call begins with 'zzzz'"),
            ("abc", 2, "is too short"),
            ("f" * 36, 1, "list them with"),
        ):
            for verb in ("show", "cancel", "redrive"):
                done = await dragoman(gateway, "calls", verb, given)
                assert (done.code, done.out) == (code, ""), done
                assert text in done.err


async def test_words_that_do_not_fit_together_are_usage_errors() -> None:
    for words in (
        ("--failed", "--state", "failed"),
        ("--redrive",),
        ("--failed", "--yes"),
        ("--failed", "--dry-run"),
        ("--failed", "--redrive", "--limit", "501"),
    ):
        done = await dragoman(None, "calls", *words)
        assert (done.code, done.out) == (2, ""), done


async def test_calls_are_filtered_like_dead_letters_and_show_how_long_they_took(newer: Scene) -> None:
    newer.settings["runtimes"]["finn"]["labels"] = {"game": "go-fish"}
    newer.settings["executors"]["others"] = newer.settings["executors"]["cards"]
    newer.settings["routes"].insert(0, {"match": {"tool": "free"}, "to": "others"})
    async with newer.running() as gateway:
        await ended(await newer.agent.call("ask", GOOD))
        await ended(await newer.agent.call("free", {}))
        late, early = (await gateway.get("/v1/calls"))["data"]
        between = late["created_at"]
        for words, rows in (
            (("--executor", "others"), [late]),
            (("--executor", "cards"), [early]),
            (("--since", between), [late]),
            (("--since", "1h"), [late, early]),
            (("--until", between), [early]),
            (("--text", late["call_id"][:8]), [late]),
            (("--trace-id", "0" * 32), []),
            (("--label", "game=go-fish"), [late, early]),
            (("--label", "game=chess"), []),
            (("--session", "finn/finn", "--executor", "cards"), [early]),
        ):
            listed = await dragoman(gateway, "calls", *words)
            assert (listed.code, [line.split("\t")[0] for line in listed.out.splitlines()]) == (
                0,
                [row["call_id"] for row in rows],
            ), words
        took = float((await dragoman(gateway, "calls", "--executor", "cards")).out.rstrip("\n").split("\t")[-1])
        span = datetime.fromisoformat(early["finished_at"]) - datetime.fromisoformat(early["created_at"])
        assert took == round(span.total_seconds(), 3)
        assert (await dragoman(gateway, "calls", "--label", "game")).code == 2
        assert (await dragoman(gateway, "calls", "--since", "yesterday")).code == 2
        async with screen(gateway, "calls") as shown:
            assert await shown.ended() == 0
        assert "2 ended calls took: median " in shown.text
