"""`dragoman demo`: a scripted game of Go Fish through a real gateway, with every kind of agent and one backend.

The simulated runtimes and the sample backend run in this process, by default on free loopback ports. The gateway is a
separate process, so that it can be killed.
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial

from rich.console import Console

from gateway.testing.demo.crash import Side, crash_in_the_middle
from gateway.testing.demo.environment import Environment, check_ports, parts_with
from gateway.testing.demo.folded import STARTS, WHOLE, FoldedOutput
from gateway.testing.demo.herm import HermSide
from gateway.testing.demo.huma import HumaSide
from gateway.testing.demo.lines import sample_lines
from gateway.testing.demo.machine import JsonOutput
from gateway.testing.demo.mcp import McpSide
from gateway.testing.demo.one_call import DIALECTS, OneCall
from gateway.testing.demo.openhands import OpenHandsSide
from gateway.testing.demo.openhands_v1 import OpenHandsV1Side
from gateway.testing.demo.report import Output, Report, expect
from gateway.testing.demo.story import tell_story
from gateway.testing.demo.verbose import VerboseOutput
from gateway.testing.serving import LOOPBACK

WHOLE_LIMIT = 300.0
ALL = "all"


def main(
    keep: bool = False,
    *,
    show: str = "brief",
    host: str = LOOPBACK,
    port: int = 0,
    extra: frozenset[str] = frozenset(),
) -> int:
    """Play the game; return 0 only if every check passed, otherwise 1.

    Args:
        keep: Keep everything running until Ctrl-C.
        show: `brief`, `verbose` or `json`.
        host: The address to listen on.
        port: The gateway's port; the others follow. 0 selects free ones.
        extra: Further runtimes: `openhands-v1`.

    Raises:
        OSError: a port is in use.
    """
    check_ports(host, port, parts_with(extra))
    console = Console(highlight=False)
    outputs: dict[str, Callable[[], Output]] = {
        "brief": lambda: FoldedOutput(console),
        "verbose": lambda: VerboseOutput(console),
        "json": lambda: JsonOutput(sys.stdout),
    }
    output = outputs[show]()
    try:
        return asyncio.run(_demonstrate(Environment(host=host, port=port, extra=extra), Report(output), keep=keep))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143


async def _demonstrate(environment: Environment, report: Report, *, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    # For Ctrl-C asyncio already does this.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with environment:
            client = McpSide(environment, report)
            coders: list[OpenHandsSide | OpenHandsV1Side] = [OpenHandsSide(environment, report)]
            if environment.agent_server is not None:
                coders.append(OpenHandsV1Side(environment, report, environment.agent_server))
            huma = [HumaSide(environment, report, dialect) for dialect in environment.huma]
            sides: list[Side] = [*huma, *coders, HermSide(environment, report), client]
            report.output.begin()
            try:
                await _play(environment, report, sides, huma[-1])
                lines = list[str]()
                if keep and environment.runs:
                    async with report.step(ALL, "commands to try") as note:
                        lines += await sample_lines(environment)
                        note.say(f"{len(lines)} lines")
                elif environment.runs:
                    await _stop(environment, report)
            finally:
                for coder in coders:
                    coder.end()
                await client.end()
                report.output.end()
            seen = f"{sum(len(side.player.asked) for side in sides)} calls"
            if not report.failed:
                seen += ", one kill -9, one outcome each"
            report.output.show_end(report.notes, seen, str(environment.log))
            if lines:
                await _stand_by(report, environment, lines)
    except (asyncio.CancelledError, OSError):
        environment.remove()
        raise
    if not report.failed:
        environment.remove()
    return 1 if report.failed else 0


async def _play(environment: Environment, report: Report, sides: list[Side], hero: HumaSide) -> None:
    async with report.step(ALL, STARTS, within=None) as note:
        await environment.start_gateway(partial(report.output.show_waiting, note))
        note.say(f"ready at {environment.url}")
    if not note.held:
        return
    async with report.step(ALL, WHOLE, within=WHOLE_LIMIT) as whole:
        for side in sides:
            await side.connect()
            await side.ask_for_cards()
        await _compare(report, sides)
        for side in sides:
            report.output.chapter(side.player.label, DIALECTS[side.player.label])
            await side.play()
        report.output.chapter(ALL, "The gateway is killed")
        expect(await crash_in_the_middle(environment, report, sides), "broken off: the gateway did not come back")
        for side in sides:
            report.output.chapter(side.player.label, f"{DIALECTS[side.player.label]}, after the crash")
            await side.check_calls_after_crash()
            await side.check_game()
        if hero.interrupted is not None:
            story = await tell_story(hero.player, hero.interrupted)
            if story is not None:
                report.output.show_story(story)
        whole.say("complete")


async def _compare(report: Report, sides: list[Side]) -> None:
    """Show one call of each agent on the wire, and check that the backend receives the same from every dialect."""
    calls: list[OneCall] = []
    async with report.step(ALL, "one call, the same in every dialect") as note:
        players = [side.player for side in sides if side.player.asked]
        calls += [await player.on_the_wire(player.asked[0]) for player in players]
        expect(bool(calls), "no agent has called")
        for call in calls:
            event, request = call.envelope["event"], call.request
            expect(call.answered.head == "200", f"{call.runtime}: the backend responded with {call.answered.head}")
            expect(
                (event["tool"], event["arguments"]) == (request["tool"], request["arguments"]),
                f"{call.runtime}: the webhook has another tool or other arguments",
            )
        first = calls[0].request
        same = [call for call in calls if all(call.request[name] == first[name] for name in ("tool", "arguments"))]
        expect(len(same) == len(calls), "the tool or the arguments differ between dialects")
        note.say(f"{len(calls)} dialects, the same tool and arguments in the journal and in the signed webhooks")
    report.output.show_calls(calls)


async def _stop(environment: Environment, report: Report) -> None:
    report.output.chapter(ALL, "The end")
    async with report.step(ALL, "SIGTERM: drained and exited", within=None) as note:
        code = await environment.stop_gateway()
        expect(code == 0, f"exit code {code}")
        note.say("exit code 0")


async def _stand_by(report: Report, environment: Environment, lines: list[str]) -> None:
    """Keep everything running until Ctrl-C."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    report.output.show_addresses(environment.addresses(), lines)
    await stop.wait()
