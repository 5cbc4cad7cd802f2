"""Whatever a plug-in or the store raises that nobody foresaw costs the part it happened in, and nothing else."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import LinkLost
from gateway.events import MessagePosted, QuestionAsked, Text, ToolRequested
from gateway.runtime.tuning import Tuning
from gateway.store.step import RUNTIME
from tests.faults.host_faults import ENGINE_METHODS, Host, Unforeseen, configuration, host, made
from tests.pace import PATIENCE, within
from tests.scenarios.environment import until
from tests.scenarios.hooks import SECRET

pytestmark = pytest.mark.slow

_SOON = 5.0
"""Seconds within which something is so that should be at once, on a busy machine too."""

Drive = Callable[[Host], Awaitable[object]]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Host]:
    async with host(tmp_path, tuning=Tuning(sweep=0.5)) as one:
        yield one


async def say_three(one: Host) -> None:
    for number in range(3):
        await one.say("finn", f"finn says {number}")


# Adapters


@pytest.mark.parametrize(
    "place",
    ["link.wait_closed", "connector.connect", "link.enter", "link.close", "link.send", "codec.decode", "codec.encode"],
)
async def test_an_adapter_that_raises_costs_its_own_link_a_pause(running: Host, place: str) -> None:
    if place in {"connector.connect", "link.enter", "link.close"}:
        running.traps.set(place, 2)
        running.traps.set("link.wait_closed")
    else:
        running.traps.set(place)
    if place == "codec.encode":
        # A client is told that it could not be said; nothing of it is on record.
        running.traps.set(place, 3)
        assert not await running.say("finn", "cannot be said", again=False)
    elif place == "codec.decode":
        running.traps.set(place, 3)
        await running.asks(running.finn)
        await until(lambda: _has_event(running, "frame.rejected"))
    else:
        await say_three(running)
    await running.traps.springs(place)
    await running.others_go_on()
    await running.noticed()
    await running.is_well()


async def _has_event(one: Host, kind: str) -> bool:
    return bool(await one.events((await one.ids())["finn"], kind))


async def test_a_link_whose_end_cannot_be_waited_for_is_not_shown_as_up(running: Host) -> None:
    running.traps.set("connector.connect", 1_000)
    running.traps.set("link.wait_closed")
    await running.traps.springs("link.wait_closed")
    link = await until(lambda: _left(running), within=_SOON)
    assert "Unforeseen" in link["reason"]
    assert (await running.metrics())['dragoman_link_up{runtime="finn"}'] == 0
    await running.others_go_on()
    running.traps.set("connector.connect", 0)
    await running.is_well()


async def test_a_link_whose_wait_for_its_end_is_canceled_from_within_is_made_again(running: Host) -> None:
    """As where it awaits a task of its own that something else has canceled."""
    running.traps.set("link.wait_closed, canceled")
    await running.traps.springs("link.wait_closed, canceled")
    await until(lambda: _logged(running, "the adapter canceled wait_closed of its link"))
    await running.is_well()


async def _left(one: Host) -> dict[str, Any] | None:
    link = await one.link("finn")
    return link if link is not None and link["state"] != "up" else None


async def test_what_a_link_raises_lets_nothing_overtake_and_the_metric_is_right(tmp_path: Path) -> None:
    """Where an answer tells of delivery: what raised may have left, and is on record as unknown; the rest is told."""
    async with host(tmp_path) as one:
        one.traps.set("link.send")
        for number in range(5):
            await one.say("finn", f"finn says {number}")
        await one.traps.springs("link.send")
        await one.noticed()
        await one.is_well()
        told = [text for text in one.finn.texts() if text.startswith("finn says")]
        assert told == [f"finn says {number}" for number in range(1, 5)]
        fates = await one.events((await one.ids())["finn"], "delivery.settled")
        assert [fate["event"]["state"] for fate in fates] == ["unknown"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("no answer", "send_all of a link must return a Receipt, not NoneType"),
        ("no such state", "sent, delivered, refused, moot, busy, not 'queued'"),
    ],
)
async def test_a_link_that_answers_a_send_with_what_is_no_receipt_is_cut_and_says_why(
    running: Host, answer: str, fault: str
) -> None:
    running.traps.set(f"link.send, {answer}")
    await running.say("finn", "answered with what is no receipt")
    await running.traps.springs(f"link.send, {answer}")
    await until(lambda: _logged(running, fault))
    await running.is_well()


async def _logged(one: Host, text: str) -> bool:
    return text in one.logged.getvalue()


async def test_an_event_that_makes_each_link_fail_is_put_aside(tmp_path: Path) -> None:
    async with host(tmp_path, able={"delivery": "silence"}) as one:
        one.traps.set("link.send", 3)
        await one.say("finn", "poison")
        await one.say("finn", "behind it")
        await one.traps.springs("link.send", 3)
        await one.told(one.finn, lambda: "behind it" in one.finn.texts(), "behind it")
        session_id = (await one.ids())["finn"]
        await until(lambda: _has_event(one, "delivery.settled"))
        (settled,) = await one.events(session_id, "delivery.settled")
        assert settled["event"]["state"] == "dead"
        (fault,) = await one.events(session_id, "fault.reported")
        assert fault["event"]["code"] == "gateway.fault"
        await one.is_well()
        assert "poison" not in one.finn.texts()


async def test_deliveries_ripen_again_after_a_proof_that_raised(tmp_path: Path) -> None:
    async with host(tmp_path, able={"delivery": "silence"}) as one:
        one.traps.set("link.prove")
        await one.say("finn", "is it delivered?")
        await one.traps.springs("link.prove")
        await one.others_go_on()
        await one.noticed()
        await one.is_well()

        async def ripe() -> bool:
            session_id = (await one.ids())["finn"]
            return not await one.engine.pending_sends(session_id=session_id, target=RUNTIME)

        await until(ripe)


@pytest.mark.parametrize("place", ["link.enter", "link.send", "link.prove", "link.close"])
async def test_a_link_that_hangs_is_given_up_and_made_anew(tmp_path: Path, place: str) -> None:
    """As one whose adapter waits for ever, without a deadline of its own."""
    hangs, tuning = f"{place}, hangs", Tuning(link_first=0.02, adapter=0.3)
    able: dict[str, Any] = {"delivery": "silence"} if place == "link.prove" else {}
    async with host(tmp_path, able=able, tuning=tuning) as one:
        one.traps.set(hangs)
        if place in {"link.enter", "link.close"}:
            one.traps.set("link.wait_closed")
        await one.say("finn", "said while it hangs")
        await one.traps.springs(hangs)
        await one.others_go_on()
        await until(lambda: _logged(one, "took longer than 0.3 s"))
        assert one.faults()["link"]
        await one.is_well()
        # Where an answer tells of delivery, what may have come is not said again. A link that hangs while it closes
        # ends before or after the message leaves.
        heard = {"link.enter": {1}, "link.prove": {1}, "link.send": {0}, "link.close": {0, 1}}
        assert one.finn.texts().count("said while it hangs") in heard[place]


async def test_a_create_that_hangs_at_start_is_given_up_and_asked_again(tmp_path: Path) -> None:
    runtimes = {
        "finn": {"adapter": "finn", "url": "http://plain.invalid", "makes": True, "autostart": True},
        "sound": {"adapter": "sound", "url": "http://plain.invalid", "session": "room-sound"},
    }
    with made(tmp_path, runtimes=runtimes, tuning=Tuning(adapter=0.3)) as one:
        one.traps.set("connector.create, hangs")
        async with one.gateway as gateway:
            await one.traps.springs("connector.create, hangs")
            async with asyncio.timeout(60):
                # Nothing tells of it.
                while not [one for one in gateway.status.runtimes() if one.name == "finn" and one.links]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert one.finn.created == 1


async def test_an_adapter_whose_create_raises_at_start_ends_nothing(tmp_path: Path) -> None:
    runtimes = {
        "finn": {"adapter": "finn", "url": "http://plain.invalid", "makes": True, "autostart": True},
        "sound": {"adapter": "sound", "url": "http://plain.invalid", "session": "room-sound"},
    }
    with made(tmp_path, runtimes=runtimes) as one:
        one.traps.set("connector.create")
        async with one.gateway as gateway:
            await one.traps.springs("connector.create")
            async with asyncio.timeout(60):
                # Nothing tells of it.
                while not [one for one in gateway.status.runtimes() if one.name == "finn" and one.links]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert one.finn.created == 1


@pytest.mark.parametrize("place", ["adapter.connector", "adapter.codec"])
async def test_an_adapter_that_raises_at_the_start_keeps_no_other_runtime_from_its_work(
    tmp_path: Path, place: str
) -> None:
    with made(tmp_path) as one:
        one.traps.set(place, 1_000)
        async with one.gateway as gateway:
            await one.traps.springs(place, 2)
            async with asyncio.timeout(60):
                # Nothing tells of it.
                while {link.state for shown in gateway.status.runtimes() for link in shown.links} != {"up"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [shown.name for shown in gateway.status.runtimes()] == ["sound"]
            assert [(shown.name, shown.protocol) for shown in gateway.status.unconnected()] == [
                ("finn", one.finn.protocol)
            ]
            with pytest.raises(LinkLost, match="'finn' failed"):
                await gateway.opening.open("finn", native_id="another", labels={})
            assert (await gateway.reload()).changed == ()
            one.traps.set(place, 0)
            async with asyncio.timeout(60):
                while len(gateway.status.runtimes()) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert gateway.status.unconnected() == []
            await gateway.opening.open("finn", native_id="another", labels={})
        assert (one.finn.open, one.sound.open) == (0, 0)


async def test_an_adapter_that_hangs_at_the_start_keeps_no_other_runtime_from_its_work(tmp_path: Path) -> None:
    runtimes = configuration()["runtimes"]
    runtimes["finn"]["connect_timeout"] = "50ms"
    with made(tmp_path, runtimes=runtimes) as one:
        one.traps.set("adapter.connector, hangs", 1_000)
        async with asyncio.timeout(60), one.gateway as gateway:
            assert [shown.name for shown in gateway.status.runtimes()] == ["sound"]
            one.traps.set("adapter.connector, hangs", 0)
            while len(gateway.status.runtimes()) < 2:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)


async def test_a_runtime_that_is_begun_with_later_is_taken_up_though_the_store_was_away(tmp_path: Path) -> None:
    with made(tmp_path) as one:
        one.traps.set("adapter.connector", 2)
        async with one.gateway as gateway:
            await one.traps.springs("adapter.connector", 2)
            # Its own session cannot be opened when it is connected at last.
            one.traps.set("engine.open_session, away", 2)
            async with asyncio.timeout(60):
                while len({link.native_id for shown in gateway.status.runtimes() for link in shown.links}) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert one.traps.sprung["engine.open_session, away"] == 2


async def test_a_session_that_is_opened_and_cannot_be_taken_is_taken_up_in_a_while(tmp_path: Path) -> None:
    # Nothing else looks for what nobody carries.
    async with host(tmp_path, tuning=Tuning(takeover_look=3_600)) as one:
        one.traps.set("engine.take, away")
        await one.post("/v1/sessions", {"runtime": "finn", "native_id": "new"}, status=503)
        async with asyncio.timeout(PATIENCE):
            while "new" not in {link.native_id for shown in one.gateway.status.runtimes() for link in shown.links}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


# Executors and destinations


@pytest.mark.parametrize("place", ["executor.execute", "executor.cancel", "destination.copy"])
async def test_the_users_side_that_raises_costs_the_call_or_copy_alone(running: Host, place: str) -> None:
    running.traps.set(place)
    if place == "executor.cancel":
        running.finn.say(ToolRequested(native_call_id="long", tool="slow"))
        call = await running.call_of("long")
        await running.post(f"/v1/calls/{call['call_id']}/cancel", {}, status=202)
    elif place == "executor.execute":
        asked = await running.asks(running.finn)
        # This executor may be asked twice for the same.
        await running.wait_call(asked, "succeeded")
    else:
        await running.say("finn", "copied in the end")
    await running.traps.springs(place)
    await running.others_go_on()
    await running.noticed()
    await running.is_well()


@pytest.mark.parametrize("how", ["at once", "in a future", "canceled", "no answer"])
async def test_an_attempt_ends_in_an_outcome_however_its_executor_fails(tmp_path: Path, how: str) -> None:
    # One slot, so that a lost one would hold up everything behind it.
    async with host(tmp_path, limits={"drain": "1s", "session_concurrency": 1}) as one:
        one.traps.set(f"executor.execute, {how}")
        asked = await one.asks(one.finn)
        # This executor may be asked twice for the same.
        await one.wait_call(asked, "succeeded")
        assert one.traps.sprung[f"executor.execute, {how}"] == 1
        assert one.faults() == {"executor": 1}
        await one.is_well()


async def test_a_copy_that_makes_its_destination_fail_is_put_aside_and_the_next_goes(running: Host) -> None:
    await running.is_well()
    running.traps.set("destination.copy poison", 3)
    await running.say("finn", "poison")
    await running.traps.springs("destination.copy poison", 3)
    await running.is_well()
    (dead,) = (await running.get("/v1/dead-letters"))["data"]
    assert "Unforeseen" in dead["reason"]


# The store

BY_HTTP = {
    "approvals": "/v1/approvals",
    "argument_excerpts": "/v1/calls?arguments=true",
    "calls": "/v1/calls",
    "dead_sends": "/v1/dead-letters",
    "health": "/readyz",
    "instances": "/v1/instances",
    "interactions": "/v1/interactions",
    "latest_event": "/v1/sessions/{}/context",
    "read_kinds": "/v1/sessions/{}/events?kind=tool.*",
    "sessions": "/v1/sessions",
}
BY_STREAM = {"end": "/v1/events/stream", "read_all": "/v1/events/stream?after=0"}


BEHIND = dict.fromkeys(("open_calls", "owner", "snapshot", "unheard_calls"), "commit") | {"note": "next_send_due"}
"""What is asked where a part begins again, and what makes it: a session, or for the last a destination."""


async def _drive(one: Host, method: str) -> None:
    """Let a method of the store be asked."""
    session_id = (await one.ids())["finn"]
    one.traps.set(f"engine.{method}")
    match method:
        case "call" | "sends_of":
            asked = await one.asks(one.finn)
            call = await one.call_of(asked)
            await one.http.get(f"/v1/calls/{call['call_id']}")
        case "session":
            await one.http.get(f"/v1/sessions/{session_id}")
        case "interaction":
            await one.http.post("/v1/interactions/unknown/answer", json={"answer": "yes"})
        case "open_session" | "take" | "remember" | "recall" | "release_name":
            body = {"runtime": "finn", "native_id": f"another-{method}"}
            await one.http.post("/v1/sessions", json=body, headers={"idempotency-key": method})
        case "interactions_with_events":
            await one.http.get("/v1/interactions")
        case "read":
            await one.http.get(f"/v1/sessions/{session_id}/events")
        case "notify":
            one.finn.say(QuestionAsked(id="q1", text="Which one?"))
        case "erase":
            closed = await one.post("/v1/sessions", {"runtime": "finn", "native_id": "erased"}, status=201)
            await one.http.delete(f"/v1/sessions/{closed['session_id']}", params={"erase": "true"})
        case "set_note":
            await one.http.post("/v1/destinations/copies/enable")
        case "latest_reuse" | "ended_for":
            one.traps.set(f"engine.{method}", 0)
            asked = await one.asks(one.finn)
            await one.wait_call(asked, "succeeded")
            one.traps.set(f"engine.{method}")
            call = await one.call_of(asked)
            await one.http.post(f"/v1/calls/{call['call_id']}/outcome", json={"outcome": "success"})
            one.finn.say(ToolRequested(native_call_id=asked, tool="echo", arguments={"n": -1}))
        case "open_calls" | "owner" | "note" | "snapshot" | "unheard_calls":
            await _begin_again(one, method)
        case "regain":
            one.traps.set("engine.beat", 1_000)
            await until(lambda: _lost_its_lease(one))
            one.traps.set("engine.beat", 0)
        case "revive" | "dismiss":
            await one.say("finn", "refuse this copy")
            (letter, *_) = await until(lambda: _dead(one))
            action = "dismiss" if method == "dismiss" else "redrive"
            await one.http.post(f"/v1/dead-letters/{letter['id']}/{action}", json={})
        case _:
            await _ask_api(one, method, session_id)
            await one.say("finn", f"finn drives {method}")
    await one.traps.springs(f"engine.{method}")


async def _begin_again(one: Host, method: str) -> None:
    """Let a part begin again; a request asks for the owner only if it comes before the session runs again."""
    for number in range(5 if method == "owner" else 1):
        if one.traps.is_set(f"engine.{method}"):
            one.traps.set(f"engine.{BEHIND[method]}")
            await one.say("finn", f"and the part begins again, {number}")


async def _ask_api(one: Host, method: str, session_id: str) -> None:
    if method in BY_HTTP:
        await one.http.get(BY_HTTP[method].format(session_id))
    elif method in BY_STREAM:
        async with one.http.stream("GET", BY_STREAM[method]):
            await one.say("finn", "what all sessions did is followed")
            await one.traps.springs(f"engine.{method}")


async def _lost_its_lease(one: Host) -> bool:
    return (await one.metrics())["dragoman_leases_lost_total"] > 0


async def _dead(one: Host) -> list[dict[str, object]]:
    return (await one.get("/v1/dead-letters"))["data"]


@pytest.mark.parametrize(
    # Open calls and sessions are counted at a start only, and one process waits for nobody.
    "method",
    sorted(
        {*ENGINE_METHODS, "commit, done"}
        - {"count_open_calls", "count_open_sessions", "held_back_by", "listen", "release"}
    ),
)
async def test_a_store_that_raises_costs_what_asked_it_alone(running: Host, method: str) -> None:
    await _drive(running, method)
    await running.noticed()
    await running.others_go_on()
    await running.is_well()


async def test_a_history_of_many_portions_is_caught_up_with_without_growing_pauses(tmp_path: Path) -> None:
    limits, tuning = {"inbound_frames": 20, "drain": "1s"}, Tuning(link_first=0.02, link_longest=60)
    async with host(tmp_path, able={"resumes": True}, limits=limits, tuning=tuning) as one:
        for number in range(1_000):
            one.finn.say(MessagePosted(content=(Text(text=str(number)),)))
        asked = await one.asks(one.finn)
        await one.told(one.finn, lambda: asked in one.finn.results(), "what was asked behind it")


async def test_a_replay_without_an_end_is_told_of(tmp_path: Path) -> None:
    async with host(tmp_path, able={"resumes": True}, tuning=Tuning(link_first=0.02, replay_warning=0.2)) as one:
        await one.ids()
        one.traps.set("link.enter, never caught up")
        one.traps.set("link.wait_closed")

        def told() -> set[str]:
            lines = [line for line in one.logged.getvalue().splitlines() if "replay still running" in line]
            return {json.loads(line)["session"] for line in lines}

        async def is_told() -> bool:
            return "finn/room-finn" in told()

        await until(is_told)
        # The other's link is the older one: it would have been told of before.
        assert told() == {"finn/room-finn"}


async def test_what_a_runtime_says_again_and_no_commit_takes_is_put_aside(tmp_path: Path) -> None:
    """Each try begins the session anew, and what it was about comes again by its link."""
    async with host(tmp_path, able={"resumes": True}) as one:
        one.traps.set("engine.commit poison", 1_000)
        for text in ("before it", "poison", "behind it"):
            one.finn.say(MessagePosted(content=(Text(text=text),)))
        await one.traps.springs("engine.commit poison")
        await until(lambda: _has_event(one, "frame.rejected"), within=PATIENCE)
        await one.is_well()
        session_id = (await one.ids())["finn"]
        (rejected,) = await one.events(session_id, "frame.rejected")
        assert "poison" in rejected["event"]["excerpt"]
        said = [event["event"]["content"][0]["text"] for event in await one.events(session_id, "message.posted")]
        assert said[:2] == ["before it", "behind it"]


@pytest.mark.parametrize(
    "place", ["engine.release", "executor.leave", "destination.leave", "connector.close", "link.close"]
)
async def test_what_raises_while_the_gateway_leaves_keeps_it_from_nothing(tmp_path: Path, place: str) -> None:
    with made(tmp_path) as one:
        before = asyncio.all_tasks()
        async with one.gateway as gateway:
            async with asyncio.timeout(60):
                # Nothing tells of it.
                while not all(link.state == "up" for one in gateway.status.runtimes() for link in one.links):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            one.traps.set(place, 2)
        assert one.traps.sprung[place]
        assert (one.finn.open, one.sound.open) == (0, 0)
        assert asyncio.all_tasks() == before


# How soon somebody is told


@pytest.mark.timing
@pytest.mark.parametrize(
    "place",
    ["link.send", "codec.decode", "executor.execute", "destination.copy", "engine.commit", "engine.read",
     "engine.beat"],
)  # fmt: skip
async def test_a_fault_is_in_the_log_and_the_metrics_within_a_second(running: Host, place: str) -> None:
    await running.ids()
    noticing = asyncio.create_task(running.noticed())
    running.traps.set(place)
    if place == "engine.read":
        await running.http.get(f"/v1/sessions/{(await running.ids())['finn']}/events")
    else:
        await running.say("finn", "finn says something")
        await running.asks(running.finn)
    await running.traps.springs(place)
    assert await noticing - running.traps.at[place] <= within(1.0)
    await running.is_well()


# What is taken


async def test_a_decision_that_fails_gives_its_slot_back_and_is_on_record(tmp_path: Path) -> None:
    executors = {"echo": {"type": "webhook", "url": "http://echo.invalid", "secret": SECRET, "concurrency": 1}}
    async with host(tmp_path, executors=executors) as one:
        # No hash can be made of such a number.
        one.finn.say(ToolRequested(native_call_id="huge", tool="echo", arguments={"n": 2**70}))
        await until(lambda: _has_event(one, "frame.rejected"))
        # The only slot is free.
        await one.is_well()


# Starting


@pytest.mark.parametrize(
    "place",
    ["engine.listen", "engine.beat", "engine.take_over", "engine.note", "engine.open_session",
     "executor.make", "executor.enter", "destination.make", "destination.enter"],
)  # fmt: skip
async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path, place: str) -> None:
    with made(tmp_path) as one:
        before = asyncio.all_tasks()
        one.traps.set(place)
        with pytest.raises(Unforeseen, match=place):
            await one.gateway.__aenter__()
        assert (one.finn.open, one.sound.open) == (0, 0)
        assert asyncio.all_tasks() == before
