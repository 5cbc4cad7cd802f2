"""`dragoman demo`: a scripted game of Go Fish through a real gateway, with all four runtimes and one backend.

Everything runs on free loopback ports: the simulated runtimes and the sample backend in this process, the
gateway in a process of its own, so that it can be killed.
"""

import asyncio
import signal

from rich.console import Console

from gateway.simulators.demo_board import Board, expect
from gateway.simulators.demo_crash import Side, crash_in_the_middle
from gateway.simulators.demo_herm import HermSide
from gateway.simulators.demo_huma import HumaSide
from gateway.simulators.demo_openhands import OpenHandsSide
from gateway.simulators.demo_stage import Stage, sample_commands

WHOLE_LIMIT = 60.0


def main(keep: bool = False) -> int:
    """Play the game; returns 0 only if every expectation held, and 1 otherwise."""
    try:
        return asyncio.run(_demonstrate(Console(), keep=keep))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143


async def _demonstrate(console: Console, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    # Like Ctrl-C, which asyncio turns into a cancellation by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    stage = Stage()
    board = Board(console)
    kept = True
    try:
        async with stage:
            coder = OpenHandsSide(stage, board)
            sides: list[Side] = [
                HumaSide(stage, board, "0.1"),
                HumaSide(stage, board, "0.2"),
                coder,
                HermSide(stage, board),
            ]
            with board:
                try:
                    await _play(stage, board, sides)
                finally:
                    coder.end()
                if not keep and stage.runs:
                    await _stop(stage, board)
            _summarize(console, board, stage)
            if keep and stage.runs:
                await _stand_by(console, stage, sides[1].seat.session_id)
            kept = keep or bool(board.failed)
    except asyncio.CancelledError:
        kept = keep
        raise
    finally:
        if not kept:
            stage.remove()
    return 1 if board.failed else 0


async def _play(stage: Stage, board: Board, sides: list[Side]) -> None:
    async with board.step("all", "the whole game", within=WHOLE_LIMIT) as whole:
        async with board.step("all", "the gateway starts", within=30) as note:
            await stage.start_gateway()
            note.say(f"ready at {stage.url}")
        expect(note.held is True, "there is no gateway to play with")
        for side in sides:
            await side.play()
        await crash_in_the_middle(stage, board, sides)
        for side in sides:
            await side.look_back()
        whole.say("played to the end")


async def _stop(stage: Stage, board: Board) -> None:
    async with board.step("all", "SIGTERM: drained and left", within=20) as note:
        code = await stage.stop_gateway()
        expect(code == 0, f"exit code {code}")
        note.say("exit code 0")


def _summarize(console: Console, board: Board, stage: Stage) -> None:
    held = len(board.notes) - len(board.failed)
    console.print(f"\n{held} of {len(board.notes)} expectations held.", highlight=False)
    for note in board.failed:
        console.print(
            f"  ✗ {note.runtime}: {note.step}: {note.happened}", markup=False, highlight=False, soft_wrap=True
        )
    if board.failed:
        console.print(f"The gateway's log is {stage.log}", highlight=False, soft_wrap=True)


async def _stand_by(console: Console, stage: Stage, session_id: str) -> None:
    """Leave everything running until Ctrl-C."""
    lines = [
        "",
        f"gateway   {stage.url}   key {stage.api_key}",
        f"backend   {stage.backend_served.url}",
        *(f"huma {dialect}  {server.url}   key {server.api_key}" for dialect, server in stage.huma.items()),
        f"openhands {stage.openhands.url}   key {stage.openhands.session_api_key}",
        f"herm      {stage.herm.url}   key {stage.herm.api_key}",
        f"files     {stage.folder}",
        "",
        *sample_commands(stage, session_id),
        "",
        "Ctrl-C ends everything.",
    ]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()
