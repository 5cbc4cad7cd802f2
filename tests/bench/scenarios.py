"""What is measured under which name, beside the loads of `targets`."""

from collections.abc import Awaitable, Callable, Mapping

from tests.bench.agent_servers import compare_agent_servers, weigh_agent_servers
from tests.bench.bench import Bench
from tests.bench.bursts import compare_streams
from tests.bench.chunks import compare_chunks
from tests.bench.commits import measure_commits
from tests.bench.figures import Spread
from tests.bench.lists import measure_lists
from tests.bench.mcp import compare_mcp
from tests.bench.processes import module, read_line, running
from tests.bench.report import Report
from tests.bench.sessions import restart, start, weigh_sessions
from tests.bench.soak import soak_briefly

_PATIENCE = 300.0
Scenario = Callable[[Bench, Report], Awaitable[None]]


async def translation(bench: Bench, report: Report) -> None:
    """translation alone: an event read and one said, beside their JSON, by each protocol"""
    effort = bench.effort
    command = module("tests.bench.translation", str(effort.seconds / 10), str(effort.repetitions))
    log = bench.folder / "translation.log"
    async with running(*command, cores=bench.cores.subject, log=log) as process:
        found = await read_line(process, log, within=_PATIENCE)
    ratios = {name: [said["codec_alone"] / said["json_alone"] for said in turns] for name, turns in found.items()}
    report.judge("T11", "slowest", max(ratios.values(), key=lambda values: Spread.of(values).median))
    for name, turns in found.items():
        report.note_value(
            "T11", name, what=f"{name}: decode and encode / the JSON alone", value=Spread.of(ratios[name])
        )
        micros = Spread.of([said["translation"] for said in turns])
        report.note_value(
            "T11", f"{name}_us", what=f"{name}: µs with their JSON, {turns[0]['bytes']} bytes", value=micros
        )


SCENARIOS: Mapping[str, Scenario] = {
    "T9": weigh_sessions,
    "T10": compare_streams,
    "T11": translation,
    "T12": soak_briefly,
    "T14": compare_chunks,
    "T15": restart,
    "T16": measure_commits,
    "T17": compare_mcp,
    "T20": measure_lists,
    "T22": start,
    "T23": weigh_agent_servers,
    "T24": compare_agent_servers,
}
"""By the name that `--only` takes; T16 is a load as well."""
