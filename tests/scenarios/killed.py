"""A database of release 0.2.0 whose gateway was killed under load, with its write-ahead log.

    python -m tests.scenarios.killed

writes it anew. `expected.json` beside it is what that release itself reads from the same files.
"""

import asyncio
import json
import lzma
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.scenarios.releases import OFTEN, Release, build
from tests.scenarios.replica_processes import Serving
from tests.scenarios.upgrade import upgrade, write

COMMIT = "646d044b22871308653716d383eaf3d0a6e49572"
ARCHIVE = Path(__file__).parents[1] / "engines" / "killed_0_2_0.tar.xz"
HELD = "held: the runtime has not started yet"
_WRITERS, _SECONDS = 8, 3.0
_HEADER, _FRAME = 32, 24 + 2_048

_TABLES = {
    "sessions": "session_id, runtime, protocol, native_id, state, labels, last_seq, min_seq, fence, owner, size,"
    " cursor, opened_at, updated_at FROM sessions ORDER BY id",
    "snapshots": "{name}, snapshot FROM snapshots t ORDER BY 1",
    "events": "{name}, seq, event_id, kind, direction, dedupe_key, recorded_at, body, about FROM events t"
    " ORDER BY 1, 2",
    "calls": "id, call_id, {name}, runtime, native_call_id, n, tool, args_sha, state, attempt, created_at, deadline_at,"
    " request_seq, executor, key, due_at, canceling_until, outcome_seq, outcome_sha, unknown, error, redrive_of,"
    " deliver, finished_at, dead, late, progressed FROM calls t ORDER BY id",
    "outbound": "{name}, seq, target, lane, state, due_at, created_at, CASE WHEN {waits} THEN 0 ELSE attempt END,"
    " CASE WHEN {waits} THEN NULL ELSE reason END FROM outbound t ORDER BY 1, 2, 3",
    "started": "{name}, seq, {started} FROM outbound t WHERE {waits} ORDER BY 1, 2",
    "interactions": "interaction_id, {name}, kind, state, request_seq, expires_at, answered_by FROM interactions t"
    " ORDER BY 1",
    "idempotency": "* FROM idempotency ORDER BY 1, 2",
    "notes": "* FROM notes ORDER BY 1",
}


def digest(path: Path, *, migrated: bool) -> dict[str, Any]:
    """Count the rows of each table, and hash them."""
    words = {
        "name": "(SELECT session_id FROM sessions WHERE id = t.session_id)" if migrated else "t.session_id",
        "waits": "target = 'runtime' AND state = 'pending'",
        "started": "attempt" if migrated else f"reason IS NOT '{HELD}'",
    }
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(path)) as file:
        for table, text in _TABLES.items():
            rows = file.execute("SELECT " + text.format(**words)).fetchall()
            found[table] = [len(rows), sha256(repr(rows).encode()).hexdigest()]
    return found


def load(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack the database with its log, and what is expected of it."""
    with lzma.open(ARCHIVE) as packed, tarfile.open(fileobj=packed) as files:
        files.extractall(folder, filter="data")
    return folder / "dragoman.db", json.loads((folder / "expected.json").read_text(encoding="utf-8"))


async def _make(folder: Path) -> None:
    release = release_0_2_0()
    assert release is not None, "the commit of release 0.2.0 is missing: git fetch --unshallow"
    acknowledged: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def work(one: Serving) -> None:
        session_id = await one.session("finn")

        async def post(number: int) -> None:
            for count in range(1_000):
                event = {"kind": "context.updated", "name": f"w{number}", "context": {"n": count}}
                answer = await one.http.post(f"/v1/sessions/{session_id}/events", json=event)
                acknowledged.extend(row["event_id"] for row in answer.json()["data"])

        tasks.extend(asyncio.create_task(post(number)) for number in range(_WRITERS))
        # The load lasts longer than that release lets its tables lag, so that they have a part of it.
        await asyncio.wait(tasks, timeout=_SECONDS)

    source = folder / "kept.db"
    async with upgrade(folder / "gateway", {"type": "sqlite", "path": str(source)}) as here:
        await write(here, release, before_kill=work)
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(_pack, folder, source, release, acknowledged)


def _pack(folder: Path, source: Path, release: Release, acknowledged: list[str]) -> None:
    database = folder / "dragoman.db"
    database.write_bytes(source.read_bytes())
    # The log was made longer with zeros, at which SQLite ends it: a header, and frames of a page each.
    log = source.with_name("kept.db-wal").read_bytes().rstrip(b"\0")
    database.with_name("dragoman.db-wal").write_bytes(log + bytes(-(len(log) - _HEADER) % _FRAME))
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy.db"
        for side in ("", "-wal"):
            copy.with_name(f"copy.db{side}").write_bytes(database.with_name(f"dragoman.db{side}").read_bytes())
        program = "import sys; from pathlib import Path; from gateway.store.sqlite.schema import open_writer\n"
        program += "open_writer(Path(sys.argv[1]), replayed=print).close()"
        told = subprocess.run(
            [sys.executable, "-c", program, str(copy)], cwd=release.folder, capture_output=True, check=True, text=True
        )
        expected = {"steps": int(told.stdout), "acknowledged": acknowledged, "tables": digest(copy, migrated=False)}
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
    with lzma.open(ARCHIVE, "w") as packed, tarfile.open(fileobj=packed, mode="w") as files:
        for one in ("dragoman.db", "dragoman.db-wal", "expected.json"):
            files.add(folder / one, one)
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size} bytes, {expected['steps']} steps, {expected['tables']}\n")


def release_0_2_0() -> Release | None:
    """Build release 0.2.0; None if its commit is missing."""
    folder = build(COMMIT)
    return None if folder is None else Release(folder, OFTEN)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(_make(Path(made)))
