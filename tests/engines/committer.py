"""A process of its own that commits to a SQLite database and prints what was acknowledged; it is there to be killed."""

import asyncio
import os
import signal
import sqlite3
import sys
from itertools import count
from pathlib import Path
from typing import Any

from gateway.errors import EngineLocked
from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.store.sqlite import SqliteEngine, writer
from gateway.store.step import RUNTIME, Enqueue, SendChange, Step
from gateway.testing.conformance.engine_words import FakeClock, answered, asked, call, open_session, settled


def tell(session_id: SessionId, sequence: int) -> None:
    sys.stdout.write(f"{session_id} {sequence}\n")
    sys.stdout.flush()


async def commit_for_ever(engine: Engine, session_id: SessionId) -> None:
    row = await open_session(engine, session_id)
    for number in count(row.last_sequence):
        name = f"{session_id}-{number}"
        opened = call(name, native_call_id=name)
        done = await engine.commit(Step(session_id, (asked(name, dedupe_key=name),), calls=(opened,)))
        tell(session_id, done.last_sequence)
        outcome = Step(session_id, (answered(name),), calls=(settled(name),), sends=(Enqueue(0, RUNTIME),))
        done = await engine.commit(outcome)
        tell(session_id, done.last_sequence)
        await engine.commit(Step(session_id, send_changes=(SendChange(done.last_sequence, RUNTIME, "delivered", 1),)))


async def ask_for_ever(engine: Engine) -> None:
    while True:
        assert (await engine.health()).writable
        await asyncio.sleep(0.01)


async def commit_in_groups(engine: Engine) -> None:
    """Commit of eight sessions at once, again and again, and say when the disk has all of the first and of the last."""
    sessions = [SessionId(f"s-{number}") for number in range(8)]
    for session_id in sessions:
        await open_session(engine, session_id)
    for number in range(21):
        await asyncio.gather(*(engine.commit(Step(session_id, (asked(str(number)),))) for session_id in sessions))
        if number in {0, 20}:
            sys.stdout.write("end\n" if number else "begin\n")
            sys.stdout.flush()


def die_in_a_commit(tick: int) -> None:
    """Let the process kill itself in the thirtieth transaction that writes events.

    SQLite counts its instructions: the process dies at the given tick, and at COMMIT at the latest.
    """
    opened, left = writer.open_writer, tick

    def open_writer(path: Path, **more: Any) -> sqlite3.Connection:
        connection = opened(path, **more)
        inside, before = False, 30

        def die() -> None:
            os.write(1, b"in a commit\n")
            os.kill(os.getpid(), signal.SIGKILL)

        def count_down() -> int:
            nonlocal left
            left -= 1
            if not left:
                die()
            return 0

        def saw(statement: str) -> None:
            nonlocal inside, before
            if inside and statement == "COMMIT":
                die()
            before -= statement.startswith("INSERT INTO events")
            if not before and not inside:
                inside = True
                connection.set_progress_handler(count_down, 40)

        connection.set_trace_callback(saw)
        return connection

    writer.open_writer = open_writer


async def main(path: Path, mode: str) -> int:
    mode, _, tick = mode.partition(":")
    if mode == "die":
        die_in_a_commit(int(tick))
    try:
        async with SqliteEngine(path, FakeClock()) as engine:
            if mode == "groups":
                await commit_in_groups(engine)
            elif mode != "once":
                committing = [commit_for_ever(engine, SessionId(f"s-{n}")) for n in range(8)]
                watching = [ask_for_ever(engine)] if mode == "watched" else []
                await asyncio.gather(*committing, *watching)
    except EngineLocked as exc:
        sys.stdout.write(f"{exc}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2])))
