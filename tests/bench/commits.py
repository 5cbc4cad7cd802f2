"""T16: the floor of a call on PostgreSQL, two commits by hand."""

import asyncio
import sys
import time
from statistics import median

import asyncpg
import orjson

from tests.bench.bench import Bench
from tests.bench.figures import Spread
from tests.bench.processes import module, read_line, running
from tests.bench.report import Report
from tests.bench.targets import POSTGRES, POSTGRES_C1
from tests.engines.postgres_server import drop_schema, find_dsn, new_schema

_PAIRS = 200
_ROW = b"x" * 800


async def measure_commits(bench: Bench, report: Report) -> None:
    """calls on PostgreSQL, and two commits, one after the other, by asyncpg alone"""
    dsn = find_dsn()
    if dsn is None:
        return
    calls = await bench.compare(POSTGRES_C1, [POSTGRES])
    schema = new_schema()
    log = bench.folder / "commits.log"
    try:
        command = module("tests.bench.commits", dsn, schema, str(bench.effort.repetitions))
        async with running(*command, cores=bench.cores.subject, log=log) as process:
            found = await read_line(process, log)
    finally:
        await drop_schema(schema, server=dsn)
    report.note_value("T16", "commits_ms", what="ms for two commits by asyncpg alone", value=Spread.of(found["ms"]))
    floor = median(found["ms"])
    report.judge("T16", "commits", [one.p50 * 1000 / floor for one in calls.taken[POSTGRES]])


async def _commit(dsn: str, schema: str, turns: int) -> list[float]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".rows (id bigserial, body bytea)')
        statement = await connection.prepare(f'INSERT INTO "{schema}".rows (body) VALUES ($1)')  # noqa: S608 -- a name of ours
        found: list[float] = []
        for _ in range(turns):
            took: list[float] = []
            for _ in range(_PAIRS):
                begun = time.perf_counter()
                await statement.fetch(_ROW)
                await statement.fetch(_ROW)
                took.append(time.perf_counter() - begun)
            found.append(median(took) * 1000)
        return found
    finally:
        await connection.close()


if __name__ == "__main__":
    dsn, schema, turns = sys.argv[1:4]
    sys.stdout.write(orjson.dumps({"ms": asyncio.run(_commit(dsn, schema, int(turns)))}).decode() + "\n")
