"""An agent whose context is replaced as a whole never goes back to an older one, whatever carries it and when."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.core.adapt import RENEWED, REPLACED
from gateway.runtime.system_clock import SystemClock
from gateway.runtime.tuning import Tuning
from gateway.store.rows import Rows, Send
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import Committed, Step
from tests.pace import PATIENCE
from tests.scenarios.environment import GOOD, QUICK, Running, Scene, ended, until
from tests.scenarios.fleet import condition, message
from tests.scenarios.hooks import Gate, success, update
from tests.submits import SubmitsByCommit


@pytest.fixture
def tuning() -> Tuning:
    """The waits between connections are made short; everything else is as in production."""
    return QUICK


def context(number: int, *, wakes: bool = False) -> dict[str, Any]:
    state = {"n": number}
    return {
        "kind": "context.updated", "name": f"c{number}", "context": state, "description": "", "wakes_agent": wakes,
    }  # fmt: skip


STEER = {"kind": "turn.steered", "text": "Shorter."}
INTERRUPT = {"kind": "turn.interrupted"}


def heard(scene: Scene, after: int = 0) -> list[tuple[str, int | None, bool]]:
    """List what the agent was told: the name of an update, text of a message or value of a result; its state; waking.

    0.1 has no flag that a context does not wake; it can only ask not to be interrupted.
    """
    found: list[tuple[str, int | None, bool]] = []
    for _, frame in scene.agent.received[after:]:
        content = frame if scene.dialect == "0.2" else frame["content"]
        inside: dict[str, Any] = content.get("context") or content.get("data", {}).get("context") or {}
        said: dict[str, Any] = inside.get("message") or (content if frame["type"] == "new-message" else {})
        name = said.get("content") or content.get("name") or content.get("result") or "confirmed"
        softly = content.get("skipCancelPendingMessage") or content.get("skipImmediateProcessing")
        wakes = frame.get("triggering", False) if scene.dialect == "0.2" else not softly
        found.append((name, inside.get("n"), wakes))
    return found


def names(scene: Scene, after: int = 0) -> list[str]:
    return [name for name, _, _ in heard(scene, after)]


async def never_goes_back(scene: Scene, gateway: Running) -> None:
    """No frame has carried an older state than one before it; the journal says which is older."""
    journal = [one["event"]["context"].get("n") for one in await gateway.events(kind="context.updated")]
    newest = {state: place for place, state in enumerate(journal)}
    places = [newest[state] for _, state, _ in heard(scene) if state is not None]
    assert places == sorted(places), (heard(scene), journal)


async def told(scene: Scene, count: int, after: int = 0) -> list[str]:
    """Wait until the agent has been told so much; returns it by name."""

    async def look() -> bool:
        return len(heard(scene, after)) >= count

    await until(look)
    return names(scene, after)


async def post(gateway: Running, *events: dict[str, Any]) -> list[int]:
    path = f"/v1/sessions/{await gateway.session()}/events"
    answer = await gateway.post(path, {"events": list(events)}, status=202)
    return [one["sequence"] for one in answer["data"]]


async def down(scene: Scene, gateway: Running) -> int:
    """Cut the link and keep it down; returns how much the agent was told before."""
    scene.huma.refuse("finn", "BUSY")
    await scene.agent.drop()
    await gateway.wait_link("refused")
    return len(scene.agent.received)


# While the link stands ------------------------------------------------------------------------------------


def alternating(count: int) -> list[dict[str, Any]]:
    return [context(number, wakes=number % 2 == 1) for number in range(1, count + 1)]


@pytest.mark.requirement("L66", "L9")
@pytest.mark.parametrize(
    ("posts", "wanted"),
    [
        pytest.param(alternating(2), ["c1", "c2"], id="a wake and a state"),
        pytest.param(alternating(6), ["c1", "c2", "c3", "c4", "c5", "c6"], id="six in turn"),
        pytest.param([message("Hi"), context(2), message("Ho")], ["Hi", "c2", "Ho"], id="messages and a state"),
        pytest.param(
            [context(1, wakes=True), STEER, context(2), INTERRUPT, context(3)],
            ["c1", "steer", "c2", "interrupt", "c3"],
            id="hints and interrupts",
        ),
    ],
)
async def test_one_request_is_told_in_its_order(both: Scene, posts: list[dict[str, Any]], wanted: list[str]) -> None:
    async with both.running() as gateway:
        await post(gateway, *posts)
        assert await told(both, len(wanted)) == wanted
        await never_goes_back(both, gateway)


@pytest.mark.requirement("L66", "L9")
async def test_requests_at_one_time_are_told_in_the_order_of_the_journal(both: Scene) -> None:
    async with both.running() as gateway:
        await asyncio.gather(*[post(gateway, *alternating(6)[::step], STEER, INTERRUPT) for step in (1, -1, 2, -2) * 3])
        recorded = [
            one["event"]["name"]
            for one in await gateway.events(kind="context.updated")
            if not one["event"].get("message")
        ]
        assert await told(both, len(recorded)) == recorded


@pytest.mark.requirement("L65", "L66")
async def test_updates_of_an_outcome_keep_their_place_among_what_is_posted(both: Scene) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("cards", updates=[update("u3", n=3), update("u4", n=4)]))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for(1)
        await post(gateway, context(1), context(2, wakes=True))
        gate.open()
        assert (await ended(call)).result == "cards"
        await post(gateway, context(5, wakes=True), context(6), message("Hi"))
        wanted = ["c1", "c2", "u3", "u4", "cards", "c5", "c6", "Hi"]
        assert await told(both, len(wanted)) == wanted
        await never_goes_back(both, gateway)


class PageBeforeStep(SubmitsByCommit, SqliteEngine):
    """A store that reads the first page of sends between the second commit with sends and its answer."""

    def __init__(self, path: Path) -> None:
        SqliteEngine.__init__(self, path, SystemClock())
        self._committed, self._was_read = asyncio.Event(), asyncio.Event()
        self._count = 0

    async def pending_sends(self, **query: Any) -> Rows[Send]:
        async with asyncio.timeout(PATIENCE):
            await self._committed.wait()
        page = await super().pending_sends(**query)
        self._was_read.set()
        return page

    async def commit(self, step: Step) -> Committed:
        committed = await SqliteEngine.commit(self, step)
        self._count += bool(step.sends)
        if self._count == 2:
            self._committed.set()
            async with asyncio.timeout(PATIENCE):
                await self._was_read.wait()
            # Whoever read it may use it first.
            for _ in range(100):
                await asyncio.sleep(0)
        return committed


@pytest.mark.requirement("L65", "L66")
async def test_a_page_that_is_ahead_of_its_session_takes_no_state_back(both: Scene) -> None:
    both.engine = PageBeforeStep(both.folder / "dragoman.db")
    both.hooks.scripts["ask"] = success("one", updates=[update("u1", n=1)])
    both.hooks.scripts["free"] = success("two", updates=[update("u2", n=2)])
    async with both.running() as gateway:
        first = await both.agent.call("ask", GOOD)
        await gateway.wait_call(first.call_id, "succeeded")
        await both.agent.call("free", {})
        assert await told(both, 4) == ["u1", "one", "u2", "two"]
        assert [state for _, state, _ in heard(both)] == [1, None, 2, None]


# A fresh link ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("A27", "L9")
async def test_a_quiet_state_posted_without_a_link_is_told_in_place_of_a_hydration(both: Scene) -> None:
    async with both.running() as gateway:
        await post(gateway, context(1))
        await told(both, 1)
        before = await down(both, gateway)
        moot, last = await post(gateway, context(2), context(3))
        both.huma.refuse("finn", None)
        assert await told(both, 1, before) == ["c3"]
        await post(gateway, context(4))
        assert await told(both, 2, before) == ["c3", "c4"]
        [settled] = await gateway.wait_events("delivery.settled", state="moot", sequence=moot)
        assert settled["event"]["reason"] == REPLACED
        assert last not in [one["event"]["sequence"] for one in await gateway.events(kind="delivery.settled")]
        recorded = [one["event"]["name"] for one in await gateway.events(kind="context.updated")]
        assert "hydration" not in recorded


@pytest.mark.requirement("A27", "L9", "L65")
@pytest.mark.parametrize("stops", [False, True], ids=["link", "restart"])
async def test_a_fresh_link_is_told_the_state_then_outcomes_then_wakes(both: Scene, stops: bool) -> None:
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("cards", updates=[update("u", n=4)]))
    posts = [context(1, wakes=True), context(2), context(3, wakes=True), message("Hi"), message("Ho")]
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for(1)
        before = await down(both, gateway)
        await post(gateway, *posts)
        gate.open()
        await gateway.wait_call(call.call_id, "succeeded")
        await post(gateway, context(5, wakes=True), context(6), STEER, context(7, wakes=True))
        if not stops:
            both.huma.refuse("finn", None)
            await told(both, 6, before)
    if stops:
        both.huma.refuse("finn", None)
        async with both.running() as gateway:
            await told(both, 6, before)
    said = heard(both, before)
    # The link was down, so no send of the messages had started.
    assert [name for name, _, _ in said] == ["c6", "u", "cards", "Hi", "Ho", "c7"]
    assert {state for _, state, _ in said if state is not None} == {7}
    assert said[0][2] is False
    assert [wakes for name, _, wakes in said if name in {"Hi", "Ho", "c7"}] == [True] * 3


@pytest.mark.requirement("N20", "N23", "A27")
async def test_where_only_wakes_are_owed_the_state_is_told_first_without_waking(newer: Scene) -> None:
    async with newer.running() as gateway:
        before = await down(newer, gateway)
        await post(gateway, context(1, wakes=True), message("Hi"), context(2, wakes=True))
        newer.huma.refuse("finn", None)
        await told(newer, 3, before)
        assert heard(newer, before) == [("hydration", 2, False), ("Hi", 2, True), ("c2", 2, True)]
        replaced, *_ = await gateway.wait_events("delivery.settled", state="moot")
        assert replaced["event"]["reason"] == REPLACED


async def test_a_state_that_is_told_in_a_newer_form_says_so_in_its_row(both: Scene) -> None:
    async with both.running() as gateway:
        before = await down(both, gateway)
        [quiet, _] = await post(gateway, context(1), context(2, wakes=True))
        both.huma.refuse("finn", None)
        await told(both, 2, before)
        assert heard(both, before)[:2] == [("c1", 2, False), ("c2", 2, True)]

        # What the row says stands there once the silence after it was believed.
        with closing(sqlite3.connect(both.folder / "dragoman.db")) as store:
            rows = "SELECT reason FROM outbound WHERE seq = ? AND state = 'delivered'"
            assert await condition(lambda: store.execute(rows, (quiet,)).fetchone()) == (RENEWED,)


@pytest.mark.requirement("L16")
async def test_a_message_that_is_told_again_has_the_id_that_it_had(both: Scene) -> None:
    both.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    async with both.running() as gateway:
        # Two of the same words are two messages.
        await post(gateway, message("Hi"), message("Hi"))
        await told(both, 2)
        await both.agent.drop()
        await condition(lambda: names(both).count("Hi") >= 4)
    ids = [said["id"] for _, frame in both.agent.received if (said := _message(both, frame))]
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


def _message(scene: Scene, frame: Any) -> dict[str, Any] | None:
    return frame["context"].get("message") if scene.dialect == "0.2" else frame["content"]


@pytest.mark.requirement("A27", "L9")
@pytest.mark.parametrize("after", range(8))
async def test_a_link_lost_at_any_point_of_the_way_never_takes_the_state_back(both: Scene, after: int) -> None:
    """The link is cut as soon as the agent has heard so many frames, and once more later."""
    both.configure({"runtimes": {"finn": {"delivery_window": "30s"}}})
    gate = Gate()
    both.hooks.scripts["ask"] = gate.answering(success("cards", updates=[update("u", n=4)]))
    async with both.running() as gateway:
        call = await both.agent.call("ask", GOOD)
        await both.hooks.wait_for(1)

        async def cut() -> None:
            await condition(lambda: len(both.agent.received) >= after)
            await both.agent.drop()

        async with asyncio.TaskGroup() as group:
            group.create_task(cut())
            await post(gateway, *alternating(3))
            gate.open()
            await post(gateway, context(5), message("Hi"), context(6, wakes=True))
            assert (await ended(call)).result == "cards"
            await _settled(both, "c6", "Hi")
        await both.agent.drop()
        await post(gateway, context(7))
        await _settled(both, "c7")
        await never_goes_back(both, gateway)


async def _settled(scene: Scene, *wanted: str) -> None:
    await condition(lambda: all(name in names(scene) for name in wanted))
