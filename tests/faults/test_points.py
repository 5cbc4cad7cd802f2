"""kill -9 of a real gateway at each point of a call's life: nothing is lost, nothing happens twice.

HUMA has no replay, so a call whose frame dies before our first commit is gone; every other call must end by itself, in
one outcome.
"""

from pathlib import Path

import pytest

from gateway.testing.runtimes.huma.rules import Dialect
from tests.faults.observed import observed
from tests.faults.scene import Scene

pytestmark = pytest.mark.faults

on_postgres = pytest.mark.parametrize(("dialect", "store"), [("0.2", "postgres")])
"""For the faults of which the simulation proves the SQLite half."""

ASKED_AGAIN = pytest.mark.fault(
    "SIGKILL before the first commit; the agent repeats the call", simulated="repeated-call-runs-again"
)
BEFORE_REQUEST = pytest.mark.fault(
    "SIGKILL after the first commit, before the request", simulated="recovery-forgets-queued-calls"
)
AFTER_REQUEST = pytest.mark.fault(
    "SIGKILL after the answer, before the outcome's commit", simulated="recovery-repeats-any-dispatched-call"
)
BEFORE_EMIT = pytest.mark.fault(
    "SIGKILL after the outcome's commit, before it is sent", simulated="pending-outcomes-are-forgotten-at-a-start"
)
AFTER_EMIT = pytest.mark.fault(
    "SIGKILL after an outcome was sent, before its confirmation", simulated="delivery-counts-when-written"
)

points = pytest.mark.parametrize(
    "point",
    [
        pytest.param("after-accept", marks=BEFORE_REQUEST),
        pytest.param("before-request", marks=BEFORE_REQUEST),
        pytest.param("after-request", marks=AFTER_REQUEST),
        pytest.param("before-outcome", marks=AFTER_REQUEST),
    ],
)


async def play(scene: Scene, point: str, tool: str, *, nth: int = 1) -> None:
    """Ask for a tool, die at a point, rise again."""
    await scene.run(point, nth=nth)
    await scene.call(tool)
    await scene.dead()
    await scene.run()


async def finish(scene: Scene) -> None:
    """Wait for the end of everything, and look at it once more behind another kill."""
    await scene.settled()
    await scene.verify()
    scene.kill()
    await scene.dead()
    await scene.verify_journal()


@pytest.mark.fault("SIGKILL before the first commit", simulated="effects-before-commit")
@on_postgres
async def test_a_call_lost_before_the_first_commit_left_no_trace(tmp_path: Path, dialect: Dialect, store: str) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await play(scene, "before-accept", "once")
        (call,) = scene.calls
        assert await scene.row_of(call.call_id) is None
        assert scene.backend.seen == []
        await (await scene.call("once")).result()
        await finish(scene)
        assert observed().wire == 1


@ASKED_AGAIN
@on_postgres
async def test_a_call_lost_before_the_first_commit_may_be_asked_again(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await play(scene, "before-accept", "once")
        (call,) = scene.calls
        await scene.agent.call(call.tool, call.arguments, call.call_id)
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await finish(scene)


@on_postgres
@points
async def test_a_repeatable_call_is_asked_again_with_the_same_id(
    tmp_path: Path, dialect: Dialect, store: str, point: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await play(scene, point, "again")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        assert call.reading.result["did"] == call.arguments
        await finish(scene)
        asked = 1 if point in {"after-accept", "before-request"} else 2
        assert len(scene.backend.seen) == asked


@on_postgres
@points
async def test_an_unrepeatable_call_is_told_to_have_an_unknown_outcome(
    tmp_path: Path, dialect: Dialect, store: str, point: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await play(scene, point, "once")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "failure"
        assert "unknown" in str(call.reading.error)
        await finish(scene)
        assert len(scene.backend.seen) == (0 if point in {"after-accept", "before-request"} else 1)


@AFTER_REQUEST
@pytest.mark.parametrize("store", ["postgres"])
async def test_an_answer_out_of_the_configuration_is_given_by_the_next_process(tmp_path: Path, store: str) -> None:
    async with Scene(tmp_path, "0.2", store=store) as scene:
        await play(scene, "after-request", "words")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert (call.reading.outcome, call.reading.result) == ("success", "words")
        await finish(scene)


@pytest.mark.fault("SIGKILL after the request, before its answer", simulated="recovered-call-is-not-unknown")
@on_postgres
@pytest.mark.parametrize("tool", ["again", "once"])
async def test_a_gateway_killed_while_the_executor_works_keeps_its_promise(
    tmp_path: Path, dialect: Dialect, store: str, tool: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run()
        scene.backend.close("tools")
        scene.backend.on_request = lambda seen: scene.kill() if seen.attempt == 1 else None
        call = await scene.call(tool)
        await scene.dead()
        scene.backend.open()
        await scene.run()
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == ("success" if tool == "again" else "failure")
        await finish(scene)
        assert len(scene.backend.seen) == (2 if tool == "again" else 1)


@on_postgres
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("after-outcome", marks=BEFORE_EMIT),
        pytest.param("before-emit", marks=BEFORE_EMIT),
        pytest.param("after-emit", marks=AFTER_EMIT),
    ],
)
async def test_a_recorded_outcome_is_sent_by_the_next_process(
    tmp_path: Path, dialect: Dialect, store: str, point: str
) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await play(scene, point, "once")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await finish(scene)
        assert len(scene.backend.seen) == 1


@AFTER_EMIT
@on_postgres
async def test_a_result_that_has_arrived_but_is_not_marked_is_repeated_word_for_word(
    tmp_path: Path, dialect: Dialect, store: str
) -> None:
    # Long enough for the kill to come in time on a busy machine.
    async with Scene(tmp_path, dialect, store=store, window="4s") as scene:
        await scene.run()
        call = await scene.call("once")
        await call.result()
        scene.kill()
        await scene.dead()
        await scene.run()
        await call.wait_results(2)
        await finish(scene)
        assert len(call.results) == 2
        assert len(scene.backend.seen) == 1


@pytest.mark.fault("SIGKILL after the delivery")
@pytest.mark.parametrize(("dialect", "store"), [("0.1", "sqlite"), ("0.2", "postgres")])
async def test_a_delivered_result_is_not_repeated(tmp_path: Path, dialect: Dialect, store: str) -> None:
    async with Scene(tmp_path, dialect, store=store) as scene:
        await scene.run()
        call = await scene.call("once")
        await call.result()
        await scene.settled()
        scene.kill()
        await scene.dead()
        await scene.run()
        await (await scene.call("once")).result()
        await finish(scene)
        assert len(call.results) == 1


@pytest.mark.fault("SIGKILL before and after the claim of a queued call", simulated="one-attempt-too-many")
@on_postgres
@pytest.mark.parametrize(
    ("point", "tool", "succeeds"),
    [("before-claim", "once", True), ("after-claim", "once", False), ("after-claim", "again", True)],
)
async def test_a_call_that_waited_for_a_slot_survives_its_claim(
    tmp_path: Path, dialect: Dialect, store: str, point: str, tool: str, *, succeeds: bool
) -> None:
    async with Scene(tmp_path, dialect, store=store, slots=1) as scene:
        await scene.run(point)
        scene.backend.close("tools")
        first = await scene.call("again")
        await scene.backend.wait(lambda seen: seen.tool == "again")
        second = await scene.call(tool)
        await scene.recorded(second, "queued")
        scene.backend.open()
        await scene.dead()
        await scene.run()
        for call in (first, second):
            await call.result()
            assert call.reading is not None
        assert second.reading is not None
        assert (second.reading.outcome == "success") == succeeds
        await finish(scene)
