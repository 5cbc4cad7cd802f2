"""Kills the migration of a database at each of its steps, and looks at the files that are left.

    python -m tests.engines.migration_killer FOLDER

FOLDER holds `dragoman.db`, its `-wal` and `expected.json`. Each attempt is a process of its own that gets SIGKILL
before a statement, or before it opens or renames a file. Prints the number of attempts and what they have left.
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from gateway.store.sqlite.backup import migrate
from gateway.store.sqlite.schema import NEWEST
from tests.scenarios.killed import digest

_FILES = {"open", "os.rename"}


def _die_before(step: int) -> None:
    """Let this process kill itself before a step of what it does with files and databases."""
    left = step

    def count_down(_: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event in _FILES and "dragoman.db" in str(args[0]):
            count_down(event)

    connect = sqlite3.connect

    def connect_traced(*args: Any, **more: Any) -> sqlite3.Connection:
        connection = connect(*args, **more)
        connection.set_trace_callback(count_down)
        return connection

    sys.addaudithook(hear)
    # There is no other way to hear of statements; this process is there to be killed.
    sqlite3.connect = connect_traced


def _migrate_until(database: Path, step: int) -> bool:
    """Migrate in a process that dies before a step; false if it came to its end."""
    child = os.fork()
    if not child:
        _die_before(step)
        migrate(database)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, f"the migration failed at step {step}"
    return False


def _schema(path: Path) -> int:
    """Read the schema of a database that must be sound."""
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)], f"{path.name} is damaged"
        return file.execute("PRAGMA user_version").fetchone()[0]


def _check(database: Path, before: int, expected: dict[str, Any], *, go_on: bool) -> int:
    """Look at what a killed migration has left, migrate that too, and return the schema that was left."""
    copy = database.with_name("dragoman.db.before-0.3")
    if copy.exists():
        assert _schema(copy) == before
    # A process that opens it as the next start does.
    found = _schema(database)
    assert found in {before, NEWEST}
    if found == NEWEST:
        assert copy.exists()
        assert digest(database, migrated=True) == expected
    if go_on:
        migrate(database)
        assert digest(database, migrated=True) == expected
    return found


def main(folder: Path) -> int:
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["tables"]
    step, left = 1, {6: 0, NEWEST: 0}
    while True:
        work = folder / "work"
        work.mkdir()
        for name in ("dragoman.db", "dragoman.db-wal"):
            shutil.copy(folder / name, work / name)
        died = _migrate_until(work / "dragoman.db", step)
        left[_check(work / "dragoman.db", 6, expected, go_on=step % 10 == 0)] += 1
        shutil.rmtree(work)
        if not died:
            break
        step += 1
    print(json.dumps({"steps": step, "old": left[6], "new": left[NEWEST]}))  # noqa: T201 - what the test reads
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
