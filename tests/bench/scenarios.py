"""What is measured under which name."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from tests.bench import figures
from tests.bench.bench import Bench, tell
from tests.bench.bursts import compare_streams
from tests.bench.engines import compare_engines
from tests.bench.figures import Workload
from tests.bench.idle import weigh_sessions
from tests.bench.processes import module, read_line, running
from tests.bench.report import Report
from tests.bench.slow_disk import missing
from tests.bench.soak import soak_briefly
from tests.bench.targets import C1, C16, C64, DELAYED, RATIOS, SIXTY_KB, TEN_KB, Goal

Scenario = Callable[[Bench, Report], Awaitable[None]]


def _ratios(name: str) -> Scenario:
    own = [ratio for ratio in RATIOS if ratio.name == name]

    async def scenario(bench: Bench, report: Report) -> None:
        for ratio in own:
            # All floors that any target wants under this workload are run together, in turn.
            floors = {other.floor for other in RATIOS if other.workload == ratio.workload}
            series = await bench.compare(ratio.workload, floors)
            value = series.ratio(ratio.metric, ratio.floor)
            if value is not None:
                report.judge(name, ratio.key, what=ratio.what, value=value, goal=ratio.goal)

    scenario.__doc__ = "; ".join(f"{ratio.workload.name}: {ratio.what}" for ratio in own)
    return scenario


async def translation(bench: Bench, report: Report) -> None:
    """translation alone: events read and said per second on one core, by each protocol"""
    command = module("tests.bench.translation", str(bench.effort.seconds))
    log = bench.folder / "translation.log"
    async with running(*command, cores=bench.cores.subject, log=log) as process:
        found = await read_line(process, log)
    slowest = min(said["alone"] for said in found.values())
    report.judge("T11", "slowest", what="events/s, slowest adapter", value=slowest, goal=Goal(25_000, 60_000))
    for name, said in found.items():
        report.note_value("T11", name, what=f"events/s of {said['bytes']} bytes, codec alone", value=said["alone"])
        report.note_value("T11", f"{name}_json", what="events/s, with their JSON", value=said["with_json"])


async def sessions(bench: Bench, report: Report) -> None:
    """growth with sessions: 64 in flight spread over 1, 256 and 2,000 of them"""
    one = await bench.compare(C64, {"httpx"})
    for count in (bench.effort.many, bench.effort.sessions):
        series = await bench.compare(_spread(C64, count), {"httpx"})
        report.note_value(
            "sessions", f"s{count}", what="calls/s at 64 in flight", value=series.of("gateway", figures.rate)
        )
        # The two were measured minutes apart; the floor beside each of them takes the machine's mood out.
        many, few = (found.ratio(figures.rate, "httpx") for found in (series, one))
        assert many is not None, "httpx runs everywhere"
        assert few is not None, "httpx runs everywhere"
        what = "of the calls/s over one session, each beside direct httpx"
        report.note_value("sessions", f"s{count}_beside_1", what=what, value=many.median / few.median)


def _spread(workload: Workload, count: int) -> Workload:
    return replace(workload, name=f"{workload.name} over {count:,} sessions", sessions=count)


async def payload(bench: Bench, report: Report) -> None:
    """growth with payload: 0.1, 10 and 60 KB at 16 in flight"""
    for workload in (C16, replace(TEN_KB, name="10 KB, 16 in flight", window=16), SIXTY_KB):
        floors = {"httpx"} if workload == SIXTY_KB else set[str]()
        series = await bench.compare(workload, floors)
        value = series.of("gateway", figures.rate)
        report.note_value("payload", f"{workload.size}B", what="calls/s at 16 in flight", value=value)


async def delay(bench: Bench, report: Report) -> None:
    """growth with the executor's delay: 0, 20 and 500 ms at 64 in flight"""
    for workload in (C64, DELAYED, replace(DELAYED, name="executor takes 500 ms, 64 in flight", delay=0.5)):
        series = await bench.compare(workload)
        added = series.of("gateway", lambda one, took=workload.delay: (one.p50 - took) * 1000)
        what = "ms at p50 beyond the executor's own, 64 in flight"
        report.note_value("delay", f"{workload.delay * 1000:g}ms", what=what, value=added)


async def disk(bench: Bench, report: Report) -> None:
    """a slow disk: each sync takes 1 and 5 ms longer"""
    if (reason := missing()) is not None:
        report.notes.append(f"the slow disk was left out: {reason}")
        return
    for sync_delay in (0.0, 0.001, 0.005):
        for workload in (C1, C64):
            name = f"{workload.name}, syncs +{sync_delay * 1000:g} ms" if sync_delay else workload.name
            series = await bench.compare(replace(workload, name=name, sync_delay=sync_delay))
            key = f"c{workload.window}_plus_{sync_delay * 1000:g}ms"
            if workload is C1:
                value = series.of("gateway", lambda one: one.p50 * 1000)
                report.note_value("disk", key, what="ms at p50, 1 in flight", value=value)
            else:
                value = series.of("gateway", figures.rate)
                report.note_value("disk", key, what="calls/s, 64 in flight", value=value)


async def ceiling(bench: Bench, report: Report) -> None:
    """the fake peers' own ceiling: hand-written protocols on both sides"""
    series = await bench.compare(replace(C64, name="64 in flight, beside the ceiling"), {"raw"})
    value = series.of("raw", figures.rate)
    report.note_value("ceiling", "c64", what="calls/s that the peers can play", value=value)
    tell(f"ceiling of the peers: {value} calls/s")


SCENARIOS: Mapping[str, Scenario] = {
    **{name: _ratios(name) for name in ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8")},
    "T9": weigh_sessions,
    "T10": compare_streams,
    "T11": translation,
    "T12": soak_briefly,
    "ceiling": ceiling,
    "sessions": sessions,
    "payload": payload,
    "delay": delay,
    "disk": disk,
    "engines": compare_engines,
}
"""By the name that `--only` takes."""
