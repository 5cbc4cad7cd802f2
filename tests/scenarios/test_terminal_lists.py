"""What the terminal shows of a running gateway: runtimes, sessions, calls, what waits, and all sessions at once."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from rich.cells import cell_len

from gateway.events import ApprovalAsked, QuestionAsked, SecretAsked, ToolRequested
from gateway.events.ids import interaction_id
from tests.scenarios.environment import Running, Scene, ended, until
from tests.scenarios.hooks import success
from tests.scenarios.plain_runtime import PlainRuntime, plain_gateway
from tests.scenarios.terminal import BOUND, asked, dragoman, environment_of, process_of, said, screen, tailing
from tests.scenarios.test_dead_letters import breaking, listed

Plain = tuple[Running, PlainRuntime]
WIDE = "日本語の部屋"
EVIL = "evil\x1b[31m\u202e\x9b2J\ttab"


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Plain]:
    async with plain_gateway(tmp_path) as made:
        yield made


async def opened(running: Running, native_id: str) -> str:
    """Open one more session; its link is up and on record when this returns."""
    answer = await running.http.post("/v1/sessions", json={"runtime": "finn", "native_id": native_id})
    session_id = answer.json()["session_id"]

    async def linked() -> bool:
        return len(await running.events(session_id)) == 2

    await until(linked)
    return session_id


# lists ---------------------------------------------------------------------------------------------------


async def test_lists_in_a_pipe_are_whole_and_parted_by_tabs(plain: Plain) -> None:
    running, runtime = plain
    session_id = await opened(running, "a/b")
    runtime.say(ToolRequested(native_call_id="n-1", tool="ask", arguments={"rank": "7"}))
    await until(lambda: running.events(session_id, "tool.finished"))
    (call,) = (await running.get("/v1/calls"))["data"]

    runtimes = await dragoman(running, "runtimes")
    assert runtimes.out == "finn\t2 up\tplain\tplain/1\t\n"
    sessions = await dragoman(running, "sessions")
    first, second = (line.split("\t") for line in sessions.out.splitlines())
    assert (first[0], first[-1]) == ("finn/a/b", session_id)
    assert second[0] == "finn/room-7"
    calls = await dragoman(running, "calls", "--session", "finn/a/b", "--state", "failed")
    row = calls.out.rstrip("\n").split("\t")
    assert (row[0], row[1], row[2], row[-2]) == (call["call_id"], "ask", "failed", "Unknown tool: ask")
    for words in (("calls", "--session", "finn/room-7"), ("calls", "--unknown"), ("sessions", "--runtime", "other")):
        nothing = await dragoman(running, *words)
        assert (nothing.code, nothing.out) == (0, "")
        assert nothing.err.startswith("· no ")


async def test_lists_in_json_are_the_rows_of_the_api(plain: Plain) -> None:
    running, _ = plain
    await opened(running, EVIL)
    for command, query in (("runtimes", {}), ("sessions", {"order": "newest"}), ("calls", {})):
        done = await dragoman(running, command, "--json")
        assert done.code == 0, done.err
        assert done.out.isascii()
        shown = [json.loads(line) for line in done.out.splitlines()]
        assert shown == (await running.get(f"/v1/{command}", **query))["data"]


async def test_the_newest_come_first_and_limit_says_how_many(plain: Plain) -> None:
    running, _ = plain
    for number in range(3):
        await opened(running, f"agent-{number}")
    await running.http.delete(f"/v1/sessions/{await opened(running, 'over')}")
    some = await dragoman(running, "sessions", "--limit", "2")
    assert [line.partition("\t")[0] for line in some.out.splitlines()] == ["finn/over", "finn/agent-2"]
    assert some.err == "· there are more; raise --limit to see them\n"
    every = await dragoman(running, "sessions", "--limit", "4", "--open")
    assert [line.partition("\t")[0] for line in every.out.splitlines()] == [
        "finn/agent-2", "finn/agent-1", "finn/agent-0", "finn/room-7",
    ]  # fmt: skip
    assert every.err == ""


async def test_sessions_are_filtered_as_in_the_api(plain: Plain) -> None:
    running, _ = plain
    answer = await running.http.post(
        "/v1/sessions", json={"runtime": "finn", "native_id": "agent-1", "labels": {"game": "go-fish"}}
    )
    opened_at = answer.json()["opened_at"]
    for words, names in (
        (("--label", "game=go-fish"), ["finn/agent-1"]),
        (("--text", "go-fish"), ["finn/agent-1"]),
        (("--until", opened_at), ["finn/room-7"]),
        (("--since", opened_at, "--state", "closed"), []),
    ):
        found = await dragoman(running, "sessions", *words)
        assert (found.code, [line.partition("\t")[0] for line in found.out.splitlines()]) == (0, names), words


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_a_table_fits_the_terminal(plain: Plain, width: int) -> None:
    running, _ = plain
    for name in (WIDE, EVIL, WIDE * 8, "x" * 90):
        await opened(running, name)
    session_id = await opened(running, "agent-7")
    async with screen(running, "sessions", width=width) as shown:
        assert await shown.ended() == 0
    lines = shown.text.splitlines()
    assert lines[0].split()[:2] == ["SESSION", "STATE"]
    assert max(map(cell_len, lines)) <= width
    # Whatever a runtime calls its sessions, only colours reach the terminal.
    assert "\x1b" not in shown.text
    assert "\x9b" not in shown.text
    places = {line[: line.index("starting")] for line in lines[1:]}
    assert len({cell_len(place) for place in places}) == 1
    assert any(line.startswith(f"finn/{WIDE} ") for line in lines)
    assert any(line.startswith("finn/evil\\x1b[31m\\") for line in lines)
    assert shown.text.count("…") == {40: 3, 80: 2, 200: 0}[width]
    assert (session_id in shown.text) == (width >= 200)


@pytest.mark.parametrize(
    ("env", "coloured"), [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
async def test_colours_are_for_terminals_that_want_them(plain: Plain, env: dict[str, str], *, coloured: bool) -> None:
    running, _ = plain
    async with screen(running, "runtimes", env=env) as shown:
        assert await shown.ended() == 0
    assert (b"\x1b[32m" in shown.raw) == coloured
    # A column that no row fills takes no place.
    assert shown.text.splitlines()[0].split() == ["NAME", "LINKS", "ADAPTER", "PROTOCOL"]


@pytest.mark.slow
async def test_a_reader_that_leaves_ends_a_list_quietly(plain: Plain) -> None:
    running, _ = plain
    ours, theirs = os.pipe()
    os.close(ours)

    async def run(*words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words,
            env=environment_of(running), stdout=theirs, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(BOUND):
            _, err = await process.communicate()
        assert (process.returncode, err) == (0, b""), words

    await asyncio.gather(run("sessions"), run("sessions", "--json"), run("runtimes"), run("openapi"))
    os.close(theirs)


# inbox and answer ----------------------------------------------------------------------------------------


async def test_the_inbox_in_a_terminal_says_how_to_answer(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(ApprovalAsked(id="a", tool="rm", arguments={"path": "x" * 100 + "\x1b[2J"}, scopes=("once", "always")))
    identifier = (await asked(running, 1))["a"]["interaction_id"]
    async with screen(running, "inbox", width=40) as shown:
        assert await shown.ended() == 0
    text = shown.text
    assert text.startswith(f"{identifier[:8]}  approval.asked  finn/room-7  ")
    # Whoever decides sees all of it.
    assert "x" * 100 in text
    assert "\x1b" not in text
    assert f"dragoman answer {identifier[:8]} --allow | --deny [--scope once | always]" in text
    assert "m " in text.splitlines()[0]
    assert text.splitlines()[0].endswith("s left")


async def test_the_first_letters_of_an_id_will_do_where_they_fit_one_only(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(QuestionAsked(id="q", text="Which?"))
    one = (await asked(running, 1))["q"]["interaction_id"]
    (session,) = (await running.get("/v1/sessions"))["data"]
    # Ids follow from what asked, so that one can be found that begins alike.
    alike = partial(interaction_id, session=session["session_id"], n=session["last_sequence"] + 1)
    name = next(name for name in map(str, count()) if alike(native_id=name)[:4] == one[:4])
    runtime.say(QuestionAsked(id=name, text="And what?"))
    other = (await asked(running, 2))[name]["interaction_id"]
    assert (other[:4], other) == (one[:4], alike(native_id=name))
    two = await dragoman(running, "answer", one[:4], "--text", "yes")
    assert (two.code, two.out) == (1, "")
    assert f"2 waiting requests begin with '{one[:4]}': pass more characters" in two.err
    assert one in two.err
    assert other in two.err
    length = next(size for size in range(5, 37) if one[:size] != other[:size])
    done = await dragoman(running, "answer", one[:length], "--text", "yes")
    assert (done.code, done.out) == (0, f"answered: question.asked {one}\n")
    for short in ("1", "123", one[:3]):
        refused = await dragoman(running, "answer", short, "--text", "yes")
        assert refused.code == 2
        assert "too short" in refused.err
    for strange in ("zzzz", "../../x", "%2e%2e", "ä\x1b[2J", " " * 5):
        none = await dragoman(running, "answer", strange, "--text", "yes")
        assert (none.code, none.out) == (1, ""), strange
        assert "dragoman inbox" in none.err
        assert "\x1b" not in none.err
    assert list(await asked(running, 1)) == [name]


async def test_without_a_terminal_answer_says_what_it_wants_instead_of_waiting(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(QuestionAsked(id="q", text="Which?"))
    identifier = (await asked(running, 1))["q"]["interaction_id"]
    for words in ((), (identifier,), (identifier[:8],)):
        done = await process_of(running, "answer", *words, stdin=b"1\nyes\n")
        assert (done.code, done.out) == (2, "")
        assert "`dragoman answer ID` with one of --allow, --deny, --text or --secret" in done.err
    assert (await asked(running, 1))["q"]["state"] == "waiting"


async def test_in_a_terminal_answer_asks_about_each_question(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(ApprovalAsked(id="a", tool="rm", arguments={"path": "x"}, scopes=("once", "session")))
    runtime.say(QuestionAsked(id="q", text="Which\x1b[2J?", choices=("red", "blue")))
    runtime.say(QuestionAsked(id="left", text="Later?"))
    runtime.say(SecretAsked(id="s", purpose="sudo", prompt="Password"))
    rows = await asked(running, 4)
    async with screen(running, "answer") as shown:
        await shown.shows("allow or deny? (Enter leaves it waiting): ")
        assert f"{rows['a']['interaction_id'][:8]}  approval.asked  finn/room-7  " in shown.text
        shown.type("perhaps\nd\n")
        await shown.shows("enter allow or deny")
        await shown.shows("scope? once, session (Enter: once): ")
        shown.type("s\n")
        await shown.shows(f"answered: approval.asked {rows['a']['interaction_id']}")
        await shown.shows("    2  blue\n")
        shown.type("2\n")
        await shown.shows("Later?")
        shown.type("\n")
        await shown.shows("still waiting")
        await shown.shows("Secret (not shown; Enter leaves it waiting): ")
        shown.type("correct-horse-canary\n")
        assert await shown.ended() == 0
    assert "no more waiting requests" in shown.text
    assert "canary" not in shown.text
    given = await runtime.hears("approval.given")
    assert (given["decision"], given["scope"]) == ("deny", "session")
    assert (await runtime.hears("question.answered"))["answer"] == "blue"
    assert (await runtime.hears("secret.supplied"))["value"] == "correct-horse-canary"
    assert list(await asked(running, 1)) == ["left"]


async def test_ctrl_c_at_a_prompt_answers_nothing_and_is_130(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(ApprovalAsked(id="a", tool="rm"))
    identifier = (await asked(running, 1))["a"]["interaction_id"]
    async with screen(running, "answer", identifier[:8]) as shown:
        await shown.shows("allow or deny?")
        # As slowly as a finger: Python's `input` waits on where a signal comes between its prompt and its first read.
        await asyncio.sleep(0.3)
        shown.type("\x03")
        assert await shown.ended() == 130
    assert "Traceback" not in shown.text
    async with screen(running, "answer", identifier) as shown:
        await shown.shows("allow or deny?")
        shown.type("\n")
        assert await shown.ended() == 0
    assert "still waiting" in shown.text
    assert (await asked(running, 1))["a"]["state"] == "waiting"


async def test_a_question_that_is_over_when_the_answer_comes_is_told_and_the_rest_shown(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(QuestionAsked(id="q", text="Which?"))
    runtime.say(QuestionAsked(id="r", text="What?"))
    rows = await asked(running, 2)
    async with screen(running, "answer") as shown:
        await shown.shows("Answer (text; - skips the question, Enter leaves it waiting): ")
        done = await dragoman(running, "answer", rows["q"]["interaction_id"], "--text", "first")
        assert done.code == 0
        shown.type("second\n")
        await shown.shows("this question is already answered")
        await shown.shows("Answer (text; - skips the question, Enter leaves it waiting): ", times=2)
        shown.type("\x04")
        assert await shown.ended() == 0
    assert (await runtime.hears("question.answered"))["answer"] == "first"


async def test_an_answer_of_another_form_is_refused_with_the_options_that_fit(plain: Plain) -> None:
    running, runtime = plain
    runtime.say(ApprovalAsked(id="a", tool="rm", scopes=("once", "session")))
    runtime.say(QuestionAsked(id="q", text="Which?"))
    runtime.say(SecretAsked(id="s", purpose="sudo"))
    rows = await asked(running, 3)
    for name, words, fits in (
        ("a", ["--text", "yes"], "--allow | --deny [--scope once | session]"),
        ("q", ["--allow"], "--text TEXT"),
        ("s", ["--deny"], "--secret"),
    ):
        identifier = rows[name]["interaction_id"]
        done = await dragoman(running, "answer", identifier, *words)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("dragoman: error: ")
        assert done.err.endswith(f"\n  dragoman answer {identifier[:8]} {fits}\n")
    assert {row["state"] for row in (await asked(running, 3)).values()} == {"waiting"}


async def test_advice_names_commands_and_not_paths_of_the_api(plain: Plain) -> None:
    running, _ = plain
    await opened(running, "here")
    for words, mend in (
        (("dead-letters", "list", "--executor", "a", "--kind", "delivery"), "see the options with `--help`"),
        (("send", "finn/here", "--event", "-"), "see the schema of each kind with `dragoman openapi`"),
    ):
        done = await dragoman(running, *words, stdin=b'{"kind": "bogus"}')
        assert done.code == 1
        assert f"\n  {mend}" in done.err


# tail ----------------------------------------------------------------------------------------------------


async def test_tail_without_a_name_follows_the_open_session_that_was_opened_last(plain: Plain) -> None:
    running, _ = plain
    await opened(running, "older")
    newest = await opened(running, "with/slash")
    await running.http.delete(f"/v1/sessions/{await opened(running, 'over')}")
    async with tailing(running, "--after", "0") as shown:
        assert "native_id=with/slash" in await shown.line()
        assert await shown.complaint() == "· following finn/with/slash\n"
    await running.http.delete(f"/v1/sessions/{newest}")
    for session in (await running.get("/v1/sessions", open="true"))["data"]:
        await running.http.delete(f"/v1/sessions/{session['session_id']}")
    none = await dragoman(running, "tail")
    assert (none.code, none.out) == (1, "")
    assert "there is no open session" in none.err


async def test_tail_all_shows_each_event_of_all_sessions_once_and_new_sessions_whole(tmp_path: Path) -> None:
    async with plain_gateway(tmp_path) as (running, runtime):
        port = int(running.url.rpartition(":")[2])
        runtime.say(said("before"))
        await running.wait_events("message.posted")
        stack = tailing(running, "--all")
        shown = await stack.__aenter__()
        assert await shown.complaint() == "· following all sessions and any new ones; Ctrl-C to stop\n"
        runtime.say(said("in the old one"))
        line = await shown.line()
        assert line.startswith("finn/room-7  ")
        assert line.endswith("Finn: in the old one")
        await opened(running, EVIL)
        runtime.say(said("in the new one"))
        lines = await shown.until("in the new one")
        assert all("\x1b" not in part and "\x9b" not in part for part in lines)
        assert sum("session.opened" in part for part in lines) == 1
    try:
        assert "retrying in" in await shown.complaint()
        async with plain_gateway(tmp_path, port=port) as (running, runtime):
            runtime.say(said("after the restart"))
            lines = await shown.until("after the restart")
            assert not any("in the" in part for part in lines)
            shown.process.send_signal(signal.SIGINT)
            assert await shown.ended() == 0
            assert await shown.complaint() == ""
    finally:
        await stack.__aexit__(None, None, None)


async def test_tail_all_shows_only_the_kinds_that_are_asked_for(plain: Plain) -> None:
    running, runtime = plain
    async with tailing(running, "--all", "--kind", "message.*", "--json") as shown:
        assert "following all sessions" in await shown.complaint()
        await opened(running, "another")
        runtime.say(said("hello"))
        row = json.loads(await shown.line())
        assert row["event"]["kind"] == "message.posted"
    async with tailing(running, "--all", "--kind", "mesage.*") as shown:
        assert await shown.ended() == 1
        assert "no event kind matches 'mesage.*'" in await shown.complaint()


@pytest.mark.parametrize("words", [("room-7",), ("--all",)])
async def test_in_a_narrow_terminal_tail_leaves_nothing_out(plain: Plain, words: tuple[str, ...]) -> None:
    running, runtime = plain
    named = [f"finn/{word}" if word == "room-7" else word for word in words]
    async with screen(running, "tail", *named, width=40) as shown:
        await shown.shows("Ctrl-C to stop")
        runtime.say(said("word " * 30 + "end"))
        await shown.shows("word end")
        shown.type("\x03")
        assert await shown.ended() == 0
    assert re.search(r"\d\d:\d\d:\d\d \d+ ← message\.posted Finn: word", shown.text.replace("\n", ""))
    assert "…" not in shown.text.partition("Ctrl-C to stop")[2].replace("finn/room…", "")


# dead letters --------------------------------------------------------------------------------------------


async def test_dead_letters_show_ids_and_reasons_on_lines_of_their_own(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        await ended(await newer.agent.call("free", {}))
        call, delivery = await listed(gateway, 2)
        async with screen(gateway, "dead-letters", "list") as shown:
            assert await shown.ended() == 0
        lines = [line.rstrip() for line in shown.text.splitlines()]
        assert lines[0] == "ID"
        assert lines[1].split() == ["WHAT", "STATE", "WHEN", "TRIES"]
        assert lines[2] == call["id"]
        assert lines[3].startswith("  free → cards                     unknown  ")
        after = lines.index(delivery["id"])
        assert " ".join(line.strip() for line in lines[4:after]) == call["error"]
        assert lines[after + 1].startswith("  tool.finished → destination:log  dead     ")
        assert " ".join(line.strip() for line in lines[after + 2 :]) == delivery["reason"]
        assert max(map(len, lines)) <= 80
        async with screen(gateway, "dead-letters", "show", call["id"]) as shown:
            assert await shown.ended() == 0
        # A terminal breaks what is longer wherever its last column is.
        assert max(len(line.rstrip()) for line in shown.text.splitlines()) <= 80
        assert call["advice"] in " ".join(shown.text.split())


async def test_dead_letters_are_named_by_the_first_letters_of_their_ids(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        for n in range(4):
            await ended(await newer.agent.call("free", {"n": n}))
        found = await listed(gateway, 8)
        first, deliveries = found[0], found[4:]
        size = next(n for n in range(4, 36) if sum(one["id"].startswith(first["id"][:n]) for one in found) == 1)
        shown = await dragoman(gateway, "dead-letters", "show", first["id"][:size], "--json")
        assert json.loads(shown.out)["id"] == first["id"]
        session = deliveries[0]["session_id"]
        both = await dragoman(gateway, "dead-letters", "redrive", session[:12])
        assert (both.code, both.out) == (1, "")
        assert f"4 dead letters begin with '{session[:12]}': pass more characters" in both.err
        assert all(f"{one['id']}  tool.finished → destination:log" in both.err for one in deliveries)
        for words in (["show", "nope"], ["redrive", "f" * 36], ["dismiss", f"{session}:1:destination:lo"]):
            none = await dragoman(gateway, "dead-letters", *words)
            assert none.code == 1
            assert "no dead letter" in none.err
            assert "  `dragoman dead-letters list` lists them\n" in none.err
        assert (await dragoman(gateway, "dead-letters", "show", first["id"][:3])).code == 2
        # Event 1 is not event 12, though its letters are the first of it.
        longer = next(one["sequence"] for one in deliveries if one["sequence"] > 9)
        event = await dragoman(gateway, "dead-letters", "show", f"{session}:{longer // 10}")
        assert "no dead letter begins with" in event.err
        newer.hooks.scripts["free"] = success("at last")
        done = await dragoman(gateway, "dead-letters", "redrive", first["id"][:size])
        assert done.out.startswith("redriven as call ")
        gone = await dragoman(gateway, "dead-letters", "dismiss", f"{session}:{deliveries[0]['sequence']}:")
        assert gone.out == f"dismissed: {deliveries[0]['id']}\n"


async def test_before_a_redrive_of_many_it_is_said_how_many_may_have_run(newer: Scene) -> None:
    breaking(newer)
    async with newer.running() as gateway:
        for n in range(2):
            await ended(await newer.agent.call("free", {"n": n}))
        await listed(gateway, 4)
        unsure = "· 2 of 4 may have run already: their outcome is unknown\n"
        async with screen(gateway, "dead-letters", "redrive", "--all") as shown:
            await shown.shows("Continue?")
            shown.type("n\n")
            assert await shown.ended() == 1
        assert f"{unsure}4 dead letters will be redriven. Continue?" in shown.text
        looked = await dragoman(gateway, "dead-letters", "redrive", "--all", "--dry-run")
        assert looked.err == f"4 would be redriven\n{unsure}"
        for words in (["redrive", "--kind", "delivery"], ["dismiss", "--all"]):
            sure = await dragoman(gateway, "dead-letters", *words, "--dry-run")
            assert (sure.code, "may have run" in sure.err) == (0, False)
