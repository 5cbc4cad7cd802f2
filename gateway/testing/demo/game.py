"""`dragoman demo`: a scripted game of Go Fish through a real gateway, with every kind of agent and one backend.

Everything runs on free loopback ports unless others are asked for: the simulated runtimes and the sample backend in
this process, the gateway in a process of its own, so that it can be killed.
"""

import asyncio
import signal
import sys
from collections.abc import Callable

from rich.console import Console

from gateway.testing.demo.crash import Side, crash_in_the_middle
from gateway.testing.demo.environment import Environment, check_ports
from gateway.testing.demo.folded import STARTS, FoldedOutput
from gateway.testing.demo.herm import HermSide
from gateway.testing.demo.huma import HumaSide
from gateway.testing.demo.lines import sample_lines
from gateway.testing.demo.machine import JsonOutput
from gateway.testing.demo.mcp import McpSide
from gateway.testing.demo.one_call import DIALECTS, OneCall
from gateway.testing.demo.openhands import OpenHandsSide
from gateway.testing.demo.report import Output, Report, expect
from gateway.testing.demo.story import tell_story
from gateway.testing.demo.verbose import VerboseOutput
from gateway.testing.serving import LOOPBACK

WHOLE_LIMIT = 120.0
ALL = "all"


def main(keep: bool = False, *, show: str = "brief", host: str = LOOPBACK, port: int = 0) -> int:
    """Play the game; returns 0 only if every expectation held, and 1 otherwise.

    Args:
        keep: Leave everything running until Ctrl-C.
        show: `brief`, `verbose` or `json`.
        host: The address to listen on.
        port: The gateway's port; the others follow. 0 takes free ones.

    Raises:
        OSError: a port that it needs is taken.
    """
    check_ports(host, port)
    console = Console(highlight=False)
    outputs: dict[str, Callable[[], Output]] = {
        "brief": lambda: FoldedOutput(console),
        "verbose": lambda: VerboseOutput(console),
        "json": lambda: JsonOutput(sys.stdout),
    }
    output = outputs[show]()
    try:
        return asyncio.run(_demonstrate(Environment(host=host, port=port), Report(output), keep=keep))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143


async def _demonstrate(environment: Environment, report: Report, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    # Like Ctrl-C, which asyncio turns into a cancellation by itself.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with environment:
            coder, client = OpenHandsSide(environment, report), McpSide(environment, report)
            huma = [HumaSide(environment, report, dialect) for dialect in environment.huma]
            sides: list[Side] = [*huma, coder, HermSide(environment, report), client]
            report.output.begin()
            try:
                await _play(environment, report, sides, huma[-1])
                if not keep and environment.runs:
                    await _stop(environment, report)
            finally:
                coder.end()
                await client.end()
                report.output.end()
            seen = f"{sum(len(side.player.asked) for side in sides)} calls"
            if not report.failed:
                seen += ", one kill -9, one outcome each"
            report.output.show_end(report.notes, seen, str(environment.log))
            if keep and environment.runs:
                await _stand_by(report, environment)
    except (asyncio.CancelledError, OSError):
        environment.remove()
        raise
    if not report.failed:
        environment.remove()
    return 1 if report.failed else 0


async def _play(environment: Environment, report: Report, sides: list[Side], hero: HumaSide) -> None:
    async with report.step(ALL, "the whole game", within=WHOLE_LIMIT) as whole:
        async with report.step(ALL, STARTS, within=30) as note:
            await environment.start_gateway()
            note.say(f"ready at {environment.url}")
        expect(note.held is True, "there is no gateway to play with")
        for side in sides:
            await side.connect()
            await side.ask_for_cards()
        await _compare(report, sides)
        for side in sides:
            report.output.chapter(side.player.label, DIALECTS[side.player.label])
            await side.play()
        report.output.chapter(ALL, "The gateway is killed")
        if await crash_in_the_middle(environment, report, sides):
            for side in sides:
                report.output.chapter(side.player.label, f"{DIALECTS[side.player.label]}, after the crash")
                await side.check_after_the_crash()
                await side.look_back()
        if hero.interrupted is not None:
            story = await tell_story(hero.player, hero.interrupted)
            if story is not None:
                report.output.show_story(story)
        whole.say("played to the end")


async def _compare(report: Report, sides: list[Side]) -> None:
    """Show one call of each agent on the wire, and see that only the ends know its dialect."""
    calls: list[OneCall] = []
    async with report.step(ALL, "one call, alike in every dialect") as note:
        players = [side.player for side in sides if side.player.asked]
        calls += [await player.on_the_wire(player.asked[0]) for player in players]
        expect(bool(calls), "nobody has called")
        for call in calls:
            event, asked = call.envelope["event"], call.request
            expect(call.answered.head == "200", f"{call.runtime}: the backend answered {call.answered.head}")
            expect(
                (event["tool"], event["arguments"]) == (asked["tool"], asked["arguments"]),
                f"{call.runtime}: the backend was asked for something else",
            )
        first = calls[0].request
        same = [call for call in calls if all(call.request[name] == first[name] for name in ("tool", "arguments"))]
        expect(len(same) == len(calls), "the backend can tell the dialects by the tool or its arguments")
        note.say(f"{len(calls)} dialects, the same tool and arguments on record and in the signed webhooks")
    report.output.show_calls(calls)


async def _stop(environment: Environment, report: Report) -> None:
    report.output.chapter(ALL, "The end")
    async with report.step(ALL, "SIGTERM: drained and left", within=20) as note:
        code = await environment.stop_gateway()
        expect(code == 0, f"exit code {code}")
        note.say("exit code 0")


async def _stand_by(report: Report, environment: Environment) -> None:
    """Leave everything running until Ctrl-C."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    report.output.show_addresses(environment.addresses(), await sample_lines(environment))
    await stop.wait()
