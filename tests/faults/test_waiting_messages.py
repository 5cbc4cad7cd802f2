"""SIGTERM and kill -9 while accepted messages wait for their runtime: each of them is delivered once afterwards."""

import json
import re
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.runtimes.openhands.progress import Manners
from tests.faults.environment import FaultEnvironment, until
from tests.faults.fleet import HermScene, OpenHandsScene, OpenHandsV1Scene
from tests.faults.instance import START
from tests.faults.scene import Scene

pytestmark = pytest.mark.faults

TEXTS = ("one", "two", "three")
MANY = 1_000
"""More refusals than the gateway gets before it ends."""
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])


_OF_HUMA = re.compile(r'"type": "new-message".*?"(one|two|three)"|sent a message: \\"(one|two|three)\\"')


@dataclass(frozen=True)
class Runtime:
    """An environment and how to read from its agent which messages it was given."""

    make: Callable[..., Any]
    texts: Callable[[Any], list[str]]


def _of_huma(scene: Scene) -> list[str]:
    """The message frames of 0.1, and the contexts of 0.2 that a message came with; other contexts carry the history."""
    said = [json.dumps(frame.payload) for frame in scene.agent.received]
    found = [_OF_HUMA.search(one) for one in said]
    return [one[1] or one[2] for one in found if one is not None]


def _of_herm(scene: HermScene) -> list[str]:
    said = [block for one in scene.agent.received for block in one.payload.get("content", [])]
    return [block["text"] for block in said if block.get("text") in TEXTS]


HUMA_0_1 = Runtime(partial(Scene, dialect="0.1"), _of_huma)
HUMA_0_2 = Runtime(partial(Scene, dialect="0.2"), _of_huma)
HERM = Runtime(HermScene, _of_herm)
OPENHANDS = Runtime(OpenHandsScene, OpenHandsScene.heard)
OPENHANDS_V1 = Runtime(OpenHandsV1Scene, OpenHandsV1Scene.heard)
ALL = pytest.mark.parametrize(
    "runtime",
    [HUMA_0_1, HUMA_0_2, HERM, OPENHANDS, OPENHANDS_V1],
    ids=["huma-0.1", "huma-0.2", "herm", "openhands", "openhands-v1"],
)


@asynccontextmanager
async def waiting(runtime: Runtime, folder: Path, **more: Any) -> AsyncGenerator[Any]:
    async with runtime.make(folder, **more) as scene:
        settings = scene.settings(scene.gateway)
        scene.gateway.configure(settings | {"limits": {**settings.get("limits", {}), "drain": "1s"}})
        await scene.run()
        yield scene


async def post(scene: FaultEnvironment, *texts: str) -> None:
    for text in texts:
        assert await scene.post({"kind": "message.posted", "content": text}) == 202


async def end(scene: FaultEnvironment, number: signal.Signals) -> None:
    """End the process in the orderly way or by kill -9, and wait until the runtime has noticed."""
    if number == signal.SIGTERM:
        await scene.stop()
    else:
        scene.kill()
        await scene.gateway.died()
    await scene.unlinked()


async def all_told(scene: FaultEnvironment, runtime: Runtime, *, each: Callable[[], None] = lambda: None) -> None:
    """Wait until the agent was given each message, and hold the gateway to it that each came once and is settled."""

    async def told() -> bool:
        each()
        return len(runtime.texts(scene)) >= len(TEXTS)

    await until(told)
    await scene.settled()
    assert runtime.texts(scene) == list(TEXTS)
    assert await scene.rows("/v1/dead-letters") == []


@pytest.mark.fault("SIGTERM or SIGKILL while messages wait for a link")
@SIGNALS
@ALL
async def test_messages_that_wait_for_a_link_are_delivered_by_the_next_process(
    tmp_path: Path, store: str, runtime: Runtime, number: signal.Signals
) -> None:
    async with waiting(runtime, tmp_path, store=store, through={"runtime"}) as scene:
        scene.wires["runtime"].refuse()
        await scene.noticed()
        await post(scene, *TEXTS)
        await end(scene, number)
        scene.wires["runtime"].heal()
        await scene.run()
        await all_told(scene, runtime, each=_end_turns(scene))


def _end_turns(scene: Any) -> Callable[[], None]:
    """End each turn of a Herm agent, which takes one message a turn."""

    def end_turn() -> None:
        if isinstance(scene, HermScene) and scene.agent.turn:
            scene.agent.end_turn()

    return end_turn


@pytest.mark.fault("SIGTERM or SIGKILL while messages wait for Herm's turn to end")
@SIGNALS
async def test_messages_that_wait_for_a_turn_are_delivered_by_the_next_process(
    tmp_path: Path, store: str, number: signal.Signals
) -> None:
    async with waiting(HERM, tmp_path, store=store) as scene:
        scene.agent.begin_turn()
        await _runs(scene)
        await post(scene, *TEXTS)
        await end(scene, number)
        assert HERM.texts(scene) == []
        await scene.run()
        await all_told(scene, HERM, each=_end_turns(scene))


