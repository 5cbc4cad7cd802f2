"""A process that opens a SQLite database, looks into it and closes it, as an operator's tools do."""

import subprocess
import sys
from pathlib import Path

_LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM events").fetchone()
connection.close()
"""


def look_and_close(path: Path) -> None:
    subprocess.run([sys.executable, "-c", _LOOK, str(path)], check=True, timeout=30)
