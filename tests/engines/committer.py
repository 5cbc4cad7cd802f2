"""A process of its own that commits to a SQLite database and prints what was acknowledged; it is there to be killed."""

import asyncio
import sys
from itertools import count
from pathlib import Path

from gateway.errors import EngineLocked
from gateway.events import SessionId
from gateway.store.port import Engine
from gateway.store.sqlite import SqliteEngine
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


async def main(path: Path, mode: str) -> int:
    try:
        async with SqliteEngine(path, FakeClock()) as engine:
            if mode != "once":
                committing = [commit_for_ever(engine, SessionId(f"s-{n}")) for n in range(8)]
                watching = [ask_for_ever(engine)] if mode == "watched" else []
                await asyncio.gather(*committing, *watching)
    except EngineLocked as exc:
        sys.stdout.write(f"{exc}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2])))