async def _runs(scene: FaultEnvironment) -> None:
    path = f"/v1/sessions/{await scene.session_id()}"

    async def runs() -> bool:
        return (await scene.http.get(path)).json()["state"] == "running"

    await until(runs)


@pytest.mark.fault("SIGTERM or SIGKILL after Herm refused a message as busy")
@SIGNALS
async def test_a_message_that_was_answered_with_busy_is_delivered_by_the_next_process(
    tmp_path: Path, store: str, number: signal.Signals
) -> None:
    async with waiting(HERM, tmp_path, store=store) as scene:
        scene.server.stumble("POST", 409, code="turn_in_progress", times=MANY)
        await post(scene, *TEXTS)
        await _is_taken_back(scene)
        await end(scene, number)
        assert HERM.texts(scene) == []
        scene.server.stop_pages()
        await scene.run()
        await all_told(scene, HERM, each=_end_turns(scene))


async def _is_taken_back(scene: HermScene) -> None:
    """Wait until the send was tried, and its attempt taken back."""

    async def taken_back() -> bool:
        return scene.server.remaining_stumbles < MANY and not await scene.store.started()

    await until(taken_back)


@pytest.mark.fault("SIGTERM or SIGKILL while messages wait for a starting OpenHands agent")
@SIGNALS
async def test_messages_that_wait_for_an_agent_to_start_are_delivered_by_the_next_process(
    tmp_path: Path, store: str, number: signal.Signals
) -> None:
    async with waiting(OPENHANDS, tmp_path, store=store, manners=Manners(loading=None)) as scene:
        await post(scene, *TEXTS)
        await end(scene, number)
        assert OPENHANDS.texts(scene) == []
        await scene.run()
        scene.agent.end_loading()
        await all_told(scene, OPENHANDS)


@pytest.mark.fault("SIGTERM or SIGKILL while messages wait for a sleeping OpenHands agent")
@SIGNALS
async def test_messages_that_wait_for_a_stopped_conversation_are_delivered_by_the_next_process(
    tmp_path: Path, store: str, number: signal.Signals
) -> None:
    async with waiting(OPENHANDS, tmp_path, store=store, through={"runtime"}) as scene:
        await scene.agent.stop()
        await _is_linked(scene, "asleep")
        # A message wakes the conversation, unless its server cannot be reached.
        scene.wires["runtime"].refuse()
        await post(scene, *TEXTS)
        await end(scene, number)
        assert OPENHANDS.texts(scene) == []
        scene.wires["runtime"].heal()
        await scene.run()
        await all_told(scene, OPENHANDS)


async def _is_linked(scene: FaultEnvironment, state: str) -> None:
    async def so() -> bool:
        (row,) = await scene.runtimes()
        return [link["state"] for link in row["links"]] == [state]

    await until(so)


@pytest.mark.fault("SIGKILL of the owner while messages wait for a link", on="replicas")
@ALL
async def test_messages_that_wait_for_a_link_are_delivered_by_the_instance_that_takes_over(
    tmp_path: Path, runtime: Runtime
) -> None:
    async with waiting(runtime, tmp_path, store="postgres", through={"runtime"}) as scene:
        await _second(scene)
        scene.wires["runtime"].refuse()
        await scene.noticed()
        await post(scene, *TEXTS)
        await _take_over(scene)
        assert runtime.texts(scene) == []
        scene.wires["runtime"].heal()
        await all_told(scene, runtime, each=_end_turns(scene))


@pytest.mark.fault("SIGKILL of the owner while messages wait for Herm's turn to end", on="replicas")
async def test_messages_that_wait_for_a_turn_are_delivered_by_the_instance_that_takes_over(tmp_path: Path) -> None:
    async with waiting(HERM, tmp_path, store="postgres") as scene:
        await _second(scene)
        scene.agent.begin_turn()
        await _runs(scene)
        await post(scene, *TEXTS)
        await _take_over(scene)
        assert HERM.texts(scene) == []
        await all_told(scene, HERM, each=_end_turns(scene))


async def _second(scene: FaultEnvironment) -> None:
    """Start the instance that takes over."""
    other = await scene.another("other")
    other.fork()
    await until(other.ready, within=START)


async def _take_over(scene: FaultEnvironment) -> None:
    """Kill the instance that has the session, and wait until the other one has it."""
    first, other = scene.instances
    scene.kill()
    await first.died()
    scene.gateway = other

    async def taken() -> bool:
        (row,) = await scene.runtimes()
        return bool(row["links"])

    await until(taken, within=START)
