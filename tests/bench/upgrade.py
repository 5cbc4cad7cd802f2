"""Measure an upgrade from 0.2.0: `python -m tests.bench.upgrade 1000000` fills a database and starts a gateway on it.

It prints the seconds from the start of the process to `/readyz` 200. Only the first start migrates the database.
"""

import argparse
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from random import randbytes
from uuid import uuid4

import httpx

from tests.ports import free_port

DUMP = Path(__file__).parents[1] / "engines/release_0_2_0_sqlite.sql"
PATIENCE = 3600.0
_CONFIGURATION = """\
runtimes: {{finn: {{adapter: huma-0.2, url: "http://127.0.0.1:{runtime}", api_key: key, agent_id: finn}}}}
executors: {{cards: {{type: static, result: done}}}}
routes: [{{match: {{tool: "*"}}, to: cards}}]
engine: {{type: sqlite, path: {database}}}
retention: {{closed_age: 3650d}}
"""
_FILL = """\
CREATE TEMP TABLE numbers (i INTEGER PRIMARY KEY);
WITH RECURSIVE counted (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n < 1999) INSERT INTO numbers
    SELECT n FROM counted;
CREATE TEMP TABLE filled AS SELECT i AS session, uuid() AS filled_id FROM numbers WHERE i < sessions();
INSERT INTO sessions SELECT NULL, filled_id, runtime, protocol, 'filled-' || session, 'closed', labels, 4001, 1,
    fence, 1400000, NULL, opened_at, updated_at, NULL FROM filled, sessions WHERE native_id = 'finn';
INSERT INTO calls SELECT NULL, uuid(), filled_id, runtime, 'call-' || i, 0, tool, args_sha, state, attempt, created_at,
    deadline_at, 2 * i + 2, executor, key, due_at, canceling_until, 2 * i + 3, outcome_sha, unknown, error,
    redrive_of, deliver, finished_at, dead, late, progressed
    FROM filled, numbers, (SELECT * FROM calls WHERE native_call_id = 'done') AS template;
INSERT INTO events SELECT filled_id, 1, ulid(), kind, direction, dedupe_key, recorded_at, body, about
    FROM filled, (SELECT * FROM events WHERE kind = 'session.opened' LIMIT 1) AS template;
INSERT INTO events SELECT filled_id, 2 * i + 2, ulid(), kind, direction, dedupe_key, recorded_at, body, about
    FROM filled, numbers, (SELECT * FROM events WHERE kind = 'tool.requested' LIMIT 1) AS template;
INSERT INTO events SELECT filled_id, 2 * i + 3, ulid(), kind, direction, dedupe_key, recorded_at, body, about
    FROM filled, numbers, (SELECT * FROM events WHERE kind = 'tool.finished' LIMIT 1) AS template;
INSERT INTO outbound SELECT filled_id, 2 * i + 3, target, lane, state, attempt, due_at, reason, created_at
    FROM filled, numbers, (SELECT * FROM outbound WHERE target = 'runtime' AND state = 'delivered') AS template;
"""
"""Repeats the completed call of the recorded database, 2,000 times a session."""


def fill(database: Path, calls: int) -> None:
    """Write a database of 0.2.0 with so many completed calls, in closed sessions."""
    with closing(sqlite3.connect(database)) as connection:
        connection.create_function("uuid", 0, lambda: str(uuid4()))
        connection.create_function("ulid", 0, lambda: f"01M81QT3Z4{randbytes(8).hex().upper()}")
        connection.create_function("sessions", 0, lambda: -(-calls // 2_000))
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;" + DUMP.read_text() + _FILL)


def seconds_until_ready(folder: Path) -> float:
    """Start a gateway, wait until it is ready, and stop it."""
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "--config", "gateway.yaml", "--port", str(port)]
    with (folder / "gateway.log").open("ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            while time.monotonic() - began < PATIENCE:
                if process.poll() is not None:
                    raise SystemExit(f"the gateway ended with {process.returncode}; see {log.name}")
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5, trust_env=False).status_code == 200:
                        return time.monotonic() - began
                except httpx.TransportError:
                    pass
                time.sleep(0.02)
            raise SystemExit(f"the gateway was not ready within {PATIENCE:.0f} s; see {log.name}")
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Print the figures of one upgrade."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("calls", type=int, nargs="?", default=100_000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        database = folder / "dragoman.db"
        fill(database, calls)
        (folder / "gateway.yaml").write_text(_CONFIGURATION.format(runtime=free_port(), database=database))
        sys.stdout.write(f"{calls:,} calls, {database.stat().st_size / 1e6:,.0f} MB of 0.2.0\n")
        sys.stdout.write(f"first start, with the migration: ready after {seconds_until_ready(folder):.1f} s\n")
        sys.stdout.write(f"second start: ready after {seconds_until_ready(folder):.1f} s\n")


if __name__ == "__main__":
    main()
