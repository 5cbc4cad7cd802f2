"""A process that opens a SQLite database, looks into it and closes it, as an operator's tools do."""

import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

_LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM events").fetchone()
connection.close()
"""


def look_and_close(path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LOOK, str(path)], check=True, timeout=30)


@contextmanager
def all_of(path: Path) -> Generator[sqlite3.Connection]:
    """Look into a copy of a database; the database stays as it is."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as source:
            source.backup(copy)
        yield copy
