"""The gateway on PostgreSQL, as one process and as two that share it, beside SQLite and the floor."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.bench import figures
from tests.bench.bench import Bench
from tests.bench.figures import Workload
from tests.bench.report import Report
from tests.bench.subjects import Subject, configure, gateway, open_sessions, settle
from tests.bench.targets import C1, C64
from tests.engines.postgres_server import drop_schema, find_dsn, new_schema

SESSIONS = 16
_SHARE = SESSIONS // 2


async def compare_engines(bench: Bench, report: Report) -> None:
    """the store: PostgreSQL with one gateway and with two, beside SQLite, over 16 sessions"""
    dsn = find_dsn()
    if dsn is None:
        report.notes.append("PostgreSQL was left out: there is no server and none can be started")
        return
    schemas = [new_schema(), new_schema()]
    try:
        async with (
            bench.gateway(sessions=SESSIONS) as sqlite,
            _on_postgres(bench, "postgres", dsn, schemas[0], sessions=SESSIONS) as one,
            _two_on_postgres(bench, dsn, schemas[1]) as two,
        ):
            floor = await bench.floor("httpx")
            assert floor is not None, "httpx runs everywhere"
            for workload in (_over_sessions(C1), _over_sessions(C64)):
                series = await bench.take_turns(workload, (sqlite, one, two, floor))
                for subject in (sqlite, one, two):
                    key = f"{subject.name}_c{workload.window}"
                    report.note_value(
                        "engines", key, what=f"calls/s, {workload.name}", value=series.of(subject.name, figures.rate)
                    )
                    latency = series.of(subject.name, lambda taken: taken.p50 * 1000)
                    report.note_value("engines", f"{key}_p50", what=f"ms at p50, {workload.name}", value=latency)
    finally:
        for schema in schemas:
            await drop_schema(schema, server=dsn)


def _over_sessions(workload: Workload) -> Workload:
    return replace(workload, name=f"{workload.name} over {SESSIONS} sessions, by store", sessions=SESSIONS)


def _settings(bench: Bench, name: str, dsn: str, schema: str) -> dict[str, Any]:
    engine = {"type": "postgres", "dsn": dsn, "schema": schema}
    return configure(bench.new_folder(), bench.peers, name=name, engine=engine)


@asynccontextmanager
async def _on_postgres(bench: Bench, name: str, dsn: str, schema: str, *, sessions: int) -> AsyncGenerator[Subject]:
    settings = _settings(bench, name, dsn, schema)
    run = gateway(
        bench.new_folder(), bench.peers, cores=bench.cores.subject, sessions=sessions, settings=settings, name=name
    )
    async with run as subject:
        await settle(subject)
        yield subject


@asynccontextmanager
async def _two_on_postgres(bench: Bench, dsn: str, schema: str) -> AsyncGenerator[Subject]:
    """Let each of two gateways carry half of the sessions; the processor time told is that of the first."""
    name = "two on postgres"
    async with (
        _on_postgres(bench, name, dsn, schema, sessions=_SHARE) as first,
        _on_postgres(bench, name, dsn, schema, sessions=1) as second,
    ):
        others = [f"{name}-{number}" for number in range(_SHARE, SESSIONS)]
        # Who opens a session carries it.
        await open_sessions(second.url, others)
        await bench.peers.ask("connected", agents=others, patience=30)
        agents = [agent for pair in zip(first.agents, others, strict=True) for agent in pair]
        yield replace(first, agents=agents)
