"""T9: what an idle session costs in memory."""

from tests.bench.bench import Bench
from tests.bench.figures import KIB
from tests.bench.report import Report
from tests.bench.subjects import open_sessions, settle
from tests.bench.targets import Goal
from tests.bench.usage import resident_bytes


async def weigh_sessions(bench: Bench, report: Report) -> None:
    """memory per idle runtime session, and of a gateway with 2,000 of them"""
    count = bench.effort.sessions
    async with bench.gateway() as subject:
        before = resident_bytes(subject.pid)
        agents = [f"gateway-{number}" for number in range(count)]
        await open_sessions(subject.url, agents[1:])
        await bench.peers.ask("connected", agents=agents, patience=30, within=60)
        await settle(subject)
        after = resident_bytes(subject.pid)
    each = (after - before) / (count - 1) / KIB
    report.judge("T9", "kib_per_session", what="KiB per idle session", value=each, goal=Goal(35, 20, "less"))
    what = f"MiB of RSS with {count:,} idle sessions"
    report.judge("T9", "rss_mib", what=what, value=after / KIB**2, goal=Goal(150, 100, "less"))
    report.note_value("T9", "rss_mib_of_one", what="MiB of RSS with one idle session", value=before / KIB**2)
