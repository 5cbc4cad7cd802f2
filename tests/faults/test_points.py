"""kill -9 of a real gateway at each point of a call's life: nothing is lost, nothing happens twice.

The points are those of ENGINE.md 8. HUMA has no replay, so a call whose frame dies before our first commit is gone
until the runtime asks again; every other call must end by itself, in one outcome.
"""

from pathlib import Path

import pytest

from gateway.simulators.huma_rules import Dialect
from tests.faults.scene import Scene
from tests.faults.witness import success_of

pytestmark = pytest.mark.faults

both = pytest.mark.parametrize("dialect", ["0.1", "0.2"])


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


@both
async def test_a_call_lost_before_the_first_commit_left_no_trace_and_may_be_asked_again(
    tmp_path: Path, dialect: Dialect
) -> None:
    async with Scene(tmp_path, dialect) as scene:
        await play(scene, "before-accept", "once")
        (call,) = scene.calls
        assert await scene.row_of(call.call_id) is None
        assert scene.witness.seen == []
        await scene.agent.call(call.tool, call.arguments, call.call_id)
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await finish(scene)


@pytest.mark.parametrize(
    ("dialect", "point"),
    [("0.1", "after-accept"), ("0.2", "before-request"), ("0.2", "after-request"), ("0.1", "before-outcome")],
)
async def test_a_repeatable_call_is_asked_again_with_the_same_id(tmp_path: Path, dialect: Dialect, point: str) -> None:
    async with Scene(tmp_path, dialect) as scene:
        await play(scene, point, "again")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        assert call.reading.result == success_of({"n": 0})["result"]
        await finish(scene)
        asked = 1 if point in {"after-accept", "before-request"} else 2
        assert len(scene.witness.seen) == asked


@pytest.mark.parametrize(
    ("dialect", "point"),
    [("0.2", "after-accept"), ("0.1", "before-request"), ("0.1", "after-request"), ("0.2", "before-outcome")],
)
async def test_an_unrepeatable_call_is_told_to_have_an_unknown_outcome(
    tmp_path: Path, dialect: Dialect, point: str
) -> None:
    async with Scene(tmp_path, dialect) as scene:
        await play(scene, point, "once")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "failure"
        assert "unknown" in str(call.reading.error)
        await finish(scene)
        assert len(scene.witness.seen) == (0 if point in {"after-accept", "before-request"} else 1)


async def test_an_answer_out_of_the_configuration_is_given_by_the_next_process(tmp_path: Path) -> None:
    async with Scene(tmp_path, "0.2") as scene:
        await play(scene, "after-request", "words")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert (call.reading.outcome, call.reading.result) == ("success", "words")
        await finish(scene)


@both
@pytest.mark.parametrize("tool", ["again", "once"])
async def test_a_gateway_killed_while_the_executor_works_keeps_its_promise(
    tmp_path: Path, dialect: Dialect, tool: str
) -> None:
    async with Scene(tmp_path, dialect) as scene:
        await scene.run()
        scene.witness.close("tools")
        scene.witness.on_request = lambda seen: scene.kill() if seen.attempt == 1 else None
        call = await scene.call(tool)
        await scene.dead()
        scene.witness.open()
        await scene.run()
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == ("success" if tool == "again" else "failure")
        await finish(scene)
        assert len(scene.witness.seen) == (2 if tool == "again" else 1)


@both
@pytest.mark.parametrize("point", ["after-outcome", "before-emit", "after-emit"])
async def test_a_recorded_outcome_is_sent_by_the_next_process(tmp_path: Path, dialect: Dialect, point: str) -> None:
    async with Scene(tmp_path, dialect) as scene:
        await play(scene, point, "once")
        (call,) = scene.calls
        await call.result()
        assert call.reading is not None
        assert call.reading.outcome == "success"
        await finish(scene)
        assert len(scene.witness.seen) == 1


@both
async def test_a_result_that_has_arrived_but_is_not_marked_is_repeated_word_for_word(
    tmp_path: Path, dialect: Dialect
) -> None:
    # Long enough for the kill to come in time.
    async with Scene(tmp_path, dialect, window="1s") as scene:
        await scene.run()
        call = await scene.call("once")
        await call.result()
        scene.kill()
        await scene.dead()
        await scene.run()
        await call.wait_results(2)
        await finish(scene)
        assert len(call.results) == 2
        assert len(scene.witness.seen) == 1


@both
async def test_a_delivered_result_is_not_repeated(tmp_path: Path, dialect: Dialect) -> None:
    async with Scene(tmp_path, dialect) as scene:
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


@pytest.mark.parametrize(
    ("dialect", "point", "tool", "succeeds"),
    [
        ("0.1", "before-claim", "once", True),
        ("0.2", "before-claim", "again", True),
        ("0.2", "after-claim", "once", False),
        ("0.1", "after-claim", "again", True),
    ],
)
async def test_a_call_that_waited_for_a_slot_survives_its_claim(
    tmp_path: Path, dialect: Dialect, point: str, tool: str, *, succeeds: bool
) -> None:
    async with Scene(tmp_path, dialect, slots=1) as scene:
        await scene.run(point)
        scene.witness.close("tools")
        first = await scene.call("again")
        await scene.witness.wait(lambda seen: seen.tool == "again")
        second = await scene.call(tool)
        await scene.recorded(second, "queued")
        scene.witness.open()
        await scene.dead()
        await scene.run()
        for call in (first, second):
            await call.result()
            assert call.reading is not None
        assert second.reading is not None
        assert (second.reading.outcome == "success") == succeeds
        await finish(scene)
