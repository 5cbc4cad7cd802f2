"""Death in a transaction, torn pages of the write-ahead log, and the syncs of a group commit."""

import asyncio
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.events import SessionId
from gateway.store.rows import CallFilter, Page
from gateway.store.sqlite import SqliteEngine
from gateway.store.step import RUNTIME, Enqueue, Step
from gateway.testing.conformance.engine_words import (
    ALICE,
    BOB,
    FakeClock,
    answered,
    asked,
    call,
    journal,
    open_session,
    row_of,
    said,
    settled,
    texts,
)

HERE = Path(__file__).parent
SESSIONS = [SessionId(f"s-{number}") for number in range(8)]
SECTOR = 512


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dragoman.db"


async def agrees(engine: SqliteEngine, session_id: SessionId) -> int:
    """Hold a session's events, calls and sends to each other; answers its last sequence."""
    row = await row_of(engine, session_id)
    kept = await journal(engine, session_id)
    assert [one.sequence for one in kept] == list(range(1, row.last_sequence + 1))
    calls, _ = await engine.calls(CallFilter(session_id=session_id), Page(100_000))
    requests = {one.sequence for one in kept if one.event.kind == "tool.requested"}
    outcomes = {one.sequence for one in kept if one.event.kind == "tool.finished"}
    assert {one.request_sequence for one in calls} == requests
    assert {one.outcome_sequence for one in calls if one.state == "succeeded"} == outcomes
    for sequence in outcomes:
        assert [send.target for send in await engine.sends_of(session_id, sequence)] == [RUNTIME]
    return row.last_sequence


# Death in a commit


def die_in_a_commit(path: Path, tick: int) -> dict[SessionId, int]:
    """Commit in a process that kills itself in a transaction; returns the acknowledged sequences."""
    command = [sys.executable, str(HERE / "committer.py"), str(path), f"die:{tick}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode < 0
    # The other thread still reports for a moment.
    assert said.count("in a commit\n") == 1
    told: dict[SessionId, int] = {}
    for line in said.replace("in a commit\n", "").splitlines():
        session_id, sequence = line.split()
        told[SessionId(session_id)] = int(sequence)
    return told


@pytest.mark.faults
async def test_death_in_a_transaction_loses_no_acknowledged_step(path: Path) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        for session_id in SESSIONS:
            await open_session(engine, session_id)
    jitter = random.Random(7)
    # From its first statement to its COMMIT, where the processes end whose tick comes too late.
    for tick in [1, *(jitter.randint(2, 60) for _ in range(8)), 1_000_000]:
        told = await asyncio.to_thread(die_in_a_commit, path, tick)
        assert told.keys() == set(SESSIONS)
        async with SqliteEngine(path, FakeClock()) as engine:
            for session_id, sequence in told.items():
                assert await agrees(engine, session_id) >= sequence


# A commit that was under way when the power failed


def after_power_loss(before: bytes, after: bytes, jitter: random.Random) -> bytes:
    """Say what a disk may hold of what was written and not synced: each sector old, new, empty or rubbish."""
    # What was synced into the same sector before stays: no disk that databases are used on spoils it.
    start = next(at for at in range(len(after)) if after[at : at + 1] != before[at : at + 1])
    found = bytearray(after[:start])
    whole = jitter.random()
    while (at := len(found)) < len(after):
        new = after[at : at + SECTOR - at % SECTOR]
        old = before[at : at + len(new)].ljust(len(new), b"\0")
        fate = jitter.choice(["old", "empty", "rubbish"]) if jitter.random() > whole else "new"
        found += {"old": old, "empty": bytes(len(new)), "rubbish": jitter.randbytes(len(new)), "new": new}[fate]
    return bytes(found[: jitter.randint(start, len(found))] if jitter.random() < 0.3 else found)


async def take(path: Path) -> bytes:
    """Read SQLite's own log as the disk would hold it, synced up to here."""
    return await asyncio.to_thread(path.with_name(path.name + "-wal").read_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True], ids=["a growing log", "a log that is written over"])
async def test_a_commit_that_the_power_cut_short_is_there_or_not_and_never_torn(path: Path, wrapped: bool) -> None:
    async with SqliteEngine(path, FakeClock()) as engine:
        for session_id in (ALICE, BOB):
            await open_session(engine, session_id)
        if wrapped:
            await engine.commit(Step(BOB, tuple(said("earlier" * 400) for _ in range(40))))
            # What follows begins the log anew, over pages that were valid.
            assert await asyncio.to_thread(moved, path)
        last = 0
        for number in range(6):
            name = f"c-{number}"
            await engine.commit(Step(ALICE, (asked(name),), calls=(call(name, native_call_id=name),)))
            outcome = Step(ALICE, (answered(name),), calls=(settled(name),), sends=(Enqueue(0, RUNTIME),))
            last = (await engine.commit(outcome)).last_sequence
        before, tables = await take(path), await asyncio.to_thread(path.read_bytes)
        await asyncio.gather(*(engine.commit(Step(BOB, (said(f"{n}" * 3_000),))) for n in range(5)))
        after = await take(path)
        assert tables == await asyncio.to_thread(path.read_bytes)
        words = len(await texts(engine, BOB))
    copy = path.with_name("copy.db")
    seen: set[object] = set()
    for seed in range(25):
        copy.write_bytes(tables)
        # Once all of it has reached the disk.
        found = after_power_loss(before, after, random.Random(seed)) if seed else after
        copy.with_name("copy.db-wal").write_bytes(found)
        copy.with_name("copy.db-shm").unlink(missing_ok=True)
        async with SqliteEngine(copy, FakeClock()) as engine:
            assert await agrees(engine, ALICE) == last
            seen.add(len(await texts(engine, BOB)))
            await engine.commit(Step(BOB, (said("more"),)))
        async with SqliteEngine(copy, FakeClock()) as engine:
            assert (await texts(engine, BOB))[-1] == "more"
    assert seen == {words - 5, words}


def moved(path: Path) -> bool:
    """Move all that SQLite's log holds into the file."""
    command = [
        sys.executable,
        "-c",
        "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])",
    ]
    done = subprocess.run(
        [*command, str(path), "PRAGMA wal_checkpoint(FULL)"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "0"


# Syncs


def cannot(reason: str) -> NoReturn:
    """Leave the test out, or fail where nothing may be left out."""
    if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
        pytest.fail(reason)
    pytest.skip(reason)


async def test_a_group_of_commits_costs_one_sync_of_the_disk(path: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        cannot("syncs are counted by strace: apt-get install strace")
    trace = tmp_path / "trace"
    program = [sys.executable, str(HERE / "committer.py"), str(path), "groups"]
    command = ["strace", "-f", "-qq", "-o", str(trace), "-e", "trace=fdatasync,fsync,msync,sync,syncfs,write", *program]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    if "ptrace" in done.stderr and done.returncode:
        cannot(f"this machine lets us trace nothing: {done.stderr.strip()}")
    assert done.stdout.split() == ["begin", "end"]
    told = trace.read_text(encoding="utf-8")
    between = told[told.index('write(1, "begin') : told.index('write(1, "end')]
    # One that another thread's call has interrupted in the trace is told again as resumed.
    syncs = re.findall(r"^\d+\s+(fdatasync|fsync|msync|sync|syncfs)\(", between, re.MULTILINE)
    assert syncs == ["fdatasync"] * 20
